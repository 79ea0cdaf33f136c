"""A sweep while Airflow runs it: its progress, each recovery as it happens, the outcome of each measurement."""

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
from faultline.records.record import JUDGED, Record
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

# Files of attempts are read this often; Airflow and the supervisor, whose answers cost CPU, are asked rarely.
POLL_S = 1.0
ASK_S = 5.0
# Tables over all results, once the last experiment is judged.
AGGREGATE_S = 30.0


@dataclass(frozen=True)
class Followed:
    """End of a watch. `state`: of the run, empty if the services were ended before. `first_recovery_s`: wall clock, in
    seconds since the epoch, at which the first recovery was reported; None if none was seen online."""

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
    say: Progress,
    *,
    budget_s: float,
    most: int = MOST_MEASUREMENTS,
    keep_invalid: bool = False,
) -> Followed:
    """Shows the sweep's progress until its run has ended, or the services were ended before.

    `budget_s` is about what an experiment takes. `most`: measurements of a cell; `keep_invalid`: whether the sweep
    keeps what is invalid after them, and does not fail.
    """
    line = ProgressLine(say)
    course = SweepProgress(
        settings, sweep_id_of(run_id), cells, line, budget_s=budget_s, most=most, keep_invalid=keep_invalid
    )
    state, asked_s, total, done = "", -math.inf, 0, 0
    try:
        while state not in FINISHED:
            if time.monotonic() - asked_s >= (POLL_S if total and course.done >= total else ASK_S):
                # Asked before the API is, which waits a minute for a server that may only be busy.
                if not Supervisor(settings).states():
                    line.say(f"the services were ended while {run_id} ran; its records stay; the same call resumes it")
                    return Followed("", course.first_recovery_s)
                state, asked_s = api.run_state(dag_id, run_id), time.monotonic()
                tasks = [task for task in api.tasks(dag_id, run_id) if task["task_id"] == "run_experiment"]
                mapped = [task for task in tasks if task["map_index"] >= 0]
                total, done = len(mapped), sum(task["state"] in FINISHED for task in mapped)
            course.show(total, done)
            if state not in FINISHED:
                time.sleep(POLL_S)
    finally:
        line.clear()
    if state == "failed":
        say(f"the sweep {run_id} failed in part; {settings.endpoints.airflow}/dags/{dag_id}/runs/{run_id} shows where")
    return Followed(state, course.first_recovery_s)


