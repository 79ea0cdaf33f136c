"""Survival of a sweep when its processes are killed at every step boundary and at random times (hours).

A sweep of short scripted experiments runs under the real scheduler. SIGKILL hits the scheduler, a running task, the API
server, Kafka, the recorder, the generator or the workload's supervisor, at each step boundary and at random times.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import psutil

from benchmarks.broken_sweeps import BenchmarkLog, BrokenSweeps, ask, require_zero, sum_sweeps
from benchmarks.figure import BenchmarkFigure, total
from benchmarks.installation import own_services
from faultline.experiment.attempt import Attempt
from faultline.experiment.cell import EXPERIMENT, sweep_id_of
from faultline.installation.airflow import airflow_health
from faultline.installation.kafka import kafka_ready
from faultline.installation.start import TITLE
from faultline.installation.supervision import marked_processes
from faultline.installation.supervisord import Supervisor
from faultline.lifecycle.progress import current_attempt
from faultline.orchestration.airflow_api import FINISHED, AirflowApi
from faultline.system.process_ledger import read_ledger, victim_of
from faultline.system.settings import Settings
from faultline.system.text import Progress
from faultline.system.waiting import wait_until

# Address of an empty PostgreSQL for Airflow's tables, instead of SQLite.
BENCH_DATABASE = "FAULTLINE_BENCH_DATABASE"
QUICK_KILLS = 6
_POLL_S, _ASK_S = 0.25, 2.0
_RECOVERY_S = 180.0
# Longest wait for a boundary.
_BOUNDARY_S = 300.0

# Tasks of an experiment, in order.
STEPS = (
    "prepare",
    "provision_topics",
    "start_recorder",
    "start_generator",
    "submit_workload",
    "inject_fault",
    "await_end",
    "harvest",
    "judge",
    "teardown",
)
SERVICES = {"scheduler": "airflow-scheduler", "api_server": "airflow-api-server", "kafka": "kafka"}
TASK = "task"
# Processes of an attempt, with the steps that they survive.
ROLES: Mapping[str, Sequence[str]] = {
    "recorder": STEPS[2:6],
    "generator": STEPS[3:6],
    "supervisor": STEPS[4:6],
}
VICTIMS = (*SERVICES, TASK, *ROLES)
RANDOM_KILLS = 55
# Longest random wait: the duration of a scripted experiment, so a kill may hit any part of it.
LONGEST_WAIT_S = 40.0
# Process title of a worker that has no task, or of the process that supervises a busy worker's task.
_WORKER = f"{TITLE}LocalExecutor"


@dataclass(frozen=True)
class Kill:
    """One SIGKILL to `victim` after a step, or `wait_s` seconds after the previous recovery."""

    number: int
    victim: str
    after: str | None
    wait_s: float = 0.0

    def __str__(self) -> str:
        return f"{self.victim} {'after ' + self.after if self.after else f'at {self.wait_s:.1f} s'}"


def plan_kills() -> list[Kill]:
    """Return kills of each victim after every step that it survives, and RANDOM_KILLS others, in random order."""
    rng = random.Random(1)
    kills: list[tuple[str, str | None, float]] = [(victim, step, 0.0) for victim in (*SERVICES, TASK) for step in STEPS]
    kills += [(role, step, 0.0) for role, steps in ROLES.items() for step in steps]
    kills += [(rng.choice(VICTIMS), None, rng.uniform(0.0, LONGEST_WAIT_S)) for _ in range(RANDOM_KILLS)]
    rng.shuffle(kills)
    return [Kill(number, *kill) for number, kill in enumerate(kills)]


def run(progress: Progress, quick: bool) -> dict[str, BenchmarkFigure]:
    """Run all planned kills, or six if `quick`.

    Figures: kills by victim, results of the cells, leftovers, and the wall time. Raises InfrastructureError naming
    cells that were lost or measured twice, and leftovers.
    """
    kills = plan_kills()[:QUICK_KILLS] if quick else plan_kills()
    database = os.environ.get(BENCH_DATABASE, "")
    with own_services("crash_postgresql" if database else "crash", progress, database) as settings:
        # The quick kills are the first ones of the full plan, so they need a separate log.
        diary = BenchmarkLog(settings.home / ("crash-quick.jsonl" if quick else "crash.jsonl"), "kill")
        leftovers = Kills(settings, diary, progress).go_through(kills)
    found = {**figures(diary.sweeps, diary.acts), **leftovers}
    diary.move_aside()  # all kills are done: the next call measures again
    require_zero("crash", found)
    return found


def figures(sweeps: Sequence[dict[str, Any]], kills: Sequence[dict[str, Any]]) -> dict[str, BenchmarkFigure]:
    """Return the number of kills by victim, and sums over all sweeps."""
    victims = sorted({kill["victim"] for kill in kills})
    found = {f"kills_{victim}": total([float(kill["victim"] == victim) for kill in kills]) for victim in victims}
    found["kills"] = total([1.0 for _ in kills])
    found["kills_at_boundaries"] = total([float(kill["after"] is not None) for kill in kills])
    return found | sum_sweeps(sweeps)


class Kills(BrokenSweeps[Kill]):
    """Sweeps with killed processes."""

    name = "crash"
    per_sweep = 6
    triggers = 4

    def deliver(self, kill: Kill, run_id: str) -> bool:
        began, since, last_asked = time.monotonic(), datetime.now(UTC), 0.0
        while True:
            # Limited, because each request takes CPU time for API server and database from the experiment.
            if time.monotonic() - last_asked >= _ASK_S:
                last_asked = time.monotonic()
                if self.state_of(run_id) in FINISHED or last_asked - began > _BOUNDARY_S:
                    return False
            waited = time.monotonic() - began >= kill.wait_s
            due = waited if kill.after is None else _is_at_boundary(self.api, kill.after, since)
            attempt = current_attempt(self.settings, sweep_id_of(run_id)) if due else None
            process = find_victim(self.settings, kill.victim, attempt) if due else None
            if process is not None:
                break
            time.sleep(_POLL_S)
        try:
            created = process.create_time()
            process.kill()
        except psutil.NoSuchProcess:
            return False
        self.progress(f"kill {kill.number}: {kill}, pid {process.pid}")
        self.note(kill, run_id, pid=process.pid, create_time=created, at=datetime.now(UTC).isoformat())
        _await_recovery(self.settings, kill, process)
        return True


def _is_at_boundary(api: AirflowApi, after: str, since: datetime) -> bool:
    """Return whether the step `after` of the running experiment has ended since `since`, and the next one has not."""
    runs = ask(lambda: api.runs(EXPERIMENT, "running", *(("success", "failed") if after == "teardown" else ()))) or []
    tasks = ask(lambda: api.tasks(EXPERIMENT, runs[0]["dag_run_id"])) if runs else None
    return bool(tasks) and is_due(tasks or [], after, since)


def _await_recovery(settings: Settings, kill: Kill, process: psutil.Process) -> None:
    """Wait until the victim is gone and, if it is a service, its replacement responds."""
    psutil.wait_procs([process], timeout=10)
    if kill.victim not in SERVICES:
        return
    name, supervisor = SERVICES[kill.victim], Supervisor(settings)

    def back() -> bool:
        if supervisor.pids().get(name) in (None, process.pid) or supervisor.states().get(name) != "RUNNING":
            return False
        if kill.victim == "kafka":
            return kafka_ready(settings.endpoints.kafka, settings.secrets)
        return bool(airflow_health(settings))

    wait_until(back, timeout_s=_RECOVERY_S, every_s=0.5, what=f"{name}: back after a kill")


def is_due(tasks: Sequence[Mapping[str, Any]], after: str, since: datetime) -> bool:
    """Return whether the step `after` has ended since `since`, in any state, and the next one has not.

    `tasks`: Airflow's task instances. The state does not matter because `judge` fails for any record that is not valid;
    on a busy machine, a wait for a valid one might never end.
    """
    by_id = {task["task_id"]: task for task in tasks}
    ended = by_id.get(after, {})
    if ended.get("state") not in ("success", "failed") or datetime.fromisoformat(ended["end_date"]) < since:
        return False
    following = STEPS[STEPS.index(after) + 1 :][:1]
    return not following or by_id.get(following[0], {}).get("state") in (None, "scheduled", "queued", "running")


def find_victim(settings: Settings, victim: str, attempt: Attempt | None) -> psutil.Process | None:
    """Return the live process of `victim`, of these services or of this attempt; None if there is none."""
    if victim in SERVICES:
        pid = Supervisor(settings).pids().get(SERVICES[victim])
        return None if pid is None else _process(pid)
    if victim == TASK:
        running = [process for process in marked_processes(settings) if _runs_task(process)]
        return max(running, key=psutil.Process.create_time, default=None)
    if attempt is None:
        return None
    alive = [victim_of(entry) for entry in read_ledger(attempt.ledger) if entry.role == victim]
    return next((process for process in alive if process is not None), None)


def _runs_task(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        words = process.cmdline()
        alive = process.status() != psutil.STATUS_ZOMBIE
        return bool(words) and words[0].startswith(TITLE) and not words[0].startswith(_WORKER) and alive
    return False


def _process(pid: int) -> psutil.Process | None:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid)
    return None
