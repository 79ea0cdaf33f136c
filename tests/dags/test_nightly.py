"""The DAG of the nights: its structure, its form, its schedule and what it is told by the environment."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import BaseNotifier
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException, ParamValidationError

from faultline.base.errors import ConfigError
from faultline.base.settings import Settings
from faultline.comparison.compare import metrics_named
from faultline.experiment.config import parse_configuration
from faultline.experiment.matrix import control_of
from faultline.experiment.nightly_schedule import NIGHTLY
from faultline.orchestration import nightly, sweep
from faultline.orchestration import notes as notes_of
from faultline.orchestration.nightly import DEFAULT_SET, night_cells, nightly_dag, no_regression, notifiers
from tests.unit.night_records import night_of, night_records
from tests.unit.pages_store import put

NIGHT = "2026-11-21T02:00:00+00:00"


class Bell(BaseNotifier):
    """A notifier that keeps what it was told."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def notify(self, context: Any) -> None:
        """Nothing."""


def cells(**params: Any) -> list[Any]:
    return night_cells({"set": DEFAULT_SET, "repetitions": 5, "controls": 5, **params}, NIGHT)


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
    assert {task.task_id for task in dag.leaves} == {"no_regression", "require_success"}
    assert dag.get_task("compare_with_baseline").trigger_rule == "all_done", "what was measured is compared"
    assert dag.get_task("run_experiment").max_active_tis_per_dagrun == 2


def test_a_night_is_planned_and_held_against_those_before_it(
    bag: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tasks themselves, with records of nights that were made up; the third one is slower."""
    settings, notes = Settings(tmp_path, tmp_path / "home", tmp_path / "results"), []
    for module in (nightly, sweep):
        monkeypatch.setattr(module, "load_settings", lambda: settings)
    monkeypatch.setattr(notes_of, "write_note", lambda *said: notes.append(said))
    dag = bag.dags[NIGHTLY]
    params = {**dag.params.dump(), "metrics": ["latency_ms.p99"], "build": "b1", "repetitions": 1, "controls": 1}

    def as_night(number: int) -> None:
        night = datetime.fromisoformat(night_of(number))
        context = {"params": params, "dag": dag, "run_id": f"scheduled__{night.isoformat()}", "logical_date": night}
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


def test_notifiers_are_made_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(nightly.NOTIFIERS, f'[{{"class": "{__name__}.Bell", "arguments": {{"text": "worse"}}}}]')
    dag = nightly_dag()
    (bell,) = dag.get_task("no_regression").on_failure_callback
    assert bell.text == "worse"
    assert dag.get_task("run_experiment").partial_kwargs.get("on_failure_callback") in (None, [])


@pytest.mark.parametrize(
    "text",
    ["nonsense", "{}", '[{"arguments": {}}]', '[{"class": "no.such.Notifier"}]', f'[{{"class": "{__name__}.Bell"}}]',
     '[{"class": "datetime.timedelta"}]'],
)  # fmt: skip
def test_a_notifier_that_cannot_be_made_is_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError, match="FAULTLINE_NOTIFIERS: "):
        notifiers(text)
    assert notifiers(None) == notifiers("") == []


def test_a_schedule_that_is_no_cron_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAULTLINE_NIGHTLY_SCHEDULE", "daily at two")
    with pytest.raises(ConfigError, match="FAULTLINE_NIGHTLY_SCHEDULE: 'daily at two' is no cron expression"):
        nightly_dag()
