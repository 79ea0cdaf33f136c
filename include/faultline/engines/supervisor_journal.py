"""Process runs, state epochs and exit reasons from the journal and logs of the workload supervisor."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from faultline.engines.protocol import EngineEvent, ProcessRun, StateEpoch, Traces, VictimGroup
from faultline.engines.work import ProcessExit
from faultline.system.journal import Line, events

SUPERVISOR_JOURNAL = "supervisor.jsonl"
DRIVER = "driver"


def process_runs_of(lines: Iterable[Line], role: str = DRIVER) -> tuple[ProcessRun, ...]:
    """Return every run of a process, ordered by start or, if that is not recorded, by end."""
    found: list[ProcessRun] = []
    # Journals of earlier versions lack the role; all their lines concern the driver.
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


def worker_exits_of(lines: Iterable[Line]) -> tuple[ProcessExit, ...]:
    """Return the exits of all supervised processes except the driver, in order."""
    pids: dict[str, int] = {}
    found: list[ProcessExit] = []
    for line in (one for one in lines if one.get("role", DRIVER) != DRIVER):
        if line.get("event") == "start":
            pids[line["role"]] = int(line["pid"])
        elif line.get("event") == "exit":
            found.append(ProcessExit(line["role"], pids.pop(line["role"], None), int(line["wall_ns"])))
    return tuple(found)


def epochs_of(lines: Iterable[Line]) -> tuple[StateEpoch, ...]:
    """Return the state epochs that started after a loss, in order (commit mode `none`)."""
    return tuple(
        StateEpoch(int(line["lineage"]), int(line["wall_ns"]), str(line.get("reason")))
        for line in events(lines, "lineage")
    )


def driver_exited(hit: VictimGroup, traces: Traces) -> EngineEvent | None:
    """Return the first driver exit within the fault's interval, as recorded by the supervisor."""
    for run in traces.process_runs:
        if run.ended_ns is not None and hit.span.contains(run.ended_ns):
            number = run.incarnation
            return EngineEvent(
                "lost", "driver", f"driver-{number}", run.ended_ns, SUPERVISOR_JOURNAL, f"exit of incarnation {number}"
            )
    return None


# Exit reasons, from the log of a program that ended.


# A log may hold tracebacks of several processes: a Python worker's and the driver's, which refers to it.
_TRACEBACK = "Traceback (most recent call last):"
_EXCEPTION = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Exit|Interrupt)\b")
_MAX_LENGTH = 300


def exit_reason(log: Path, pattern: re.Pattern[str]) -> str:
    """Return the most informative line of a dead process's log.

    In order of preference: the exception of the last Python traceback, the last match of `pattern`, the last error, the
    last warning, the last line.
    """
    try:
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    except OSError:
        return "(no log)"
    last = max((number for number, line in enumerate(lines) if _TRACEBACK in line), default=len(lines))
    # The first match, because a JVM logs more lines as it shuts down.
    raised = [
        # A message may begin on the next line.
        " ".join(part.strip() for part in lines[at : at + (2 if line.rstrip().endswith(":") else 1)])
        for at, line in enumerate(lines)
        if at >= last and _EXCEPTION.match(line) and _TRACEBACK not in line
    ][:1]
    matched = [line for line in lines if pattern.search(line)]
    errors = [line for line in lines if "Error" in line or "Exception" in line]
    warnings = [line for line in lines if " WARN " in line]
    return (raised or matched or errors or warnings or lines or ["(empty)"])[-1][:_MAX_LENGTH]
