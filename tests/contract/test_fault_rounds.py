"""A thousand fault rounds with decoys that resemble victims: each time only the chosen process dies."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import psutil
import pytest

from fault.errors import IdentityMismatch
from fault.identity import (
    ANY,
    DRIVER,
    EXECUTOR,
    KAFKA,
    PYTHON_WORKER,
    WORKER,
    Delivery,
    Presence,
    ProcessIdentity,
    Role,
    Tokens,
)
from fault.injector import FaultOutcome, Injector, settle
from fault.plan import Fault
from fault.procfs import read_process
from fault.victims import VictimGuard, choose_victims

ROUNDS = 1000
WORDS = ("executor", "worker", "driver", "kafka", "python_worker", ANY)
A, B, C = "127.0.0.1:7001", "127.0.0.1:7002", "127.0.0.1:7003"

# A shell that waits for input costs little, and accepts any arguments.
IDLE = "read x"
# An executor with a first Python process, which forks a worker, and another one after its end.
TREE = "exec 3<&0; sh -c 'while :; do (read x) <&3 & wait; done' sh pyspark.daemon & wait"


class Processes:
    """All processes of the test: `decoys` must never die, `candidates` only if chosen."""

    def __init__(self, run: str, instance: str) -> None:
        self.run, self.instance = run, instance
        self.candidates: dict[int, tuple[subprocess.Popen[bytes], tuple[str, ...], str]] = {}
        self.decoys: dict[int, subprocess.Popen[bytes]] = {}
        self.unmarked: list[int] = []  # decoys without the tag
        self.foreign = 0  # executor of another run, with Python workers
        self._input, self._never = os.pipe()

    def start(self, arguments: tuple[str, ...], program: str = IDLE) -> subprocess.Popen[bytes]:
        return subprocess.Popen(["sh", "-c", program, "sh", *arguments], stdin=self._input)

    def candidate(self, arguments: tuple[str, ...], program: str = IDLE) -> int:
        process = self.start(arguments, program)
        self.candidates[process.pid] = (process, arguments, program)
        return process.pid

    def decoy(self, arguments: tuple[str, ...], program: str = IDLE) -> int:
        process = self.start(arguments, program)
        self.decoys[process.pid] = process
        return process.pid

    def arguments(self, role: Role, token: str, node: str = A, number: int = 0) -> tuple[str, ...]:
        """Return the relevant parts of a role's command line."""
        if role is EXECUTOR:
            options = ("--executor-id", str(number), "--worker-url", f"spark://Worker@{node}")
            return (f"-Dfaultline.run={token}", role.main, *options)
        if role is WORKER:
            host, port = node.split(":")
            return (f"-Dfaultline.instance={token}", role.main, "--host", host, "--port", port)
        if role is KAFKA:
            return (f"-Dfaultline.instance={token}", role.main, "server.properties")
        return (role.main, "word_count.py", f"faultline-run={token}")

    def assemble(self) -> None:
        """Start several candidates of each kind with one command line, and decoys that differ in the tag only."""
        for node in (A, A, B):
            self.candidate(self.arguments(EXECUTOR, self.run, node))
            self.candidate(self.arguments(WORKER, self.instance, node))
        for _ in range(2):
            self.candidate(self.arguments(DRIVER, self.run))
            self.candidate(self.arguments(KAFKA, self.instance))
            self.candidate(self.arguments(EXECUTOR, self.run, B, number=1), TREE)
        other_run, other_instance = "20261121T061500Z-000000", "0" * 16
        for token in (other_run, f"{self.run}0", self.run[:-1]):
            self.decoy(self.arguments(EXECUTOR, token, C))
            self.decoy(self.arguments(DRIVER, token))
        for token in (other_instance, f"{self.instance}0"):
            self.decoy(self.arguments(WORKER, token, A))
            self.decoy(self.arguments(KAFKA, token))
        self.foreign = self.decoy(self.arguments(EXECUTOR, other_run, C, number=1), TREE)
        self.unmarked = list(self.decoys)
        # Workers of this installation, one for another run and one without a run.
        self.decoy(self.arguments(WORKER, self.instance, C))
        self.decoy(self.arguments(WORKER, self.instance, "127.0.0.1:7004"))
        # The token in another argument, or the main within a longer word.
        self.decoy((EXECUTOR.main, f"results/attempts/{self.run}", self.run, self.instance))
        self.decoy((f"-Dfaultline.run={self.run}", f"x.{EXECUTOR.main}", "pyspark.daemon"))

    def replace(self, pid: int) -> None:
        """Replace the dead victim by another process with the same command line."""
        process, arguments, program = self.candidates.pop(pid)
        assert process.wait(120) == -signal.SIGKILL
        self.candidate(arguments, program)

    def family(self, pid: int) -> list[psutil.Process]:
        """Return the children of a tree's executor; empty for all others."""
        return psutil.Process(pid).children(recursive=True) if self._is_tree(pid) else []

    def all_alive(self) -> bool:
        processes = [*(one for one, _, _ in self.candidates.values()), *self.decoys.values()]
        return all(process.poll() is None for process in processes)

    def end(self) -> None:
        for process in [*(one for one, _, _ in self.candidates.values()), *self.decoys.values()]:
            family = self.family(process.pid)
            process.kill()
            process.wait()
            kill_all(family)
        os.close(self._never)
        os.close(self._input)

    def _is_tree(self, pid: int) -> bool:
        return pid == self.foreign or (pid in self.candidates and self.candidates[pid][2] == TREE)


