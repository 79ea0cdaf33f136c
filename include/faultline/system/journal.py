"""Journals: append-only files of JSON lines, each with a wall-clock and a monotonic instant.

One process writes a journal; any number of processes read it. A line is written by one system call and counts only when
its newline is present, so readers never see partial lines. `read_journal` reads a growing journal, `read_finished` that
of a process that has ended.
"""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from faultline.system.errors import InfrastructureError
from faultline.system.files import read_document, require_file, sync_folder, write_atomic, write_error

Line = dict[str, Any]


def log_instant_ns(text: str) -> int:
    """Return the ns since the epoch of a UTC time of a log: `…T05:55:03.123Z`, or `…GMT` as in Spark's REST API."""
    moment = datetime.fromisoformat(text.replace("GMT", "+00:00").replace("Z", "+00:00"))
    return round(moment.timestamp() * 1000) * 1_000_000


class Events(dict[str, list[Line]]):
    """Lines by event; an empty list for an event that never occurred."""

    def __missing__(self, event: str) -> list[Line]:
        return []


@dataclass(frozen=True)
class Instant:
    """One moment on both clocks, in nanoseconds; all processes of a host share the monotonic clock."""

    wall_ns: int
    mono_ns: int

    @classmethod
    def now(cls) -> Self:
        """Return this moment."""
        mono_ns = time.monotonic_ns()
        return cls(wall_ns=time.time_ns(), mono_ns=mono_ns)

    def plus(self, seconds: float) -> Instant:
        """Return the moment `seconds` later on both clocks."""
        step = round(seconds * 1e9)
        return Instant(self.wall_ns + step, self.mono_ns + step)


class Journal:
    """Writer of a journal. Opening it truncates a partial last line left by a crash.

    Raises InfrastructureError, naming the file, if it cannot be opened or written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            _truncate_partial_line(path)
            fresh = not path.exists()
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            if fresh:
                sync_folder(path.parent)
        except OSError as error:
            raise write_error(path, error) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def write(self, event: str, *, at: Instant | None = None, sync: bool = False, **fields: Any) -> Instant:
        """Append {"event": event, …fields}; see `append`."""
        return self.append({"event": event, **fields}, at=at, sync=sync)

    def append(self, line: Mapping[str, Any], *, at: Instant | None = None, sync: bool = False) -> Instant:
        """Append one line with its instant (`at`, by default now) and return that instant.

        `sync` waits until the line is on disk, which can take tens of milliseconds. Without it the line survives a
        crash of the process but not of the machine.
        """
        instant = at or Instant.now()
        stamped = {"wall_ns": instant.wall_ns, "mono_ns": instant.mono_ns, **line}
        data = line_bytes(stamped)
        try:
            written = os.write(self._file, data)
            if written != len(data):
                # Remove the partial line, so that a later line starts on its own.
                os.ftruncate(self._file, os.fstat(self._file).st_size - written)
                raise OSError(errno.ENOSPC, f"only {written} of {len(data)} bytes were taken")
            if sync:
                os.fsync(self._file)
        except OSError as error:
            raise write_error(self.path, error) from None
        return instant

    def close(self) -> None:
        """Close the file; further calls do nothing."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class JournalReader:
    """Reader that returns each complete line once, in order; a missing file is empty."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0
        self._line = 0

    def poll(self) -> list[Line]:
        """Return the new complete lines. Raises InfrastructureError if one is not a JSON object."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise InfrastructureError(f"{self.path.name}: read failed: {error.strerror or error}") from None
        complete = data[: data.rfind(b"\n") + 1]
        lines = []
        for raw in complete.splitlines():
            self._line += 1
            if raw.strip():
                lines.append(self._parse(raw))
        self._offset += len(complete)
        return lines

    def _parse(self, raw: bytes) -> Line:
        value = parse_line(raw)
        if value is None:
            raise InfrastructureError(f"{self.path.name}: line {self._line} got {raw[:80]!r}; expected a JSON object")
        return value


