"""A sweep while Airflow runs it: what it is doing, what became of each measurement, and about how long it goes on."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterable, Sequence

from faultline.base.attempt import Attempt
from faultline.base.errors import InfrastructureError
from faultline.base.settings import Settings
from faultline.base.text import Say
from faultline.base.window_lock import is_measured
from faultline.client.airflow_api import FINISHED, AirflowApi
from faultline.cluster.daemon import Supervisor
from faultline.experiment.cell import Cell
from faultline.experiment.matrices import MOST_MEASUREMENTS
from faultline.experiment.matrix import PlannedCell
from faultline.experiment.sweep_id import sweep_id_of
from faultline.records.manifest import BASELINE
from faultline.records.record import Record
from faultline.records.store import Store
from faultline.runner.progress import describe, holder_text, is_waiting, phase_of

POLL_S = 1.0
# While a window is measured: how often files are looked at, and Airflow is asked, which costs it 20 ms of CPU time.
MEASURED_POLL_S, MEASURED_ASK_S = 2.0, 10.0
# Tables over all results, once the last experiment is judged.
AGGREGATE_S = 30.0
# On a pipe or in a log, a line is printed when the phase changes, and at least this often.
REPEAT_S = 20.0


def follow(
    api: AirflowApi,
    settings: Settings,
    dag_id: str,
    run_id: str,
    cells: Sequence[PlannedCell],
    say: Say,
    *,
    budget_s: float,
) -> bool:
    """Shows the sweep's progress until its run has ended; False when the services were ended before.

    `budget_s` is about what an experiment takes.
    """
    course = Course(settings, sweep_id_of(run_id), cells, say, budget_s=budget_s)
    state, mapped, done, asked_at = "", [], 0, -MEASURED_ASK_S
    while state not in FINISHED:
        measured = is_measured(settings.window_lock)
        if measured and time.monotonic() - asked_at < MEASURED_ASK_S:
            course.show(len(mapped), done)
            time.sleep(MEASURED_POLL_S)
            continue
        # Asked before the API is, which waits a minute for a server that may only be busy.
        if not Supervisor(settings).states():
            say(f"the services were ended while {run_id} ran; what is measured is kept, the same call goes on with it")
            return False
        state = api.run_state(dag_id, run_id)
        tasks = [task for task in api.tasks(dag_id, run_id) if task["task_id"] == "run_experiment"]
        mapped = [task for task in tasks if task["map_index"] >= 0]
        done, asked_at = sum(task["state"] in FINISHED for task in mapped), time.monotonic()
        course.show(len(mapped), done)
        time.sleep(MEASURED_POLL_S if measured else POLL_S)
    if state == "failed":
        say(f"the sweep {run_id} failed in part; {settings.endpoints.airflow}/dags/{dag_id}/runs/{run_id} shows where")
    return True


class Course:
    """What a sweep has come to, by the files of its attempts."""

    def __init__(
        self, settings: Settings, sweep_id: str, cells: Sequence[PlannedCell], say: Say, *, budget_s: float
    ) -> None:
        self._settings, self._sweep_id, self._say, self._budget_s = settings, sweep_id, say, budget_s
        self._names = {cell.config.config_id: describe(cell.config) for cell in cells}
        self._measured: dict[Cell, list[Attempt]] = {}
        # When each attempt began and ended, in s since the epoch, of those that have ended and been told.
        self._took: dict[str, tuple[float, float]] = {}
        self._valid: set[Cell] = set()
        self._looked_at: set[str] = set()
        self._shown, self._shown_at = "", 0.0

    def show(self, total: int, done: int) -> None:
        """Prints what became of measurements that have ended, and what goes on if that is new or long not said.

        `total`: experiments that the sweep measures, 0 while that is not known; `done`: of which so many are through.
        """
        self._look()
        for cell, attempts in self._measured.items():
            for attempt in attempts:
                if attempt.id not in self._took and (over := attempt.over):
                    self._took[attempt.id] = (attempt.begun_at_ns() / 1e9, over.stat().st_mtime)
                    self._say(f"{self._place(cell, attempt, total)}: {self._outcome(cell, attempt)}")
        # Airflow notices a moment later that an experiment is through.
        head, line = self._now(total, max(done, len(self._valid)))
        if head != self._shown or time.monotonic() - self._shown_at > REPEAT_S:
            self._say(line)
            self._shown, self._shown_at = head, time.monotonic()

    def _look(self) -> None:
        """Finds the attempts that are new."""
        if not self._settings.attempts.is_dir():
            return
        for folder in sorted(self._settings.attempts.iterdir()):
            if folder.name in self._looked_at:
                continue
            # Without its description it is in the making: looked at again.
            with contextlib.suppress(InfrastructureError):
                attempt = Attempt(folder)
                facts = attempt.read()
                self._looked_at.add(folder.name)
                if facts.get("sweep_id") == self._sweep_id:
                    cell = Cell(facts["config_id"], facts["repetition"], facts["series"])
                    self._measured.setdefault(cell, []).append(attempt)

    def _outcome(self, cell: Cell, attempt: Attempt) -> str:
        """How a measurement ended, and what comes of it."""
        records: dict[str, Record] = {
            one.attempt: one for one in Store(self._settings.results).read(cell.config_id).records
        }
        record = records.get(attempt.id)
        if record is None:
            return "broke off without a record; tried again"
        told = f"{record.status} ({record.reasons[0]})" if record.reasons else record.status
        if record.sound:
            self._valid.add(cell)
        if record.status != "unsound":
            return told
        mine = self._measured[cell]
        upto = [records.get(one.id) for one in mine[: mine.index(attempt) + 1]]
        invalid = sum(one is not None and one.status == "unsound" for one in upto)
        if invalid >= MOST_MEASUREMENTS:
            return f"{told}; given up after {invalid} measurements"
        return f"{told}; measured again, {invalid + 1} of at most {MOST_MEASUREMENTS}"

    def _now(self, total: int, done: int) -> tuple[str, str]:
        """What is shown when it changes, and the whole line."""
        if not total:
            return "planning", "planning"
        if done >= total:
            return "aggregating", "makes the tables over all results, about 1 min left"
        running = [
            (cell, attempts[-1]) for cell, attempts in self._measured.items() if attempts[-1].id not in self._took
        ]
        if not running:
            head = f"{done} of {total} experiments done; the next measurement is prepared"
            return head, f"{head}, {self._left(total - done)}"
        # The next one waits while one is measured.
        cell, attempt = next((one for one in running if not is_waiting(one[1])), running[-1])
        if is_waiting(attempt):
            head = f"{self._place(cell, attempt, total)}: waits for {holder_text(self._settings) or 'its turn'}"
            return head, f"{head}; {self._left(total - done)} from then"
        phase = phase_of(attempt)
        head = f"{self._place(cell, attempt, total)}: {phase.name}"
        left = self._left(total - done - 1, phase.left_s or 0.0)
        return f"{head} {attempt.id}", f"{head}{f', {phase.detail}' if phase.detail else ''}, {left}"

    def _place(self, cell: Cell, attempt: Attempt, total: int) -> str:
        """`experiment 2 of 5 (state 1 MB, …)`, and which measurement of it when it is not the first."""
        number, times = list(self._measured).index(cell) + 1, self._measured[cell].index(attempt) + 1
        again = ", of the baseline" if cell.series.endswith(BASELINE) else ""
        again += f", measurement {times}" if times > 1 else ""
        return f"experiment {number} of {max(total, number)} ({self._names.get(cell.config_id, 'other')}{again})"

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
