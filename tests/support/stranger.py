"""Another user of the machine: what he can do and not do is found out by being him, in a forked process."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection

from tests.support.decoys import NOBODY

LONGEST_S = 120.0
_FORK = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class Outcome:
    """What he got: the text of what came back, or the error that he met."""

    got: str | None
    error: str = ""

    @property
    def succeeded(self) -> bool:
        return self.got is not None


def as_stranger(act: Callable[[], object], *, limit_s: float = LONGEST_S) -> Outcome:
    """What `act` comes to when a stranger does it. Modules that it needs are imported before: he cannot read ours."""
    with running_as_stranger(lambda pipe: pipe.send(_outcome(act))) as (pipe, _):
        return pipe.recv() if pipe.poll(limit_s) else Outcome(None, f"not done within {limit_s:g} s")


@contextmanager
def running_as_stranger(act: Callable[[Connection], None]) -> Iterator[tuple[Connection, int]]:
    """Yield a process of his, with a pipe to it, and its pid; ended at the end."""
    ours, his = _FORK.Pipe()

    def run() -> None:
        os.chdir("/")
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        act(his)

    process = _FORK.Process(target=run, daemon=True)
    process.start()
    his.close()
    try:
        assert process.pid is not None
        yield ours, process.pid
    finally:
        process.kill()
        process.join()


def _outcome(act: Callable[[], object]) -> Outcome:
    try:
        return Outcome(str(act()))
    except BaseException as error:  # whatever it is, it kept him out
        return Outcome(None, f"{type(error).__name__}: {error}")
