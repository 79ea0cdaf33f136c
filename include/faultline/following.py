"""A sweep while Airflow runs it: what it is doing, what became of each measurement, and about how long it goes on."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence

from faultline.airflow_api import FINISHED, AirflowApi
from faultline.attempt import Attempt
from faultline.errors import InfrastructureError
from faultline.matrix import PlannedCell, sweep_id_of
from faultline.progress import describe, phase_of
from faultline.settings import Settings
from faultline.store import Cell, Store
from faultline.supervision import Supervisor

POLL_S = 1.0
# On a pipe or in a log, a line is printed when the phase changes, and at least this often.
REPEAT_S = 20.0
# What a sweep's form takes by default.
MOST_MEASUREMENTS = 3

Say = Callable[[str], None]


def follow(
    api: AirflowApi,
    settings: Settings,
    dag_id: str,
    run_id: str,
    cells: Sequence[PlannedCell],
    say: Say,
    *,
    budget_s: float,
) -> None:
    """Shows the sweep's progress until its run ends; `budget_s` is about what an experiment takes.

    Raises InfrastructureError when the services have been ended meanwhile.
    """
    course = Course(settings, sweep_id_of(run_id), cells, say, budget_s=budget_s)
    while (state := _state(api, settings, dag_id, run_id)) not in FINISHED:
        tasks = [task for task in api.tasks(dag_id, run_id) if task["task_id"] == "run_experiment"]
        mapped = [task for task in tasks if task["map_index"] >= 0]
        course.show(len(mapped), ended=bool(mapped) and all(task["state"] in FINISHED for task in mapped))
        time.sleep(POLL_S)
    course.tell_outcomes()
    if state == "failed":
        say(f"the sweep {run_id} failed in part; {settings.airflow_url} shows where")


def _state(api: AirflowApi, settings: Settings, dag_id: str, run_id: str) -> str:
    # Asked before the API is, which waits a minute for a server that may only be busy.
    if not Supervisor(settings).states():
        raise InfrastructureError(
            f"the services were ended while {run_id} ran; what is measured is kept, the same command goes on with it"
        )
    return api.run_state(dag_id, run_id)


class Course:
    """What a sweep has come to, by the files of its attempts."""

    def __init__(
        self, settings: Settings, sweep_id: str, cells: Sequence[PlannedCell], say: Say, *, budget_s: float
    ) -> None:
        self._settings, self._sweep_id, self._say, self._budget_s = settings, sweep_id, say, budget_s
        self._names = {cell.config.config_id: describe(cell.config) for cell in cells}
        self._measured: dict[Cell, list[Attempt]] = {}
        self._told: set[str] = set()
        self._settled: set[Cell] = set()
        self._looked_at: set[str] = set()
        self._shown, self._shown_at, self._total = "", 0.0, 0

    def show(self, total: int, *, ended: bool = False) -> None:
        """Prints what became of measurements that have ended, and what goes on if that is new or long not said.

        `total`: experiments that the sweep measures, 0 while that is not known. `ended`: all of them are through.
        """
        self._total = max(total, self._total)
        self.tell_outcomes()
        head, line = self._now(ended)
        if head != self._shown or time.monotonic() - self._shown_at > REPEAT_S:
            self._say(line)
            self._shown, self._shown_at = head, time.monotonic()

    def tell_outcomes(self) -> None:
        """Prints a line for each measurement that has ended since the last look."""
        self._look()
        for cell, attempts in self._measured.items():
            for attempt in attempts:
                if attempt.id not in self._told and attempt.closed.exists():
                    self._told.add(attempt.id)
                    self._say(f"{self._place(cell)}: {self._outcome(cell, attempt)}")

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
        number = self._measured[cell].index(attempt) + 1
        record = next(
            (one for one in Store(self._settings.results).read(cell.config_id).records if one.attempt == attempt.id),
            None,
        )
        if record is None:
            return "broke off without a record; tried again"
        why = f" ({record.reasons[0]})" if record.reasons else ""
        if record.status != "invalid" or number >= MOST_MEASUREMENTS:
            self._settled.add(cell)
            return f"{record.status}{why}"
        return f"{record.status}{why}; measured again, {number + 1} of at most {MOST_MEASUREMENTS}"

    def _now(self, ended: bool) -> tuple[str, str]:
        """What is shown when it changes, and the whole line."""
        if ended:
            return "aggregating", "aggregating"
        if not self._total:
            return "planning", "planning"
        running = [
            (cell, attempts)
            for cell, attempts in self._measured.items()
            if cell not in self._settled and not attempts[-1].closed.exists()
        ]
        if not running:
            head = f"{len(self._settled)} of {self._total} experiments done; the next one is prepared"
            return head, f"{head}, {self._left(self._total - len(self._settled))}"
        cell, attempts = running[-1]
        phase = phase_of(attempts[-1])
        head = f"{self._place(cell)}: {phase.name}"
        left = self._left(self._total - len(self._settled) - 1, phase.left_s or 0.0)
        return f"{head} {attempts[-1].id}", f"{head}{f', {phase.detail}' if phase.detail else ''}, {left}"

    def _place(self, cell: Cell) -> str:
        """`experiment 2 of 5 (state 1 MB, …)`, and which measurement of it when it is not the first."""
        number, times = list(self._measured).index(cell) + 1, len(self._measured[cell])
        again = f", measurement {times}" if times > 1 else ""
        return f"experiment {number} of {max(self._total, number)} ({self._names.get(cell.config_id, 'other')}{again})"

    def _left(self, experiments: int, present_s: float = 0.0) -> str:
        """The time that so many experiments take, at the pace seen so far, after the present one's `present_s`."""
        pace_s = self._pace_s()
        slower = max(1.0, pace_s / self._budget_s)
        return f"about {(present_s * slower + max(0, experiments) * pace_s) / 60:.0f} min left"

    def _pace_s(self) -> float:
        """Seconds that an experiment has taken so far, with all its measurements and what lies between."""
        if not self._settled:
            return self._budget_s
        attempts = [attempt for cell in self._settled for attempt in self._measured[cell]]
        began = min(int(attempt.read()["prepared_wall_ns"]) for attempt in attempts) / 1e9
        ended = max(attempt.closed.stat().st_mtime for attempt in attempts)
        return (ended - began) / len(self._settled)
