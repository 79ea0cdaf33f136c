"""Sweeps that a benchmark disturbs with actions, such as kills: runs them, and counts and sums the results.

Each action is logged on disk at once, so an interrupted benchmark continues with the next one.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from benchmarks.figure import BenchmarkFigure, summarise, total
from benchmarks.installation import LONGEST_SWEEP_S, MATRIX, await_run, form
from benchmarks.leak_check import (
    CellCounts,
    count_series,
    stray_ports,
    stray_processes,
    stray_topics,
    unclosed_attempts,
)
from faultline.experiment.cell import EXPERIMENT, sweep_id_of
from faultline.orchestration.airflow_api import FINISHED, AirflowApi
from faultline.records.store import Store
from faultline.system.errors import ConfigError, InfrastructureError
from faultline.system.journal import Journal, read_journal
from faultline.system.settings import Settings
from faultline.system.text import Progress
from faultline.system.waiting import wait_until

RATES = [100.0, 150.0]
REPETITIONS = 2
_END_S, _RECOVERY_S = 180.0, 180.0

# By count: the figure that sums it.
_COUNTS = {
    "cells": "planned", "cells_once": "once", "lost_records": "lost", "duplicate_records": "double",
    "remeasured": "remeasured", "attempts": "attempts",
}  # fmt: skip
_MUST_BE_ZERO = ("lost_records", "duplicate_records", "remeasured")


class BenchmarkLog:
    """Log of a long benchmark: actions and sweeps, one line each, synced to disk."""

    def __init__(self, path: Path, act: str) -> None:
        """Read the log. `act`: the event name of an action; each action has a `number`."""
        # Older logs name the event `kind`.
        self._lines = [{"event": line.get("kind"), **line} for line in read_journal(path)]
        self._journal = Journal(path)
        self.act = act

    def note(self, kind: str, **facts: Any) -> None:
        """Add a line and write it to disk."""
        self._lines.append({"event": kind, **facts})
        self._journal.append(self._lines[-1], sync=True)

    @property
    def acts(self) -> list[dict[str, Any]]:
        return [line for line in self._lines if line["event"] == self.act]

    @property
    def done(self) -> set[int]:
        """Numbers of the completed actions."""
        return {line["number"] for line in self.acts}

    @property
    def sweeps(self) -> list[dict[str, Any]]:
        return [line for line in self._lines if line["event"] == "sweep"]

    @property
    def unfinished(self) -> dict[str, list[str]]:
        """Runs of sweeps that an interrupted call triggered but did not count, by series."""
        counted = {line["series"] for line in self.sweeps}
        found: dict[str, list[str]] = {}
        for line in self._lines:
            if line["event"] == "run" and line["series"] not in counted:
                found.setdefault(line["series"], []).append(line["run_id"])
        return found

    def move_aside(self) -> None:
        """Rename the log after the current time; the next one starts empty."""
        self._journal.close()
        path = self._journal.path
        path.rename(path.with_name(f"{path.stem}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.jsonl"))


class SweepAction(Protocol):
    """Action during a sweep; a dataclass."""

    @property
    def number(self) -> int: ...


A = TypeVar("A", bound=SweepAction)


@dataclass(frozen=True)
class Sweep:
    """One sweep: number of `acts` (actions), its runs, `seconds` from trigger to end, and `state` of the last run."""

    series: str
    acts: int
    triggers: int
    seconds: float
    outcome: CellCounts
    state: str


class BrokenSweeps(ABC, Generic[A]):
    """Runner of all actions of a benchmark, a few per sweep.

    `per_sweep`: actions per sweep. `triggers`: maximum number of runs of a sweep; after a failed run it is triggered
    again, as a user would do. `end_s`: time limit of a run.
    """

    name: str
    per_sweep: int
    triggers = 1
    end_s = LONGEST_SWEEP_S

    def __init__(self, settings: Settings, diary: BenchmarkLog, progress: Progress) -> None:
        self.settings, self.diary, self.progress = settings, diary, progress

    @abstractmethod
    def deliver(self, act: A, run_id: str) -> bool:
        """Wait for the action's time, perform it and log it; return False if the sweep ended or the time never came."""

    def note(self, act: A, run_id: str, **facts: Any) -> None:
        """Log a completed action."""
        self.diary.note(self.diary.act, **vars(act), run_id=run_id, **facts)

    @property
    def api(self) -> AirflowApi:
        return AirflowApi(self.settings)

    def go_through(self, acts: Sequence[A]) -> dict[str, BenchmarkFigure]:
        """Perform the remaining actions, then run an undisturbed experiment; return the counts of leftovers."""
        for former in self.api.runs(MATRIX, "queued", "running"):
            self.progress(f"{former['dag_run_id']}: continuing an interrupted call")
            await_run(self.api, former["dag_run_id"])
        for series, runs in self.diary.unfinished.items():
            self.progress(f"{series}: {self.finish(series, runs).outcome}, from an interrupted call")
        while left := [act for act in acts if act.number not in self.diary.done]:
            self.progress(f"{len(acts) - len(left)} of {len(acts)} {self.diary.act}s done")
            sweep = self._sweep(left[: self.per_sweep])
            if not sweep.acts:
                raise InfrastructureError(f"{self.name}: the time of {left[0]} never came")
            self.progress(f"{sweep.series}: {sweep.outcome} in {sweep.seconds:.0f} s")
        run_undisturbed(self.settings, self.progress)
        return count_leftovers(self.settings, self.progress)

    def finish(self, series: str, runs: Sequence[str]) -> Sweep:
        """Wait for the end of an interrupted call's sweep, without further actions, and count its cells."""
        runs, began = list(runs), time.monotonic()
        try:
            self.api.run(MATRIX, runs[-1])
        except ConfigError:  # the call ended before the logged run was triggered
            self._trigger(series, runs[-1])
        state = await_run(self.api, runs[-1], timeout_s=self.end_s)
        while state != "success" and len(runs) < self.triggers:
            runs.append(self._begin(series, len(runs)))
            state = await_run(self.api, runs[-1], timeout_s=self.end_s)
        done = sum(line["run_id"] in runs for line in self.diary.acts)
        return self._counted(series, runs, done, time.monotonic() - began, state)

    def state_of(self, run_id: str) -> str:
        """Return the run's state; if the API server restarts, wait for it."""
        what = "airflow: response"
        return str(
            wait_until(lambda: ask(lambda: self.api.run_state(MATRIX, run_id)), timeout_s=_RECOVERY_S, what=what)
        )

    def _sweep(self, acts: Sequence[A]) -> Sweep:
        """Trigger a sweep, perform actions while it runs, and trigger it again until it succeeds."""
        series, began, waiting, runs = new_series(self.name), time.monotonic(), list(acts), list[str]()
        state = ""
        while state != "success" and len(runs) < self.triggers:
            runs.append(self._begin(series, len(runs)))
            while waiting and self.state_of(runs[-1]) not in FINISHED:
                if self.deliver(waiting[0], runs[-1]):
                    waiting.pop(0)
            state = await_run(self.api, runs[-1], timeout_s=self.end_s)
        if state != "success" and self.triggers > 1:
            raise InfrastructureError(
                f"{series}: no success after {self.triggers} triggers; see {self.settings.airflow_home}"
            )
        return self._counted(series, runs, len(acts) - len(waiting), time.monotonic() - began, state)

    def _begin(self, series: str, number: int) -> str:
        """Log and trigger a run of the series; return its id."""
        run_id = f"{series}-{number}"
        self.diary.note("run", series=series, run_id=run_id)
        self._trigger(series, run_id)
        return run_id

    def _trigger(self, series: str, run_id: str) -> None:
        self.api.trigger(MATRIX, form(series, RATES, REPETITIONS), run_id=run_id)

    def _counted(self, series: str, runs: Sequence[str], acts: int, seconds: float, state: str) -> Sweep:
        outcome = count_series(self.settings, series, [sweep_id_of(run) for run in runs])
        sweep = Sweep(series, acts, len(runs), seconds, outcome, state)
        self.diary.note("sweep", **asdict(sweep))
        return sweep


