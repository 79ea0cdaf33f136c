"""Machine lock and measurement lock."""

from __future__ import annotations

import contextlib
import os
import pwd
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
from tests.support.decoys import OTHER_UID, only_root

OTHER = pwd.getpwuid(OTHER_UID).pw_name
# Takes the machine lock like a recorder, prints the waits, and holds it until end of input.
TAKE = """
import os, sys
from faultline.system import locks as machine_lock
from faultline.system.errors import FaultlineError

def over():
    global reported
    reported = reported or print("waits", flush=True) or True
    return sys.argv[2] == "over"

reported = False
machine_lock.OTHERS_HOLD_S = float(os.environ["OTHERS_HOLD_S"])
machine_lock.OTHERS_WANT_S = float(os.environ["OTHERS_WANT_S"])
try:
    before = machine_lock.MachineLock(sys.argv[-1]).take(wait_s=float(sys.argv[1]), is_cancelled=over)
    print("after", before and before.attempt, flush=True)
except FaultlineError as error:
    print(error, flush=True)
sys.stdin.read()
"""
# Takes and releases the machine lock repeatedly; an existing file shows two holders.
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
# A shell with the process name of a holder, which does nothing.
SAY = "printf %s {} > /proc/self/comm; echo ready; read line"


@pytest.fixture
def machine(tmp_path: Path) -> str:
    """A unique machine name, which is the path of an existing folder."""
    return str(tmp_path)


def recorder_words(machine: str, attempt: str) -> list[str]:
    return ["-m", RECORDER, "--attempt-dir", f"/srv/results/attempts/{attempt}", "--machine", machine]


@contextlib.contextmanager
def started(command: list[str], **how: object) -> Iterator[subprocess.Popen[str]]:
    """Start a process with readable output; kill it at exit."""
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
    """Start a recorder that takes the machine lock.

    `others_s`: longest waits for holders and for waiting processes of other users.
    """
    command = [sys.executable, "-c", TAKE, str(wait_s), over, *recorder_words(machine, attempt)]
    patience = dict(zip(("OTHERS_HOLD_S", "OTHERS_WANT_S"), map(str, others_s), strict=True))
    return started(command, env={**os.environ, **patience})


@contextlib.contextmanager
def another_user(machine: str, attempt: str, word: str) -> Iterator[subprocess.Popen[str]]:
    """Start a shell of another user with the process name of a recorder."""
    command = ["sh", "-c", SAY.format(word), "sh", *recorder_words(machine, attempt)]
    with started(command, user=OTHER_UID, group=OTHER_UID, extra_groups=[], cwd="/") as process:
        assert read_line(process) == "ready"
        yield process


def held_by(machine: str) -> str | None:
    holder = MachineLock(machine).holder()
    return holder and holder.attempt


def read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().rstrip()


def test_a_waiting_recorder_gets_the_free_machine_and_its_previous_holder(machine: str) -> None:
    with recording(machine, "a1") as first, recording(f"{machine}2", "b1", wait_s=0) as elsewhere:
        assert read_line(first) == read_line(elsewhere) == "after None", "machines of other names do not see each other"
        holder = MachineLock(machine).holder()
        assert holder is not None and (holder.attempt, holder.pid) == ("a1", first.pid)
        assert holder.folder == Path("/srv/results/attempts/a1")
        with (
            recording(machine, "a0", wait_s=0) as refused,
            recording(machine, "a3", over="over") as unwanted,
            recording(machine, "a2") as second,
        ):
            assert read_line(refused) == read_line(unwanted) == read_line(second) == "waits"
            assert "a1 of " in read_line(unwanted), "the recorder is cancelled"
            assert read_line(refused) == f"machine: held by {holder.text}; fix: wait for it, or stop it"
            assert holder.text == f"a1 of {os.environ.get('USER') or 'root'} (pid {first.pid}, /srv/results)"
            assert MachineLock(machine).holder() == holder, "a waiting recorder does not hold"
            first.kill()  # a zombie counts as dead
            assert read_line(second) == "after a1"
            assert held_by(machine) == "a2"
    assert held_by(machine) is None


