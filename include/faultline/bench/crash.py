"""Sweeps whose every part is killed: what Faultline promises of them, held against real processes.

A sweep of short experiments with known truth runs under the real scheduler, and while it runs SIGKILL hits the
scheduler, a running task, the API server, Kafka, the recorder, the generator or the workload's supervisor, at each
step boundary and at random instants. Each kill is noted as it happens, so a benchmark that was interrupted goes on
with the next.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from faultline.base.errors import InfrastructureError
from faultline.base.journal import Journal, read_journal
from faultline.base.settings import Settings
from faultline.base.text import Say
from faultline.base.waiting import wait_until
from faultline.bench.figure import Figure, summarise
from faultline.bench.installation import MATRIX, await_run, form, own_services
from faultline.bench.kills import SERVICES, Kill, find_victim, is_due, plan_kills
from faultline.bench.leftovers import (
    Tally,
    series_tally,
    stray_ports,
    stray_processes,
    stray_topics,
    unclosed,
)
from faultline.client.airflow_api import FINISHED, AirflowApi
from faultline.cluster.daemon import Supervisor
from faultline.cluster.services import airflow_health, kafka_ready
from faultline.experiment.cell import EXPERIMENT
from faultline.experiment.sweep_id import sweep_id_of
from faultline.records.store import Store
from faultline.runner.progress import current_attempt

RATES = [100.0, 150.0]
REPETITIONS = 2
KILLS_PER_SWEEP = 6
QUICK_KILLS = 6
# A sweep that ends red is triggered again, as its user would; more often means that it does not heal.
MOST_TRIGGERS = 4
_POLL_S = 0.25
_RECOVERY_S = 180.0
# A boundary that a sweep does not reach is waited for no longer.
_BOUNDARY_S = 300.0

# Figures by what they sum of a tally.
_COUNTS = {
    "cells": "planned", "cells_once": "once", "lost_records": "lost", "duplicate_records": "double",
    "remeasured": "remeasured", "attempts": "attempts",
}  # fmt: skip


@dataclass(frozen=True)
class Sweep:
    """One sweep under kills, with the runs that it took; `seconds` from its trigger to its end."""

    series: str
    kills: int
    triggers: int
    seconds: float
    outcome: Tally


def run(say: Say, quick: bool) -> dict[str, dict[str, Any]]:
    """Kills and counts: all planned kills, or six when `quick`. Figures: what was killed, what became of the cells,
    what was left behind, and the wall time.

    Raises InfrastructureError naming what was lost, measured twice or left behind.
    """
    kills = plan_kills()[:QUICK_KILLS] if quick else plan_kills()
    with own_services("crash", say) as settings:
        # The quick kills are the first ones of all: a journal of their own keeps them from counting as done.
        journal, api = Diary(settings.home / ("crash-quick.jsonl" if quick else "crash.jsonl")), AirflowApi(settings)
        for former in api.runs(MATRIX, "queued", "running"):
            say(f"{former['dag_run_id']}: goes on from an interrupted call")
            await_run(api, former["dag_run_id"])
        for begun in journal.unfinished:
            sweep = _again(settings, begun, journal)
            say(f"{sweep.series}: {sweep.outcome}, from an interrupted call")
        while left := [kill for kill in kills if kill.number not in journal.done]:
            say(f"{len(kills) - len(left)} of {len(kills)} kills done")
            sweep = _sweep(settings, left[:KILLS_PER_SWEEP], journal, say)
            if not sweep.kills:
                raise InfrastructureError(f"crash: the moment of kill {left[0].number} ({left[0]}) never came")
            say(f"{sweep.series}: {sweep.outcome} in {sweep.seconds:.0f} s")
        _calm(settings, say)
        leftovers = {
            "orphan_processes": stray_processes(settings),
            "orphan_ports": stray_ports(settings),
            "orphan_topics": stray_topics(settings),
            "orphan_attempts": unclosed(settings),
        }
        problems = Store(settings.results).read().problems
    for line in [line for lines in leftovers.values() for line in lines]:
        say(line)
    found = figures(journal.sweeps, journal.kills, {name: len(lines) for name, lines in leftovers.items()})
    found["unreadable_records"] = summarise([len(problems)], "1")
    journal.move_aside()  # all kills are done: the next call measures anew
    _require(found)
    return {name: asdict(figure) for name, figure in found.items()}


class Diary:
    """Kills and sweeps that are done, a line each on disk, so that a crash of the benchmark itself loses none."""

    def __init__(self, path: Path) -> None:
        # Benchmarks of before there was a journal said `kind`.
        self._lines = [{"event": line.get("kind"), **line} for line in read_journal(path)]
        self._journal = Journal(path)

    def note(self, kind: str, **facts: Any) -> None:
        """Adds a line and writes it to disk."""
        self._lines.append({"event": kind, **facts})
        self._journal.append(self._lines[-1], sync=True)

    @property
    def kills(self) -> list[dict[str, Any]]:
        return [line for line in self._lines if line["event"] == "kill"]

    @property
    def done(self) -> set[int]:
        """Numbers of the kills that were delivered."""
        return {line["number"] for line in self.kills}

    @property
    def unfinished(self) -> list[dict[str, Any]]:
        """Runs of sweeps that were triggered and not counted, as an interrupted call leaves them; by series."""
        counted = {line["series"] for line in self.sweeps}
        runs = [line for line in self._lines if line["event"] == "run" and line["series"] not in counted]
        series = dict.fromkeys(line["series"] for line in runs)
        return [{"series": one, "runs": [line["run_id"] for line in runs if line["series"] == one]} for one in series]

    def move_aside(self) -> None:
        """Keeps the journal under the present time; the next one begins empty."""
        self._journal.close()
        path = self._journal.path
        path.rename(path.with_name(f"{path.stem}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.jsonl"))

    @property
    def sweeps(self) -> list[dict[str, Any]]:
        return [line for line in self._lines if line["event"] == "sweep"]


def figures(
    sweeps: Sequence[dict[str, Any]], kills: Sequence[dict[str, Any]], leftovers: dict[str, int]
) -> dict[str, Figure]:
    """Sums over all sweeps; `low` and `high` are those of single sweeps where that says something."""

    def total(values: list[float], unit: str = "1") -> Figure:
        return Figure(sum(values), unit, min(values, default=0), max(values, default=0), len(values))

    found = {
        f"kills_{victim}": total([float(kill["victim"] == victim) for kill in kills]) for victim in _victims(kills)
    }
    found["kills"] = total([1.0 for _ in kills])
    found["kills_at_boundaries"] = total([float(kill["after"] is not None) for kill in kills])
    for name, key in _COUNTS.items():
        found[name] = total([sweep["outcome"][key] for sweep in sweeps])
    found["triggers"] = total([sweep["triggers"] for sweep in sweeps])
    found |= {name: total([count]) for name, count in leftovers.items()}
    found["orphans"] = total([sum(leftovers.values())])
    found["wall_s"] = total([sweep["seconds"] for sweep in sweeps], "s")
    return found


def _victims(kills: Sequence[dict[str, Any]]) -> list[str]:
    return sorted({kill["victim"] for kill in kills})


def _require(found: dict[str, Figure]) -> None:
    """Raises InfrastructureError for what must not be."""
    forbidden = [name for name in found if name.startswith(("orphan_", "unreadable_"))]
    forbidden += ["lost_records", "duplicate_records", "remeasured"]
    bad = [f"{name} {found[name].value:g}" for name in forbidden if found[name].value]
    if bad:
        raise InfrastructureError(f"crash: {', '.join(bad)}")


def _sweep(settings: Settings, kills: Sequence[Kill], journal: Diary, say: Say) -> Sweep:
    """Triggers a sweep, delivers kills while it runs, and triggers it again till it ends green."""
    api, began = AirflowApi(settings), time.monotonic()
    series = f"crash-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    waiting, state = list(kills), ""
    runs: list[str] = []
    while state != "success":
        if len(runs) == MOST_TRIGGERS:
            raise InfrastructureError(
                f"{series}: not green after {MOST_TRIGGERS} triggers; see {settings.airflow_home}"
            )
        runs.append(_trigger(api, series, len(runs), journal))
        while waiting and _state(api, runs[-1]) not in FINISHED:
            if _deliver(settings, api, waiting[0], runs[-1], journal, say):
                waiting.pop(0)
        state = await_run(api, runs[-1])
    return _counted(settings, series, runs, len(kills) - len(waiting), time.monotonic() - began, journal)


def _again(settings: Settings, begun: dict[str, Any], journal: Diary) -> Sweep:
    """Brings a sweep of an interrupted call to its end, without further kills, so that its cells are counted, too."""
    api, series, runs = AirflowApi(settings), str(begun["series"]), list(begun["runs"])
    start = time.monotonic()
    while len(runs) < MOST_TRIGGERS and not _is_green(api, runs[-1]):
        runs.append(_trigger(api, series, len(runs), journal))
        await_run(api, runs[-1])
    kills = sum(line["run_id"] in begun["runs"] for line in journal.kills)
    return _counted(settings, series, runs, kills, time.monotonic() - start, journal)


def _trigger(api: AirflowApi, series: str, number: int, journal: Diary) -> str:
    """Triggers a run of the series, which is noted before; returns its id."""
    run_id = f"{series}-{number}"
    journal.note("run", series=series, run_id=run_id)
    api.trigger(MATRIX, form(series, RATES, REPETITIONS), run_id=run_id)
    return run_id


def _is_green(api: AirflowApi, run_id: str) -> bool:
    """Whether the run ended well; one that was never triggered did not."""
    return bool(_ask(lambda: api.run_state(MATRIX, run_id)) == "success")


def _counted(settings: Settings, series: str, runs: Sequence[str], kills: int, seconds: float, journal: Diary) -> Sweep:
    """The sweep with its tally, noted."""
    outcome = series_tally(settings, series, [sweep_id_of(run) for run in runs])
    sweep = Sweep(series, kills, len(runs), seconds, outcome)
    journal.note("sweep", **asdict(sweep))
    return sweep


def _deliver(settings: Settings, api: AirflowApi, kill: Kill, run_id: str, journal: Diary, say: Say) -> bool:
    """Waits for the kill's moment, and kills; False when the sweep ended, or its moment never came."""
    began, since = time.monotonic(), datetime.now(UTC)
    while True:
        if _state(api, run_id) in FINISHED or time.monotonic() - began > _BOUNDARY_S:
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


def _calm(settings: Settings, say: Say) -> None:
    """One experiment without a kill: it cleans up behind the last dead one. Waits until no run is left."""
    api = AirflowApi(settings)
    say("one experiment without a kill")
    series = f"calm-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    run_id = api.trigger(MATRIX, form(series, RATES[:1], 1), run_id=series)
    if (state := await_run(api, run_id)) != "success":
        raise InfrastructureError(f"{run_id}: ended as {state} although nothing was killed")
    wait_until(
        lambda: not api.runs(EXPERIMENT, "queued", "running"),
        timeout_s=_RECOVERY_S,
        every_s=1.0,
        what="airflow: the end of every experiment",
    )
