"""The DAG of the nights: its structure, its form, its schedule and what it is told by the environment."""

from __future__ import annotations

import json
import subprocess
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException, ParamValidationError

from faultline.comparison.compare import metrics_named
from faultline.experiment.build import parse_build
from faultline.experiment.config import Configuration, parse_configuration
from faultline.experiment.matrix import control_of
from faultline.experiment.night_file import NIGHTLY
from faultline.lifecycle import environment
from faultline.orchestration import airflow_api as notes_of
from faultline.orchestration import sweep
from faultline.orchestration.nights import night_plan, nightly
from faultline.orchestration.nights.night_plan import night_cells, primary_of
from faultline.orchestration.nights.nightly import DEFAULT_SET, nightly_dags, no_regression
from faultline.records.record import Record
from faultline.system.errors import ConfigError
from faultline.system.settings import ROOT, Settings
from tests.unit.night_records import night_of, night_records, scheduled
from tests.unit.pages_store import put, record

NIGHT = "2026-11-21T02:00:00+00:00"


def cells(**params: Any) -> list[Any]:
    return night_cells({"set": DEFAULT_SET, "repetitions": None, "controls": 5, "baseline": None, **params}, NIGHT)


def test_queries_of_nexmark_and_chains_of_stages_fit_into_a_night() -> None:
    chosen = [{"workload": "nexmark", "query": query} for query in ("q0", "q5")]
    planned = cells(set=[*chosen, {"workload": "topology", "mechanisms": "all"}])
    names = [(cell.config.workload, cell.config.query) for cell in planned]
    assert [names.count(("nexmark", query)) for query in ("q0", "q5")] == [5, 5], "without a fault there is no control"
    assert len(planned) == 3 * 5 and {cell.series for cell in planned} == {NIGHT}
    assert [metric.key for metric in metrics_named(["rps_per_core"])] == ["rps_per_core"]


def test_a_night_is_planned_measured_aggregated_compared_and_judged(bag: Any) -> None:
    dag = bag.dags[NIGHTLY]
    chain = ["plan_night", "run_experiment", "aggregate", "compare_with_baseline", "no_regression"]
    for before, after in zip(chain, chain[1:], strict=False):
        assert after in dag.get_task(before).downstream_task_ids
    assert {task.task_id for task in dag.leaves} == {"tell_people", "require_success"}
    assert dag.get_task("tell_people").trigger_rule == "all_done", "also of what failed"
    assert dag.get_task("compare_with_baseline").trigger_rule == "all_done", "what was measured is compared"
    assert dag.get_task("run_experiment").max_active_tis_per_dagrun == 2


