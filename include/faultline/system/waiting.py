"""The one waiting primitive: wait for a condition, bounded, and say what was waited for; programs likewise."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from faultline.system.errors import InfrastructureError

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
def in_time(what: str, look: str) -> Iterator[None]:
    """Around a program that has a time limit: raises InfrastructureError naming `what` and where to `look` when it
    takes longer."""
    try:
        yield
    except subprocess.TimeoutExpired as error:
        raise InfrastructureError(f"{what}: not within {error.timeout:g} s; {look}") from None


def seldom(ask: Callable[[], bool], every_s: float) -> Callable[[], bool]:
    """`ask`, but asked at most once in `every_s` seconds; between, the last answer stands."""
    answer, until = False, 0.0

    def remembered() -> bool:
        nonlocal answer, until
        if time.monotonic() >= until:
            answer, until = ask(), time.monotonic() + every_s
        return answer

    return remembered