class JournalCache:
    """Cache of growing journals: `read` parses only new lines."""

    def __init__(self) -> None:
        self._readers: dict[Path, JournalReader] = {}
        self._lines: dict[Path, list[Line]] = {}

    def read(self, path: Path) -> list[Line]:
        """Return all complete lines as `read_journal` does; the list belongs to the cache."""
        lines = self._lines.setdefault(path, [])
        lines += self._readers.setdefault(path, JournalReader(path)).poll()
        return lines


def read_journal(path: Path) -> list[Line]:
    """Return all complete lines of a journal; ignore a partial last line; a missing file is empty."""
    return JournalReader(path).poll()


def read_finished(path: Path) -> tuple[Line, ...]:
    """Return the lines of a raw file whose writer has ended; empty if the file is missing.

    Ignores a truncated last line. Raises InfrastructureError for any other broken line, naming file and line.
    """
    texts = path.read_bytes().splitlines() if path.exists() else []
    lines = [parse_line(text) if text.strip() else {} for text in texts]
    for number, value in enumerate(lines[:-1], start=1):
        if value is None:
            raise InfrastructureError(f"{path}: line {number} is not a JSON object; fix: rerun the experiment")
    return tuple(value for value, text in zip(lines, texts, strict=True) if value is not None and text.strip())


def read_files(
    folder: Path,
    documents: Iterable[str],
    *,
    optional: Iterable[str],
    lines: Iterable[str],
    events: Iterable[str],
    present: Iterable[str],
) -> dict[str, Any]:
    """Return the raw files of a folder by name.

    `documents`: a JSON object each. `optional`: a JSON object, or None if the file is missing. `lines`: journals, as
    their lines; names may be patterns. `events`: journals, with lines grouped by `by_event`. `present`: files that must
    exist but are not read. Raises InfrastructureError naming the first missing or broken file.
    """
    found: dict[str, Any] = {name: read_document(folder / name) for name in documents}
    for name in present:
        require_file(folder / name)
    found |= {name: read_document(folder / name) if (folder / name).exists() else None for name in optional}
    for pattern in lines:
        paths = sorted(folder.glob(pattern)) if "*" in pattern else [folder / pattern]
        found |= {str(path.relative_to(folder)): read_finished(path) for path in paths}
    return found | {name: by_event(read_finished(folder / name)) for name in events}


def write_lines(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    """Replace the content of a file by these lines; raises as `write_atomic` does."""
    write_atomic(path, b"".join(map(line_bytes, lines)).decode())


def line_bytes(line: Mapping[str, Any]) -> bytes:
    """Return one encoded line. Raises ValueError for NaN, which JSON does not support."""
    return (json.dumps(line, separators=(",", ":"), allow_nan=False) + "\n").encode()


def parse_line(raw: bytes) -> Line | None:
    """Return the object of one line; None if it is not a JSON object."""
    try:
        value = json.loads(raw)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def events(lines: Iterable[Line], name: str) -> list[Line]:
    """Return the lines whose `event` is `name`, in order."""
    return [line for line in lines if line.get("event") == name]


def by_event(lines: Iterable[Line]) -> Events:
    """Return the lines grouped by event, in order."""
    found = Events()
    for line in lines:
        found.setdefault(str(line.get("event")), []).append(line)
    return found


def find_last(lines: Sequence[Line], **fields: str | int) -> Line | None:
    """Return the last line with the given fields, such as event="settled", fault=1, or None."""
    return next((line for line in reversed(lines) if fields.items() <= line.items()), None)


def _truncate_partial_line(path: Path) -> None:
    """Truncate the file after its last newline; readers have not seen the rest.

    After a power failure, lost content may appear as zero bytes, which no line contains: truncate at the first one.
    """
    if not path.is_file():
        return
    with path.open("r+b") as file:
        data = file.read()
        end = data.partition(b"\0")[0].rfind(b"\n") + 1
        if end != len(data):
            file.truncate(end)