def test_a_night_is_planned_and_held_against_those_before_it(
    bag: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tasks themselves, with records of nights that were made up; the third one is slower."""
    settings, notes = Settings(tmp_path, tmp_path / "home", tmp_path / "results"), []
    for module in (nightly, night_plan, sweep):
        monkeypatch.setattr(module, "load_settings", lambda: settings)
    monkeypatch.setattr(notes_of, "write_note", lambda *said: notes.append(said))
    dag = bag.dags[NIGHTLY]
    params = {**dag.params.dump(), "metrics": ["latency_ms.p99"], "build": "b1", "repetitions": 1, "controls": 1}

    def as_night(number: int) -> None:
        night = datetime.fromisoformat(night_of(number))
        run_id, run = f"scheduled__{night.isoformat()}", scheduled(night)
        context = {"params": params, "dag": dag, "run_id": run_id, "logical_date": night, "dag_run": run}
        for module in (nightly, sweep):
            monkeypatch.setattr(module, "get_current_context", lambda: context)

    as_night(3)
    planned = nightly.plan_night.function()
    assert (
        {one["conf"]["logical_date"] for one in planned} == {night_of(3)} == {one["conf"]["series"] for one in planned}
    )
    assert {one["conf"]["sweep_id"] for one in planned} == {"20261103T020000"}
    put(settings.results, *night_records(1, 100), *night_records(2, 100), *night_records(3, 150))
    verdicts = {}
    for number in (2, 3):
        as_night(number)
        nightly.plan_night.function()
        verdicts[number] = nightly.compare_with_baseline.function()
    nightly.no_regression.function(verdicts[2])
    with pytest.raises(AirflowFailException, match=r"Latency p99 \(ms\): 100 \(n=10\) -> 147"):
        nightly.no_regression.function(verdicts[3])
    assert "worse" in notes[-1][-1] and notes[-1][1:3] == (NIGHTLY, f"scheduled__{night_of(3)}")
    kept = json.loads((settings.results / "nights" / "20261103T020000.json").read_text())
    assert kept["baseline"] == [night_of(1), night_of(2)] and kept["reasons"] == verdicts[3]["reasons"]
    params["limits"] = {"latency_ms.p99": 120}
    as_night(2)
    nightly.no_regression.function(nightly.compare_with_baseline.function())
    as_night(3)
    with pytest.raises(AirflowFailException, match=r"^beyond its limit: Latency p99: 147 ms .* worse than the nights"):
        nightly.no_regression.function(nightly.compare_with_baseline.function())
    kept = json.loads((settings.results / "nights" / "20261103T020000.json").read_text())
    assert kept["limits"] == params["limits"] and kept["summary"].startswith("1 beyond a limit; 1 worse")
    params["limits"] = {"latency_ms.p9": 120}
    with pytest.raises(AirflowFailException, match=r"limits\.latency_ms\.p9: no figure .* did you mean latency_ms\.p9"):
        nightly.plan_night.function()
    params["limits"] = None
    as_night(4)
    params["set"] = [{"workload": "known_truht"}]
    with pytest.raises(AirflowFailException, match=r"set\[0\]: workload: 'known_truht'"):
        nightly.plan_night.function()
    assert notes[-1][-1].startswith("**Nothing was planned.**") and "known\\_truht" in notes[-1][-1]
    with pytest.raises(AirflowSkipException, match="nothing was planned"):
        nightly.no_regression.function(nightly.compare_with_baseline.function())
    monkeypatch.setattr(nightly, "night_of_run", lambda: "2099-01-01T02:00:00+00:00")
    with pytest.raises(AirflowFailException, match="logical_date: 2099-01-01T02:00:00\\+00:00 has not come yet"):
        nightly.plan_night.function()


@pytest.mark.parametrize(
    ("told", "measured"),
    [
        ({"late_min": 120}, True),
        ({"late_min": 121}, False),
        ({"late_min": 121, "clear_number": 1}, True),
        ({"late_min": 121, "run_type": "backfill"}, True),
        ({"late_min": 121, "run_type": "manual"}, True),
    ],
)
def test_a_night_that_airflow_makes_up_for_by_itself_is_not_measured_amid_the_day(
    told: dict[str, Any], measured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = scheduled(datetime.fromisoformat(NIGHT), **told)
    monkeypatch.setattr(nightly, "get_current_context", lambda: {"dag_run": run})
    if measured:
        assert nightly.in_time(NIGHT) == NIGHT
    else:
        with pytest.raises(ConfigError, match=r"^logical_date: .* began 2 hours after it was due, .* clear this run"):
            nightly.in_time(NIGHT)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """An installation with a place for results, whose builds get names of two letters and what was asked of them."""
    settings = Settings(ROOT, tmp_path / "home", tmp_path / "results")
    for module in (nightly, night_plan, sweep):
        monkeypatch.setattr(module, "load_settings", lambda: settings)
    monkeypatch.setattr(
        environment, "installed_build", lambda _, build=None, configurations=(): "b0" if build else "b1"
    )
    monkeypatch.setattr(notes_of, "write_note", lambda *said: None)
    return settings


def beside(**params: Any) -> dict[str, Any]:
    form = {
        name: param["value"] if isinstance(param, dict) else param
        for name, param in nightly_dags()[NIGHTLY].params.dump().items()
    }
    return {**form, "set": [{"rate": 100, "fault": "none"}, {"rate": 200, "fault": "none"}], "baseline": {}, **params}


def as_night(monkeypatch: pytest.MonkeyPatch, dag: Any, params: dict[str, Any], number: int) -> None:
    night = datetime.fromisoformat(night_of(number))
    run_id, run = f"scheduled__{night.isoformat()}", scheduled(night)
    context = {"params": params, "dag": dag, "run_id": run_id, "logical_date": night, "dag_run": run}
    for module in (nightly, sweep):
        monkeypatch.setattr(module, "get_current_context", lambda: context)


def measured(planned: list[dict[str, Any]], slower: float, seed: int) -> list[Record]:
    """A record of each planned cell, some 2 % around 100 ms; tonight's build is so much slower."""
    made, rng = [], np.random.default_rng(seed)
    for number, one in enumerate(planned):
        conf = one["conf"]
        config = {name: conf[name] for name in Configuration.model_fields}
        p50 = 100 * (1 + 0.02 * rng.standard_normal()) * (1 if conf["series"].endswith(".baseline") else 1 + slower)
        found = record(
            f"{conf['sweep_id']}Z-{seed:02d}{number:04d}", sweep=conf["sweep_id"], matrix=NIGHTLY, build=conf["build"],
            series=conf["series"], latency={"p50": p50},
        )  # fmt: skip
        update = {name: conf[name] for name in ("repetition", "logical_date")}
        config_id = parse_configuration(config).config_id
        made.append(found.model_copy(update={**update, "config": config, "config_id": config_id}))
    return made


def test_a_night_beside_a_baseline_is_measured_in_pairs_and_two_that_agree_are_red(
    bag: Any, installed: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    dag, params, verdicts = bag.dags[NIGHTLY], beside(), {}
    for number, slower in ((1, 0.0), (2, 0.03), (3, 0.03)):
        as_night(monkeypatch, dag, params, number)
        planned = nightly.plan_night.function()
        assert len(planned) == 2 * 2 * nightly.PAIRS and len({one["trigger_run_id"] for one in planned}) == len(planned)
        for a, b in zip(planned[::2], planned[1::2], strict=True):
            assert a["conf"]["rate"] == b["conf"]["rate"] and a["conf"]["repetition"] == b["conf"]["repetition"]
            assert {one["conf"]["series"] for one in (a, b)} == {night_of(number), f"{night_of(number)}.baseline"}
            assert {one["conf"]["build"] for one in (a, b)} == {"b0", "b1"}
            assert abs(len(a["cell"]) - len(b["cell"])) == len(", baseline")
        specs = [one["conf"].get("build_spec") for one in planned]
        assert specs.count({"revision": None, "settings": {}}) == specs.count(None) == len(planned) / 2
        put(installed.results, *measured(planned, slower, number))
        verdicts[number] = nightly.compare_with_baseline.function()
    nightly.no_regression.function(verdicts[1])
    assert verdicts[1]["summary"].startswith("green: 3 no change seen; beside the baseline b0")
    kept = json.loads((installed.results / "nights" / "20261102T020000.json").read_text())
    assert (
        kept["schema"] == 2
        and kept["baseline"] == {"build": "b0", "spec": "the checkout"}
        and len(kept["visible"]) == 2
    )
    with pytest.raises(
        AirflowFailException, match=r"worse than the baseline: .*since 2026-11-02 \(2 nights in a row\)"
    ):
        nightly.no_regression.function(verdicts[3])


def test_a_baseline_that_did_not_run_shuts_the_gate_for_its_own_reason_and_loses_nothing(
    bag: Any, installed: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_night(monkeypatch, bag.dags[NIGHTLY], beside(), 1)
    planned = nightly.plan_night.function()
    found = measured(planned, 0.0, 1)
    reasons = ["InfrastructureError: workload: the driver died"]
    broken = [
        one.model_copy(update={"status": "failed", "reasons": reasons}) if one.series.endswith(".baseline") else one
        for one in found
    ]
    put(installed.results, *broken)
    verdict = nightly.compare_with_baseline.function()
    with pytest.raises(AirflowFailException, match="^the baseline did not run: InfrastructureError: workload: the dri"):
        nightly.no_regression.function(verdict)
    put(installed.results, *found[:8], *[one.model_copy(update={"status": "unsound"}) for one in found[8:]])
    with pytest.raises(AirflowFailException, match="rate .*: . of 15 pairs are usable, and fewer than 8 cannot tell"):
        nightly.no_regression.function(nightly.compare_with_baseline.function())


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"repetitions": 7}, "repetitions: 7 pairs can tell nothing of 2 configurations; give 8 or more"),
        ({"primary": ["latency_ms.p5"]}, "primary: 'latency_ms.p5' is no figure .*did you mean latency_ms.p50"),
        ({"primary": ["latency_ms.p50"] * 3}, "primary: 3 figures for 2 configurations"),
        ({"baseline": None, "primary": ["latency_ms.p50"]}, "primary: judges pairs, and there is no baseline"),
        ({"baseline": {"revision": "no-such"}}, "baseline.revision: git knows no 'no-such'"),
        ({"baseline": {"settings": {"spark.executor.memory": "9g"}}},
         "baseline.settings.spark.executor.memory: is set by the experiment's configuration"),
        ({"baseline": {"settings": {"spark.x": "1"}}, "set": [{"workload": "known_truth"}]},
         "baseline: known_truth runs no programs"),
    ],
)  # fmt: skip
def test_a_baseline_that_cannot_be_is_refused_before_anything_is_measured(
    bag: Any, installed: Settings, monkeypatch: pytest.MonkeyPatch, params: dict[str, Any], said: str
) -> None:
    as_night(monkeypatch, bag.dags[NIGHTLY], beside(**params), 1)
    with pytest.raises(AirflowFailException, match=said):
        nightly.plan_night.function()
    assert not (installed.results / "sweeps").exists()


