"""Cell of a sweep: preflight, attempts, retries and failures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException, TaskDeferred

from faultline.comparison.decisions import plan_blocks
from faultline.experiment.cell import EXPERIMENT
from faultline.experiment.config import parse_configuration
from faultline.experiment.decide import Decide
from faultline.experiment.matrix import Matrix, PlannedCell
from faultline.installation.targets.connection_specs import ConnectionSpec
from faultline.orchestration import connections as outside
from faultline.orchestration import run_experiment
from faultline.orchestration.cells import OLD_KEEP_INVALID, skip_reason
from faultline.orchestration.external.hooks import ExternalHooks
from faultline.orchestration.hooks import AirflowHooks
from faultline.orchestration.matrix_dag import matrix_dag
from faultline.orchestration.planning import child_run_id
from faultline.orchestration.run_experiment import RunExperiment
from faultline.orchestration.targets import connection_query
from faultline.orchestration.targets.connection_query import preflight_in_task
from faultline.records.record import Record
from faultline.records.store import Store
from faultline.records.sweep_plan import ReferenceBuild, SweepPlan, SweepPlans, cells_of
from faultline.system.endpoints import EMBEDDED
from faultline.system.errors import ConfigError, InfrastructureError, InvalidMeasurement
from faultline.system.settings import ROOT, Settings
from faultline.system.target_registry import Target, register
from tests.unit.sample_records import sample

CELL = PlannedCell(parse_configuration({}), 0, "b1")
RUN = child_run_id("s1", CELL, "b1")
BEGUN = datetime(2026, 11, 21, 6, 0, tzinfo=UTC)


class Runs:
    """Fake task instance: states of other runs by (DAG, run), and its own try number."""

    map_index = -1

    def __init__(self, *, try_number: int = 1, max_tries: int = 0, **states: str) -> None:
        self.try_number, self.max_tries = try_number, max_tries
        self.kept: dict[str, Any] = {}
        self.states = {RUN: states["child"]} if "child" in states else {}
        self.states |= {"parent": states["parent"]} if "parent" in states else {}

    def get_dr_count(self, *, dag_id: str, run_ids: list[str]) -> int:
        return sum(run_id in self.states for run_id in run_ids)

    def xcom_push(self, *, key: str, value: Any) -> None:
        self.kept[key] = value

    def xcom_pull(self, *, key: str, map_indexes: int | None) -> Any:
        return self.kept.get(key)

    def get_dagrun_state(self, *, dag_id: str, run_id: str) -> str:
        return self.states[run_id]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    settings = Settings(tmp_path, tmp_path / "home", tmp_path / "results")
    monkeypatch.setattr(run_experiment, "load_settings", lambda: settings)
    return Store(settings.results)


@pytest.fixture
def operator() -> RunExperiment:
    return of_cell(CELL)


def context(
    runs: Runs | None = None, *, only_missing: bool = True, begun: datetime = BEGUN, **params: Any
) -> dict[str, Any]:
    return {
        "ti": runs or Runs(),
        "params": {"only_missing": only_missing, "matrix": "m", "parent_run_id": "parent", **params},
        "dag_run": SimpleNamespace(start_date=begun),
    }


def put(store: Store, minute: int, status: str, *, sweep: str = "s1", reasons: tuple[str, ...] = ()) -> Record:
    record = sample(status=status, reasons=list(reasons), attempt=f"20261121T06{minute:02d}00Z-00000{minute % 10}")
    stored = record.model_copy(update={"sweep_id": sweep})
    store.write(stored)
    return stored


EVENT = ("", {"run_ids": [RUN]})


def complete(operator: RunExperiment, *, tries: int = 1, max_tries: int = 0, **params: Any) -> None:
    """End the run that a try awaits."""
    operator.execute_complete(context(Runs(try_number=tries, max_tries=max_tries), **params), EVENT)


def test_a_cell_that_has_a_valid_record_is_not_measured(store: Store, operator: RunExperiment) -> None:
    put(store, 1, "valid", sweep="another")
    operator.execute(context())


def test_airflow_shows_a_cell_by_its_name() -> None:
    dag = matrix_dag("recovery")
    planned = {"trigger_run_id": RUN, "conf": {}, "cell": "checkpoint interval 5 s, executor kill, r3"}
    made = dag.get_task("run_experiment").unmap(planned)
    name = dag.get_template_env().from_string(made.map_index_template).render({"task": made})
    assert name == "checkpoint interval 5 s, executor kill, r3"


def test_an_active_child_is_awaited_and_not_restarted(store: Store, operator: RunExperiment) -> None:
    for state in ("queued", "running"):
        with pytest.raises(TaskDeferred) as deferred:
            operator.execute(context(Runs(child=state)))
        assert deferred.value.trigger.run_ids == [RUN] and deferred.value.trigger.dag_id == EXPERIMENT


def test_what_another_sweep_measured_meanwhile_counts(store: Store, operator: RunExperiment) -> None:
    """The child found the record at its turn and measured nothing."""
    put(store, 1, "valid", sweep="another")
    complete(operator)
    with pytest.raises(InfrastructureError, match="no record"):
        complete(operator, only_missing=False)


@pytest.mark.parametrize(
    ("keep", "given_up", "expected"),
    [
        (False, AirflowFailException, "given up after 2 measurements: .*not-steady: 2"),
        (True, AirflowSkipException, "not-steady: 2"),
    ],
)
def test_invalid_measurements_are_bounded_and_counted_from_zero_after_clearing(
    store: Store, operator: RunExperiment, keep: bool, given_up: type[Exception], expected: str
) -> None:
    """With `keep_invalid` the sweep retries too, but does not fail."""
    put(store, 1, "invalid", reasons=("not-steady: 1",))
    with pytest.raises(InvalidMeasurement, match="not-steady: 1"):
        complete(operator, keep_invalid=keep)
    put(store, 2, "invalid", reasons=("not-steady: 2",))
    with pytest.raises(given_up, match=expected):
        complete(operator, tries=2, keep_invalid=False, **{OLD_KEEP_INVALID: keep})
    put(store, 3, "failed", reasons=("InfrastructureError: kafka",))
    with pytest.raises(InfrastructureError):
        complete(operator, tries=3, keep_invalid=keep)
    put(store, 9, "invalid", reasons=("schedule-lag: p99 73 ms > 50 ms",))
    with pytest.raises(InvalidMeasurement, match="schedule-lag"):
        complete(operator, tries=3, max_tries=2, keep_invalid=keep)


def test_a_failure_of_an_earlier_try_is_not_reported_for_this_one(store: Store, operator: RunExperiment) -> None:
    put(store, 1, "failed", reasons=("ConfigError: prepare: rate: too high",))
    with pytest.raises(ConfigError, match="too high"):
        complete(operator)
    runs = Runs(child="running", try_number=2)
    with pytest.raises(TaskDeferred):
        operator.execute(context(runs))
    with pytest.raises(InfrastructureError, match="no record"):
        operator.execute_complete(context(runs), EVENT)


def test_a_clock_that_is_set_back_has_nothing_measured_again(store: Store, operator: RunExperiment) -> None:
    """The run started at nine by the earlier clock; the attempts are from half past six."""
    nine = datetime(2026, 11, 21, 9, 0, tzinfo=UTC)
    for number, (outcome, expected) in enumerate(
        [(InvalidMeasurement, "not-steady 1"), (AirflowFailException, "given up after 2 measurements: not-steady 2")],
        start=1,
    ):
        runs = Runs(child="running", try_number=number)
        with pytest.raises(TaskDeferred):
            operator.execute(context(runs, begun=nine))
        put(store, 30 + number, "invalid", reasons=(f"not-steady {number}",))
        with pytest.raises(outcome, match=expected):
            operator.execute_complete(context(runs, begun=nine), EVENT)
    put(store, 29, "valid")
    operator.execute(context(begun=nine))


def test_a_resumed_sweep_takes_up_its_children_unless_the_build_changed() -> None:
    assert child_run_id("s1", CELL, "b1") == RUN != child_run_id("s1", CELL, "b2")
    assert RUN.startswith(f"s1__{CELL.config.config_id}-r0-")
    assert RUN != child_run_id("s1", PlannedCell(CELL.config, 0, "b2"), "b1")


@pytest.mark.parametrize(
    ("parent", "stopped"),
    [("queued", False), ("running", False), ("failed", True), ("success", True), (None, True)],
)
def test_a_child_stops_when_its_parent_has_ended(tmp_path: Path, parent: str | None, stopped: bool) -> None:
    """The parent was marked as failed or done, or deleted."""
    runs = Runs(parent=parent) if parent else Runs()
    hooks = AirflowHooks(Settings(tmp_path, tmp_path, tmp_path), {**context(runs), "run_id": RUN})
    assert hooks.is_cancelled() is stopped


def plan(store: Store, cells: list[PlannedCell], **expected: Any) -> None:
    facts = {"sweep_id": "s1", "matrix": "m", "run_id": "r", "series": "b1", "build": "b1", "logical_date": None}
    facts |= {"planned_at": "2026-11-21T06:00:00+00:00", "cells": cells_of(cells)}
    SweepPlans(store.directory.parent).write(SweepPlan(**{**facts, **expected}))


def asked(store: Store, **budget: Any) -> list[PlannedCell]:
    """Return a sequential sweep of two intervals on the median latency, and its cells in blocks."""
    question = Decide("latency_ms.p50", "checkpoint_interval_s", 0.1, **budget)
    cells, posed = plan_blocks(Matrix({"checkpoint_interval_s": [2.0, 5.0]}, {}), question, "b1")
    plan(store, cells, decide=posed)
    return cells


@pytest.fixture
def decided(store: Store) -> list[PlannedCell]:
    """Cells of such a sweep whose first twenty records decide it."""
    cells = asked(store, experiments=40)
    measure(store, cells[:20])
    return cells


def of_cell(cell: PlannedCell, **changed: Any) -> RunExperiment:
    conf = {**cell.config.model_dump(mode="json"), "series": "b1", "build": "b1", "sweep_id": "s1"}
    conf |= {"repetition": cell.repetition, **changed}
    return RunExperiment(task_id="run", trigger_run_id=child_run_id("s1", cell, "b1"), conf=conf, max_measurements=2)


def why(operator: RunExperiment) -> str | None:
    return skip_reason(operator._sweep_cell(context()))


def measure(store: Store, cells: list[PlannedCell]) -> None:
    """Store a usable record of each cell, with medians of 1 s and 2 s."""
    for number, cell in enumerate(cells):
        interval = cell.config.checkpoint_interval_s
        latency = {"p50": {2.0: 1000.0, 5.0: 2000.0}[interval] * (1 + 0.01 * (number % 7))}
        named = {"repetition": cell.repetition, "checkpoint_interval_s": interval, "latency": latency}
        store.write(sample(attempt=f"20261121T06{number:02d}00Z-00000a", **named))


def test_a_cell_that_nothing_is_open_about_is_skipped_at_once(decided: list[PlannedCell]) -> None:
    with pytest.raises(AirflowSkipException, match="its comparisons are decided"):
        of_cell(decided[20]).execute(context())
    of_cell(decided[0]).execute(context())  # a measured cell is not reported as skipped


def test_a_cell_of_which_something_is_open_is_measured(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []
    monkeypatch.setattr(
        "airflow.providers.standard.operators.trigger_dagrun.TriggerDagRunOperator.execute",
        lambda self, context: begun.append(self.trigger_run_id),
    )
    cells = asked(store, experiments=40)
    measure(store, cells[:4])
    of_cell(cells[4]).execute(context())
    assert begun == [child_run_id("s1", cells[4], "b1")], "two pairs decide nothing"


def test_a_child_at_work_is_waited_for_also_when_all_is_decided(decided: list[PlannedCell]) -> None:
    """The child was started before the decision."""
    runs = Runs()
    runs.states[child_run_id("s1", decided[20], "b1")] = "running"
    with pytest.raises(TaskDeferred):
        of_cell(decided[20]).execute(context(runs))


def test_a_sweep_that_asks_nothing_skips_nothing(
    store: Store, operator: RunExperiment, decided: list[PlannedCell]
) -> None:
    plan(store, decided)
    assert why(operator) is None and why(of_cell(decided[20])) is None


def test_hours_that_are_spent_end_a_sweep(store: Store) -> None:
    cells = asked(store, hours=2.0)
    with pytest.raises(AirflowSkipException, match="budget of 2 hours"):
        of_cell(cells[0]).execute(context(begun=datetime.now(UTC) - timedelta(hours=2.1)))


def test_a_baseline_that_never_runs_is_given_up_and_tonights_build_is_not(store: Store) -> None:
    paired = ReferenceBuild(series="n.baseline", build="b0", spec={}, primary={})
    plan(store, [CELL], series="n", logical_date="2026-11-21", baseline=paired)
    baseline, tonight = of_cell(CELL, series="n.baseline"), of_cell(CELL, series="n")

    def failed(minute: int, status: str = "failed") -> None:
        record = sample(status=status, reasons=["no such class"], attempt=f"20261121T06{minute:02d}00Z-00000{minute}")
        store.write(record.model_copy(update={"sweep_id": "s1", "series": "n.baseline"}))

    failed(1)
    failed(2)
    assert why(baseline) is None
    failed(3)
    with pytest.raises(AirflowSkipException, match="reference build failed 3 times and never ran: no such class"):
        baseline.execute(context())
    assert why(tonight) is None
    failed(4, "invalid")
    assert why(baseline) is None, "it runs, if badly"


LAB = Target("lab")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    made = Settings(ROOT, tmp_path / "home", tmp_path / "results")
    register(made, LAB)
    return made


@pytest.fixture
def looking(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Replace the preflight check, with this experiment active."""

    def so(look: Callable[..., object], at_work: str | None = None) -> None:
        monkeypatch.setattr(connection_query, "active_experiment", lambda _: at_work)
        monkeypatch.setattr(connection_query, "store_and_preflight", look)

    return so


