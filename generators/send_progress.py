"""Events of a generator, one JSON object per line, and the errors that end it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import astuple, dataclass
from typing import Any, TextIO


class EventOutput:
    """Writer of events with wall time and monotonic time, in nanoseconds."""

    def __init__(self, output: TextIO) -> None:
        self._output = output

    def event(self, name: str, **fields: Any) -> None:
        """Write one line and flush it."""
        line = {"event": name, "wall_ns": time.time_ns(), "mono_ns": time.monotonic_ns(), **fields}
        self._output.write(json.dumps(line) + "\n")
        self._output.flush()


@dataclass(frozen=True)
class SendProgress:
    """Number of records sent and due so far, and sent more than LATE_MS late; written about once a second.

    `latest_ms`: largest schedule lag since the previous progress, in milliseconds.
    """

    sent: int
    due: int
    late: int
    latest_ms: float

    @classmethod
    def combine(cls, members: Iterable[SendProgress]) -> SendProgress:
        """Return the total of a worker group with at least one worker."""
        sent, due, late, latest_ms = zip(*map(astuple, members), strict=True)
        return cls(sum(sent), sum(due), sum(late), max(latest_ms))


Progress = Callable[[SendProgress], None]


def sent_between(lines: Iterable[Mapping[str, Any]], begin_ns: int, end_ns: int) -> tuple[int, int]:
    """Return the numbers of records sent, and sent late, between two instants.

    `lines`: the journal's lines of SendProgress, in order. A line belongs to the interval in which it was written.
    """
    before = last = (0, 0)
    for line in lines:
        now = int(line.get("sent", 0)), int(line.get("late", 0))
        if line["wall_ns"] <= begin_ns:
            before = now
        if line["wall_ns"] <= end_ns:
            last = now
    return max(0, last[0] - before[0]), max(0, last[1] - before[1])


class GeneratorError(Exception):
    """Failed generator (broker, start barrier or dead process)."""


class InputError(GeneratorError):
    """Invalid specification or corpus; nothing was sent, and a retry cannot help."""
