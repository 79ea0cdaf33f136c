"""Concurrent sweeps under the real scheduler: one is stopped, and the scheduler is killed."""

from __future__ import annotations

import os
import signal
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import pandas as pd
import pytest

from benchmarks.ground_truth.known_truth import judge_scenario
from benchmarks.ground_truth.scenarios import SCENARIOS
from benchmarks.installation import MATRIX, await_run, form
from benchmarks.leak_check import attempts_of, stray_processes, stray_topics
from faultline.cli.sweep_runner import await_dags
from faultline.experiment.attempt import Attempt
from faultline.experiment.cell import EXPERIMENT, Cell
from faultline.installation.supervisord import Supervisor
from faultline.lifecycle.progress import current_attempt
from faultline.orchestration.airflow_api import AirflowApi
from faultline.records.record import Record
from faultline.records.store import Store
from faultline.system.journal import read_journal
from faultline.system.settings import Settings
from faultline.system.waiting import wait_until
from tests.support.installation import Installation

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(2400)]

OTHER = "state_size_x_checkpoint_interval"
# Longest duration of a run, with several attempts per cell.
END_S = 1200.0
PLANTED = next(one for one in SCENARIOS if one.name == "batch_everything")
# With at most this schedule lag, the ground-truth engine keeps its planted times.
QUIET_MS = 10.0
# Parts of the recovery between instants of single events.
ANCHORED = ("detection_s", "redeploy_s", "load_s", "reload_s", "replay_s")


@dataclass(frozen=True)
class FinishedSweeps:
    """Shared installation after the sweeps, with the DAG runs."""

    installation: Installation
    runs: Mapping[str, str]

    @property
    def store(self) -> Store:
        return Store(self.installation.results)

    @property
    def api(self) -> AirflowApi:
        return AirflowApi(self.installation.settings)

    @property
    def shared_cells(self) -> list[Record]:
        """Return the usable records of `test_on` and `test_twin`, which share cells."""
        return [one for name in ("test_on", "test_twin") for one in self.store.query(sweep=name) if one.is_usable]

    @property
    def single(self) -> Record:
        """Return the record of `test_single`."""
        (record,) = self.store.query(sweep="test_single")
        return record

    def note(self, run_id: str) -> str:
        (run,) = [run for run in self.api.runs(self.runs[run_id]) if run["dag_run_id"] == run_id]
        return str(run["note"])

    def states(self, run_id: str) -> set[str]:
        """Return the final states of the sweep's experiments."""
        tasks = self.api.tasks(self.runs[run_id], run_id)
        return {str(task["state"]) for task in tasks if task["task_id"] == "run_experiment"}


def measuring(settings: Settings, sweep_id: str) -> Attempt | None:
    """Return the attempt of the sweep that is being measured."""
    attempt = current_attempt(settings, sweep_id)
    return attempt if attempt is not None and attempt.gate.exists() and not attempt.closed.exists() else None


@pytest.fixture(scope="module")
def finished(shared_installation: Installation) -> FinishedSweeps:
    """Sweeps and an experiment triggered together, then a sweep without missing cells.

    One sweep is stopped while it measures, then the scheduler is killed. `test_twin` has the cells of `test_on`.
    """
    assert shared_installation.run("up").returncode == 0
    settings = shared_installation.settings
    api, supervisor = AirflowApi(settings), Supervisor(settings)
    await_dags(api, MATRIX, OTHER, EXPERIMENT)
    common = form("test_sweeps", [100.0], 1)
    shared = {**common, "rate": 130.0, "fault": ["none"], "state_mb": [0.0], "checkpoint_interval_s": [0.5, 0.6]}

    # Long enough to be stopped while it measures.
    api.trigger(MATRIX, {**common, "rate": [110.0, 120.0], "duration_s": 90.0}, run_id="test_stopped")
    api.trigger(OTHER, shared, run_id="test_on")
    api.trigger(OTHER, shared, run_id="test_twin")
    api.trigger(EXPERIMENT, PLANTED.configuration.model_dump(mode="json"), run_id="test_single")

    # Airflow decides which run starts first.
    scheduler, stopped, killed = supervisor.pids()["airflow-scheduler"], None, False

    def disturbed() -> bool:
        nonlocal stopped, killed
        if stopped is None and (stopped := measuring(settings, "test_stopped")):
            # It sets the same state as the UI, and waits for the end of the experiment.
            stop = shared_installation.run("sweep", "--stop", "test_stopped")
            assert stop.returncode == 0 and "0 of 2 experiments; cancelling" in stop.stderr, stop
            assert stopped.closed.exists()
        if not killed and (measuring(settings, "test_on") or measuring(settings, "test_twin")):
            os.kill(scheduler, signal.SIGKILL)
            killed = True
        return stopped is not None and killed

    wait_until(disturbed, timeout_s=600, every_s=0.2, what="a sweep stopped and a scheduler killed as they measured")
    runs = {"test_stopped": MATRIX, "test_on": OTHER, "test_twin": OTHER, "test_single": EXPERIMENT}
    for run_id, dag_id in runs.items():
        await_run(api, run_id, dag_id, timeout_s=END_S)
    wait_until(lambda: not api.runs(EXPERIMENT, "queued", "running"), timeout_s=300, what="no experiment")
    assert supervisor.pids()["airflow-scheduler"] != scheduler
    api.trigger(OTHER, shared, run_id="test_again")
    await_run(api, "test_again", OTHER, timeout_s=END_S)
    runs["test_again"] = OTHER
    return FinishedSweeps(shared_installation, runs)


