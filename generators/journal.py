"""What a generator says: one JSON object per line on standard output, flushed at once."""

from __future__ import annotations

import json
import time
from typing import Any, TextIO


class Journal:
    """Writes events with both clocks: wall time and monotonic time, in nanoseconds."""

    def __init__(self, output: TextIO) -> None:
        self._output = output

    def event(self, name: str, **fields: Any) -> None:
        """Writes one line."""
        line = {"event": name, "wall_ns": time.time_ns(), "mono_ns": time.monotonic_ns(), **fields}
        self._output.write(json.dumps(line) + "\n")
        self._output.flush()
