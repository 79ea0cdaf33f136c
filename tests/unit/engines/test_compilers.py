"""Compilers of an attempt's JVMs behind other threads until the gate: real threads under the names of HotSpot's."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from faultline.engines.spark import compilers as subject
from faultline.engines.spark.compilers import COMPILER, LAST_NICENESS, HeldBack
from faultline.experiment.attempt import Attempt
from faultline.system.environment import may_raise_priority
from faultline.system.waiting import wait_until
from tests.support.decoys import NOBODY, decoy, only_root

# Two threads, one under the name of an optimising compiler; says their ids, and ends with its standard input.
PROGRAM = f"""
import ctypes, sys, threading
def named(name):
    ctypes.CDLL(None).prctl(15, name.encode())
    sys.stdout.write(str(threading.get_native_id()) + "\\n")
    sys.stdout.flush()
    threading.Event().wait()
for name in ("{COMPILER}", "C1 CompilerThre"):
    threading.Thread(target=named, args=(name,), daemon=True).start()
sys.stdin.read()
"""


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, int]]:
    """The thread ids of the optimising compiler and of the other one, in a process of the attempt `mine`."""
    monkeypatch.setattr(subject, "YOUNG_S", 0.0)
    command = [sys.executable, "-c", PROGRAM, "-Dfaultline.run=mine"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdin is not None
        one, other = int(process.stdout.readline()), int(process.stdout.readline())
        found: list[int] = []
        wait_until(lambda: found.extend(compilers("mine")) or found, timeout_s=120, what="its compiler")
        yield found[0], ({one, other} - set(found)).pop()
        process.stdin.close()


def compilers(attempt: str) -> list[int]:
    return list(HeldBack(Attempt(Path(attempt))).threads(COMPILER))


def niceness(thread: int) -> int:
    return os.getpriority(os.PRIO_PROCESS, thread)


@only_root
def test_another_users_process_is_left_as_it_is(threads: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    with decoy("-Dfaultline.run=mine", user=NOBODY) as planted:
        asked = [psutil.Process(planted.pid), *psutil.process_iter()]
        monkeypatch.setattr(psutil, "process_iter", lambda: iter(asked))
        held = HeldBack(Attempt(Path("mine")))
        assert list(held.threads("sh")) == [] and list(held.threads(COMPILER)) == [threads[0]]


@pytest.mark.skipif(not may_raise_priority(), reason="this user may not raise a priority again")
def test_they_are_behind_the_others_until_they_are_let_go(threads: tuple[int, int]) -> None:
    compiler, other = threads
    usual = niceness(other)
    held = HeldBack(Attempt(Path("mine")))
    held.look()
    assert (niceness(compiler), niceness(other)) == (LAST_NICENESS, usual)
    HeldBack(Attempt(Path("mine"))).let_go()
    assert (niceness(compiler), niceness(other)) == (usual, usual)


def test_those_of_another_attempt_are_left_alone(threads: tuple[int, int]) -> None:
    usual = niceness(threads[0])
    HeldBack(Attempt(Path("another"))).look()
    assert niceness(threads[0]) == usual and compilers("another") == []


def test_nobody_is_held_back_who_could_not_be_let_go(threads: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "may_raise_priority", lambda: False)
    usual = niceness(threads[0])
    HeldBack(Attempt(Path("mine"))).look()
    assert niceness(threads[0]) == usual
