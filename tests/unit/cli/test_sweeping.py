"""`./faultline sweep` with a simulated Airflow; tests/system uses the real one."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import pytest

from faultline.cli import missing_cells, sweep_runner
from faultline.comparison.coverage import gap_of, gaps_of
from faultline.experiment.attempt import write_json
from faultline.experiment.cell import sweep_id_of
from faultline.experiment.matrices import MATRICES
from faultline.experiment.matrix import PlannedCell
from faultline.experiment.nightly_file import NIGHTLY
from faultline.lifecycle import environment
from faultline.records.index_entry import IndexEntry
from faultline.records.record import Record
from faultline.records.store import Store
from faultline.records.sweep_plan import SweepPlan, SweepPlans, cells_of
from faultline.system.errors import ConfigError, InfrastructureError
from faultline.system.settings import ROOT, Settings
from tests.support.attempts import prepared
from tests.unit.sample_records import sample

BUILD = "b1"
NUMBERS = count()
WORDS = ["recovery", "preset=smoke", "repetitions=3", f"build={BUILD}"]


class Airflow:
    """Airflow whose runs end at once; `measures`: number of missing cells that get a usable record."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.triggered: list[tuple[str, dict[str, Any]]] = []
        self.going: list[str] = []
        self.state, self.notes = "success", list[str]()
        self.failed: list[str] = []
        # States of a run after each `fail`.
        self.after: list[str] = []
        self.cleared: list[str] = []

    def trigger(self, dag_id: str, conf: dict[str, Any], *, run_id: str | None = None, **when: Any) -> str:
        self.triggered.append((dag_id, conf | when))
        return run_id or "scheduled__2026-11-20T02:00:00+00:00"

    def has_dag(self, dag_id: str) -> bool:
        return True

    def runs(self, dag_id: str, *states: str) -> list[dict[str, Any]]:
        return [{"dag_run_id": run_id} for run_id in self.going]

    def run_state(self, dag_id: str, run_id: str) -> str:
        return self.state

    def fail(self, dag_id: str, run_id: str) -> None:
        self.failed.append(run_id)
        self.state = self.after.pop(0) if self.after else "failed"
        for attempt in self.settings.attempts.iterdir():
            write_json(attempt / "closed.json", {})

    def clear(self, dag_id: str, run_id: str) -> None:
        self.cleared.append(run_id)

    def set_note(self, dag_id: str, run_id: str, note: str) -> None:
        self.notes.append(note)


