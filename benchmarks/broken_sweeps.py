"""Sweeps that something is done to while they run: begun, brought to their end, counted, and summed up.

What is done to a sweep is an act, such as a kill. Each act is noted on disk as it happens, so a benchmark that was
interrupted continues with the next.
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

# Figures by what they sum of a tally.
_COUNTS = {
    "cells": "planned", "cells_once": "once", "lost_records": "lost", "duplicate_records": "double",
    "remeasured": "remeasured", "attempts": "attempts",
}  # fmt: skip
_MUST_BE_ZERO = ("lost_records", "duplicate_records", "remeasured")


class BenchmarkLog:
    """What a long benchmark has done: acts and sweeps, a line each. A crash of the benchmark itself loses none."""

    def __init__(self, path: Path, act: str) -> None:
        """`act`: the kind of line that notes an act; it has a `number`."""
        # Benchmarks of before there was a journal said `kind`.
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
        """Numbers of the acts that were done."""
        return {line["number"] for line in self.acts}

    @property
    def sweeps(self) -> list[dict[str, Any]]:
        return [line for line in self._lines if line["event"] == "sweep"]

    @property
    def unfinished(self) -> dict[str, list[str]]:
        """Runs of sweeps that were triggered and not counted, as an interrupted call leaves them, by series."""
        counted = {line["series"] for line in self.sweeps}
        found: dict[str, list[str]] = {}
        for line in self._lines:
            if line["event"] == "run" and line["series"] not in counted:
                found.setdefault(line["series"], []).append(line["run_id"])
        return found

    def move_aside(self) -> None:
        """Keep the journal under the present time; the next one begins empty."""
        self._journal.close()
        path = self._journal.path
        path.rename(path.with_name(f"{path.stem}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.jsonl"))


class SweepAction(Protocol):
    """Something that is done to a sweep; a dataclass."""

    @property
    def number(self) -> int: ...


A = TypeVar("A", bound=SweepAction)


@dataclass(frozen=True)
class Sweep:
    """One sweep to which something was done `acts` times, with the runs that it took; `seconds` from its trigger to
    its end; `state` that of its last run."""

    series: str
    acts: int
    triggers: int
    seconds: float
    outcome: CellCounts
    state: str


class BrokenSweeps(ABC, Generic[A]):
    """Does all acts of a benchmark to sweeps, a few to each.

    `per_sweep`: acts of one sweep. `triggers`: a sweep that ends red is triggered again, as its user would, up to so
    many runs in all. `end_s`: time for a run to end.
    """

    name: str
    per_sweep: int
    triggers = 1
    end_s = LONGEST_SWEEP_S

    def __init__(self, settings: Settings, diary: BenchmarkLog, say: Progress) -> None:
        self.settings, self.diary, self.say = settings, diary, say

    @abstractmethod
    def deliver(self, act: A, run_id: str) -> bool:
        """Wait for the act's moment, do it and note it. False: the sweep ended, or the moment never came."""

    def note(self, act: A, run_id: str, **facts: Any) -> None:
        """Note an act that was done."""
        self.diary.note(self.diary.act, **vars(act), run_id=run_id, **facts)

    @property
    def api(self) -> AirflowApi:
        return AirflowApi(self.settings)

    def go_through(self, acts: Sequence[A]) -> dict[str, BenchmarkFigure]:
        """Do the acts that are not done yet, then measure in peace; return what the dead left behind."""
        for former in self.api.runs(MATRIX, "queued", "running"):
            self.say(f"{former['dag_run_id']}: goes on from an interrupted call")
            await_run(self.api, former["dag_run_id"])
        for series, runs in self.diary.unfinished.items():
            self.say(f"{series}: {self.finish(series, runs).outcome}, from an interrupted call")
        while left := [act for act in acts if act.number not in self.diary.done]:
            self.say(f"{len(acts) - len(left)} of {len(acts)} {self.diary.act}s done")
            sweep = self._sweep(left[: self.per_sweep])
            if not sweep.acts:
                raise InfrastructureError(f"{self.name}: the moment of {left[0]} never came")
            self.say(f"{sweep.series}: {sweep.outcome} in {sweep.seconds:.0f} s")
        run_undisturbed(self.settings, self.say)
        return count_leftovers(self.settings, self.say)

    def finish(self, series: str, runs: Sequence[str]) -> Sweep:
        """Bring a sweep of an interrupted call to its end, without further acts, so that its cells are counted, too."""
        runs, began = list(runs), time.monotonic()
        try:
            self.api.run(MATRIX, runs[-1])
        except ConfigError:  # the call ended between the note of the run and its trigger
            self._trigger(series, runs[-1])
        state = await_run(self.api, runs[-1], timeout_s=self.end_s)
        while state != "success" and len(runs) < self.triggers:
            runs.append(self._begin(series, len(runs)))
            state = await_run(self.api, runs[-1], timeout_s=self.end_s)
        done = sum(line["run_id"] in runs for line in self.diary.acts)
        return self._counted(series, runs, done, time.monotonic() - began, state)

    def state_of(self, run_id: str) -> str:
        """Return the run's state, also while the API server starts again."""
        what = "airflow: an answer"
        return str(
            wait_until(lambda: ask(lambda: self.api.run_state(MATRIX, run_id)), timeout_s=_RECOVERY_S, what=what)
        )

    def _sweep(self, acts: Sequence[A]) -> Sweep:
        """Trigger a sweep, deliver acts while it runs, and trigger it again until it ends green."""
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
                f"{series}: not green after {self.triggers} triggers; see {self.settings.airflow_home}"
            )
        return self._counted(series, runs, len(acts) - len(waiting), time.monotonic() - began, state)

    def _begin(self, series: str, number: int) -> str:
        """Trigger a run of the series, which is noted before; return its id."""
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
    """Return the answer, or None while Airflow does not answer."""
    try:
        return question()
    except InfrastructureError:
        return None


