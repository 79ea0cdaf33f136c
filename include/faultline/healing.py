"""Healing after a conductor that could not: what its journal registered for undoing, and never saw undone."""

from __future__ import annotations

import signal
from typing import Any

from fault.hosts import Hosts
from fault.identity import ROLES, ProcessIdentity
from fault.injector import Presence
from fault.local import LocalInjector
from faultline.assignment import read_assignment, remote_injectors
from faultline.attempt import Attempt
from faultline.journal import read_journal


def unhealed(attempt: Attempt) -> list[dict[str, Any]]:
    """The `undo_registered` lines of processes without an `undone` line that went well."""
    lines = read_journal(attempt.conductor_journal)
    undone = {line["undo"] for line in lines if line.get("event") == "undone" and not line["error"]}
    return [
        line
        for line in lines
        if line.get("event") == "undo_registered" and line.get("pid") and line["undo"] not in undone
    ]


def heal(attempt: Attempt) -> list[int]:
    """Continues every victim that is still stopped, after checking who it is. Returns their pids; idempotent."""
    left = unhealed(attempt)
    if not left:
        return []
    assignment = read_assignment(attempt.folder)
    injector = Hosts(LocalInjector(), remote_injectors(assignment))
    continued = []
    for line in left:
        role = ROLES[line["role"]]
        victim = ProcessIdentity(
            int(line["pid"]),
            float(line["create_time"]),
            role,
            assignment.tokens.of(role),
            tuple(line["command"]),
            host=str(line["host"]),
            node=line["node"],
        )
        if injector.probe(victim) is Presence.STOPPED:
            injector.signal(victim, signal.SIGCONT)
            continued.append(victim.pid)
    return continued
