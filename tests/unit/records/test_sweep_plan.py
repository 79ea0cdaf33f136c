"""Sweep plans: storage, missing cells and missed nightly runs."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.comparison import coverage as missing_cells
from faultline.comparison.coverage import Gap, as_json, cell_text, gaps_of, missed_runs, print_gaps
from faultline.comparison.decisions import plan_blocks
from faultline.experiment.cell import Cell
from faultline.experiment.decide import Decide
from faultline.experiment.matrices import MATRICES
from faultline.experiment.matrix import Matrix
from faultline.experiment.nightly_file import NIGHTLY
from faultline.records.sweep_plan import Missing, SweepCell, SweepPlan, SweepPlans, cells_of, missing_of
from faultline.system.errors import ConfigError
from faultline.system.settings import Settings
from tests.unit.pages_store import put, record

SPEC = MATRICES["recovery"]
PLANNED = SPEC.matrix(SPEC.resolve({"preset": "smoke", "repetitions": 3})).cells("b1")


def sweep_plan(
    sweep_id: str = "s1", *, matrix: str = "recovery", run_id: str = "run-1", cells: int = 3, **options: str
) -> SweepPlan:
    values = {"series": "b1", "build": "b1", "logical_date": None, "planned_at": "2026-11-21T06:00:00+00:00", **options}
    return SweepPlan(sweep_id=sweep_id, matrix=matrix, run_id=run_id, cells=cells_of(PLANNED[:cells]), **values)


def nightly_plan(date: str, hour: int = 2, **options: Any) -> SweepPlan:
    """Return the plan of a nightly run, planned when it was due."""
    due = f"{date}T{hour:02d}:00:00+00:00"
    values = {"series": due, "logical_date": due, "planned_at": due, "schedule": f"0 {hour} * * *", **options}
    return sweep_plan(date, matrix=NIGHTLY, run_id=due, **values)


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setattr(missing_cells, "installed_build", lambda settings: "b1")
    return Settings(tmp_path, tmp_path / "home", tmp_path / "results")


@pytest.fixture
def store(settings: Settings) -> SweepPlans:
    return SweepPlans(settings.results)


def test_plan_round_trip_and_damaged_plans_are_named(store: SweepPlans) -> None:
    path = store.write(sweep_plan())
    assert json.loads(path.read_text())["schema"] == 1
    assert store.read("s1") == sweep_plan()
    assert store.of_matrix("input_rate") == []
    for name, text in {"cut.json": '{"schema": 1, "swe', "later.json": '{"schema": 2}'}.items():
        (store.directory / name).write_text(text)
    assert store.of_matrix("recovery") == [sweep_plan()]
    assert [path.rpartition("/")[2] for path, _ in store.problems()] == ["cut.json", "later.json"]


def test_plan_is_replaced_only_by_its_own_run(store: SweepPlans) -> None:
    """A backfill may replace the plan of a nightly run."""
    store.write(sweep_plan())
    store.write(sweep_plan(planned_at="2026-11-21T07:00:00+00:00"))
    assert store.of_matrix("recovery")[0].planned_at.startswith("2026-11-21T07")
    scheduled = nightly_plan("2026-11-20")
    store.write(scheduled)
    store.write(scheduled.model_copy(update={"run_id": "backfill__x"}))
    assert store.of_matrix(NIGHTLY)[0].run_id == "backfill__x"
    for other, message in (
        (sweep_plan(run_id="run-2"), "run_id: .*s1 .*run-1 of recovery"),
        (sweep_plan(matrix="input_rate"), "run_id: .*s1 .*run-1 of recovery"),
        (scheduled.model_copy(update={"logical_date": "2026-11-21T02:00:00+00:00"}), "run_id"),
    ):
        with pytest.raises(ConfigError, match=message):
            store.write(other)


STATUSES = st.sampled_from(["valid", "invalid", "failed", "cancelled"])


@given(st.lists(st.tuples(st.integers(0, 2), STATUSES)))
def test_missing_cells_are_planned_cells_without_usable_record(measured: list[tuple[int, str]]) -> None:
    cells = cells_of(PLANNED)
    records = [
        (Cell(PLANNED[0].config.config_id, number, "b1"), status, [f"reason {number}"]) for number, status in measured
    ]
    found = {one.cell.repetition: one.last for one in missing_of(cells, "b1", records)}
    assert set(found) == {0, 1, 2} - {number for number, status in measured if status == "valid"}
    for number, last in found.items():
        own = [status for one, status in measured if one == number]
        assert last == (f"{own[-1]}: reason {number}" if own else "")


def test_decided_configurations_and_other_series_in_missing_cells() -> None:
    cells = cells_of(PLANNED)
    assert missing_of(cells, "b1", [], {PLANNED[0].config.config_id}) == []
    assert len(missing_of(cells, "b1", [], {"another"})) == 3
    records = [(Cell(PLANNED[0].config.config_id, number, "b2"), "valid", []) for number in range(3)]
    assert len(missing_of(cells, "b1", records)) == 3


def test_sequential_cells_are_missing_until_decided(store: SweepPlans, settings: Settings) -> None:
    """Twenty blocks are planned, and ten are enough."""
    decide = Decide("latency_ms.p99", "checkpoint_interval_s", 0.1, experiments=40)
    cells, sequential_plan = plan_blocks(Matrix({"checkpoint_interval_s": [2.0, 5.0]}, {}), decide, "b1")
    plan = sweep_plan().model_copy(update={"cells": cells_of(cells), "decide": sequential_plan})
    store.write(plan)
    measured = [
        record(f"20261121T06{number:02d}00Z-000001", matrix="recovery", repetition=cell.repetition,
               checkpoint_interval_s=cell.config.checkpoint_interval_s,
               latency={"p99": 1000 * cell.config.checkpoint_interval_s + number % 3})
        for number, cell in enumerate(cells)
    ]  # fmt: skip
    put(settings.results, *measured[:4])
    assert [len(gap.missing) for gap in gaps_of("recovery", settings)] == [36]
    put(settings.results, *measured[4:20])
    assert [(gap.planned, gap.missing) for gap in gaps_of("recovery", settings)] == [(40, ())]
    assert [len(gap.missing) for gap in gaps_of("recovery", settings, sweep="s1")] == [0]


def test_newest_plan_of_the_matrix_counts(
    store: SweepPlans, settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    store.write(sweep_plan("old"))
    store.write(sweep_plan("new", planned_at="2026-11-22T06:00:00+00:00"))
    config = PLANNED[0].config.model_dump(mode="json")
    options = {"matrix": "recovery", "build": "b1", "raw_config": config}
    first = record("20261121T061500Z-000001", **options).model_copy(update={"config_id": PLANNED[0].config.config_id})
    second = first.model_copy(update={"attempt": "20261121T061500Z-000002", "status": "invalid", "repetition": 1,
                                      "reasons": ["schedule-lag: p99 61 ms > 50 ms"]})  # fmt: skip
    put(settings.results, first, second)
    (gap,) = gaps_of("recovery", settings)
    assert (gap.sweep_id, gap.planned, [one.cell.repetition for one in gap.missing]) == ("new", 3, [1, 2])
    print_gaps([gap])
    output = capsys.readouterr().out
    assert "recovery, sweep new, series b1: 2 of 3 missing" in output
    assert "invalid: schedule-lag: p99 61 ms > 50 ms" in output
    assert "never measured" in output
    assert as_json([gap])[0]["missing"][1]["last"] is None
    assert gaps_of("recovery", settings, sweep="old")[0].sweep_id == "old"


@pytest.mark.parametrize(
    ("planned", "now", "missed", "listed"),
    [
        ([("20", 2), ("21", 2)], (23, 1), ["22T02"], ["20T02", "21T02", "22T02"]),
        ([("20", 2), ("2030-11-20", 2)], (22, 1), ["21T02"], ["20T02", "21T02", "20T02"]),
        ([("18", 3), ("20", 3), ("21", 5, "0 5 * * 6")], (29, 0), ["19T03", "28T05"], None),
    ],
    ids=["last run missed", "plan of a future run", "schedule changed"],
)
def test_each_nightly_run_is_listed(
    store: SweepPlans, settings: Settings, monkeypatch: pytest.MonkeyPatch, planned: list[tuple[Any, ...]],
    now: tuple[int, int], missed: list[str], listed: list[str] | None,
) -> None:  # fmt: skip
    """The current schedule of the services or of the shell does not affect past runs."""
    monkeypatch.setenv("FAULTLINE_NIGHTLY_SCHEDULE", "15 4 * * *")
    for day, hour, *cron in planned:
        date = day if "-" in day else f"2026-11-{day}"
        store.write(nightly_plan(date, hour, **({"schedule": cron[0]} if cron else {})))
    found = gaps_of(NIGHTLY, settings, now=datetime(2026, 11, *now, tzinfo=UTC))
    assert [gap.series[8:13] for gap in found if gap.sweep_id is None] == missed
    assert listed is None or [gap.series[8:13] for gap in found] == listed


@pytest.mark.parametrize(
    ("matrix", "options", "message"),
    [
        ("recvery", {}, "recvery: unknown matrix; did you mean recovery"),
        (NIGHTLY, {}, "nightly_regression: no nightly run planned yet"),
        ("recovery", {"sweep": "s9"}, "--sweep: got s9; expected a planned sweep of recovery"),
        ("recovery", {"preset": "smok"}, "preset: "),
        ("s1", {}, "s1: expected a matrix, got a sweep; fix: gone --sweep s1"),
        ("gone", {"preset": "smoke"}, "--preset smoke: gone has no presets"),
    ],
)
def test_unknown_names_are_refused(
    store: SweepPlans, settings: Settings, matrix: str, options: dict[str, str], message: str
) -> None:
    """A sweep is not a matrix, and a removed matrix has no presets."""
    store.write(sweep_plan("s1", matrix="gone"))
    assert [gap.sweep_id for gap in gaps_of("gone", settings)] == ["s1"]
    with pytest.raises(ConfigError, match=message):
        gaps_of(matrix, settings, **options)


def test_preset_needs_no_planned_sweep(store: SweepPlans, settings: Settings) -> None:
    (gap,) = gaps_of("input_rate", settings)
    assert (gap.sweep_id, gap.series, gap.planned, len(gap.missing)) == (None, "b1", 15, 15)
    assert gaps_of("input_rate", settings, preset="smoke", series="b2")[0].planned == 1
    store.write(sweep_plan("s2"))
    assert gaps_of("recovery", settings, preset="smoke")[0].sweep_id is None


def missed(plans: list[SweepPlan], *now: int) -> list[Gap]:
    return missed_runs(plans, datetime(2026, 11, *now, tzinfo=UTC))


def test_missed_nightly_run_lacks_all_cells_of_the_newest_plan() -> None:
    (gap,) = missed([nightly_plan("2026-11-18", cells=1), nightly_plan("2026-11-20", cells=2)], 20, 12)
    assert (gap.sweep_id, gap.series, gap.planned) == (None, "2026-11-19T02:00:00+00:00", 2)
    assert [one.last for one in gap.missing] == ["", ""]


def test_nightly_run_is_missed_only_when_due_after_the_first_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """The current schedule applies to a plan without one."""
    planned = [nightly_plan("2026-11-20")]
    assert missed([], 20) == missed(planned, 20, 2) == missed(planned, 21, 1, 59) == []
    assert [gap.series[8:10] for gap in missed(planned, 22, 1)] == ["21"]
    assert missed(planned, 19) == [], "the plan is of a future run"
    monkeypatch.setenv("FAULTLINE_NIGHTLY_SCHEDULE", "0 5 * * *")
    old = nightly_plan("2026-11-20", 5).model_copy(update={"schedule": None})
    assert [gap.series for gap in missed([old], 22, 4)] == ["2026-11-21T05:00:00+00:00"]


def test_each_nightly_run_counts_and_only_the_newest_sweep(store: SweepPlans, settings: Settings) -> None:
    """An ad-hoc sweep of the nightly matrix is not a nightly run."""
    now = datetime(2026, 11, 21, 3, tzinfo=UTC)
    store.write(sweep_plan("adhoc", matrix=NIGHTLY, planned_at="2026-11-19T00:00:00+00:00"))
    assert [gap.sweep_id for gap in gaps_of(NIGHTLY, settings, now=now)] == ["adhoc"]
    for date in ("2026-11-21", "2026-11-20"):
        store.write(nightly_plan(date))
    found = gaps_of(NIGHTLY, settings, now=now)
    assert [gap.sweep_id for gap in found] == ["2026-11-20", "2026-11-21"], "in order of time, none missed"


def test_cell_text_names_axes_and_fault() -> None:
    def described(matrix: str, **config: Any) -> str:
        one = Missing(SweepCell(config=config, config_id="c", repetition=2), "")
        return cell_text(Gap(matrix, None, "b1", 1, (one,)), one)

    kill = {"fault": "executor", "fault_action": "kill", "state_mb": 8.0, "rate": 70, "checkpoint_interval_s": 2}
    assert (
        described("recovery", **kill).startswith("fault executor kill")
        and described("recovery", **kill).count("kill") == 1
    )
    assert described("input_rate", rate=70, fault="none") == "rate 70, control, repetition 2"
    assert described("gone", **kill) == "executor kill, repetition 2"


def test_each_gap_is_printed_with_its_action(capsys: pytest.CaptureFixture[str]) -> None:
    """A missed nightly run names the backfill, a sweep lists its missing cells, and a complete sweep lists none."""
    cells = tuple(Missing(cell, "") for cell in cells_of(PLANNED))
    print_gaps([
        Gap("nightly_regression", None, "2026-11-20", 3, cells),
        Gap("recovery", "full", "b1", 3, ()),
        Gap("nightly_regression", "n21", "2026-11-21", 3, cells[:1]),
        Gap("recovery", None, "b2", 3, cells[:2]),
    ])  # fmt: skip
    missed, complete, nightly, preset = capsys.readouterr().out.split(" missing\n")[1:]
    assert "measure it with --measure, or run an Airflow backfill of nightly_regression" in missed
    assert "never measured" not in missed + complete
    assert nightly.count("never measured") == 1 and preset.count("never measured") == 2
    for text in (nightly, preset):
        assert text.split()[:4] == ["Configuration", "Cell", "Newest", "record"]
        assert PLANNED[0].config.config_id in text and "backfill" not in text