class Desk:
    """Sweep commands and their progress lines."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.airflow = settings, Airflow(settings)
        self.lines: list[str] = []
        self.measures, self.ended = 99, True

    def follow(self, api: Any, settings: Settings, dag: str, run_id: str, cells: list[PlannedCell], *_: Any,
               **__: Any) -> bool:  # fmt: skip
        rerun = bool(self.airflow.triggered) and not self.airflow.triggered[-1][1].get("only_missing", True)
        for cell in sweep_runner.cells_to_measure(settings, cells, rerun=rerun)[: self.measures]:
            at = datetime.now(UTC) + timedelta(seconds=next(NUMBERS))
            made = sample(attempt=f"{at:%Y%m%dT%H%M%SZ}-{next(NUMBERS):06x}", **cell.config.model_dump(mode="json"))
            update = {"series": cell.series, "sweep_id": sweep_id_of(run_id), "repetition": cell.repetition}
            Store(settings.results).write(made.model_copy(update=update))
        return self.ended

    def sweep(self, *words: str, **options: bool) -> int:
        self.lines.clear()
        return sweep_runner.run_sweep(
            words or WORDS, self.lines.append, **{"dry_run": False, "rerun": False, **options}
        )

    def plan(self, run_id: str, many: int = 3, since: str | None = None) -> SweepPlan:
        cells = MATRICES["recovery"].preset_matrix("smoke").cells(BUILD)
        cells = [PlannedCell(cells[0].config, number, BUILD) for number in range(many)]
        plan = SweepPlan(
            sweep_id=sweep_id_of(run_id), matrix="recovery", run_id=run_id, series=BUILD, build=BUILD,
            logical_date=None, planned_at="2026-11-21T06:00:00.000+00:00", since=since,
            cells=cells_of(cells),
        )  # fmt: skip
        SweepPlans(self.settings.results).write(plan)
        return plan

    @property
    def records(self) -> list[Record]:
        return Store(self.settings.results).query()


@pytest.fixture
def desk(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Desk:
    settings = Settings(root=ROOT, home=tmp_path / "home", results=tmp_path / "results")
    made = Desk(settings)
    for module in (sweep_runner, missing_cells):
        monkeypatch.setattr(module, "bring_up", lambda say: settings)
        monkeypatch.setattr(module, "AirflowApi", lambda settings: made.airflow)
        monkeypatch.setattr(module, "await_dags", lambda api, *dags, **how: None)
    monkeypatch.setattr(sweep_runner, "load_settings", lambda: settings)
    monkeypatch.setattr(sweep_runner, "login_text", lambda settings, out: "user admin")
    monkeypatch.setattr(sweep_runner, "follow", made.follow)
    return made


def test_a_sweep_is_described_before_and_after(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    assert desk.sweep() == 0
    assert desk.lines[:5] == [
        "recovery, preset smoke: 1 configuration, 3 experiments",
        "  fault: none",
        "  checkpoint_interval_s: 2.0",
        "  each configuration 3 times",
        "3 to measure: about 3 min on an idle machine",
    ]
    form = {"preset": "smoke", "repetitions": 3, "build": BUILD, "only_missing": True}
    assert desk.airflow.triggered == [("recovery", form)]
    out = capsys.readouterr().out
    assert "Summary" in out and out.count("valid") >= 3
    assert f"/faultline/sweeps/{desk.records[0].sweep_id} (user " in out


def test_a_second_call_measures_missing_cells_and_rerun_all(desk: Desk) -> None:
    desk.measures = 2
    assert desk.sweep() == 1
    assert desk.lines[-1].startswith("no usable record for ") and desk.lines[-1].endswith(
        "rerun the same command to retry"
    )
    desk.measures = 99
    assert desk.sweep() == 0
    assert "1 to measure, 2 have a usable record: about 1 min on an idle machine" in desk.lines
    assert desk.sweep() == 0 and len(desk.airflow.triggered) == 2
    assert "--rerun" in desk.lines[-1]
    assert desk.sweep(rerun=True) == 0 and len(desk.records) == 6
    assert desk.airflow.triggered[-1][1]["only_missing"] is False


def test_a_dry_run_starts_nothing(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    assert desk.sweep(*WORDS, dry_run=True) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "3 to measure: about 3 min on an idle machine"
    assert not desk.lines and not desk.airflow.triggered
    asked = '{"figure": "cpu_cores.total", "along": "checkpoint_interval_s", "smallest": 0.1, "experiments": 40}'
    desk.sweep("recovery", "fault=none", "checkpoint_interval_s=2,5", f"decide={asked}", "build=b", dry_run=True)
    out = capsys.readouterr().out
    assert "at most 40 experiments" in out and "until decided" in out


def test_an_invalid_target_prevents_the_start(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def wrong(_: Settings, names: list[str], __: Any) -> None:
        asked.append(names)
        raise ConfigError("Connection faultline_storage: extra: path: /x: no such folder")

    monkeypatch.setattr(sweep_runner, "preflight_targets", wrong)
    with pytest.raises(ConfigError, match="faultline_storage"):
        desk.sweep()
    assert asked == [["embedded"]] and desk.airflow.triggered == []


def test_a_running_sweep_of_the_same_cells_is_resumed(desk: Desk) -> None:
    desk.plan("recovery_other", many=2)
    desk.plan("recovery_mine")
    desk.airflow.going = ["recovery_unplanned", "recovery_other", "recovery_mine"]
    assert desk.sweep() == 0
    assert "resuming recovery_mine" in desk.lines and not desk.airflow.triggered


def test_a_sweep_without_a_record_is_an_error(desk: Desk) -> None:
    desk.measures = 0
    with pytest.raises(InfrastructureError, match="^sweep: "):
        desk.sweep()


def test_following_shows_the_newest_sweep_or_the_named_one(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match="^sweep: "):
        sweep_runner.follow_sweep(None, desk.lines.append)
    plan = desk.plan("recovery_mine")
    with pytest.raises(ConfigError, match="sweep: got recovery_min; .*did you mean recovery_mine"):
        sweep_runner.follow_sweep("recovery_min", desk.lines.append)
    assert sweep_runner.follow_sweep(None, desk.lines.append) == 0
    assert desk.lines[0] == f"recovery, sweep {plan.sweep_id}"
    assert f"/faultline/sweeps/{plan.sweep_id}" in capsys.readouterr().out


def test_stop_fails_the_run_and_awaits_its_last_experiment(desk: Desk) -> None:
    desk.plan("recovery_mine")
    assert sweep_runner.stop_sweep("recovery_mine", desk.lines.append) == 0
    assert desk.lines == ["recovery_mine: not running (success)"] and not desk.airflow.failed
    desk.airflow.state = "running"
    attempt = prepared(desk.settings.attempts / "20261121T061500Z-000001", sweep_id="recovery_mine")
    assert sweep_runner.stop_sweep(None, desk.lines.append) == 0
    assert desk.airflow.failed == ["recovery_mine"] and attempt.closed.exists()
    (note,) = desk.airflow.notes
    assert note.startswith("**Stopped** ") and " 0 of 3 experiments" in note
    desk.airflow.state, desk.airflow.after = "running", ["success"]
    assert sweep_runner.stop_sweep("recovery_mine", desk.lines.append) == 0
    assert desk.airflow.failed == ["recovery_mine"] * 3, "again, since the scheduler called it a success"
    assert desk.airflow.state == "failed"


def test_earlier_records_do_not_count_for_a_rerun(desk: Desk) -> None:
    assert desk.sweep() == 0
    assert sweep_runner.progress_of(desk.settings, desk.plan("recovery_more")) == (3, 3)
    assert sweep_runner.progress_of(desk.settings, desk.plan("recovery_anew", since="2026-11-22")) == (0, 3)


def test_missing_cells_are_measured_in_the_same_series(desk: Desk) -> None:
    plan = desk.plan("recovery_mine")
    found = gaps_of("recovery", desk.settings)
    assert missing_cells.measure_gaps(found, None, desk.lines.append) == 0
    assert desk.airflow.triggered == [("recovery", {"resume": plan.sweep_id})]
    assert {record.series for record in desk.records} == {BUILD} and len(desk.records) == 3
    assert missing_cells.measure_gaps(gaps_of("recovery", desk.settings), None, desk.lines.append) == 0
    assert desk.lines[-1] == "nothing is missing" and len(desk.airflow.triggered) == 1


def test_a_nightly_run_of_another_build_is_reported_and_kept(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not cleared or triggered; with its own build, it is measured under its logical date."""
    date = "2026-11-21T02:00:00+00:00"
    labels = {"matrix": NIGHTLY, "sweep_id": "20261121T020000", "run_id": f"scheduled__{date}", "logical_date": date}
    one, other = (
        replace(cell, repetition=number, series=date)
        for number, cell in enumerate(2 * MATRICES["recovery"].preset_matrix("smoke").cells(BUILD)[:1])
    )
    plan = desk.plan("scheduled").model_copy(update={**labels, "series": date, "cells": tuple(cells_of([one, other]))})
    SweepPlans(desk.settings.results).write(plan)
    there = sample(attempt="20261121T021500Z-00000a", **one.config.model_dump(mode="json"))
    there = there.model_copy(update={"series": date, "sweep_id": plan.sweep_id, "repetition": 0})
    Store(desk.settings.results).write(there)
    found = [gap_of(plan, [IndexEntry.of(there)])]
    at_hand = ["b2", BUILD]
    monkeypatch.setattr(environment, "installed_build", lambda *_, **__: at_hand.pop(0))
    assert missing_cells.measure_gaps(found, None, desk.lines.append) == 1
    (line,) = desk.lines
    assert line.startswith(f"{NIGHTLY}: ") and str(BUILD) in line and "b2" in line
    assert desk.airflow.cleared == [] and len(desk.records) == 1
    assert missing_cells.measure_gaps(found, None, desk.lines.append) == 0
    assert desk.airflow.cleared == [plan.run_id] and len(desk.records) == 2


def test_running_sweeps_are_reported(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.plan("planned-1")
    going = [("recovery", "planned-1"), ("recovery", "new-1"), ("experiment", "planned-1__3"), ("others", "new-2")]
    runs = [{"dag_id": dag_id, "dag_run_id": run_id} for dag_id, run_id in going]
    monkeypatch.setattr(desk.airflow, "runs", lambda dag_id, *states: runs)
    sweep_runner.report_running_sweeps(desk.settings, desk.lines.append)
    assert desk.lines == [
        "recovery planned-1: running, 0 of 3 cells measured",
        "recovery new-1: running, not yet planned",
    ]
