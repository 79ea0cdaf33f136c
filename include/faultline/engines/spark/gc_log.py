"""Garbage collection of Spark's JVMs, by the logs that they write themselves: one small file a process.

Java's unified logging writes a line when a pause ends: its wall-clock time to the millisecond, what kind of pause, the
heap before and after, and how long it took. Each JVM runs in a folder of its own choosing, so its file is named
relative to that: an executor's folder on its worker, and of the driver the attempt's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

from faultline.engines.protocol import Collections, Pause

EXECUTOR_FILE = "gc.log"
# In the attempt's folder; `%p` becomes the process's id, since a restarted driver is another process.
DRIVER_FILE = "spark-logs/gc-driver-%p.log"
# Collectors that stop the world for each collection and log a line for it at this level.
PAUSING = frozenset({"Serial", "Parallel", "G1", "Shenandoah"})
_LINE = re.compile(r"^\[(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d{4})\] (.*)$")
_COLLECTOR = re.compile(r"^Using (?:The )?(.+?)(?: Garbage Collector)?$")
_PAUSE = re.compile(r"^GC\(\d+\) Pause .* (\d+\.\d+)ms$")


def gc_option(file: str) -> str:
    """The JVM option that logs pauses to `file`: their lines only, never rotated, so that none is lost."""
    return f"-Xlog:gc:file={file}:time:filecount=0"


def parse_gc_log(lines: Iterable[str], role: str, process: str) -> Collections | None:
    """The pauses of one process; None unless the log names a collector whose pauses it would hold.

    Lines of any other form, such as one that a kill cut short, are passed over.
    """
    collector: str | None = None
    pauses: list[Pause] = []
    for line in lines:
        match = _LINE.match(line.rstrip("\n"))
        if match is None:
            continue
        instant, message = match.groups()
        if collector is None and (named := _COLLECTOR.match(message)):
            collector = named.group(1)
        elif pause := _PAUSE.match(message):
            end_ns = round(datetime.strptime(instant, "%Y-%m-%dT%H:%M:%S.%f%z").timestamp() * 1000) * 1_000_000
            pauses.append(Pause(end_ns - round(float(pause.group(1)) * 1_000_000), end_ns))
    if collector not in PAUSING:
        return None
    return Collections(role, process, collector, tuple(pauses))


def read_gc_logs(directory: Path) -> tuple[Collections, ...]:
    """Of all processes of an attempt, from its `spark-logs`; empty where none logged."""
    drivers = [(path, "driver", path.stem.removeprefix("gc-")) for path in directory.glob("gc-driver-*.log")]
    executors = [
        (path, "executors", f"{path.parent.parent.name}/{path.parent.name}")
        for path in directory.glob(f"*/*/{EXECUTOR_FILE}")
    ]
    found = []
    for path, role, process in sorted(drivers) + sorted(executors):
        with path.open(encoding="utf-8", errors="replace") as lines:
            found.append(parse_gc_log(lines, role, process))
    return tuple(one for one in found if one is not None)