def test_each_configuration_has_the_figure_that_sees_most() -> None:
    configs = night_plan.night_configurations([{"fault": "none"}, {"fault": "executor"}, {"workload": "nexmark"}])
    chosen = primary_of(configs, None)
    assert list(chosen.values()) == ["latency_ms.p50", "cpu_s_per_million.engine", "rps_per_core"]
    assert set(primary_of(configs, ["latency_ms.p50"]).values()) == {"latency_ms.p50"}


def test_nights_are_due_at_two_paused_at_first_and_one_at_a_time(bag: Any) -> None:
    dag = bag.dags[NIGHTLY]
    assert dag.schedule.expression == "0 2 * * *"
    assert dag.is_paused_upon_creation is True
    assert (dag.catchup, dag.max_active_runs) == (False, 1)
    assert dag.allowed_run_types is None, "backfill is allowed"


def test_the_form_is_valid_as_it_shows_and_refuses_nonsense(bag: Any) -> None:
    params = bag.dags[NIGHTLY].params
    params.validate()
    for name, value in (("set", []), ("set", ["word_count"]), ("repetitions", 0), ("metrics", []), ("build", "a b")):
        with pytest.raises(ParamValidationError):
            params.get_param(name).resolve(value)


def test_each_configuration_has_its_controls_and_no_cell_is_planned_twice() -> None:
    planned = cells()
    configs = [parse_configuration(one) for one in DEFAULT_SET]
    wanted = {*configs, *map(control_of, configs)}
    assert {one.config for one in planned} == wanted
    assert len(planned) == len(set(planned)) == 5 * len(wanted)
    assert {one.series for one in planned} == {NIGHT}
    # A control has no control of its own.
    alone = cells(set=[{"fault": "none"}])
    assert len(alone) == 5


