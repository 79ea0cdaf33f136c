"""GC logs of Spark's JVMs, one small file per process.

Java's unified logging writes a line at the end of a pause: wall-clock time in ms, kind, heap before and after, and
duration. File names are relative to the working directory of the JVM: the executor's folder on its worker, and the
attempt's folder for the driver.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

from faultline.engines.work import Collections, Pause

EXECUTOR_FILE = "gc.log"
# In the attempt's folder; the JVM replaces `%p` by its process id, which differs after a restart.
DRIVER_FILE = "spark-logs/gc-driver-%p.log"
# The same for an executor that the workload supervisor starts.
SUPERVISED_EXECUTOR_FILE = "spark-logs/gc-executors-%p.log"
# Collectors of which all pauses are stop-the-world and logged at this level.
PAUSING = frozenset({"Serial", "Parallel", "G1", "Shenandoah"})
_LINE = re.compile(r"^\[(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d{4})\] (.*)$")
_COLLECTOR = re.compile(r"^Using (?:The )?(.+?)(?: Garbage Collector)?$")
_PAUSE = re.compile(r"^GC\(\d+\) Pause .* (\d+\.\d+)ms$")


def gc_option(file: str) -> str:
    """Return the JVM option that logs pauses to `file`, without rotation, so that no line is lost."""
    return f"-Xlog:gc:file={file}:time:filecount=0"


def parse_gc_log(lines: Iterable[str], role: str, process: str) -> Collections | None:
    """Return the pauses of one process; None unless the log names a collector with stop-the-world pauses.

    Other lines, such as one truncated by a kill, are skipped.
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
    """Return the collections of all processes of an attempt, from its `spark-logs`; empty without logs."""
    own = [(path, path.stem.split("-")[1], path.stem.removeprefix("gc-")) for path in directory.glob("gc-*-*.log")]
    executors = [
        (path, "executors", f"{path.parent.parent.name}/{path.parent.name}")
        for path in directory.glob(f"*/*/{EXECUTOR_FILE}")
    ]
    found = []
    for path, role, process in sorted(own) + sorted(executors):
        with path.open(encoding="utf-8", errors="replace") as lines:
            found.append(parse_gc_log(lines, role, process))
    return tuple(one for one in found if one is not None)