def new_series(name: str) -> str:
    return f"{name}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"


def run_undisturbed(settings: Settings, say: Progress) -> None:
    """Run one experiment to which nothing is done: it cleans up behind the last dead one. Wait until no run is left."""
    api = AirflowApi(settings)
    say("one experiment in peace")
    run_id = new_series("calm")
    api.trigger(MATRIX, form(run_id, RATES[:1], 1), run_id=run_id)
    if (state := await_run(api, run_id)) != "success":
        raise InfrastructureError(f"{run_id}: ended as {state} although nothing was done to it")
    wait_until(
        lambda: not api.runs(EXPERIMENT, "queued", "running"),
        timeout_s=_END_S,
        every_s=1.0,
        what="airflow: the end of every experiment",
    )


def count_leftovers(settings: Settings, say: Progress) -> dict[str, BenchmarkFigure]:
    """Count what is left of the dead once all is calm, and records that cannot be read; report each of them."""
    found = {
        "orphan_processes": stray_processes(settings),
        "orphan_ports": stray_ports(settings),
        "orphan_topics": stray_topics(settings),
        "orphan_attempts": unclosed_attempts(settings),
    }
    problems = list(Store(settings.results).read().problems)
    for line in [*(line for lines in found.values() for line in lines), *problems]:
        say(line)
    figures = {name: total([len(lines)]) for name, lines in found.items()}
    figures["orphans"] = total([sum(map(len, found.values()))])
    figures["unreadable_records"] = summarise([len(problems)], "1")
    return figures


def sum_sweeps(sweeps: Sequence[Mapping[str, Any]]) -> dict[str, BenchmarkFigure]:
    """Sum all sweeps' tallies, runs and seconds; `low` and `high` are those of single sweeps."""
    found = {name: total([sweep["outcome"][key] for sweep in sweeps]) for name, key in _COUNTS.items()}
    found["triggers"] = total([sweep["triggers"] for sweep in sweeps])
    found["wall_s"] = total([sweep["seconds"] for sweep in sweeps], "s")
    return found


def require_zero(name: str, found: Mapping[str, BenchmarkFigure], never: Sequence[str] = ()) -> None:
    """Raise InfrastructureError for what must not be in the benchmark `name`; `never`: further figures of that kind."""
    forbidden = [figure for figure in found if figure.startswith(("orphan_", "unreadable_"))]
    forbidden += [*_MUST_BE_ZERO, *never]
    bad = [f"{figure} {found[figure].value:g}" for figure in forbidden if found[figure].value]
    if bad:
        raise InfrastructureError(f"{name}: {', '.join(bad)}")
