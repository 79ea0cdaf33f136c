"""When Spark, or who watches over it, noticed a fault; by the role of what was hit.

A new kind of victim needs one function in DETECTORS.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from faultline.engines.base import Hit, Seen, Traces
from faultline.engines.supervised import FILE, driver_exited
from faultline.system.processes import option_of
from faultline.system.window import CLOCK_RESOLUTION_NS

Detector = Callable[[Hit, Traces], Seen | None]
# Application, or None where nothing names it, and executor.
Identity = tuple[str | None, str]


def executor_removed(hit: Hit, traces: Traces) -> Seen | None:
    """`removeTime` in Spark's REST interface; of several victims the last one's.

    A victim is known by `--executor-id` and `--app-id` in its command line: a restarted driver is another
    application, whose executors count from 0 again. Without an id, the first removal after t0.
    """
    identities = [identity for victim in hit.victims if (identity := identity_of(victim)) is not None]
    return _removal(hit, traces, identities) or _epoch_given_up(hit, traces)


def executors_of_worker_removed(hit: Hit, traces: Traces) -> Seen | None:
    """`removeTime` of the executors that the worker hosted; the last one's."""
    hosted: list[Identity] = [(None, str(name)) for victim in hit.victims for name in victim.get("executors") or ()]
    return _removal(hit, traces, hosted) or _epoch_given_up(hit, traces)


def task_lost(hit: Hit, traces: Traces) -> Seen | None:
    """The first lost task in the driver's log."""
    return _first(hit, traces, "task_lost")


def broker_disconnected(hit: Hit, traces: Traces) -> Seen | None:
    """The first line of the driver's log about a broken connection to the broker."""
    return _first(hit, traces, "disconnected")


DETECTORS: dict[str, Detector] = {
    "executor": executor_removed,
    "worker": executors_of_worker_removed,
    "driver": driver_exited,
    "python_worker": task_lost,
    "kafka": broker_disconnected,
    "kafka_connection": broker_disconnected,
}


def detect(hit: Hit, traces: Traces) -> Seen | None:
    """What tells of the loss; None when nothing does, or all of it came at another time."""
    detector = DETECTORS.get(hit.role)
    return None if detector is None else detector(hit, traces)


def without_effect(hit: Hit, traces: Traces) -> str | None:
    """Why a loss changed nothing: the worker was idle, or there was none of the run's on it."""
    if hit.role == "python_worker" and task_lost(hit, traces) is None:
        return "no task was lost"
    if hit.role == "worker" and not any(victim.get("executors", True) for victim in hit.victims):
        return "the worker hosted no executor of the run"
    return None


def identity_of(victim: Mapping[str, Any]) -> Identity | None:
    """Application and id by the command line of an executor; None when it names no id."""
    command = victim.get("command") or []
    name = option_of(command, "--executor-id")
    return None if name is None else (option_of(command, "--app-id"), name)


def _removal(hit: Hit, traces: Traces, identities: Sequence[Identity]) -> Seen | None:
    """The last removal of these executors; without any identity the first removal after t0."""
    removed = {one.process: one for one in traces.of("lost") if hit.span.holds(one.wall_ns)}
    if not removed:
        return None
    if not identities:
        first = min(removed.values(), key=lambda one: one.wall_ns)
        return replace(first, text="first executor removed after t0 (REST)")
    present = _application_at(hit, traces)
    found = [removed.get(f"{application or present}/{name}") for application, name in identities]
    known = [one for one in found if one is not None]
    if len(known) < len(found):
        return None
    names = ", ".join(name for _, name in identities)
    return replace(max(known, key=lambda one: one.wall_ns), text=f"removeTime of executor {names} (REST)")


def _application_at(hit: Hit, traces: Traces) -> str | None:
    """The application that ran when the fault came: the last one that had answered by t0, else the first."""
    answered = traces.of("answered")
    before = [one for one in answered if one.wall_ns <= hit.span.t0_ns + CLOCK_RESOLUTION_NS]
    return next((one.process for one in [*before[::-1], *answered]), None)


def _epoch_given_up(hit: Hit, traces: Traces) -> Seen | None:
    """In commit mode `none` the supervisor ends the query on a loss, at times before the recorder's next sample."""
    for epoch in traces.epochs:
        if hit.span.holds(epoch.began_ns):
            return Seen("lost", "executor", "", epoch.began_ns, FILE, f"lineage {epoch.number}: {epoch.reason}")
    return None


def _first(hit: Hit, traces: Traces, kind: str) -> Seen | None:
    return next((one for one in traces.of(kind) if hit.span.holds(one.wall_ns)), None)
