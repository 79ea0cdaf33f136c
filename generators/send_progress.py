"""What a generator says: one JSON object per line, flushed at once; and the errors that end it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import astuple, dataclass
from typing import Any, TextIO


class EventOutput:
    """Writes events with both clocks: wall time and monotonic time, in nanoseconds."""

    def __init__(self, output: TextIO) -> None:
        self._output = output

    def event(self, name: str, **fields: Any) -> None:
        """Writes one line."""
        line = {"event": name, "wall_ns": time.time_ns(), "mono_ns": time.monotonic_ns(), **fields}
        self._output.write(json.dumps(line) + "\n")
        self._output.flush()


# How far the sending has come: what is journalled about once a second.


@dataclass(frozen=True)
class SendProgress:
    """Records sent and due by now, and how many of those that were sent came more than LATE_MS late.

    `latest_ms`: the largest lateness since the standing before, in milliseconds.
    """

    sent: int
    due: int
    late: int
    latest_ms: float

    @classmethod
    def combine(cls, members: Iterable[SendProgress]) -> SendProgress:
        """That of a crew, of at least one member."""
        sent, due, late, latest_ms = zip(*map(astuple, members), strict=True)
        return cls(sum(sent), sum(due), sum(late), max(latest_ms))


Progress = Callable[[SendProgress], None]


# The two ways a generator can fail, each with one line for the user's eyes.


class GeneratorError(Exception):
    """The generator could not do its work (broker, gate, or a process that died)."""


class InputError(GeneratorError):
    """The specification or the corpus is wrong; nothing was sent, and trying again cannot help."""
