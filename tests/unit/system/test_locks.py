"""The machine's lock, for which an experiment waits, and the window's, which keeps other work out."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import psutil
import pytest

from faultline.system.errors import InfrastructureError
from faultline.system.locks import (
    HOLDS,
    RECORDER,
    WANTS,
    MachineLock,
    false_lock_holders,
    hold_measurement_lock,
    is_measured,
    share_measurement_lock,
)
from tests.support.decoys import NOBODY, only_root

# Takes the machine as a recorder does, says that and whom it waits for, and keeps it until its input ends.
TAKE = """
import os, sys
from faultline.system import locks as machine_lock
from faultline.system.errors import FaultlineError

def over():
    global told
    told = told or print("waits", flush=True) or True
    return sys.argv[2] == "over"

told = False
machine_lock.OTHERS_HOLD_S = float(os.environ["OTHERS_HOLD_S"])
machine_lock.OTHERS_WANT_S = float(os.environ["OTHERS_WANT_S"])
try:
    before = machine_lock.MachineLock(sys.argv[-1]).take(wait_s=float(sys.argv[1]), is_cancelled=over)
    print("after", before and before.attempt, flush=True)
except FaultlineError as error:
    print(error, flush=True)
sys.stdin.read()
"""
# Takes the machine and gives it back, over and over; a file that is there already means that two had it.
ROUNDS = """
import os, sys, time
from faultline.system.locks import MachineLock

MachineLock(sys.argv[-1]).take(wait_s=60)
left, alone = int(sys.argv[2]), sys.argv[-1] + "/alone"
os.close(os.open(alone, os.O_CREAT | os.O_EXCL))
time.sleep(0.002)
os.unlink(alone)
sys.argv[2] = str(left - 1)
if left > 1:
    os.execv(sys.executable, [sys.executable, "-c", os.environ["AGAIN"], *sys.argv[1:]])
"""
# The same words from a shell: says that it has the machine, and does nothing.
SAY = "printf %s {} > /proc/self/comm; echo said; read line"


@pytest.fixture
def machine(tmp_path: Path) -> str:
    """A name that no other test's experiments go by; the folder of that name is there."""
    return str(tmp_path)


def recorder_words(machine: str, attempt: str) -> list[str]:
    return ["-m", RECORDER, "--attempt-dir", f"/srv/results/attempts/{attempt}", "--machine", machine]


@contextlib.contextmanager
def started(command: list[str], **how: object) -> Iterator[subprocess.Popen[str]]:
    """Yield a process whose output can be read, killed on the way out."""
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **how  # type: ignore[call-overload]
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def recording(
    machine: str, attempt: str, *, wait_s: float = 60, over: str = "", others_s: tuple[float, float] = (60, 60)
) -> AbstractContextManager[subprocess.Popen[str]]:
    """Return a recorder that takes the machine lock. `others_s`: how long it lets other users have
    it, and want it."""
    command = [sys.executable, "-c", TAKE, str(wait_s), over, *recorder_words(machine, attempt)]
    patience = dict(zip(("OTHERS_HOLD_S", "OTHERS_WANT_S"), map(str, others_s), strict=True))
    return started(command, env={**os.environ, **patience})


@contextlib.contextmanager
def another_user(machine: str, attempt: str, word: str) -> Iterator[subprocess.Popen[str]]:
    """Yield one who has not so much as a Python of ours, and says the word of the machine as a recorder does."""
    command = ["sh", "-c", SAY.format(word), "sh", *recorder_words(machine, attempt)]
    with started(command, user=NOBODY, group=NOBODY, extra_groups=[], cwd="/") as process:
        assert said(process) == "said"
        yield process


def held_by(machine: str) -> str | None:
    holder = MachineLock(machine).holder()
    return holder and holder.attempt


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().rstrip()


def test_whoever_waits_gets_the_machine_when_it_is_free_and_learns_whose_it_was(machine: str) -> None:
    with recording(machine, "a1") as first, recording(f"{machine}2", "b1", wait_s=0) as elsewhere:
        assert said(first) == said(elsewhere) == "after None", "machines of other names do not see each other"
        holder = MachineLock(machine).holder()
        assert holder is not None and (holder.attempt, holder.pid) == ("a1", first.pid)
        assert holder.folder == Path("/srv/results/attempts/a1")
        with (
            recording(machine, "a0", wait_s=0) as refused,
            recording(machine, "a3", over="over") as unwanted,
            recording(machine, "a2") as second,
        ):
            assert said(refused) == said(unwanted) == said(second) == "waits"
            assert "a1 of " in said(unwanted), "nobody wants it any more"
            assert said(refused) == f"machine: held by {holder.text}; fix: wait for it, or stop it"
            assert holder.text == f"a1 of {os.environ.get('USER') or 'root'} (pid {first.pid}, /srv/results)"
            assert MachineLock(machine).holder() == holder, "who waits does not hold"
            first.kill()  # not buried yet: dead all the same
            assert said(second) == "after a1"
            assert held_by(machine) == "a2"
    assert held_by(machine) is None