def test_a_stopped_sweep_starts_no_other_cell(finished: FinishedSweeps) -> None:
    """One cell was measured; the waiting one was not."""
    found = finished.store.query(sweep="test_stopped")
    # If another sweep was first, the killed scheduler ran a waiting step of this one.
    records = [record for record in found if record.status == "cancelled"]
    broken = [record for record in found if record not in records]
    assert all(record.status == "failed" and "start_recorder" in record.reasons[0] for record in broken), broken
    attempts = [Attempt(finished.installation.settings.attempts / record.attempt) for record in records]
    assert sum(attempt.gate.exists() for attempt in attempts) == 1 <= len(attempts) <= 2


def test_a_stopped_sweep_is_reported_and_can_be_completed(finished: FinishedSweeps) -> None:
    assert finished.note("test_stopped").startswith("**Stopped** by the user after 0 of 2 experiments")
    gone = finished.installation.run("sweep", "--stop", "test_stopped")
    assert gone.returncode == 0 and "not running (failed)" in gone.stderr
    followed = finished.installation.run("sweep", "--follow", "test_on")
    assert followed.returncode == 0, followed.stderr
    assert "Summary" in followed.stdout and "/faultline/sweeps/test_on (user admin" in followed.stdout
    lacking = finished.installation.run("missing", MATRIX, "--sweep", "test_stopped")
    assert "2 of 2 missing" in lacking.stdout and lacking.stdout.count("cancelled") >= 1


def test_missing_cells_of_a_stopped_sweep_are_measured_in_its_series(finished: FinishedSweeps) -> None:
    before = {record.attempt for record in finished.store.query()}
    made = finished.installation.run("missing", MATRIX, "--sweep", "test_stopped", "--measure", timeout_s=1500)
    assert "resuming" in made.stderr or "about" in made.stderr, made.stderr
    new = [record for record in finished.store.query() if record.attempt not in before]
    assert {(record.config["rate"], record.series) for record in new} == {
        (110.0, "test_sweeps"),
        (120.0, "test_sweeps"),
    }
    assert (made.returncode == 0) == all(record.is_usable for record in new[-2:]), made.stderr


def test_a_killed_scheduler_loses_no_cell(finished: FinishedSweeps) -> None:
    cells = [Cell.of(record) for record in finished.shared_cells]
    assert len(cells) == len(set(cells)) == 2, "one sound record for each cell"
    assert finished.api.run_state(OTHER, "test_on") == finished.api.run_state(OTHER, "test_twin") == "success"
    notes = [str(run["note"]) for run in finished.api.runs(EXPERIMENT)]
    for record in finished.shared_cells:
        measured_in = [note for note in notes if record.attempt in note]
        assert len(measured_in) == 1 and measured_in[0].startswith(f"**{record.status}**")
        assert record.matrix == OTHER
    measured = [(str(record.sweep_id), record.status) for record in finished.shared_cells]
    for sweep_id, status in measured:
        note = finished.note(sweep_id)
        assert f"{measured.count((sweep_id, status))} {status}" in note and f"/sweeps/{sweep_id}" in note


def test_a_sweep_without_missing_cells_measures_nothing(finished: FinishedSweeps) -> None:
    assert finished.store.query(sweep="test_again") == []
    assert finished.states("test_again") == {"skipped"} and finished.api.run_state(OTHER, "test_again") == "success"
    assert "Nothing to measure" in finished.note("test_again")


def test_planted_values_are_reproduced_in_airflow(finished: FinishedSweeps) -> None:
    """A real kill and a restart, under real Airflow.

    Counts are exact on any machine. Parts up to the end of the replay are within one bin if the schedule lag is low.
    The rest is checked by the simulation and by `./faultline bench known_truth`.
    """
    record = finished.single
    assert record.status in ("valid", "unmet", "invalid"), record.reasons
    lag = record.metrics.schedule_lag_ms.p99
    quiet = lag is not None and lag < QUIET_MS
    for one in judge_scenario(PLANTED, record):
        if one.kind == "count" and one.name != "recovered":
            assert one.error == 0, one
        elif quiet and one.name in ANCHORED:
            assert one.error <= 1, one
    assert "driver_restarted" in [event.name for event in record.timeline], "both incarnations belong to the timeline"
    assert finished.note("test_single").startswith(f"**{record.status}**")


def test_experiments_ran_one_at_a_time_and_left_nothing(finished: FinishedSweeps) -> None:
    settings = finished.installation.settings
    own = attempts_of(settings, *finished.runs)
    recorded = [read_journal(one.recorder_journal) for one in own if one.recorder_journal.exists()]
    spans = [(lines[0]["wall_ns"], lines[-1]["wall_ns"]) for lines in recorded]
    assert len(spans) >= 3
    assert all(end <= begin for (_, end), (begin, _) in pairwise(sorted(spans))), "one is measured at a time"
    assert stray_processes(settings) == []
    assert not [topic for topic in stray_topics(settings) if any(one.id in topic for one in own)]


def test_the_results_are_on_the_page_and_in_the_tables(finished: FinishedSweeps) -> None:
    assert page(finished.installation, None)[0] == 401, "without a login there is no results page"
    status, text = page(finished.installation, finished.api.token())
    first = finished.shared_cells[0]
    assert status == 200 and str(first.sweep_id) in text
    summary = finished.installation.results / "summary"
    assert {one.attempt for one in finished.shared_cells} <= set(pd.read_csv(summary / "experiments.csv")["attempt"])
    assert pd.read_parquet(summary / "cells.parquet")["n"].sum() >= 2


def page(installation: Installation, token: str | None) -> tuple[int, str]:
    """Return status and text of the results page in the Airflow UI."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(f"{installation.settings.endpoints.airflow}/faultline/", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, ""
