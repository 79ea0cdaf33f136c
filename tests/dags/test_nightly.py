"""Nightly DAG: structure, form, schedule and environment."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from datetime import datetime
from typing import Any

import numpy as np
import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException, ParamValidationError

from faultline.comparison.compare import metrics_named
from faultline.experiment.build import parse_build
from faultline.experiment.config import Configuration, parse_configuration
from faultline.experiment.matrix import control_of
from faultline.experiment.nightly_file import NIGHTLY
from faultline.lifecycle import environment
from faultline.orchestration.nightly import dag_factory, nightly_plan
from faultline.orchestration.nightly.dag_factory import DEFAULT_SET, nightly_dags
from faultline.orchestration.nightly.nightly_plan import nightly_cells, primary_figures
from faultline.records.record import Record
from faultline.system.errors import ConfigError
from faultline.system.settings import ROOT, Settings
from tests.unit.nightly_records import date_of, nightly_records, scheduled
from tests.unit.pages_store import put, record

DATE = "2026-11-21T02:00:00+00:00"
AsNightlyRun = Callable[..., None]


def cells(**params: Any) -> list[Any]:
    return nightly_cells({"set": DEFAULT_SET, "repetitions": None, "controls": 5, "baseline": None, **params}, DATE)


def test_nexmark_queries_and_stage_chains_fit_into_a_nightly_run() -> None:
    chosen = [{"workload": "nexmark", "query": query} for query in ("q0", "q5")]
    planned = cells(set=[*chosen, {"workload": "topology", "mechanisms": "all"}])
    names = [(cell.config.workload, cell.config.query) for cell in planned]
    assert [names.count(("nexmark", query)) for query in ("q0", "q5")] == [5, 5], "without a fault there is no control"
    assert len(planned) == 3 * 5 and {cell.series for cell in planned} == {DATE}
    assert [metric.key for metric in metrics_named(["rps_per_core"])] == ["rps_per_core"]


def test_a_nightly_run_is_planned_measured_aggregated_compared_and_judged(bag: Any) -> None:
    dag = bag.dags[NIGHTLY]
    chain = ["plan_nightly_run", "run_experiment", "aggregate", "compare_with_baseline", "no_regression"]
    for before, after in zip(chain, chain[1:], strict=False):
        assert after in dag.get_task(before).downstream_task_ids
    assert {task.task_id for task in dag.leaves} == {"send_alerts", "require_success"}
    assert dag.get_task("send_alerts").trigger_rule == "all_done", "also of what failed"
    assert dag.get_task("compare_with_baseline").trigger_rule == "all_done", "what was measured is compared"
    assert dag.get_task("run_experiment").max_active_tis_per_dagrun == 2
    assert (dag.schedule.expression, dag.is_paused_upon_creation) == ("0 2 * * *", True)
    assert (dag.catchup, dag.max_active_runs) == (False, 1)
    assert dag.allowed_run_types is None, "backfill is allowed"


def test_a_nightly_run_is_planned_and_compared_with_earlier_ones(
    bag: Any, installed: Settings, notes: list[Any], as_nightly_run: AsNightlyRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The third run is slower."""
    dag = bag.dags[NIGHTLY]
    params = {**dag.params.dump(), "metrics": ["latency_ms.p99"], "build": "b1", "repetitions": 1, "controls": 1}

    verdicts: list[dict[str, Any]] = []

    def judged() -> None:
        verdicts.append(dag_factory.compare_with_baseline.function())
        dag_factory.no_regression.function(verdicts[-1])

    def kept() -> dict[str, Any]:
        return dict(json.loads((installed.results / "nights" / "20261103T020000.json").read_text()))

    as_nightly_run(dag, 3, params)
    planned = [one["conf"] for one in dag_factory.plan_nightly_run.function()]
    reported = {(one["logical_date"], one["series"], one["sweep_id"]) for one in planned}
    assert reported == {(date_of(3), date_of(3), "20261103T020000")}
    put(installed.results, *nightly_records(1, 100), *nightly_records(2, 100), *nightly_records(3, 150))
    as_nightly_run(dag, 2, params)
    dag_factory.plan_nightly_run.function()
    judged()
    as_nightly_run(dag, 3, params)
    dag_factory.plan_nightly_run.function()
    with pytest.raises(AirflowFailException, match=r"Latency p99 \(ms\): 100 \(n=10\) -> 147"):
        judged()
    assert "worse" in notes[-1][-1] and notes[-1][1:3] == (NIGHTLY, f"scheduled__{date_of(3)}")
    assert kept()["baseline"] == [date_of(1), date_of(2)] and kept()["reasons"] == verdicts[-1]["reasons"]
    params["limits"] = {"latency_ms.p99": 120}
    as_nightly_run(dag, 2, params)
    judged()
    as_nightly_run(dag, 3, params)
    with pytest.raises(
        AirflowFailException, match=r"^beyond its limit: Latency p99: 147 ms .* worse than earlier nightly runs"
    ):
        judged()
    assert kept()["limits"] == params["limits"] and kept()["summary"].startswith("1 beyond a limit; 1 worse")
    params["limits"] = {"latency_ms.p9": 120}
    with pytest.raises(AirflowFailException, match=r"limits\.latency_ms\.p9: .*did you mean latency_ms\.p9"):
        dag_factory.plan_nightly_run.function()
    params.update(limits=None, set=[{"workload": "known_truht"}])
    as_nightly_run(dag, 4, params)
    with pytest.raises(AirflowFailException, match=r"set\[0\]: workload: "):
        dag_factory.plan_nightly_run.function()
    assert notes[-1][-1].startswith("**Not planned.**") and "known\\_truht" in notes[-1][-1]
    with pytest.raises(AirflowSkipException, match="no plan"):
        judged()
    monkeypatch.setattr(dag_factory, "nightly_date", lambda: "2099-01-01T02:00:00+00:00")
    with pytest.raises(AirflowFailException, match="logical_date: "):
        dag_factory.plan_nightly_run.function()