def test_one_of_many_recorders_holds_the_machine_at_a_time(machine: str) -> None:
    many = [
        subprocess.Popen(
            [sys.executable, "-c", ROUNDS, "", "4", *recorder_words(machine, f"a{number}")],
            env={**os.environ, "AGAIN": ROUNDS}, stderr=subprocess.PIPE, text=True,
        )
        for number in range(5)
    ]  # fmt: skip
    errors = [process.communicate(timeout=120)[1] for process in many]
    assert [process.returncode for process in many] == [0] * len(many), errors


def test_a_false_lock_holder_is_named_and_ignored(machine: str) -> None:
    with started(["sh", "-c", SAY.format(HOLDS), "\x1b[2J"]) as liar:
        assert read_line(liar) == "ready"
        assert held_by(machine) is None
        (named,) = (line for line in false_lock_holders() if f"pid {liar.pid} of " in line)
        assert ": sh -c" in named and named.isprintable()
        with recording(machine, "a1", wait_s=0) as mine:
            assert read_line(mine) == "after None"


def test_only_a_recorder_takes_the_machine(machine: str) -> None:
    """A false holder would look the same."""
    before = Path("/proc/self/comm").read_text()
    with pytest.raises(InfrastructureError, match="does not show this process"):
        MachineLock(machine).take(wait_s=0)
    assert Path("/proc/self/comm").read_text() == before


@only_root
def test_another_users_experiment_holds_the_machine_and_is_named(machine: str) -> None:
    with another_user(machine, "a1", HOLDS) as other:
        with recording(machine, "a2", wait_s=0) as mine:
            assert read_line(mine) == "waits"
            assert read_line(mine).startswith(f"machine: claimed by a1 of {OTHER} (pid {other.pid}, /srv/results)")
        with recording(machine, "a3") as mine:
            assert read_line(mine) == "waits"
            other.kill()
            assert read_line(mine) == "after None", "the folder of another user is not searched"
            # Another user cannot rename this process.
            hush = ["sh", "-c", f"printf x > /proc/{mine.pid}/comm && echo done || echo refused"]
            with started(hush, user=OTHER_UID, group=OTHER_UID, extra_groups=[], cwd="/") as quiet:
                assert read_line(quiet) == "refused"
            assert held_by(machine) == "a3"


@only_root
def test_the_wait_for_another_user_is_bounded(machine: str) -> None:
    with recording(machine, "a1") as first:
        assert read_line(first) == "after None"
        with another_user(machine, "b1", HOLDS) as other, recording(machine, "a2", others_s=(0.5, 60)) as mine:
            assert held_by(machine) == "a1", "another user cannot hide the holder"
            assert read_line(mine) == "waits"
            time.sleep(1)
            began = time.monotonic()
            first.kill()
            text = read_line(mine)
            assert time.monotonic() - began > 0.4, "waits for this user do not count"
            assert f"b1 of {OTHER} (pid {other.pid}, " in text and f"only {OTHER} or root can stop it" in text


@only_root
def test_a_waiting_process_of_another_user_blocks_no_recorder(machine: str) -> None:
    with another_user(machine, "b1", WANTS) as earlier:
        with recording(machine, "a1", wait_s=0) as hasty:
            assert read_line(hasty) == "waits"
            assert f"also requested by b1 of {OTHER} (pid {earlier.pid}, /srv/results)" in read_line(hasty)
        with another_user(machine, "b2", WANTS), recording(machine, "a2", others_s=(60, 0.2)) as mine:
            assert read_line(mine) == "waits"
            assert read_line(mine) == "after None"


def test_the_wait_does_not_shorten_the_measured_window(machine: str) -> None:
    with recording(machine, "a1") as first:
        assert read_line(first) == "after None"
        with recording(machine, "a2") as second:
            assert read_line(second) == "waits"
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
