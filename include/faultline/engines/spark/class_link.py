"""From which archive of loaded classes the JVMs of an attempt start: all at first from Spark's, later from Java's own.

Until the gate a start is only waited for, and should be short; after it, a start belongs to what a fault has caused,
and must take as long as anybody's. Executors have one command line for the whole run, so what it names is a link.
"""

from __future__ import annotations

from pathlib import Path

from faultline.engines.running import Runtime
from faultline.experiment.attempt import Attempt

# Within a Java: what a JVM starts from that was told nothing.
USUAL = Path("lib", "server", "classes.jsa")


def link_of(attempt: Attempt) -> Path:
    """Where the JVMs of the attempt are told that their archive lies."""
    return attempt.scratch / "classes.jsa"


def to_spark(attempt: Attempt, runtime: Runtime) -> Path | None:
    """Makes the link, to the archive of Spark's classes; None without one: then Java does as it always does."""
    if runtime.class_data is None:
        return None
    _point(link_of(attempt), runtime.class_data)
    return link_of(attempt)


def to_usual(attempt: Attempt, runtime: Runtime) -> None:
    """Turns the link to Java's own archive; a JVM that runs keeps what it has mapped."""
    if runtime.class_data is not None:
        _point(link_of(attempt), runtime.java_home / USUAL)


def _point(link: Path, target: Path) -> None:
    fresh = link.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(target)
    fresh.rename(link)
