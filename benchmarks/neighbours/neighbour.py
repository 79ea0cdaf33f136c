"""Program that uses a part of a core, steadily or in bursts, as a neighbour of an experiment.

    python -S neighbour.py SHARE PERIOD_S LONGEST_S

It computes for `SHARE` of each period. It ends when its standard input closes, at the latest after `LONGEST_S` seconds.
"""

from __future__ import annotations

import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

# A steady neighbour computes in every period of 10 ms; a burst takes 50 ms.
STEADY_S, BURST_S = 0.01, 0.05
KINDS = ("steady", "bursts")


@contextmanager
def neighbour(kind: str, share: float, longest_s: float) -> Iterator[int | None]:
    """Run a neighbour with `share` cores in a session of its own; yield its pid, None for a share of 0."""
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
    """Compute until standard input closes, by wall-clock time: lost CPU time is not compensated."""
    end = time.monotonic() + longest_s
    due = time.monotonic()
    while time.monotonic() < end:
        busy_until = due + share * period_s
        while time.monotonic() < busy_until:
            pass
        due += period_s
        if due < time.monotonic():  # a missed period is skipped, not compensated
            due = time.monotonic()
        if select.select([sys.stdin], [], [], max(0.0, due - time.monotonic()))[0]:
            return


if __name__ == "__main__":
    use_cpu(*map(float, sys.argv[1:]))
