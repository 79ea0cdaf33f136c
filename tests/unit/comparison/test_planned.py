"""Records of a sweep: its own, and earlier ones of its planned cells."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from faultline.comparison.coverage import gap_of
from faultline.comparison.selection import entries_of_sweep
from faultline.comparison.sweep_summary import objective_of, summary_of_sweep
from faultline.experiment.config import parse_configuration
from faultline.experiment.matrix import PlannedCell
from faultline.records.index import Index
from faultline.records.record import Record
from faultline.records.store import Store
from faultline.records.sweep_plan import Missing, SweepPlans
from faultline.system.settings import Settings
from tests.unit.sample_records import made_plan, sample

INTERVALS = (2.0, 10.0)
CELLS = [(parse_configuration({"checkpoint_interval_s": s, "fault": "none"}), r) for s in INTERVALS for r in range(5)]


def put(results: Path, number: int, sweep: str, *, status: str = "valid", attempt: int = 0, series: str = "b1") -> None:
    config, repetition = CELLS[number]
    made: Record = sample(
        checkpoint_interval_s=config.checkpoint_interval_s,
        fault="none",
        status=status,
        attempt=f"20261121T0615{number:02d}Z-{attempt:06x}",
        repetition=repetition,
    )
    moment = datetime(2026, 11, 21, 6, attempt, number, tzinfo=UTC).isoformat()
    changed = {"sweep_id": sweep, "matrix": "recovery", "series": series, "measured_at": moment}
    Store(results).write(made.model_copy(update=changed))


def plan(results: Path, sweep: str, numbers: list[int], since: str | None = None) -> None:
    cells = [PlannedCell(*CELLS[number], "b1") for number in numbers]
    SweepPlans(results).write(made_plan(cells, sweep_id=sweep, matrix="recovery", since=since))


def attempts(results: Path, sweep: str) -> list[str]:
    index = Index(results)
    index.refresh()
    return sorted(one.attempt for one in entries_of_sweep(index, results, sweep))


def gap_in(results: Path, sweep: str) -> tuple[Missing, ...]:
    found, index = SweepPlans(results).read(sweep), Index(results)
    index.refresh()
    assert found is not None
    return gap_of(found, index.all()).missing


def test_a_sweep_that_was_stopped_and_resumed_rests_on_all_of_its_cells(tmp_path: Path) -> None:
    """Whichever of its parts is asked."""
    for sweep, numbers in (("first", [0, 1, 2]), ("second", [3, 4, 5, 6]), ("third", [7, 8, 9])):
        plan(tmp_path, sweep, list(range(10)))
        for number in numbers:
            put(tmp_path, number, sweep)
    put(tmp_path, 3, "first", status="invalid", attempt=1)
    found = [attempts(tmp_path, sweep) for sweep in ("first", "second", "third")]
    assert len(found[0]) == 11 and set(found[1]) == set(found[2]) == set(found[0]) - {"20261121T061503Z-000001"}
    for sweep in ("first", "second", "third"):
        answer = summary_of_sweep(sweep, Settings(tmp_path, tmp_path, tmp_path), objective_of("cpu", {}))
        assert (answer.min_repetitions, answer.max_repetitions) == (5, 5) and answer.recommendation is not None


def test_what_is_of_another_series_or_was_not_planned_is_no_part_of_it(tmp_path: Path) -> None:
    plan(tmp_path, "mine", [0, 1])
    put(tmp_path, 0, "mine")
    put(tmp_path, 1, "other", series="b2")
    put(tmp_path, 2, "other")
    assert len(attempts(tmp_path, "mine")) == 1
    put(tmp_path, 1, "other", attempt=1)
    put(tmp_path, 1, "later", attempt=2)
    assert attempts(tmp_path, "mine") == ["20261121T061500Z-000000", "20261121T061501Z-000002"], "the newest"


def test_a_fresh_sweep_ignores_earlier_records(tmp_path: Path) -> None:
    """A missing cell is a gap, which a later measurement fills."""
    for number in (0, 1):
        put(tmp_path, number, "earlier")
    plan(tmp_path, "again", [0, 1], since="2026-11-21T06:05:00+00:00")
    put(tmp_path, 0, "again", attempt=6)
    assert attempts(tmp_path, "again") == ["20261121T061500Z-000006"]
    assert [one.cell.repetition for one in gap_in(tmp_path, "again")] == [1]
    put(tmp_path, 1, "resumed", attempt=7)
    assert attempts(tmp_path, "again") == ["20261121T061500Z-000006", "20261121T061501Z-000007"]
    assert not gap_in(tmp_path, "again")


def test_a_sweep_without_a_plan_has_its_own(tmp_path: Path) -> None:
    put(tmp_path, 0, "mine")
    put(tmp_path, 1, "other")
    assert len(attempts(tmp_path, "mine")) == 1
