"""What sweeps set out to measure, and what of it is missing."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.base.errors import ConfigError
from faultline.base.settings import Settings
from faultline.comparison import coverage as missing_cells
from faultline.comparison.coverage import as_json, gaps_of, print_gaps
from faultline.experiment.cell import Cell
from faultline.experiment.matrices import MATRICES
from faultline.experiment.matrix import Matrix
from faultline.records.manifest import Manifest, Manifests, cells_of, missing_of
from tests.unit.pages_store import put, record

SPEC = MATRICES["recovery"]
PLANNED = Matrix.under(SPEC.complete("smoke") | {"repetitions": 3}, SPEC.axes).cells("b1")


def manifest(sweep_id: str = "s1", *, matrix: str = "recovery", run_id: str = "run-1", **named: str) -> Manifest:
    facts = {"series": "b1", "build": "b1", "logical_date": None, "planned_at": "2026-11-21T06:00:00+00:00", **named}
    return Manifest(sweep_id=sweep_id, matrix=matrix, run_id=run_id, cells=cells_of(PLANNED), **facts)


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setattr(missing_cells, "installed_build", lambda settings: "b1")
    return Settings(tmp_path, tmp_path / "home", tmp_path / "results")


def test_a_plan_is_read_as_it_was_written(tmp_path: Path) -> None:
    store = Manifests(tmp_path)
    path = store.write(manifest())
    assert json.loads(path.read_text())["schema"] == 1
    assert store.read("s1") == manifest()
    assert store.of_matrix("recovery") == [manifest()]
    assert store.of_matrix("input_rate") == []


def test_the_same_run_plans_again_and_another_run_is_refused(tmp_path: Path) -> None:
    store = Manifests(tmp_path)
    store.write(manifest())
    store.write(manifest(planned_at="2026-11-21T07:00:00+00:00"))
    assert store.of_matrix("recovery")[0].planned_at.startswith("2026-11-21T07")
    for other in (manifest(run_id="run-2"), manifest(matrix="input_rate")):
        with pytest.raises(
            ConfigError, match="run_id: the sweep s1 is the run run-1 of recovery already; trigger with"
        ):
            store.write(other)


def test_a_nights_backfill_goes_on_with_it_when_its_own_run_is_gone(tmp_path: Path) -> None:
    store, night = Manifests(tmp_path), "2026-11-20T02:00:00+00:00"
    scheduled = manifest(matrix="nightly_regression", run_id="scheduled__x", series=night, logical_date=night)
    store.write(scheduled)
    store.write(scheduled.model_copy(update={"run_id": "backfill__x"}))
    assert store.of_matrix("nightly_regression")[0].run_id == "backfill__x"
    with pytest.raises(ConfigError, match="run_id"):
        store.write(scheduled.model_copy(update={"logical_date": "2026-11-21T02:00:00+00:00"}))


def test_a_damaged_plan_is_named_and_stops_nothing(tmp_path: Path) -> None:
    store = Manifests(tmp_path)
    store.write(manifest())
    for name, text in {"cut.json": '{"schema": 1, "swe', "later.json": '{"schema": 2}'}.items():
        (store.directory / name).write_text(text)
    assert [one.sweep_id for one in store.of_matrix("recovery")] == ["s1"]
    assert [path.rpartition("/")[2] for path, _ in store.problems()] == ["cut.json", "later.json"]


STATUSES = st.sampled_from(["valid", "invalid", "failed", "cancelled"])


@given(st.lists(st.tuples(st.integers(0, 2), STATUSES)))
def test_missing_is_what_was_planned_and_has_no_valid_record(measured: list[tuple[int, str]]) -> None:
    cells = cells_of(PLANNED)
    records = [
        (Cell(PLANNED[0].config.config_id, number, "b1"), status, [f"why {number}"]) for number, status in measured
    ]
    found = {one.cell.repetition: one.last for one in missing_of(cells, "b1", records)}
    assert set(found) == {0, 1, 2} - {number for number, status in measured if status == "valid"}
    for number, last in found.items():
        own = [status for one, status in measured if one == number]
        assert last == (f"{own[-1]}: why {number}" if own else "")


def test_records_of_another_series_fill_no_gap() -> None:
    records = [(Cell(PLANNED[0].config.config_id, number, "b2"), "valid", []) for number in range(3)]
    assert len(missing_of(cells_of(PLANNED), "b1", records)) == 3


def test_the_newest_sweeps_plan_is_looked_at(settings: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    Manifests(settings.results).write(manifest("old"))
    Manifests(settings.results).write(manifest("new", planned_at="2026-11-22T06:00:00+00:00"))
    config = PLANNED[0].config.model_dump(mode="json")
    named = {"matrix": "recovery", "build": "b1", "raw_config": config}
    first = record("20261121T061500Z-000001", **named).model_copy(update={"config_id": PLANNED[0].config.config_id})
    second = first.model_copy(update={"attempt": "20261121T061500Z-000002", "status": "invalid", "repetition": 1,
                                      "reasons": ["schedule-lag: p99 61 ms > 50 ms"]})  # fmt: skip
    put(settings.results, first, second)
    (gap,) = gaps_of("recovery", settings)
    assert (gap.sweep_id, gap.planned, [one.cell.repetition for one in gap.missing]) == ("new", 3, [1, 2])
    print_gaps([gap])
    said = capsys.readouterr().out
    assert "recovery, sweep new, series b1: 2 of 3 missing" in said
    assert "invalid: schedule-lag: p99 61 ms > 50 ms" in said
    assert "never measured" in said
    assert as_json([gap])[0]["missing"][1]["last"] is None
    assert gaps_of("recovery", settings, sweep="old")[0].sweep_id == "old"


def test_a_preset_can_be_asked_about_before_it_was_triggered(settings: Settings) -> None:
    (gap,) = gaps_of("input_rate", settings)
    assert (gap.sweep_id, gap.series, gap.planned, len(gap.missing)) == (None, "b1", 9, 9)
    assert gaps_of("input_rate", settings, preset="smoke", series="b2")[0].planned == 1


def test_every_night_of_a_nightly_set_is_listed(settings: Settings) -> None:
    for day in ("20", "21"):
        night = f"2026-11-{day}T02:00:00+00:00"
        plan = manifest(f"202611{day}T020000", matrix="nightly_regression", series=night, logical_date=night)
        Manifests(settings.results).write(plan)
    listed = gaps_of("nightly_regression", settings, now=datetime(2026, 11, 23, 1, tzinfo=UTC))
    assert [gap.series[:10] for gap in listed] == ["2026-11-20", "2026-11-21", "2026-11-22"]
    assert [gap.sweep_id for gap in listed] == ["20261120T020000", "20261121T020000", None], "the last one was missed"


def test_a_plan_for_a_night_to_come_makes_no_missed_nights(settings: Settings) -> None:
    for year in (2026, 2030):
        night = f"{year}-11-20T02:00:00+00:00"
        plan = manifest(f"{year}1120T020000", matrix="nightly_regression", series=night, logical_date=night)
        Manifests(settings.results).write(plan)
    listed = gaps_of("nightly_regression", settings, now=datetime(2026, 11, 22, 1, tzinfo=UTC))
    assert [gap.series[:10] for gap in listed] == ["2026-11-20", "2026-11-21", "2030-11-20"]


def test_each_night_counts_by_the_schedule_that_it_was_due_by(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the services' schedule is now, or what this shell says, changes nothing about nights that were."""
    monkeypatch.setenv("FAULTLINE_NIGHTLY_SCHEDULE", "15 4 * * *")
    for day, hour, cron in ((18, 3, "0 3 * * *"), (20, 3, "0 3 * * *"), (21, 5, "0 5 * * 6")):
        date = f"2026-11-{day}T{hour:02d}:00:00+00:00"
        named = {"logical_date": date, "series": date, "planned_at": date, "schedule": cron}
        Manifests(settings.results).write(manifest(f"s{day}", matrix="nightly_regression", run_id=date, **named))
    listed = gaps_of("nightly_regression", settings, now=datetime(2026, 11, 29, tzinfo=UTC))
    assert [gap.series[:16] for gap in listed if gap.sweep_id is None] == ["2026-11-19T03:00", "2026-11-28T05:00"]


def test_what_is_not_known_is_refused_by_name(settings: Settings) -> None:
    for arguments, words in (
        ({"matrix": "recvery"}, "recvery: no such matrix, nor a sweep of one; did you mean recovery"),
        ({"matrix": "nightly_regression"}, "nightly_regression: no night has been planned yet; switch the DAG on"),
        ({"matrix": "recovery", "sweep": "s9"}, "--sweep s9: no sweep of recovery with a plan"),
        ({"matrix": "recovery", "preset": "smok"}, "preset: 'smok' is not known; did you mean smoke"),
    ):
        with pytest.raises(ConfigError, match=words):
            gaps_of(settings=settings, **arguments)  # type: ignore[arg-type]
