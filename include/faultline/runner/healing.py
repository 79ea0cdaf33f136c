"""Healing after a conductor that could not: what its journal registered for undoing, and never saw undone."""

from __future__ import annotations

import contextlib
from typing import Any

from fault.errors import FaultError
from fault.hosts import Hosts
from fault.identity import ROLES, ProcessIdentity
from fault.injector import Presence, resume
from fault.local import LocalInjector
from fault.proxy import ProxyControl
from faultline.base.attempt import Attempt
from faultline.base.errors import InfrastructureError
from faultline.base.journal import read_journal
from faultline.runner.assignment import Assignment, read_assignment, remote_injectors


def unhealed(attempt: Attempt) -> list[dict[str, Any]]:
    """The `undo_registered` lines that no later `undone` line of the same fault and step says went well."""
    left: dict[tuple[int, str], dict[str, Any]] = {}
    for line in read_journal(attempt.conductor_journal):
        if line.get("event") == "undo_registered":
            left[line["fault"], line["undo"]] = line
        elif line.get("event") == "undone" and not line["error"]:
            left.pop((line["fault"], line["undo"]), None)
    return list(left.values())


def heal(attempt: Attempt) -> list[int]:
    """Continues every victim that is still stopped, after checking who it is, and heals the proxy. Idempotent.

    Returns the pids that were continued. Raises InfrastructureError, after all were tried, naming
    those that could not be.
    """
    left = unhealed(attempt)
    if not left:
        return []
    continued: list[int] = []
    problems: list[str] = []
    if any(line.get("pid") is None for line in left):
        with contextlib.suppress(FaultError):  # a proxy that is gone delays nothing any more
            ProxyControl(attempt.proxy_control).heal()
    assignment = read_assignment(attempt.folder)
    with contextlib.closing(Hosts(LocalInjector(), remote_injectors(assignment))) as injector:
        for line in left:
            if line.get("pid") is None:
                continue
            try:
                victim = _victim(line, assignment)
                stopped = injector.probe(victim) is Presence.STOPPED
                resume(injector, victim)
            except FaultError as error:
                problems.append(" ".join(str(error).split()))
                continue
            if stopped:
                continued.append(victim.pid)
    if problems:
        raise InfrastructureError(f"healing: {'; '.join(problems)}; continue it by hand with kill -CONT")
    return continued


def _victim(line: dict[str, Any], assignment: Assignment) -> ProcessIdentity:
    role = ROLES[line["role"]]
    return ProcessIdentity(
        int(line["pid"]),
        float(line["create_time"]),
        role,
        assignment.tokens.of(role),
        tuple(line["command"]),
        start_ticks=line["start_ticks"],
        host=str(line["host"]),
        node=line["node"],
    )
