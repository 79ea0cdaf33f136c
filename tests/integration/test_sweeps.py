"""Several sweeps at once under the real scheduler, one of them stopped, and the scheduler killed amid the others."""

from __future__ import annotations

import os
import signal
from itertools import pairwise

import pytest

from faultline.airflow_api import FINISHED, AirflowApi
from faultline.attempt import Attempt
from faultline.bench.installation import MATRIX, form
from faultline.bench.leftovers import attempts_of, stray_processes, stray_topics
from faultline.demo import await_dags
from faultline.progress import current_attempt
from faultline.settings import Settings
from faultline.store import Cell, Store
from faultline.supervision import Supervisor
from faultline.waiting import wait_until
from tests.integration.installation import Installation

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1500)]

OTHER = "state_size_x_checkpoint_interval"


def measuring(settings: Settings, sweep_id: str) -> Attempt:
    """The attempt of the sweep at which the gate is open."""

    def found() -> Attempt | None:
        attempt = current_attempt(settings, sweep_id)
        return attempt if attempt is not None and attempt.gate.exists() and not attempt.closed.exists() else None

    return wait_until(found, timeout_s=600, what=f"{sweep_id}: an open gate")


def test_sweeps_interleave_a_stopped_one_leaves_nothing_and_a_dead_scheduler_costs_no_cell(
    shared_installation: Installation,
) -> None:
    assert shared_installation.run("up").returncode == 0
    settings = shared_installation.settings
    api, supervisor = AirflowApi(settings), Supervisor(settings)
    await_dags(api, MATRIX, OTHER, "experiment")
    common = form("test_sweeps", [100.0], 1)
    single = {key: value for key, value in common.items() if key not in ("repetitions", "max_measurements")}

    # Long enough that the stop finds it measuring.
    api.trigger(MATRIX, {**common, "rate": [110.0, 120.0], "duration_s": 90.0}, run_id="test_stopped")
    api.trigger(
        OTHER, {**common, "rate": 130.0, "state_mb": [0.0], "checkpoint_interval_s": [0.5, 0.6]}, run_id="test_on"
    )
    api.trigger("experiment", {**single, "rate": 140.0}, run_id="test_single")

    # What the button of the UI does.
    stopped = measuring(settings, "test_stopped")
    api._call("PATCH", f"/api/v2/dags/{MATRIX}/dagRuns/test_stopped", {"state": "failed"})
    wait_until(stopped.closed.exists, timeout_s=120, what="the end of the stopped experiment")

    measuring(settings, "test_on")
    scheduler = supervisor.pids()["airflow-scheduler"]
    os.kill(scheduler, signal.SIGKILL)
    runs = {MATRIX: "test_stopped", OTHER: "test_on", "experiment": "test_single"}
    for dag_id, run_id in runs.items():
        wait_until(
            lambda dag_id=dag_id, run_id=run_id: api.run_state(dag_id, run_id) in FINISHED,  # type: ignore[misc]
            timeout_s=900,
            every_s=1.0,
            what=f"{dag_id}: the end of {run_id}",
        )
    wait_until(lambda: not api.runs("experiment", "queued", "running"), timeout_s=300, what="no experiment")
    assert supervisor.pids()["airflow-scheduler"] != scheduler

    store = Store(settings.results)
    assert [record.status for record in store.query(sweep="test_stopped")] == ["cancelled"], "and no second cell began"
    assert api.run_state(OTHER, "test_on") == "success"
    valid = [Cell.of(record) for record in store.query(sweep="test_on", status="valid")]
    assert len(valid) == len(set(valid)) == 2, "one valid record for each cell"
    (single,) = store.query(sweep="test_single")
    assert single.status in ("valid", "invalid")

    own = [one for one in attempts_of(settings) if str(one.read().get("sweep_id")) in runs.values()]
    spans = [(one.read()["prepared_wall_ns"] / 1e9, one.closed.stat().st_mtime) for one in own]
    assert all(end <= begin for (_, end), (begin, _) in pairwise(sorted(spans))), "one experiment at a time"
    assert stray_processes(settings) == []
    assert not [topic for topic in stray_topics(settings) if any(one.id in topic for one in own)]
