"""The one waiting primitive: wait for a condition, bounded, and say what was waited for; programs likewise."""

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
    """Calls `condition` until it returns something truthy, and returns that.

    `every_s`: seconds between two looks, or what tells them anew after each look.
    `alive` returns None while the awaited process lives, else one line saying how it ended.
    Raises InfrastructureError naming `what` after `timeout_s` seconds, or at once when `alive` objects.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        problem = alive() if alive else None
        if problem:
            # The event may have come between the two looks.
            value = condition()
            if value:
                return value
            raise InfrastructureError(problem)
        if time.monotonic() >= deadline:
            name = what() if callable(what) else what
            raise InfrastructureError(f"{name}: not within {timeout_s:g} s")
        time.sleep(every_s() if callable(every_s) else every_s)


@contextlib.contextmanager
def time_limit(what: str, look: str) -> Iterator[None]:
    """Around a program that has a time limit: raises InfrastructureError naming `what` and where to `look` when it
    takes longer."""
    try:
        yield
    except subprocess.TimeoutExpired as error:
        raise InfrastructureError(f"{what}: not within {error.timeout:g} s; {look}") from None


def rate_limited(check: Callable[[], bool], every_s: float) -> Callable[[], bool]:
    """`ask`, but asked at most once in `every_s` seconds; between, the last answer stands."""
    answer, until = False, 0.0

    def remembered() -> bool:
        nonlocal answer, until
        if time.monotonic() >= until:
            answer, until = check(), time.monotonic() + every_s
        return answer

    return remembered


# ---- A quiet machine: what its host keeps from it comes in waves of minutes, which hold up a generator ----


# The longest wait in seconds; unset: none.
STEAL_WAIT = "FAULTLINE_STEAL_WAIT_S"
# The host's share that makes a wave, in cores: below it, lateness stayed under 50 ms in all workloads.
STEAL_CORES = 0.1
SAMPLE_S = 2.0
# So many samples in a row are below it when a wave is over.
SAMPLES = 5


def max_wait_s() -> float:
    """Seconds that FAULTLINE_STEAL_WAIT_S allows; 0 when it is unset. Raises ConfigError when it is no such number."""
    given = os.environ.get(STEAL_WAIT, "0")
    if not given.isdecimal():
        raise ConfigError(f"{STEAL_WAIT}: {given!r} is refused; give whole seconds, such as 600, or leave it out")
    return float(given)


def await_low_steal(
    limit_s: float,
    *,
    cancelled: Callable[[], bool],
    read_steal_s: Callable[[], float | None] | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> float:
    """Waits until the host takes nearly nothing from this machine, at most `limit_s`; returns the seconds waited.

    It returns at once for a limit of 0, and where the system does not count what is stolen. `read_steal_s` gives the
    seconds stolen from all cores since the machine started. Raises Cancelled.
    """
    read_steal_s = read_steal_s or host_steal_s
    start = clock()
    before, quiet_samples = read_steal_s(), 0
    while before is not None and quiet_samples < SAMPLES and clock() - start < limit_s:
        if cancelled():
            raise Cancelled("the sweep was stopped while this experiment waited for a quiet machine")
        since = clock()
        sleep(SAMPLE_S)
        now = read_steal_s()
        if now is None:
            break
        quiet_samples = quiet_samples + 1 if (now - before) / (clock() - since) < STEAL_CORES else 0
        before = now
    return clock() - start


def host_steal_s() -> float | None:
    """Seconds that the host kept from all cores since the machine started; None where nobody counts them."""
    stolen: float | None = getattr(psutil.cpu_times(), "steal", None)
    return stolen