def ask(question: Callable[[], Any]) -> Any:
    """Return the result of a query, or None if Airflow does not respond."""
    try:
        return question()
    except InfrastructureError:
        return None


def new_series(name: str) -> str:
    return f"{name}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"


def run_undisturbed(settings: Settings, progress: Progress) -> None:
    """Run one experiment without actions, which cleans up after earlier ones; wait until no run is active."""
    api = AirflowApi(settings)
    progress("running one undisturbed experiment")
    run_id = new_series("calm")
    api.trigger(MATRIX, form(run_id, RATES[:1], 1), run_id=run_id)
    if (state := await_run(api, run_id)) != "success":
        raise InfrastructureError(f"{run_id}: ended as {state} without any action")
    wait_until(
        lambda: not api.runs(EXPERIMENT, "queued", "running"),
        timeout_s=_END_S,
        every_s=1.0,
        what="airflow: the end of every experiment",
    )


def count_leftovers(settings: Settings, progress: Progress) -> dict[str, BenchmarkFigure]:
    """Count leftover processes, ports, topics and attempts, and unreadable records; report each of them."""
    found = {
        "orphan_processes": stray_processes(settings),
        "orphan_ports": stray_ports(settings),
        "orphan_topics": stray_topics(settings),
        "orphan_attempts": unclosed_attempts(settings),
    }
    problems = list(Store(settings.results).read().problems)
    for line in [*(line for lines in found.values() for line in lines), *problems]:
        progress(line)
    figures = {name: total([len(lines)]) for name, lines in found.items()}
    figures["orphans"] = total([sum(map(len, found.values()))])
    figures["unreadable_records"] = summarise([len(problems)], "1")
    return figures


def sum_sweeps(sweeps: Sequence[Mapping[str, Any]]) -> dict[str, BenchmarkFigure]:
    """Sum counts, runs and seconds of all sweeps; `low` and `high` are the extremes of single sweeps."""
    found = {name: total([sweep["outcome"][key] for sweep in sweeps]) for name, key in _COUNTS.items()}
    found["triggers"] = total([sweep["triggers"] for sweep in sweeps])
    found["wall_s"] = total([sweep["seconds"] for sweep in sweeps], "s")
    return found


def require_zero(name: str, found: Mapping[str, BenchmarkFigure], never: Sequence[str] = ()) -> None:
    """Raise InfrastructureError for figures of the benchmark `name` that must be 0; `never`: further such figures."""
    forbidden = [figure for figure in found if figure.startswith(("orphan_", "unreadable_"))]
    forbidden += [*_MUST_BE_ZERO, *never]
    bad = [f"{figure} {found[figure].value:g}" for figure in forbidden if found[figure].value]
    if bad:
        raise InfrastructureError(f"{name}: {', '.join(bad)}")
