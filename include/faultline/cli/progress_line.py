"""Progress on standard error: one line that is rewritten on a terminal, a line for each change elsewhere."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TextIO

from faultline.system.text import Say

# In a pipe or a log, the same state is repeated at least this often.
REPEAT_S = 20.0
CLEAR = "\r\x1b[2K"


@dataclass(frozen=True)
class Progress:
    """State of what is followed: a new line is due where `head` changes; `left` is the time left in words.

    `short`: the head where a line of 80 columns has to hold all of it; empty for the same.
    """

    head: str
    detail: str = ""
    left: str = ""
    short: str = ""

    @property
    def text(self) -> str:
        """The whole state as a line of a log."""
        return ", ".join(part for part in (f"{self.head}{self.detail}", self.left) if part)


class ProgressLine:
    """Display of one course; `say` prints lines that stay.

    The line is rewritten where `out` is a terminal that can do so; NO_COLOR and TERM=dumb ask for plain lines.
    """

    def __init__(self, say: Say, out: TextIO | None = None, environment: Mapping[str, str] | None = None) -> None:
        self._out = sys.stderr if out is None else out
        given = os.environ if environment is None else environment
        plain = bool(given.get("NO_COLOR")) or given.get("TERM", "dumb") in ("", "dumb")
        self._rewrites = self._out.isatty() and not plain
        self._say = say
        self._began_s = time.monotonic()
        self._shown, self._shown_at = "", 0.0
        self._line = ""

    def say(self, text: str) -> None:
        """Print a line that stays, above the rewritten one."""
        self.clear()
        self._say(text)

    def show(self, progress: Progress) -> None:
        """Rewrite the line; elsewhere print it if its head is new or was printed long ago."""
        if self._rewrites:
            width = shutil.get_terminal_size().columns - 1
            parts = (f"{_clock(time.monotonic() - self._began_s)} elapsed", progress.left)
            head = progress.short or progress.head
            text = f"{', '.join(part for part in parts if part)}: {head}{progress.detail}"
            self._line = text if len(text) <= width else f"{text[: max(0, width - 1)]}…"
            self._out.write(f"{CLEAR}{self._line}")
            self._out.flush()
        elif progress.head != self._shown or time.monotonic() - self._shown_at > REPEAT_S:
            self._say(progress.text)
            self._shown, self._shown_at = progress.head, time.monotonic()

    def clear(self) -> None:
        """Remove the rewritten line, so that other output begins on an empty one."""
        if self._line:
            self._out.write(CLEAR)
            self._out.flush()
            self._line = ""


def _clock(seconds: float) -> str:
    """`3:07`, `1:02:15`."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
