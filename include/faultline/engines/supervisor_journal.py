"""What the journal of the workload supervisor tells, whichever engine it kept running: its lives, and state epochs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from faultline.engines.protocol import EngineEvent, ProcessRun, StateEpoch, Traces, VictimGroup
from faultline.system.journal import Line, events

SUPERVISOR_JOURNAL = "supervisor.jsonl"
DRIVER = "driver"


def process_runs_of(lines: Iterable[Line], role: str = DRIVER) -> tuple[ProcessRun, ...]:
    """Every life of a process, in the order in which they began or, where that was not noted, ended."""
    found: list[ProcessRun] = []
    # Journals of before there were several tell of the driver alone.
    for line in (one for one in lines if one.get("role", DRIVER) == role):
        if line.get("event") == "start":
            found.append(ProcessRun(int(line["incarnation"]), int(line["wall_ns"]), None))
        elif line.get("event") == "exit":
            number, ended_ns = int(line["incarnation"]), int(line["wall_ns"])
            if found and (found[-1].incarnation, found[-1].ended_ns) == (number, None):
                found[-1] = replace(found[-1], ended_ns=ended_ns)
            else:
                found.append(ProcessRun(number, None, ended_ns))
    return tuple(found)


def epochs_of(lines: Iterable[Line]) -> tuple[StateEpoch, ...]:
    """The state lineages that were begun after a loss, in order (commit mode `none`)."""
    return tuple(
        StateEpoch(int(line["lineage"]), int(line["wall_ns"]), str(line.get("reason")))
        for line in events(lines, "lineage")
    )


def driver_exited(hit: VictimGroup, traces: Traces) -> EngineEvent | None:
    """The first end of a life in the time of the fault, as the supervisor saw it."""
    for life in traces.process_runs:
        if life.ended_ns is not None and hit.span.contains(life.ended_ns):
            number = life.incarnation
            return EngineEvent(
                "lost", "driver", f"driver-{number}", life.ended_ns, SUPERVISOR_JOURNAL, f"exit of incarnation {number}"
            )
    return None


# What the log of a program that ended says of why.


# What Python writes above a traceback, and the line below one that says what was raised, in a log of several processes:
# one of Python inside a worker stands there beside the driver's own, which is about the worker's.
_TRACEBACK = "Traceback (most recent call last):"
_EXCEPTION = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Exit|Interrupt)\b")
_MAX_LENGTH = 300


def exit_reason(log: Path, telling: re.Pattern[str]) -> str:
    """The line that says most: what Python raised last, else the last that the pattern matches, else the last error,
    warning or line."""
    try:
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    except OSError:
        return "(no log)"
    last = max((number for number, line in enumerate(lines) if _TRACEBACK in line), default=len(lines))
    # The first: what a JVM logs as it ends comes after it.
    raised = [line for line in lines[last:] if _EXCEPTION.match(line) and _TRACEBACK not in line][:1]
    told = [line for line in lines if telling.search(line)]
    errors = [line for line in lines if "Error" in line or "Exception" in line]
    warnings = [line for line in lines if " WARN " in line]
    return (raised or told or errors or warnings or lines or ["(empty)"])[-1][:_MAX_LENGTH]