def kill_all(family: list[psutil.Process]) -> None:
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


@pytest.fixture
def cast() -> Iterator[Processes]:
    made = Processes(f"20261121T061500Z-{uuid.uuid4().hex[:6]}", uuid.uuid4().hex[:16])
    try:
        made.assemble()
        yield made
    finally:
        made.end()


def claims(identity: ProcessIdentity, decoy: int) -> Iterator[ProcessIdentity]:
    """Yield wrong identities of live processes; none may lead to a signal."""
    live = read_process(decoy)
    assert live is not None
    # As if the kernel had reused the pid for a later process.
    yield replace(identity, start_ticks=(identity.start_ticks or 0) - 1)
    yield replace(identity, create_time=identity.create_time - 60, start_ticks=None)
    # Another process's pid and creation time with the victim's name.
    yield replace(identity, pid=decoy, create_time=live.create_time, start_ticks=live.start_ticks)


@pytest.mark.timeout(900)
def test_fault_rounds_with_decoys(cast: Processes, share: int) -> None:
    injector, tokens = Injector(), Tokens(cast.run, cast.instance)
    guard = VictimGuard(tokens)
    source = random.Random(4)
    foreign_family = settled_family(cast)
    died: Counter[str] = Counter()
    roles: Counter[str] = Counter()
    for number in range(ROUNDS // share):
        word = WORDS[number % len(WORDS)]
        fault = Fault(word, "kill", at_s=1.0)
        candidates = found_again(injector, word, tokens)
        (victim,) = choose_victims(candidates, 1, seed=1, repetition=1, fault=number, by_node=word == ANY)
        guard.check(fault, [victim])
        assert victim.pid not in cast.decoys
        family = cast.family(victim.pid)
        spared = source.choice([one for one in candidates if one != victim])
        for claim in claims(spared, source.choice(cast.unmarked)):
            with pytest.raises(IdentityMismatch):
                injector.signal(claim, signal.SIGKILL)
        assert injector.signal(victim, signal.SIGKILL) is Delivery.SENT
        assert settle(injector, victim, Presence.GONE, Delivery.SENT).outcome is FaultOutcome.EFFECTIVE
        died[word] += 1
        roles[victim.role.name] += 1
        if victim.role is not PYTHON_WORKER:  # its first process forks a replacement
            # Processes left by a dead executor are unmarked and must survive.
            assert all(one.is_running() for one in family)
            if family:
                assert not {one.pid for one in family} & {one.pid for one in injector.find("python_worker", tokens)}
            kill_all(family)
            cast.replace(victim.pid)
        assert cast.all_alive(), f"round {number}: a process died that was not chosen"
        assert all(one.is_running() for one in foreign_family), f"round {number}: another run's Python worker died"
    assert sum(died.values()) == ROUNDS // share
    assert set(roles) == {"executor", "worker", "driver", "kafka", "python_worker"}


def settled_family(cast: Processes) -> list[psutil.Process]:
    """The first Python process and the worker of the other run, once both are there."""
    deadline = time.monotonic() + 120
    while len(family := cast.family(cast.foreign)) != 2 and time.monotonic() < deadline:
        time.sleep(0.005)
    assert len(family) == 2
    return family


def found_again(injector: Injector, word: str, tokens: Tokens) -> tuple[ProcessIdentity, ...]:
    """The candidates, once all that were replaced are there again."""
    wanted = {"executor": 5, "worker": 3, "driver": 2, "kafka": 2, "python_worker": 2, ANY: 8}[word]
    deadline = time.monotonic() + 120
    while len(found := injector.find(word, tokens)) != wanted and time.monotonic() < deadline:
        time.sleep(0.005)
    assert len(found) == wanted, f"{word}: {[str(one) for one in found]}"
    return found
