"""Progress of a running sweep: a progress line, recoveries as they end, and the result of each attempt."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

from faultline.experiment.attempt import Attempt
from faultline.experiment.attempt_plan import read_plan
from faultline.experiment.cell import Cell, sweep_id_of
from faultline.experiment.matrices import MOST_MEASUREMENTS
from faultline.experiment.matrix import PlannedCell
from faultline.experiment.run import run_of
from faultline.installation.supervisord import Supervisor
from faultline.lifecycle.progress import experiment_title, holder_text, is_waiting, phase_of
from faultline.orchestration.airflow_api import FINISHED, AirflowApi
from faultline.records.record import WITH_FIGURES, Record
from faultline.records.store import Store
from faultline.records.sweep_plan import BASELINE
from faultline.reports.views.experiment_report import recovery_lines
from faultline.reports.views.faults import early_end_lines
from faultline.system.errors import FaultlineError, InfrastructureError
from faultline.system.journal import JournalCache
from faultline.system.settings import Settings
from faultline.system.text import Progress

if TYPE_CHECKING:
    from faultline.lifecycle.live_recovery import RecoveryWatch

# Interval at which files of attempts are read; queries to Airflow and supervisord cost more CPU and are less frequent.
POLL_S = 1.0
ASK_S = 5.0
# Duration of the last task, which writes tables over all results.
AGGREGATE_S = 30.0


@dataclass(frozen=True)
class FollowResult:
    """Result of following a sweep.

    `state`: final state of the DAG run; empty if the services stopped before. `first_recovery_s`: time in seconds since
    1970 at which the first recovery was reported; None if none was reported during the sweep.
    """

    state: str
    first_recovery_s: float | None = None

    def __bool__(self) -> bool:
        """Whether the run has ended."""
        return bool(self.state)


def follow(
    api: AirflowApi,
    settings: Settings,
    dag_id: str,
    run_id: str,
    cells: Sequence[PlannedCell],
    progress: Progress,
    *,
    budget_s: float,
    most: int = MOST_MEASUREMENTS,
    keep_invalid: bool = False,
) -> FollowResult:
    """Show the progress of a sweep until its DAG run ends or the services stop.

    `budget_s`: typical duration of an experiment. `most`: attempts per cell. `keep_invalid`: whether the sweep keeps
    an invalid record after the last attempt instead of failing.
    """
    line = ProgressLine(progress)
    sweep = SweepProgress(
        settings, sweep_id_of(run_id), cells, line, budget_s=budget_s, most=most, keep_invalid=keep_invalid
    )
    state, asked_s, total, done = "", -math.inf, 0, 0
    try:
        while state not in FINISHED:
            if time.monotonic() - asked_s >= (POLL_S if total and sweep.done >= total else ASK_S):
                # Check supervisord before Airflow, because the API client waits a minute for a server.
                if not Supervisor(settings).states():
                    line.print_above(
                        f"services stopped during {run_id}; records kept; rerun the same command to resume"
                    )
                    return FollowResult("", sweep.first_recovery_s)
                state, asked_s = api.run_state(dag_id, run_id), time.monotonic()
                tasks = [task for task in api.tasks(dag_id, run_id) if task["task_id"] == "run_experiment"]
                mapped = [task for task in tasks if task["map_index"] >= 0]
                total, done = len(mapped), sum(task["state"] in FINISHED for task in mapped)
            sweep.show(total, done)
            if state not in FINISHED:
                time.sleep(POLL_S)
    finally:
        line.clear()
    if state == "failed":
        progress(f"sweep {run_id} failed in part; see {settings.endpoints.airflow}/dags/{dag_id}/runs/{run_id}")
    return FollowResult(state, sweep.first_recovery_s)


class SweepProgress:
    """State of a sweep, read from the files of its attempts."""

    def __init__(
        self,
        settings: Settings,
        sweep_id: str,
        cells: Sequence[PlannedCell],
        line: ProgressLine,
        *,
        budget_s: float,
        most: int = MOST_MEASUREMENTS,
        keep_invalid: bool = False,
    ) -> None:
        self._settings, self._sweep_id, self._line, self._budget_s = settings, sweep_id, line, budget_s
        self._max_measurements, self._keep_invalid = most, keep_invalid
        self._names = {cell.config.config_id: experiment_title(cell.config) for cell in cells}
        self._measured: dict[Cell, list[Attempt]] = {}
        # Start and end of each reported attempt, in s since the epoch.
        self._spans: dict[str, tuple[float, float]] = {}
        self._finished: set[Cell] = set()
        self._known_folders: set[str] = set()
        # By running attempt.
        self._watches: dict[str, RecoveryWatch] = {}
        self._journals: dict[str, JournalCache] = {}
        self.first_recovery_s: float | None = None

    @property
    def done(self) -> int:
        """Number of cells that need no further attempt."""
        return len(self._finished)

    def show(self, total: int, done: int) -> None:
        """Print new recoveries and results, and update the progress line.

        `total`: number of experiments, 0 if unknown; `done`: number of experiments that have ended according to
        Airflow.
        """
        self._find_attempts()
        detail = ""
        for cell, attempts in self._measured.items():
            for attempt in attempts:
                if attempt.id in self._spans:
                    continue
                label, over = self._label(cell, attempt, total), attempt.over
                # Attempts that ended before this call were not followed, so only their results are printed.
                if over is None or attempt.id in self._watches:
                    detail = self._recoveries(label, attempt) or detail
                if over:
                    self._spans[attempt.id] = (attempt.begun_at_ns() / 1e9, over.stat().st_mtime)
                    self._watches.pop(attempt.id, None)
                    self._journals.pop(attempt.id, None)
                    outcome, judged = self._outcome(cell, attempt)
                    for text in (outcome, *judged):
                        self._line.print_above(f"{label}: {text}")
        # An end is in the files of the attempt before Airflow reports it.
        self._line.show(self._state(total, max(done, self.done), detail))

    def _recoveries(self, label: str, attempt: Attempt) -> str:
        """Print recoveries that ended since the last call; return the text of the current one."""
        # Imports pandas, which must not load during a measured window.
        from faultline.lifecycle.live_recovery import RecoveryWatch

        current = ""
        # A new attempt has no plan yet; the judge reports broken journals.
        with contextlib.suppress(FaultlineError):
            if attempt.id not in self._watches:
                self._watches[attempt.id] = RecoveryWatch(run_of(attempt, self._settings))
            for one in self._watches[attempt.id].poll():
                number = f", recovery {one.number}" if one.number > 1 else ""
                if one.is_over:
                    self._line.print_above(f"{label}{number}: {one.text}")
                    if one.caught_up_s is not None and self.first_recovery_s is None:
                        self.first_recovery_s = time.time()
                else:
                    current = one.text
        return current

    def _find_attempts(self) -> None:
        """Add new attempts of the sweep."""
        if not self._settings.attempts.is_dir():
            return
        for folder in sorted(self._settings.attempts.iterdir()):
            if folder.name in self._known_folders:
                continue
            # A new attempt may have no plan yet; it is read again next time.
            with contextlib.suppress(InfrastructureError):
                attempt = Attempt(folder)
                order = read_plan(attempt).order
                self._known_folders.add(folder.name)
                if order.sweep_id == self._sweep_id:
                    self._measured.setdefault(order.cell, []).append(attempt)

    def _outcome(self, cell: Cell, attempt: Attempt) -> tuple[str, list[str]]:
        """Return the result of an attempt with the next action, and its judged recoveries."""
        records: dict[str, Record] = {
            one.attempt: one for one in Store(self._settings.results).read(cell.config_id).records
        }
        record = records.get(attempt.id)
        if record is None:
            return "aborted without a record; retrying", []
        result = f"{record.status} ({record.reasons[0]})" if record.reasons else record.status
        judged = [*recovery_lines(record), *early_end_lines(record)] if record.status in WITH_FIGURES else []
        judged = [f"measured: {text}" for text in judged]
        if record.is_usable:
            self._finished.add(cell)
        if record.status != "invalid":
            return result, judged
        attempts = self._measured[cell]
        ended = [records.get(one.id) for one in attempts[: attempts.index(attempt) + 1]]
        invalid = sum(one is not None and one.status == "invalid" for one in ended)
        if invalid < self._max_measurements:
            return f"{result}; retrying, attempt {invalid + 1} of at most {self._max_measurements}", judged
        self._finished.add(cell)
        end = "kept" if self._keep_invalid else "giving up"
        return f"{result}; {end} after {invalid} attempts", judged

    def _state(self, total: int, done: int, recovery: str) -> ProgressState:
        """Return the state of the sweep. `recovery`: text of the current recovery."""
        if not total:
            return ProgressState("planning")
        if done >= total:
            return ProgressState("aggregating results", left="about 1 min left")
        running = [
            (cell, attempts[-1]) for cell, attempts in self._measured.items() if attempts[-1].id not in self._spans
        ]
        if not running:
            head = f"{done} of {total} experiments done; preparing the next"
            return ProgressState(head, left=self._time_left(total - done))
        # One attempt is measured while the next one waits.
        cell, attempt = next((one for one in running if not is_waiting(one[1])), running[-1])
        if is_waiting(attempt):
            head = (
                f"{self._label(cell, attempt, total)}: waiting for {holder_text(self._settings) or 'the machine lock'}"
            )
            return ProgressState(head, left=f"{self._time_left(total - done)} after that")
        phase = phase_of(attempt, read=self._journals.setdefault(attempt.id, JournalCache()).read)
        detail = recovery or phase.detail
        left = self._time_left(total - done - 1, phase.left_s or 0.0)
        head = f"{self._label(cell, attempt, total)}: {phase.name}"
        return ProgressState(head, f", {detail}" if detail else "", left, f"{self._number(cell, total)} {phase.name}")

    def _label(self, cell: Cell, attempt: Attempt, total: int) -> str:
        """Return `experiment 2 of 5 (state 1 MB, …)`, with the attempt if it is not the first."""
        times = self._measured[cell].index(attempt) + 1
        note = ", reference build" if cell.series.endswith(BASELINE) else ""
        note += f", attempt {times}" if times > 1 else ""
        return f"experiment {self._number(cell, total)} ({self._names.get(cell.config_id, 'other')}{note})"

    def _number(self, cell: Cell, total: int) -> str:
        """Return a text such as `2 of 5`."""
        number = list(self._measured).index(cell) + 1
        return f"{number} of {max(total, number)}"

    def _time_left(self, experiments: int, present_s: float = 0.0) -> str:
        """Return the remaining time in words, at the pace so far; `present_s`: time left of the current experiment."""
        # The pace is the time per cell with all its attempts, because later cells may also need several.
        ended = sum(attempts[0].id in self._spans for attempts in self._measured.values())
        pace_s = _covered_s(self._spans.values()) / ended if ended else self._budget_s
        slower = max(1.0, pace_s / self._budget_s)
        left_s = present_s * slower + max(0, experiments) * pace_s + AGGREGATE_S
        return f"about {minutes_text(left_s)} left"


def minutes_text(seconds: float) -> str:
    """Return a duration in minutes, rounded, at least one: `1 min`, `2 h 5 min`."""
    minutes = max(1, math.ceil(seconds / 60 - 0.25))
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def _covered_s(spans: Iterable[tuple[float, float]]) -> float:
    """Return the length of the union of the spans, which overlap while an experiment is judged."""
    covered, end = 0.0, float("-inf")
    for began, ended in sorted(spans):
        covered += max(0.0, ended - max(began, end))
        end = max(end, ended)
    return covered


# In a pipe or a log, an unchanged state is repeated at this interval.
REPEAT_S = 20.0
CLEAR = "\r\x1b[2K"


@dataclass(frozen=True)
class ProgressState:
    """State shown by a progress line; a log gets a new line if `head` changes. `left`: remaining time in words.

    `short`: shorter form of `head` for a terminal line; empty: `head` itself.
    """

    head: str
    detail: str = ""
    left: str = ""
    short: str = ""

    @property
    def text(self) -> str:
        """State as a line of a log."""
        return ", ".join(part for part in (f"{self.head}{self.detail}", self.left) if part)


class ProgressLine:
    """Progress line: rewritten on a terminal, plain lines elsewhere and with NO_COLOR or TERM=dumb."""

    def __init__(
        self, progress: Progress, out: TextIO | None = None, environment: Mapping[str, str] | None = None
    ) -> None:
        self._out = sys.stderr if out is None else out
        given = os.environ if environment is None else environment
        plain = bool(given.get("NO_COLOR")) or given.get("TERM", "dumb") in ("", "dumb")
        self._rewrites = self._out.isatty() and not plain
        self._progress = progress
        self._began_s = time.monotonic()
        self._shown, self._shown_at = "", 0.0
        self._line = ""

    def print_above(self, text: str) -> None:
        """Print a permanent line above the progress line."""
        self.clear()
        self._progress(text)

    def show(self, state: ProgressState) -> None:
        """On a terminal rewrite the line; elsewhere print it if its head has changed or was printed long ago."""
        if self._rewrites:
            width = shutil.get_terminal_size().columns - 1
            parts = (f"{_clock_text(time.monotonic() - self._began_s)} elapsed", state.left)
            head = state.short or state.head
            text = f"{', '.join(part for part in parts if part)}: {head}{state.detail}"
            self._line = text if len(text) <= width else f"{text[: max(0, width - 1)]}…"
            self._out.write(f"{CLEAR}{self._line}")
            self._out.flush()
        elif state.head != self._shown or time.monotonic() - self._shown_at > REPEAT_S:
            self._progress(state.text)
            self._shown, self._shown_at = state.head, time.monotonic()

    def clear(self) -> None:
        """Remove the progress line, so that other output begins on an empty line."""
        if self._line:
            self._out.write(CLEAR)
            self._out.flush()
            self._line = ""


def _clock_text(seconds: float) -> str:
    """Return a duration such as `3:07` or `1:02:15`."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