def failing(error: Exception) -> Callable[..., None]:
    def look(*_: object) -> None:
        raise error

    return look


def test_a_target_is_looked_at_and_what_is_wrong_ends_the_plan(
    settings: Settings, looking: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    looked: list[str] = []
    looking(lambda _, name: looked.append(name))
    preflight_in_task(settings, [EMBEDDED, "lab"])
    assert looked == ["lab"]
    looking(failing(ConfigError("Connection faultline_kafka: extra: sasl.password: refused; fix: correct it")))
    with pytest.raises(ConfigError, match="sasl.password: refused"):
        preflight_in_task(settings, ["lab"])
    looking(failing(InfrastructureError("Connection faultline_kafka: lab:9092 does not answer")))
    preflight_in_task(settings, ["lab"])
    assert "lab:9092 does not answer (rechecked by each experiment)" in capsys.readouterr().out


def test_an_experiment_at_work_is_not_disturbed_by_more_than_what_connections_say(
    settings: Settings, looking: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[tuple[Target, Mapping[str, ConnectionSpec]]] = []
    expected = {name: ConnectionSpec(name) for name in LAB.connections}
    looking(lambda *_: pytest.fail("it is disturbed"), "an experiment")
    monkeypatch.setattr(connection_query, "task_connections", lambda one: expected)
    monkeypatch.setattr(connection_query, "check_spec", lambda one, found: checked.append((one, found)))
    preflight_in_task(settings, ["lab"])
    assert checked == [(LAB, expected)]


def test_a_target_of_an_external_airflow_is_as_the_tables_of_this_installation_say(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: dict[str, ConnectionSpec | None] = {name: ConnectionSpec(name) for name in LAB.connections}
    written: list[tuple[Target, dict[str, ConnectionSpec]]] = []
    monkeypatch.setattr(outside, "query_connections", lambda _, ids: outside.ConnectionReply(reported))
    monkeypatch.setattr(outside, "write_target", lambda _, one, expected: written.append((one, dict(expected))))
    monkeypatch.setattr(outside, "require_preflight", lambda *given: None)
    hooks = ExternalHooks(settings, {"prefix": "theirs_", "run_id": "r", "connections": {}}, Path("/nowhere"))
    hooks.store_target(LAB)
    outside.preflight_available_targets(settings, ["lab", EMBEDDED])
    assert written == [(LAB, reported)] * 2
    reported["faultline_kafka"] = None
    with pytest.raises(ConfigError, match="Connection faultline_kafka: missing"):
        outside.preflight_available_targets(settings, ["lab"])