class SweepProgress:
    """What a sweep has come to, by the files of its attempts."""

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
        self._most, self._keep_invalid = most, keep_invalid
        self._names = {cell.config.config_id: experiment_title(cell.config) for cell in cells}
        self._measured: dict[Cell, list[Attempt]] = {}
        # Begin and end of each attempt that has ended and was reported, in s since the epoch.
        self._took: dict[str, tuple[float, float]] = {}
        self._settled: set[Cell] = set()
        self._looked_at: set[str] = set()
        # Of attempts that last.
        self._watches: dict[str, RecoveryWatch] = {}
        self._journals: dict[str, JournalCache] = {}
        self.first_recovery_s: float | None = None

    @property
    def done(self) -> int:
        """The number of cells that are not measured again."""
        return len(self._settled)

    def show(self, total: int, done: int) -> None:
        """Prints recoveries and outcomes that are new, and where the sweep stands.

        `total`: experiments that the sweep measures, 0 while that is not known; `done`: of which so many are through.
        """
        self._look()
        detail = ""
        for cell, attempts in self._measured.items():
            for attempt in attempts:
                if attempt.id in self._took:
                    continue
                place, over = self._place(cell, attempt, total), attempt.over
                # What an attempt that was over before left online is removed.
                if over is None or attempt.id in self._watches:
                    detail = self._recoveries(place, attempt) or detail
                if over:
                    self._took[attempt.id] = (attempt.begun_at_ns() / 1e9, over.stat().st_mtime)
                    self._watches.pop(attempt.id, None)
                    self._journals.pop(attempt.id, None)
                    outcome, judged = self._outcome(cell, attempt)
                    for text in (outcome, *judged):
                        self._line.say(f"{place}: {text}")
        # Airflow notices a moment later that an experiment is through.
        self._line.show(self._now(total, max(done, self.done), detail))

    def _recoveries(self, place: str, attempt: Attempt) -> str:
        """Prints the recoveries that are over since the last look; returns the one that lasts, in words."""
        # It brings pandas, which is to be loaded before anything is measured.
        from faultline.lifecycle.live_recovery import RecoveryWatch

        lasting = ""
        # An attempt in the making has no plan, and a broken journal is the judge's to report.
        with contextlib.suppress(FaultlineError):
            if attempt.id not in self._watches:
                self._watches[attempt.id] = RecoveryWatch(run_of(attempt, self._settings))
            for one in self._watches[attempt.id].poll():
                number = f", recovery {one.number}" if one.number > 1 else ""
                if one.is_over:
                    self._line.say(f"{place}{number}: {one.text}")
                    if one.caught_up_s is not None and self.first_recovery_s is None:
                        self.first_recovery_s = time.time()
                else:
                    lasting = one.text
        return lasting

    def _look(self) -> None:
        """Finds the attempts that are new."""
        if not self._settings.attempts.is_dir():
            return
        for folder in sorted(self._settings.attempts.iterdir()):
            if folder.name in self._looked_at:
                continue
            # Without a plan it is in the making: looked at again.
            with contextlib.suppress(InfrastructureError):
                attempt = Attempt(folder)
                order = read_plan(attempt).order
                self._looked_at.add(folder.name)
                if order.sweep_id == self._sweep_id:
                    self._measured.setdefault(order.cell, []).append(attempt)

    def _outcome(self, cell: Cell, attempt: Attempt) -> tuple[str, list[str]]:
        """How a measurement ended and what follows; and its recoveries, as they were judged."""
        records: dict[str, Record] = {
            one.attempt: one for one in Store(self._settings.results).read(cell.config_id).records
        }
        record = records.get(attempt.id)
        if record is None:
            return "broke off without a record; tried again", []
        told = f"{record.status} ({record.reasons[0]})" if record.reasons else record.status
        judged = [*recovery_lines(record), *early_end_lines(record)] if record.status in JUDGED else []
        judged = [f"measured: {text}" for text in judged]
        if record.sound:
            self._settled.add(cell)
        if record.status != "invalid":
            return told, judged
        mine = self._measured[cell]
        upto = [records.get(one.id) for one in mine[: mine.index(attempt) + 1]]
        invalid = sum(one is not None and one.status == "invalid" for one in upto)
        if invalid < self._most:
            return f"{told}; measured again, {invalid + 1} of at most {self._most}", judged
        self._settled.add(cell)
        end = "kept with this label" if self._keep_invalid else "given up"
        return f"{told}; {end} after {invalid} measurements", judged

    def _now(self, total: int, done: int, recovery: str) -> ProgressState:
        """Where the sweep stands. `recovery`: the one that lasts, in words."""
        if not total:
            return ProgressState("planning")
        if done >= total:
            return ProgressState("aggregating: tables over all results", left="about 1 min left")
        running = [
            (cell, attempts[-1]) for cell, attempts in self._measured.items() if attempts[-1].id not in self._took
        ]
        if not running:
            head = f"{done} of {total} experiments done; the next measurement is prepared"
            return ProgressState(head, left=self._left(total - done))
        # The next one waits while one is measured.
        cell, attempt = next((one for one in running if not is_waiting(one[1])), running[-1])
        if is_waiting(attempt):
            head = f"{self._place(cell, attempt, total)}: waits for {holder_text(self._settings) or 'its turn'}"
            return ProgressState(head, left=f"{self._left(total - done)} from then")
        phase = phase_of(attempt, read=self._journals.setdefault(attempt.id, JournalCache()).read)
        detail = recovery or phase.detail
        left = self._left(total - done - 1, phase.left_s or 0.0)
        head = f"{self._place(cell, attempt, total)}: {phase.name}"
        return ProgressState(head, f", {detail}" if detail else "", left, f"{self._number(cell, total)} {phase.name}")

    def _place(self, cell: Cell, attempt: Attempt, total: int) -> str:
        """`experiment 2 of 5 (state 1 MB, …)`, and which measurement of it when it is not the first."""
        times = self._measured[cell].index(attempt) + 1
        again = ", of the baseline" if cell.series.endswith(BASELINE) else ""
        again += f", measurement {times}" if times > 1 else ""
        return f"experiment {self._number(cell, total)} ({self._names.get(cell.config_id, 'other')}{again})"

    def _number(self, cell: Cell, total: int) -> str:
        """`2 of 5`."""
        number = list(self._measured).index(cell) + 1
        return f"{number} of {max(total, number)}"

    def _left(self, experiments: int, present_s: float = 0.0) -> str:
        """The time that so many experiments take, at the pace seen so far, after the present one's `present_s`."""
        # A cell that is measured again has taken its time already. With all the measurements of a cell, as the next
        # ones may need several, too.
        ended = sum(attempts[0].id in self._took for attempts in self._measured.values())
        pace_s = _covered_s(self._took.values()) / ended if ended else self._budget_s
        slower = max(1.0, pace_s / self._budget_s)
        left_s = present_s * slower + max(0, experiments) * pace_s + AGGREGATE_S
        return f"about {minutes_text(left_s)} left"


