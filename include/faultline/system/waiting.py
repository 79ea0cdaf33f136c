"""Bounded waiting for a condition, for programs, and for a machine with low steal."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import psutil

from faultline.system.errors import Cancelled, ConfigError, InfrastructureError

T = TypeVar("T")


def wait_until(
    condition: Callable[[], T | None],
    *,
    timeout_s: float,
    what: str | Callable[[], str],
    every_s: float | Callable[[], float] = 0.1,
    alive: Callable[[], str | None] | None = None,
) -> T:
    """Call `condition` until it returns a truthy value, and return that.

    `every_s`: seconds between two calls, or a function that returns them. `alive` returns None while the awaited
    process lives, else one line with its exit reason. Raises InfrastructureError naming `what` after `timeout_s`
    seconds, or at once with the line of `alive`.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        problem = alive() if alive else None
        if problem:
            # The condition may have become true between the two checks.
            value = condition()
            if value:
                return value
            raise InfrastructureError(problem)
        if time.monotonic() >= deadline:
            name = what() if callable(what) else what
            raise InfrastructureError(f"{name}: timeout after {timeout_s:g} s")
        time.sleep(every_s() if callable(every_s) else every_s)


@contextlib.contextmanager
def time_limit(what: str, look: str) -> Iterator[None]:
    """Raise InfrastructureError with `what` and `look` (the fix) if the block's program exceeds its time limit."""
    try:
        yield
    except subprocess.TimeoutExpired as error:
        raise InfrastructureError(f"{what}: timeout after {error.timeout:g} s; fix: {look}") from None


def rate_limited(check: Callable[[], bool], every_s: float) -> Callable[[], bool]:
    """Return a function that calls `check` at most once per `every_s` seconds and caches its answer."""
    answer, until = False, 0.0

    def remembered() -> bool:
        nonlocal answer, until
        if time.monotonic() >= until:
            answer, until = check(), time.monotonic() + every_s
        return answer

    return remembered


# ---- Waiting for low steal: steal comes in waves of minutes, which delay a load generator ----


# Longest wait in seconds; unset: no wait.
STEAL_WAIT = "FAULTLINE_STEAL_WAIT_S"
# Steal, in cores, from which a wave counts: below it, the schedule lag stayed under 50 ms in all workloads.
STEAL_CORES = 0.1
SAMPLE_S = 2.0
# Consecutive samples below the threshold that end a steal wave.
SAMPLES = 5


def max_wait_s() -> float:
    """Return the seconds of FAULTLINE_STEAL_WAIT_S; 0 if unset. Raises ConfigError for an invalid number."""
    given = os.environ.get(STEAL_WAIT, "0")
    if not given.isdecimal():
        raise ConfigError(f"{STEAL_WAIT}: got {given!r}; expected whole seconds, such as 600")
    return float(given)


def await_low_steal(
    limit_s: float,
    *,
    cancelled: Callable[[], bool],
    read_steal_s: Callable[[], float | None] | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> float:
    """Wait until the hypervisor's steal is low, at most `limit_s` seconds; return the seconds waited.

    Returns at once for a limit of 0, or if the system does not count steal. `read_steal_s` returns the seconds stolen
    from all cores since boot. Raises Cancelled.
    """
    read_steal_s = read_steal_s or host_steal_s
    start = clock()
    before, quiet_samples = read_steal_s(), 0
    while before is not None and quiet_samples < SAMPLES and clock() - start < limit_s:
        if cancelled():
            raise Cancelled("sweep: stopped while waiting for low steal")
        since = clock()
        sleep(SAMPLE_S)
        now = read_steal_s()
        if now is None:
            break
        quiet_samples = quiet_samples + 1 if (now - before) / (clock() - since) < STEAL_CORES else 0
        before = now
    return clock() - start


def host_steal_s() -> float | None:
    """Return the seconds of steal over all cores since boot; None if not counted."""
    stolen: float | None = getattr(psutil.cpu_times(), "steal", None)
    return stolen
