"""Cycles of the engine that a fault can be aimed at: between checkpoints, and between state snapshots.

Both leave a file on disk when one ends and the next begins; its modification time is the instant.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

POLL_S = 0.003
# The operators whose snapshots are waited for.
SNAPSHOTS_OF = ("0",)


def cycle_files(checkpoint: Path, cycle: str) -> Iterator[os.DirEntry[str]]:
    """The files whose appearance begins a cycle: `commits/<k>`, or a partition's `<version>.zip`."""
    folders = [checkpoint / "commits"]
    if cycle == "snapshot":
        folders = [one for name in SNAPSHOTS_OF for one in sorted((checkpoint / "state" / name).glob("[0-9]*"))]
    for folder in folders:
        try:
            with os.scandir(folder) as entries:
                yield from (entry for entry in entries if _begins(entry.name, cycle))
        except FileNotFoundError:
            continue


def _begins(name: str, cycle: str) -> bool:
    return name.isdigit() if cycle == "checkpoint" else name[0].isdigit() and name.endswith(".zip")


def await_cycle(
    checkpoint: Path,
    cycle: str,
    not_before_wall_ns: int,
    until_mono_ns: int,
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> int | None:
    """Wall instant at which the first `cycle` at or after `not_before_wall_ns` began; None when none did in time.

    Looks at least once, however short the time.
    """
    known: set[str] = set()
    while True:
        found: list[int] = []
        for entry in cycle_files(checkpoint, cycle):
            if entry.path in known:
                continue
            try:
                began = entry.stat().st_mtime_ns
            except FileNotFoundError:
                continue  # it was still under its temporary name
            known.add(entry.path)
            if began >= not_before_wall_ns:
                found.append(began)
        if found:  # a folder names its files in no order
            return min(found)
        if time.monotonic_ns() >= until_mono_ns:
            return None
        sleep(POLL_S)