def minutes_text(seconds: float) -> str:
    """A time to wait for, never less than a minute: `1 min`, `2 h 5 min`."""
    minutes = max(1, math.ceil(seconds / 60 - 0.25))
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def _covered_s(spans: Iterable[tuple[float, float]]) -> float:
    """The seconds that lie in any of the spans: one experiment starts while the one before it is judged."""
    covered, end = 0.0, float("-inf")
    for began, ended in sorted(spans):
        covered += max(0.0, ended - max(began, end))
        end = max(end, ended)
    return covered


# ---- Progress on standard error: one line that is rewritten on a terminal, a line for each change elsewhere ----


# In a pipe or a log, the same state is repeated at least this often.
REPEAT_S = 20.0
CLEAR = "\r\x1b[2K"


@dataclass(frozen=True)
class ProgressState:
    """State of what is followed: a new line is due where `head` changes; `left` is the time left in words.

    `short`: the head where a line of 80 columns has to hold all of it; empty for the same.
    """

    head: str
    detail: str = ""
    left: str = ""
    short: str = ""

    @property
    def text(self) -> str:
        """The whole state as a line of a log."""
        return ", ".join(part for part in (f"{self.head}{self.detail}", self.left) if part)


class ProgressLine:
    """Progress line: rewritten on a terminal, plain lines elsewhere and with NO_COLOR or TERM=dumb."""

    def __init__(self, say: Progress, out: TextIO | None = None, environment: Mapping[str, str] | None = None) -> None:
        self._out = sys.stderr if out is None else out
        given = os.environ if environment is None else environment
        plain = bool(given.get("NO_COLOR")) or given.get("TERM", "dumb") in ("", "dumb")
        self._rewrites = self._out.isatty() and not plain
        self._say = say
        self._began_s = time.monotonic()
        self._shown, self._shown_at = "", 0.0
        self._line = ""

    def say(self, text: str) -> None:
        """Print a line that stays, above the rewritten one."""
        self.clear()
        self._say(text)

    def show(self, progress: ProgressState) -> None:
        """Rewrite the line; elsewhere print it if its head is new or was printed long ago."""
        if self._rewrites:
            width = shutil.get_terminal_size().columns - 1
            parts = (f"{_clock(time.monotonic() - self._began_s)} elapsed", progress.left)
            head = progress.short or progress.head
            text = f"{', '.join(part for part in parts if part)}: {head}{progress.detail}"
            self._line = text if len(text) <= width else f"{text[: max(0, width - 1)]}…"
            self._out.write(f"{CLEAR}{self._line}")
            self._out.flush()
        elif progress.head != self._shown or time.monotonic() - self._shown_at > REPEAT_S:
            self._say(progress.text)
            self._shown, self._shown_at = progress.head, time.monotonic()

    def clear(self) -> None:
        """Remove the rewritten line, so that other output begins on an empty one."""
        if self._line:
            self._out.write(CLEAR)
            self._out.flush()
            self._line = ""


def _clock(seconds: float) -> str:
    """`3:07`, `1:02:15`."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
