"""Undo replay after a fault scheduler crash: undos that its journal registered but did not complete."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Mapping, Sequence
from types import FrameType, TracebackType
from typing import Any, Self

from fault.action import UndoSpec
from fault.errors import FaultError
from fault.plan import PlannedFault
from fault.registry import ACTIONS
from faultline.experiment.attempt import Attempt
from faultline.lifecycle.scheduler_input import injector_of, read_scheduler_input
from faultline.system.errors import InfrastructureError
from faultline.system.journal import read_journal
from faultline.system.text import one_line


def undo_fields(undo: UndoSpec, fault: int) -> dict[str, Any]:
    """Return the fields of the line `undo_registered` for a fault, by its number."""
    return {"fault": fault, "undo": undo.name, "action": undo.action, "fields": dict(undo.fields)}


def undo_of(line: Mapping[str, Any], planned: Sequence[PlannedFault]) -> UndoSpec:
    """Return the undo that a line registered.

    Lines of earlier versions name no action, which is that of the planned fault; their fields are at the top level.
    """
    if "action" in line:
        return UndoSpec(str(line["action"]), str(line["undo"]), line["fields"])
    return UndoSpec(planned[line["fault"]].fault.action, str(line["undo"]), line)


def pending_undos(attempt: Attempt) -> list[dict[str, Any]]:
    """Return the `undo_registered` lines without a later successful `undone` line of that fault and step."""
    left: dict[tuple[int, str], dict[str, Any]] = {}
    for line in read_journal(attempt.conductor_journal):
        if line.get("event") == "undo_registered":
            left[line["fault"], line["undo"]] = line
        elif line.get("event") == "undone" and not line["error"]:
            left.pop((line["fault"], line["undo"]), None)
    return list(left.values())


def replay_undos(attempt: Attempt) -> list[str]:
    """Replay every undo whose injection still holds, newest first, with its own action. Idempotent.

    Returns the names of the replayed undos. Raises InfrastructureError naming the failed ones, after trying all.
    """
    left = pending_undos(attempt)
    if not left:
        return []
    replayed: list[str] = []
    problems: list[str] = []
    scheduler_input = read_scheduler_input(attempt.folder)
    with contextlib.closing(injector_of(scheduler_input)) as injector:
        context = scheduler_input.context(attempt.folder, injector)
        for line in reversed(left):
            action = None
            try:
                undo = undo_of(line, scheduler_input.planned)
                action = ACTIONS.get(undo.action)
                if action is None:
                    problems.append(
                        f"action: got {undo.action}; expected a known action; fix: undo manually: {undo.name}"
                    )
                elif action.driver.is_active(undo, context):
                    action.driver.undo(undo, context)
                    replayed.append(undo.name)
            except Exception as error:  # the other undos must still be tried
                problem = error if isinstance(error, FaultError) else f"{line['undo']}: {type(error).__name__}: {error}"
                problems.append(
                    one_line(problem) + (f"; {action.manual_undo}" if action and action.manual_undo else "")
                )
    if problems:
        raise InfrastructureError(f"undo: {'; '.join(problems)}")
    return replayed


class Terminated(BaseException):
    """Arrival of SIGTERM or SIGINT. A BaseException, so that no `except Exception` catches it."""


class Terminations:
    """Context that turns the first SIGTERM or SIGINT into Terminated; later ones must not interrupt the undo."""

    def __init__(self) -> None:
        self._is_ignoring = False
        self._previous: dict[int, Any] = {}

    def ignore(self) -> None:
        """Ignore the signals from now on."""
        self._is_ignoring = True

    def __enter__(self) -> Self:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._previous[number] = signal.signal(number, self._arrived)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, previous in self._previous.items():
            signal.signal(number, previous)

    def _arrived(self, signum: int, frame: FrameType | None) -> None:
        if not self._is_ignoring:
            self._is_ignoring = True
            raise Terminated