@pytest.mark.parametrize(
    ("late_min", "reported", "measured"),
    [
        (120, {}, True),
        (121, {}, False),
        (121, {"clear_number": 1}, True),
        (121, {"run_type": "backfill"}, True),
        (121, {"run_type": "manual"}, True),
    ],
)
def test_a_late_scheduled_run_is_not_measured_during_the_day(
    late_min: int, reported: dict[str, Any], measured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = scheduled(datetime.fromisoformat(DATE), late_min=late_min, **reported)
    monkeypatch.setattr(dag_factory, "get_current_context", lambda: {"dag_run": run})
    if measured:
        assert dag_factory.require_on_time(DATE) == DATE
    else:
        with pytest.raises(ConfigError, match=r"^logical_date: .* started 2 hours late, .* clear this run"):
            dag_factory.require_on_time(DATE)


@pytest.fixture
def built(installed: Settings, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Installation whose builds have names of two letters."""
    name = lambda _, build=None, configurations=(): "b0" if build else "b1"  # noqa: E731
    monkeypatch.setattr(environment, "installed_build", name)
    return installed


def paired(**params: Any) -> dict[str, Any]:
    shown = nightly_dags()[NIGHTLY].params.dump()
    form = {name: param["value"] if isinstance(param, dict) else param for name, param in shown.items()}
    return {**form, "set": [{"rate": 100, "fault": "none"}, {"rate": 200, "fault": "none"}], "baseline": {}, **params}


def measured(planned: list[dict[str, Any]], slower: float, seed: int) -> list[Record]:
    """Return a record of each planned cell, about 2 % around 100 ms; the build under test is slower by `slower`."""
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


def test_a_baseline_is_measured_in_pairs_and_two_agreeing_runs_fail(
    bag: Any, built: Settings, as_nightly_run: AsNightlyRun
) -> None:
    params, verdicts = paired(), {}
    for number, slower in ((1, 0.0), (2, 0.03), (3, 0.03)):
        as_nightly_run(bag.dags[NIGHTLY], number, params)
        planned = dag_factory.plan_nightly_run.function()
        assert len(planned) == 2 * 2 * dag_factory.PAIRS and len({one["trigger_run_id"] for one in planned}) == len(
            planned
        )
        for a, b in zip(planned[::2], planned[1::2], strict=True):
            assert all(a["conf"][name] == b["conf"][name] for name in ("rate", "repetition"))
            assert {one["conf"]["series"] for one in (a, b)} == {date_of(number), f"{date_of(number)}.baseline"}
            assert {one["conf"]["build"] for one in (a, b)} == {"b0", "b1"}
            assert abs(len(a["cell"]) - len(b["cell"])) == len(", baseline")
        specs = [one["conf"].get("build_spec") for one in planned]
        assert specs.count({"revision": None, "settings": {}}) == specs.count(None) == len(planned) / 2
        put(built.results, *measured(planned, slower, number))
        verdicts[number] = dag_factory.compare_with_baseline.function()
    dag_factory.no_regression.function(verdicts[1])
    assert verdicts[1]["summary"].startswith("green: 3 no change detected; compared with the reference build b0")
    kept = json.loads((built.results / "nights" / "20261102T020000.json").read_text())
    assert (kept["schema"], kept["baseline"]) == (2, {"build": "b0", "spec": "the checkout"})
    assert len(kept["visible"]) == 2
    since = r"worse than the baseline: .*since 2026-11-02 \(2 runs in a row\)"
    with pytest.raises(AirflowFailException, match=since):
        dag_factory.no_regression.function(verdicts[3])


def test_a_baseline_that_did_not_run_shuts_the_gate_for_its_own_reason_and_loses_nothing(
    bag: Any, built: Settings, as_nightly_run: AsNightlyRun
) -> None:
    as_nightly_run(bag.dags[NIGHTLY], 1, paired())
    planned = dag_factory.plan_nightly_run.function()
    found = measured(planned, 0.0, 1)
    reasons = ["InfrastructureError: workload: the driver died"]
    broken = [
        one.model_copy(update={"status": "failed", "reasons": reasons}) if one.series.endswith(".baseline") else one
        for one in found
    ]
    put(built.results, *broken)
    verdict = dag_factory.compare_with_baseline.function()
    with pytest.raises(
        AirflowFailException, match="^the reference build did not run: InfrastructureError: workload: the dri"
    ):
        dag_factory.no_regression.function(verdict)
    put(built.results, *found[:8], *[one.model_copy(update={"status": "invalid"}) for one in found[8:]])
    with pytest.raises(AirflowFailException, match="rate .*: . of 15 pairs are usable"):
        dag_factory.no_regression.function(dag_factory.compare_with_baseline.function())


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"repetitions": 7}, "repetitions: got 7 pairs for 2 configurations; expected 8"),
        ({"primary": ["latency_ms.p5"]}, "primary: got 'latency_ms.p5'.*did you mean latency_ms.p50"),
        ({"primary": ["latency_ms.p50"] * 3}, "primary: got 3 figures for 2 configurations"),
        ({"baseline": None, "primary": ["latency_ms.p50"]}, "primary: "),
        ({"baseline": {"revision": "no-such"}}, "baseline.revision: got 'no-such'"),
        ({"baseline": {"settings": {"spark.executor.memory": "9g"}}},
         "baseline.settings.spark.executor.memory: "),
        ({"baseline": {"settings": {"spark.x": "1"}}, "set": [{"workload": "known_truth"}]},
         "baseline: got a build"),
    ],
)  # fmt: skip
def test_a_baseline_that_cannot_be_is_refused_before_anything_is_measured(
    bag: Any, built: Settings, as_nightly_run: AsNightlyRun, params: dict[str, Any], expected: str
) -> None:
    as_nightly_run(bag.dags[NIGHTLY], 1, paired(**params))
    with pytest.raises(AirflowFailException, match=expected):
        dag_factory.plan_nightly_run.function()
    assert not (built.results / "sweeps").exists()


def test_each_configuration_has_the_figure_that_sees_most() -> None:
    configs = nightly_plan.nightly_configurations([{"fault": "none"}, {"fault": "executor"}, {"workload": "nexmark"}])
    chosen = primary_figures(configs, None)
    assert list(chosen.values()) == ["latency_ms.p50", "cpu_s_per_million.engine", "rps_per_core"]
    assert set(primary_figures(configs, ["latency_ms.p50"]).values()) == {"latency_ms.p50"}


@pytest.mark.parametrize(
    ("name", "value"), [("set", []), ("set", ["word_count"]), ("repetitions", 0), ("metrics", []), ("build", "a b")]
)
def test_the_form_refuses_nonsense(bag: Any, name: str, value: object) -> None:
    with pytest.raises(ParamValidationError):
        bag.dags[NIGHTLY].params.get_param(name).resolve(value)


def test_each_configuration_has_its_controls_and_no_cell_is_planned_twice() -> None:
    planned = cells()
    configs = [parse_configuration(one) for one in DEFAULT_SET]
    wanted = {*configs, *map(control_of, configs)}
    assert {one.config for one in planned} == wanted
    assert len(planned) == len(set(planned)) == 5 * len(wanted)
    assert {one.series for one in planned} == {DATE}
    assert len(cells(set=[{"fault": "none"}])) == 5, "a control has no control of its own"


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ([{}, {"rate": -1}], r"set\[1\]: rate: "),
        ([{"chekpoint_interval_s": 1}], r"set\[0\]: chekpoint_interval_s: .*did you mean checkpoint_interval_s"),
    ],
)
def test_a_wrong_configuration_is_named_by_its_place_in_the_set(wrong: list[dict[str, Any]], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        cells(set=wrong)


def test_a_schedule_that_is_no_cron_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAULTLINE_NIGHTLY_SCHEDULE", "daily at two")
    with pytest.raises(ConfigError, match="FAULTLINE_NIGHTLY_SCHEDULE: "):
        nightly_dags()[NIGHTLY]


def test_a_baseline_is_pinned_to_its_commit(built: Settings) -> None:
    words = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    commit = subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    params = {"set": [{}], "repetitions": None, "primary": None, "baseline": {"revision": "HEAD"}}
    pinned = nightly_plan.reference_of_nightly_run(params, DATE)
    assert pinned is not None and pinned.spec["revision"] == commit
    assert parse_build(pinned.spec, "baseline").text == commit[:12]
