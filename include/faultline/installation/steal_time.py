"""Waiting for a quiet machine, which `prepare` does where it is asked to.

A virtual machine shares its cores with others of its host, and what they take comes in waves of minutes. A generator
that is held up by it is late, and the record invalid; so it pays to wait for the end of a wave, also when all this
machine has to do is wait.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import psutil

from faultline.system.errors import Cancelled, ConfigError

# The longest wait in seconds; unset: none.
QUIET = "FAULTLINE_QUIET_S"
# The host's share that makes a wave, in cores: below it, lateness stayed under 50 ms in all workloads.
STOLEN_CORES = 0.1
SAMPLE_S = 2.0
# So many samples in a row are below it when a wave is over.
SAMPLES = 5


def longest_wait_s() -> float:
    """Seconds that FAULTLINE_QUIET_S allows; 0 when it is unset. Raises ConfigError when it is no such number."""
    given = os.environ.get(QUIET, "0")
    if not given.isdecimal():
        raise ConfigError(f"{QUIET}: {given!r} is refused; give whole seconds, such as 600, or leave it out")
    return float(given)


def await_quiet(
    limit_s: float,
    *,
    cancelled: Callable[[], bool],
    stolen_s: Callable[[], float | None] | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> float:
    """Waits until the host takes nearly nothing from this machine, at most `limit_s`; returns the seconds waited.

    It returns at once for a limit of 0, and where the system does not count what is stolen. `stolen_s` gives the
    seconds stolen from all cores since the machine started. Raises Cancelled.
    """
    stolen_s = stolen_s or stolen_by_host_s
    start = clock()
    before, quiet = stolen_s(), 0
    while before is not None and quiet < SAMPLES and clock() - start < limit_s:
        if cancelled():
            raise Cancelled("the sweep was stopped while this experiment waited for a quiet machine")
        since = clock()
        sleep(SAMPLE_S)
        now = stolen_s()
        if now is None:
            break
        quiet = quiet + 1 if (now - before) / (clock() - since) < STOLEN_CORES else 0
        before = now
    return clock() - start


def stolen_by_host_s() -> float | None:
    """Seconds that the host kept from all cores since the machine started; None where nobody counts them."""
    stolen: float | None = getattr(psutil.cpu_times(), "steal", None)
    return stolen
