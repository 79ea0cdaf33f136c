"""Undo replay: run the undos that the journal of a dead fault scheduler lists as registered but not done."""

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
    """Return the fields of an `undo_registered` line; `fault` is the index of the fault."""
    return {"fault": fault, "undo": undo.name, "action": undo.action, "fields": dict(undo.fields)}


def undo_of(line: Mapping[str, Any], planned: Sequence[PlannedFault]) -> UndoSpec:
    """Return the undo that an `undo_registered` line describes.

    Lines written by earlier versions lack `action` (the planned fault's is used) and hold the undo's fields at the top
    level.
    """
    if "action" in line:
        return UndoSpec(str(line["action"]), str(line["undo"]), line["fields"])
    return UndoSpec(planned[line["fault"]].fault.action, str(line["undo"]), line)


def pending_undos(attempt: Attempt) -> list[dict[str, Any]]:
    """Return the `undo_registered` lines without a later successful `undone` line for the same fault and undo."""
    pending: dict[tuple[int, str], dict[str, Any]] = {}
    for line in read_journal(attempt.conductor_journal):
        if line.get("event") == "undo_registered":
            pending[line["fault"], line["undo"]] = line
        elif line.get("event") == "undone" and not line["error"]:
            pending.pop((line["fault"], line["undo"]), None)
    return list(pending.values())


def replay_undos(attempt: Attempt) -> list[str]:
    """Undo every fault that is still in effect, newest first, each through the action that registered the undo.

    Idempotent. Returns the names of the undos that ran. Tries all, then raises InfrastructureError naming the failed
    ones.
    """
    pending = pending_undos(attempt)
    if not pending:
        return []
    replayed: list[str] = []
    problems: list[str] = []
    scheduler_input = read_scheduler_input(attempt.folder)
    with contextlib.closing(injector_of(scheduler_input)) as injector:
        context = scheduler_input.context(attempt.folder, injector)
        for line in reversed(pending):
            action = None
            try:
                undo = undo_of(line, scheduler_input.planned)
                action = ACTIONS.get(undo.action)
                if action is None:
                    problems.append(
                        f"action: got {undo.action}; expected a known action; fix: undo the fault {undo.name} by hand; "
                        f"its parameters: {dict(undo.fields)}"
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
    """SIGTERM or SIGINT arrived. A BaseException, so that no `except Exception` catches it."""


class Terminations:
    """Context manager that raises Terminated on the first SIGTERM or SIGINT.

    Later signals, and all after `ignore()`, are ignored.
    """

    def __init__(self) -> None:
        self._is_ignoring = False
        self._previous: dict[int, Any] = {}

    def ignore(self) -> None:
        """Ignore the signals from now on."""
        self._is_ignoring = True

    def __enter__(self) -> Self:
        for signum in (signal.SIGTERM, signal.SIGINT):
            self._previous[signum] = signal.signal(signum, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for signum, previous in self._previous.items():
            signal.signal(signum, previous)

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        if not self._is_ignoring:
            self._is_ignoring = True
            raise Terminated
