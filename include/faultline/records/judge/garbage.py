"""Time that garbage collection took, by the pauses that the processes logged, or by the totals that they reported."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from faultline.engines.base import Collections, Pause, Totals, Traces
from faultline.records.judge.resources.cpu import summed
from faultline.system.window import NS, Window

DRIVER, EXECUTORS = "driver", "executors"


@dataclass(frozen=True)
class Garbage:
    """Pauses within the window: seconds by role, their number over both, and the longest in ms.

    A pause that lies across an edge counts with its part inside. None of a role of which a process logged nothing.
    """

    driver_s: float | None
    executors_s: float | None
    pauses: int
    longest_ms: float


def garbage_of(traces: Traces, window: Window) -> Garbage | None:
    """By the processes' own logs; None where nobody logged."""
    if not traces.collections:
        return None
    inside = list(_clipped((pause for one in traces.collections for pause in one.pauses), window))
    return Garbage(
        driver_s=_seconds(traces.collections, DRIVER, set(), window),
        # Every executor that was seen must have a log: a sum that lacks one would be too small.
        executors_s=_seconds(traces.collections, EXECUTORS, {one.process for one in traces.totals}, window),
        pauses=len(inside),
        longest_ms=max((pause.end_ns - pause.start_ns for pause in inside), default=0) / 1_000_000,
    )


def gc_s(traces: Traces, garbage: Garbage | None, window: Window) -> float | None:
    """Garbage collection of all processes that do work, in seconds; None where it is not known of all.

    By their logs where there are any. Otherwise by what the engine last told of each, dead ones included, since the
    window began: brought up to date when a task ends, and one pause counts once for each task that was running.
    """
    if garbage is not None:
        return garbage.executors_s
    return _by_totals(traces.totals, window.start_ns)


def _by_totals(totals: Sequence[Totals], start_ns: int) -> float | None:
    return (summed(totals, "gc_ms") - summed(totals, "gc_ms", start_ns)) / 1000 if totals else None


def _seconds(collections: Sequence[Collections], role: str, seen: set[str], window: Window) -> float | None:
    known = [one for one in collections if one.role == role]
    if not known or not seen <= {one.process for one in known}:
        return None
    pauses = _clipped((pause for one in known for pause in one.pauses), window)
    return sum(pause.end_ns - pause.start_ns for pause in pauses) / NS


def _clipped(pauses: Iterable[Pause], window: Window) -> Iterable[Pause]:
    """What lies within the window of each."""
    for pause in pauses:
        start, end = max(pause.start_ns, window.start_ns), min(pause.end_ns, window.end_ns)
        if start < end:
            yield Pause(start, end)
