"""Actions of another, unprivileged user of the machine, in a forked process."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection

from tests.support.decoys import OTHER_UID

LONGEST_S = 120.0
_FORK = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class Outcome:
    """Result of an action as text, or its error."""

    got: str | None
    error: str = ""

    @property
    def succeeded(self) -> bool:
        return self.got is not None


def as_other_user(act: Callable[[], object], *, limit_s: float = LONGEST_S) -> Outcome:
    """Run `act` as another user. Its modules must be imported before, since that user cannot read the project."""
    with running_as_other_user(lambda pipe: pipe.send(_outcome(act))) as (pipe, _):
        return pipe.recv() if pipe.poll(limit_s) else Outcome(None, f"not done within {limit_s:g} s")


@contextmanager
def running_as_other_user(act: Callable[[Connection], None]) -> Iterator[tuple[Connection, int]]:
    """Run `act` in a process of another user; yield a pipe to it and its pid."""
    own_end, other_end = _FORK.Pipe()

    def run() -> None:
        os.chdir("/")
        os.setgroups([])
        os.setresgid(OTHER_UID, OTHER_UID, OTHER_UID)
        os.setresuid(OTHER_UID, OTHER_UID, OTHER_UID)
        act(other_end)

    process = _FORK.Process(target=run, daemon=True)
    process.start()
    other_end.close()
    try:
        assert process.pid is not None
        yield own_end, process.pid
    finally:
        process.kill()
        process.join()


def _outcome(act: Callable[[], object]) -> Outcome:
    try:
        return Outcome(str(act()))
    except BaseException as error:  # any error means that access was denied
        return Outcome(None, f"{type(error).__name__}: {error}")
