"""A program that takes a part of a core, as a neighbour of an experiment does: steadily, or in bursts.

    python -S neighbour.py SHARE PERIOD_S LONGEST_S

In each period it computes for `SHARE` of it. It ends when its standard input does, and after `LONGEST_S` seconds.
"""

from __future__ import annotations

import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

# A steady neighbour computes a part of each 10 ms; one in bursts for 50 ms each.
STEADY_S, BURST_S = 0.01, 0.05
KINDS = ("steady", "bursts")


@contextmanager
def neighbour(kind: str, share: float, longest_s: float) -> Iterator[int | None]:
    """Has a neighbour take `share` cores in a session of its own; gives its pid, None for a share of 0."""
    if share == 0:
        yield None
        return
    period_s = STEADY_S if kind == "steady" else BURST_S / share
    command = [sys.executable, "-S", __file__, str(share), str(period_s), str(longest_s)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        yield process.pid
    finally:
        process.kill()
        process.communicate()


def use_cpu(share: float, period_s: float, longest_s: float) -> None:
    """Computes until it is told to end, by wall-clock time: what takes its turn from it makes it take no more."""
    end = time.monotonic() + longest_s
    due = time.monotonic()
    while time.monotonic() < end:
        busy_until = due + share * period_s
        while time.monotonic() < busy_until:
            pass
        due += period_s
        if due < time.monotonic():  # it came too late by a whole period: left out, not made up for
            due = time.monotonic()
        if select.select([sys.stdin], [], [], max(0.0, due - time.monotonic()))[0]:
            return


if __name__ == "__main__":
    use_cpu(*map(float, sys.argv[1:]))
