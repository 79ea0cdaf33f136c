"""Driver logs: lost tasks, lost connections to the broker, and late rows.

There is one file per incarnation, `spark-logs/driver-<incarnation>.log`, with lines in the log4j2 pattern `instant
level [thread] logger: message`. Other lines, such as output and stack traces of the program, are skipped. A thread name
may contain brackets.

The Kafka client has several messages for a lost connection. A message about a bootstrap node (id below 0) does not
count if it may only mean that an idle connection was closed. Late rows are part of each batch's progress, which is
logged as JSON over several lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from faultline.system.journal import log_instant_ns

_DRIVER_LINE = re.compile(r"^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z) +\w+ +\[.*?\] ([\w.$-]+): (.*)$")
# Messages about tasks of a streaming query start with the query's id and the batch.
_LOST = re.compile(r"^(?:\[[^\]]*\] )*Lost task \d+\.\d+ in stage ")
_DISCONNECT = re.compile(
    r"\bNode \d+ disconnected\b"
    r"|\bConnection to node -?\d+ .*could not be established"
    r"|\bBootstrap broker .* disconnected\b"
    r"|\bCancelled in-flight .* due to node -?\d+ being disconnected"
    r"|\bDisconnecting from node -?\d+ due to\b"
    r"|\bMetadata update failed\b"
    r"|\bDisconnectException\b"
)
_LATE_ROWS = re.compile(r'^\s*"numRowsDroppedByWatermark" : (\d+)')
# Checked first, because most lines contain none and a substring test is cheaper than a regular expression.
_MARKERS = ("Lost task", "isconnect", "could not be established", "Metadata update failed")
_MAX_LENGTH = 160


@dataclass(frozen=True)
class LogLine:
    """Relevant log line; `text` is `logger: message`, shortened."""

    wall_ns: int
    file: str
    text: str


@dataclass(frozen=True)
class DriverEvents:
    """Events of all driver incarnations by kind, sorted by time."""

    lost_tasks: tuple[LogLine, ...] = ()
    disconnects: tuple[LogLine, ...] = ()
    late_rows: int = 0


def parse_driver_log(lines: Iterable[str], file: str) -> DriverEvents:
    """Return the events of one log; other lines are skipped."""
    lost: list[LogLine] = []
    disconnects: list[LogLine] = []
    late_rows = 0
    for line in lines:
        if "numRowsDropped" in line and (late := _LATE_ROWS.match(line)):
            late_rows += int(late[1])
            continue
        if not any(hint in line for hint in _MARKERS):
            continue
        match = _DRIVER_LINE.match(line.rstrip("\n"))
        if match is None:
            continue
        instant, logger, message = match.groups()
        if _LOST.match(message):
            kind = lost
        elif _DISCONNECT.search(message):
            kind = disconnects
        else:
            continue
        kind.append(LogLine(log_instant_ns(instant), file, f"{logger}: {message}"[:_MAX_LENGTH]))
    return DriverEvents(tuple(lost), tuple(disconnects), late_rows)


def is_driver_event(line: str) -> bool:
    """Return whether a log line is an event."""
    found = parse_driver_log([line], "")
    return found != DriverEvents()


def read_driver_logs(directory: Path) -> DriverEvents:
    """Return the events of `directory`/driver-*.log, merged; empty without logs."""
    parsed = []
    for path in sorted(directory.glob("driver-*.log")):
        with path.open(encoding="utf-8", errors="replace") as lines:
            parsed.append(parse_driver_log(lines, path.name))
    return DriverEvents(
        tuple(sorted((item for one in parsed for item in one.lost_tasks), key=lambda item: item.wall_ns)),
        tuple(sorted((item for one in parsed for item in one.disconnects), key=lambda item: item.wall_ns)),
        sum(one.late_rows for one in parsed),
    )