def test_a_wrong_configuration_is_named_by_its_place_in_the_set() -> None:
    with pytest.raises(ConfigError, match=r"set\[1\]: rate: "):
        cells(set=[{}, {"rate": -1}])
    with pytest.raises(ConfigError, match=r"set\[0\]: chekpoint_interval_s: .*did you mean checkpoint_interval_s"):
        cells(set=[{"chekpoint_interval_s": 1}])


def test_a_regression_fails_its_task_with_the_reasons() -> None:
    verdict = {"summary": "1 worse", "reasons": ["Latency p99 (ms): 100 -> 130"], "problem": None}
    with pytest.raises(AirflowFailException, match="worse than the nights before: Latency p99"):
        no_regression.function(verdict)
    no_regression.function({**verdict, "reasons": []})


def test_a_schedule_that_is_no_cron_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAULTLINE_NIGHTLY_SCHEDULE", "daily at two")
    with pytest.raises(ConfigError, match="FAULTLINE_NIGHTLY_SCHEDULE: 'daily at two' is no cron expression"):
        nightly_dags()[NIGHTLY]


def test_a_baseline_is_pinned_to_its_commit(monkeypatch: pytest.MonkeyPatch, installed: Settings) -> None:
    commit = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()
    params = {"set": [{}], "repetitions": None, "primary": None, "baseline": {"revision": "HEAD"}}
    monkeypatch.setattr(environment, "installed_build", lambda *_, **__: "b0")
    pinned = night_plan.baseline_of_night(params, NIGHT)
    assert pinned is not None and pinned.spec["revision"] == commit
    assert parse_build(pinned.spec, "baseline").text == commit[:12]