def test_of_many_that_want_it_at_once_one_has_it_at_a_time(machine: str) -> None:
    many = [
        subprocess.Popen(
            [sys.executable, "-c", ROUNDS, "", "4", *recorder_words(machine, f"a{number}")],
            env={**os.environ, "AGAIN": ROUNDS}, stderr=subprocess.PIPE, text=True,
        )
        for number in range(5)
    ]  # fmt: skip
    errors = [process.communicate(timeout=120)[1] for process in many]
    assert [process.returncode for process in many] == [0] * len(many), errors


def test_who_claims_the_machine_and_is_no_experiment_is_named_and_not_waited_for(machine: str) -> None:
    with started(["sh", "-c", SAY.format(HOLDS), "\x1b[2J"]) as liar:
        assert said(liar) == "said"
        assert held_by(machine) is None
        (named,) = (line for line in false_lock_holders() if f"pid {liar.pid} of " in line)
        assert ": sh -c" in named and named.isprintable()
        with recording(machine, "a1", wait_s=0) as mine:
            assert said(mine) == "after None"


def test_only_a_recorder_takes_the_machine(machine: str) -> None:
    """It could not be told from one that lies."""
    before = Path("/proc/self/comm").read_text()
    with pytest.raises(InfrastructureError, match="does not show this process"):
        MachineLock(machine).take(wait_s=0)
    assert Path("/proc/self/comm").read_text() == before


@only_root
def test_another_users_experiment_has_the_machine_and_says_whose_it_is(machine: str) -> None:
    with another_user(machine, "a1", HOLDS) as other:
        with recording(machine, "a2", wait_s=0) as mine:
            assert said(mine) == "waits"
            assert said(mine).startswith(f"machine: claimed by a1 of nobody (pid {other.pid}, /srv/results)")
        with recording(machine, "a3") as mine:
            assert said(mine) == "waits"
            other.kill()
            assert said(mine) == "after None", "what he wrote is not where to look for what follows"
            # Nor can he take the word out of our mouth.
            hush = ["sh", "-c", f"printf x > /proc/{mine.pid}/comm && echo done || echo refused"]
            with started(hush, user=NOBODY, group=NOBODY, extra_groups=[], cwd="/") as quiet:
                assert said(quiet) == "refused"
            assert held_by(machine) == "a3"


@only_root
def test_another_user_is_waited_for_so_long_in_all_and_then_named(machine: str) -> None:
    with recording(machine, "a1") as first:
        assert said(first) == "after None"
        with another_user(machine, "b1", HOLDS) as other, recording(machine, "a2", others_s=(0.5, 60)) as mine:
            assert held_by(machine) == "a1", "no word of his hides whose it is"
            assert said(mine) == "waits"
            time.sleep(1)
            began = time.monotonic()
            first.kill()
            text = said(mine)
            assert time.monotonic() - began > 0.4, "our own took nothing of the time for others"
            assert f"b1 of nobody (pid {other.pid}, " in text and "only nobody or root can stop it" in text


@only_root
def test_another_user_who_only_wants_it_keeps_nobody_from_it(machine: str) -> None:
    with another_user(machine, "b1", WANTS) as earlier:
        with recording(machine, "a1", wait_s=0) as hasty:
            assert said(hasty) == "waits"
            assert f"also requested by b1 of nobody (pid {earlier.pid}, /srv/results)" in said(hasty)
        with another_user(machine, "b2", WANTS), recording(machine, "a2", others_s=(60, 0.2)) as mine:
            assert said(mine) == "waits"
            assert said(mine) == "after None"


def test_the_wait_takes_no_time_from_what_is_measured(machine: str) -> None:
    with recording(machine, "a1") as first:
        assert said(first) == "after None"
        with recording(machine, "a2") as second:
            assert said(second) == "waits"
            before = sum(psutil.Process(second.pid).cpu_times()[:2])
            time.sleep(1.0)
            assert sum(psutil.Process(second.pid).cpu_times()[:2]) - before < 0.035


def test_work_waits_for_the_end_of_a_window_and_a_window_for_the_end_of_work(tmp_path: Path) -> None:
    lock, order = tmp_path / "window.lock", list[str]()

    def work() -> None:
        with share_measurement_lock(lock) as waited_s:
            assert waited_s is not None and waited_s > 0
            order.append("work")

    with hold_measurement_lock(lock) as waited_s:
        assert waited_s == 0.0 and is_measured(lock)
        worker = threading.Thread(target=work)
        worker.start()
        with share_measurement_lock(lock, limit_s=0.3) as given_up:
            assert given_up is None, "after its limit it works all the same"
        order.append("window")
    worker.join(120)
    assert order == ["window", "work"] and not is_measured(lock)
    with share_measurement_lock(lock) as first, share_measurement_lock(lock) as second:
        assert (first, second) == (0.0, 0.0), "work does not wait for work"
        with (
            pytest.raises(InfrastructureError, match="measure again after"),
            hold_measurement_lock(lock, limit_s=0.2),
        ):
            pass
