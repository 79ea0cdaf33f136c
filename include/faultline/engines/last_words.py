"""What the log of a program that ended says of why."""

from __future__ import annotations

import re
from pathlib import Path

# What Python writes above a traceback, and the line below one that says what was raised, in a log of several processes:
# one of Python inside a worker stands there beside the driver's own, which is about the worker's.
_TRACEBACK = "Traceback (most recent call last):"
_RAISED = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Exit|Interrupt)\b")
_LONGEST = 300


def last_words(log: Path, telling: re.Pattern[str]) -> str:
    """The line that says most: what Python raised last, else the last that the pattern matches, else the last error or
    line."""
    try:
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    except OSError:
        return "(no log)"
    first = next((number for number, line in enumerate(lines) if _TRACEBACK in line), len(lines))
    raised = [line for line in lines[first:] if _RAISED.match(line)]
    told = [line for line in lines if telling.search(line)]
    errors = [line for line in lines if "Error" in line or "Exception" in line]
    return (raised or told or errors or lines or ["(empty)"])[-1][:_LONGEST]
