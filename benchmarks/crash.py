"""Sweeps whose every part is killed: what Faultline promises of them, held against real processes.

A sweep of short experiments with known truth runs under the real scheduler, and while it runs SIGKILL hits the
scheduler, a running task, the API server, Kafka, the recorder, the generator or the workload's supervisor, at each
step boundary and at random instants. Each kill is noted as it happens, so a benchmark that was interrupted goes on
with the next.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import psutil

from benchmarks.broken_sweeps import (
    Sweep,
    await_noted,
    calm,
    counted,
    left_behind,
    new_series,
    require_none,
    sums,
    total,
    trigger,
)
from benchmarks.diary import Diary
from benchmarks.figure import Figure
from benchmarks.installation import MATRIX, await_run, own_services
from benchmarks.kills import SERVICES, Kill, find_victim, is_due, plan_kills
from faultline.experiment.cell import EXPERIMENT
from faultline.experiment.sweep_id import sweep_id_of
from faultline.installation.airflow import airflow_health
from faultline.installation.kafka import kafka_ready
from faultline.installation.supervisord import Supervisor
from faultline.lifecycle.progress import current_attempt
from faultline.orchestration.airflow_api import FINISHED, AirflowApi
from faultline.system.errors import InfrastructureError
from faultline.system.settings import Settings
from faultline.system.text import Say
from faultline.system.waiting import wait_until

# Address of an empty PostgreSQL that Airflow's tables lie in, instead of SQLite.
BENCH_DATABASE = "FAULTLINE_BENCH_DATABASE"
KILLS_PER_SWEEP = 6
QUICK_KILLS = 6
# A sweep that ends red is triggered again, as its user would; more often means that it does not heal.
MOST_TRIGGERS = 4
_POLL_S, _ASK_S = 0.25, 2.0
_RECOVERY_S = 180.0
# A boundary that a sweep does not reach is waited for no longer.
_BOUNDARY_S = 300.0


def run(say: Say, quick: bool) -> dict[str, dict[str, Any]]:
    """Kills and counts: all planned kills, or six when `quick`. Figures: what was killed, what became of the cells,
    what was left behind, and the wall time.

    Raises InfrastructureError naming what was lost, measured twice or left behind.
    """
    kills = plan_kills()[:QUICK_KILLS] if quick else plan_kills()
    database = os.environ.get(BENCH_DATABASE, "")
    with own_services("crash_postgresql" if database else "crash", say, database) as settings:
        # The quick kills are the first ones of all: a journal of their own keeps them from counting as done.
        journal = Diary(settings.home / ("crash-quick.jsonl" if quick else "crash.jsonl"), "kill")
        api = AirflowApi(settings)
        for former in api.runs(MATRIX, "queued", "running"):
            say(f"{former['dag_run_id']}: goes on from an interrupted call")
            await_run(api, former["dag_run_id"])
        for begun in journal.unfinished:
            sweep = _again(settings, begun, journal)
            say(f"{sweep.series}: {sweep.outcome}, from an interrupted call")
        while left := [kill for kill in kills if kill.number not in journal.done]:
            say(f"{len(kills) - len(left)} of {len(kills)} kills done")
            sweep = _sweep(settings, left[:KILLS_PER_SWEEP], journal, say)
            if not sweep.acts:
                raise InfrastructureError(f"crash: the moment of kill {left[0].number} ({left[0]}) never came")
            say(f"{sweep.series}: {sweep.outcome} in {sweep.seconds:.0f} s")
        calm(settings, say)
        leftovers = left_behind(settings, say)
    found = {**figures(journal.sweeps, journal.acts), **leftovers}
    journal.move_aside()  # all kills are done: the next call measures anew
    require_none("crash", found)
    return {name: asdict(figure) for name, figure in found.items()}


def figures(sweeps: Sequence[dict[str, Any]], kills: Sequence[dict[str, Any]]) -> dict[str, Figure]:
    """Whom the kills hit, and sums over all sweeps."""
    found = {
        f"kills_{victim}": total([float(kill["victim"] == victim) for kill in kills]) for victim in _victims(kills)
    }
    found["kills"] = total([1.0 for _ in kills])
    found["kills_at_boundaries"] = total([float(kill["after"] is not None) for kill in kills])
    return found | sums(sweeps)


def _victims(kills: Sequence[dict[str, Any]]) -> list[str]:
    return sorted({kill["victim"] for kill in kills})


def _sweep(settings: Settings, kills: Sequence[Kill], journal: Diary, say: Say) -> Sweep:
    """Triggers a sweep, delivers kills while it runs, and triggers it again till it ends green."""
    api, began = AirflowApi(settings), time.monotonic()
    series = new_series("crash")
    waiting, state = list(kills), ""
    runs: list[str] = []
    while state != "success":
        if len(runs) == MOST_TRIGGERS:
            raise InfrastructureError(
                f"{series}: not green after {MOST_TRIGGERS} triggers; see {settings.airflow_home}"
            )
        runs.append(trigger(api, series, len(runs), journal))
        while waiting and _state(api, runs[-1]) not in FINISHED:
            if _deliver(settings, api, waiting[0], runs[-1], journal, say):
                waiting.pop(0)
        state = await_run(api, runs[-1])
    return counted(settings, series, runs, len(kills) - len(waiting), time.monotonic() - began, state, journal)


def _again(settings: Settings, begun: dict[str, Any], journal: Diary) -> Sweep:
    """Brings a sweep of an interrupted call to its end, without further kills, so that its cells are counted, too."""
    api, series, runs = AirflowApi(settings), str(begun["series"]), list(begun["runs"])
    start = time.monotonic()
    state = await_noted(api, series, runs[-1])
    while len(runs) < MOST_TRIGGERS and state != "success":
        runs.append(trigger(api, series, len(runs), journal))
        state = await_run(api, runs[-1])
    kills = sum(line["run_id"] in begun["runs"] for line in journal.acts)
    return counted(settings, series, runs, kills, time.monotonic() - start, state, journal)


def _deliver(settings: Settings, api: AirflowApi, kill: Kill, run_id: str, journal: Diary, say: Say) -> bool:
    """Waits for the kill's moment, and kills; False when the sweep ended, or its moment never came."""
    began, since, asked = time.monotonic(), datetime.now(UTC), 0.0
    while True:
        # Each question costs the API server, and its database, what the experiment would have.
        if time.monotonic() - asked >= _ASK_S:
            asked = time.monotonic()
            if _state(api, run_id) in FINISHED or asked - began > _BOUNDARY_S:
                return False
        due = time.monotonic() - began >= kill.wait_s if kill.after is None else _reached(api, kill.after, since)
        process = find_victim(settings, kill.victim, current_attempt(settings, sweep_id_of(run_id))) if due else None
        if process is not None:
            break
        time.sleep(_POLL_S)
    try:
        created = process.create_time()
        process.kill()
    except psutil.NoSuchProcess:
        return False
    say(f"kill {kill.number}: {kill}, pid {process.pid}")
    journal.note(
        "kill", **asdict(kill), run_id=run_id, pid=process.pid, create_time=created, at=datetime.now(UTC).isoformat()
    )
    _survived(settings, kill, process)
    return True


def _state(api: AirflowApi, run_id: str) -> str:
    """The run's state, also while the API server starts again."""
    return str(wait_until(lambda: _ask(lambda: api.run_state(MATRIX, run_id)), timeout_s=_RECOVERY_S, what="airflow"))


def _reached(api: AirflowApi, after: str, since: datetime) -> bool:
    """Whether the running experiment stands right behind the step `after`, which ended since then."""
    runs = _ask(lambda: api.runs(EXPERIMENT, "running", *(("success", "failed") if after == "teardown" else ()))) or []
    tasks = _ask(lambda: api.tasks(EXPERIMENT, runs[0]["dag_run_id"])) if runs else None
    return bool(tasks) and is_due(tasks or [], after, since)


def _ask(question: Callable[[], Any]) -> Any:
    """The answer, or None while nobody answers."""
    try:
        return question()
    except InfrastructureError:
        return None


def _survived(settings: Settings, kill: Kill, process: psutil.Process) -> None:
    """Waits until the victim is gone and, if it is a service, a new one answers."""
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
