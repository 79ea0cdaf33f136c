"""Lowered priority of background sessions during a measured window, and its restoration."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fault.process_sampler import MIN_AGE_S
from faultline.system import background
from faultline.system.background import (
    LOWEST_NICENESS,
    Background,
    BackgroundMethods,
    all_stats,
    background_methods,
    background_sessions,
    control_group,
    leave_idle_class,
    niceness_of,
    policies_of,
    restore,
)
from faultline.system.locks import hold_measurement_lock
from faultline.system.process_tags import BACKGROUND_MARK
from faultline.system.waiting import wait_until
from tests.support.decoys import OTHER_UID, only_root

INSTANCE = f"background-test-{os.getpid()}"
ORDINARY, IDLE = {os.SCHED_OTHER}, {os.SCHED_IDLE}
needs_idle = pytest.mark.skipif(not background_methods().idle, reason="this user may not take the idle class back")
needs_groups = pytest.mark.skipif(not background_methods().groups, reason="sessions are not weighed as groups here")
PR_SET_DUMPABLE = 4
REFUSED = "limits"
THREADS = """
import sys, threading
for _ in range(3): threading.Thread(target=sys.stdin.readline, daemon=True).start()
print("up", flush=True)
threading.Event().wait()
"""


@contextmanager
def service(mark: str | None = INSTANCE, *, own_session: bool = True, user: int | None = None) -> Iterator[int]:
    """Pid of a process old enough to be examined; it has four threads if it belongs to this user."""
    process = subprocess.Popen(
        # Another user may not run the suite's Python.
        [sys.executable, "-S", "-c", THREADS] if user is None else ["/bin/sh", "-c", "echo up; read x"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={} if mark is None else {BACKGROUND_MARK: mark},
        start_new_session=own_session,
        cwd="/",
        **({} if user is None else {"user": user, "group": user, "extra_groups": []}),  # type: ignore[arg-type]
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == b"up\n"
        began = time.monotonic()
        wait_until(lambda: time.monotonic() - began > MIN_AGE_S + 0.1, timeout_s=60, what="an age that is looked at")
        yield process.pid
    finally:
        process.kill()
        process.communicate()


# pid, session, and whether it is background: None for one that is too young to be known.
PROCESSES = st.lists(
    st.tuples(st.integers(1, 40), st.integers(1, 5), st.sampled_from([True, False, None])), unique_by=lambda one: one[0]
)


@given(PROCESSES)
def test_a_session_of_background_processes_only_is_lowered(
    processes: list[tuple[int, int, bool | None]],
) -> None:
    stats = {(pid, 0): ["S", "0", "0", str(session)] for pid, session, _ in processes}
    background, others = ({(pid, 0) for pid, _, kind in processes if kind is known} for known in (True, False))
    found = background_sessions(background, others, stats)
    for session in range(1, 6):
        members = [(pid, kind) for pid, its, kind in processes if its == session]
        gives_way = any(kind for _, kind in members) and not any(kind is False for _, kind in members)
        assert (session in found) == gives_way
        assert not gives_way or (found[session], True) in members


@needs_idle
def test_every_thread_gives_way_and_is_restored() -> None:
    with service() as pid, service("another") as other, service(None) as unmarked:
        ways = background_methods()
        own = Background(INSTANCE, ways)
        assert {key[0] for key in own.lower(all_stats())} == {pid}
        assert policies_of(pid) == IDLE and policies_of(other) == policies_of(unmarked) == ORDINARY
        if ways.groups:
            assert (niceness_of(pid), niceness_of(other), niceness_of(unmarked)) == (LOWEST_NICENESS, 0, 0)
        # By another object, as after a recorder that was killed.
        assert Background(INSTANCE, ways).restore() == [pid]
        assert policies_of(pid) == ORDINARY and niceness_of(pid) in (0, None)
        assert own.restore() == []


@contextmanager
def lowering() -> Iterator[Background]:
    own = Background(INSTANCE, background_methods())
    try:
        yield own
    finally:
        own.restore()


@needs_idle
@needs_groups
def test_a_session_that_holds_something_else_stays_and_its_processes_do_not_count_as_lowered() -> None:
    with service(own_session=False) as pid, lowering() as own:
        assert own.lower(all_stats()) == set()
        assert policies_of(pid) == IDLE and niceness_of(pid) == niceness_of(os.getpid())


@pytest.mark.parametrize("groups", [pytest.param(True, marks=needs_groups), False])
def test_where_the_idle_class_cannot_be_taken_back_the_session_alone_gives_way(groups: bool) -> None:
    ways = BackgroundMethods(idle=False, groups=groups)
    with service() as pid:
        own = Background(INSTANCE, ways)
        assert {key[0] for key in own.lower(all_stats())} == ({pid} if groups else set())
        assert policies_of(pid) == ORDINARY and niceness_of(pid) in ((LOWEST_NICENESS,) if groups else (0, None))
        assert own.restore() == ([pid] if groups else []) and niceness_of(pid) in (0, None)
    assert ("RLIMIT_NICE" in ways.text) is not groups


@needs_idle
def test_processes_outside_the_measured_control_group_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has just ended is in no group and does not prevent lowering."""
    with service() as pid:
        monkeypatch.setattr(background, "control_group", lambda one: "services" if one == pid else "engine")
        stats = all_stats()
        own = Background(INSTANCE, background_methods())
        assert own.lower(stats, [key for key in stats if key[0] == os.getpid()]) == set()
        assert policies_of(pid) == ORDINARY
        monkeypatch.undo()
        with subprocess.Popen(["true"]) as ended:
            ended.wait()
        gone = (ended.pid, 0)
        assert control_group(ended.pid) == ""
        with lowering() as own:
            assert {key[0] for key in own.lower({**stats, gone: stats[next(iter(stats))]}, [gone])} == {pid}


@needs_idle
def test_nothing_is_restored_during_a_window(tmp_path: Path) -> None:
    with service() as pid:
        Background(INSTANCE, background_methods()).lower(all_stats())
        with hold_measurement_lock(tmp_path / "lock"):
            assert restore(INSTANCE, tmp_path / "lock") == [] and policies_of(pid) == IDLE
        assert restore(INSTANCE, tmp_path / "lock") == [pid] and policies_of(pid) == ORDINARY
        assert restore(None, tmp_path / "lock") == []


@only_root
def test_another_users_process_is_never_touched() -> None:
    with service(user=OTHER_UID) as theirs:
        assert Background(INSTANCE, background_methods()).lower(all_stats()) == set()
        assert policies_of(theirs) == ORDINARY and niceness_of(theirs) in (0, None)


def as_user(act: Callable[[], Any], *, niceness_limit: int) -> Any:
    """Return the result of a function called as an unprivileged user with this RLIMIT_NICE."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            resource.setrlimit(resource.RLIMIT_NICE, (niceness_limit, niceness_limit))
            os.setgroups([])
            os.setgid(OTHER_UID)
            os.setuid(OTHER_UID)
            # As of a process that was started as this user: its own /proc is its own.
            ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1)
            os.write(writer, json.dumps(act()).encode())
        except ValueError:
            os.write(writer, json.dumps(REFUSED).encode())
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with open(reader) as file:
        return json.loads(file.read())


@only_root
@pytest.mark.parametrize("limit", [0, 20])
def test_an_unprivileged_user_lowers_only_what_it_can_restore(limit: int) -> None:
    def act() -> list[object]:
        def seen() -> list[object]:
            return [[sorted(policies_of(pid)), niceness_of(pid)] for pid in pids]

        own, ways = Background(INSTANCE, background_methods()), background_methods()
        # One look changes a few autogroups at most.
        for _ in range(3):
            lowered = own.lower(all_stats())
        during = seen()
        own.restore()
        return [[ways.idle, ways.groups, sorted(key[0] for key in lowered)], during, seen()]

    with service(user=OTHER_UID) as first, service(user=OTHER_UID) as second:
        pids = [first, second]
        found = as_user(act, niceness_limit=limit)
    if found == REFUSED:
        pytest.skip("root may not raise limits here")
    (idle, groups, lowered), during, after = found
    assert idle == (limit == 20) and groups == background_methods().groups
    assert lowered == (sorted(pids) if idle or groups else [])
    policy, niceness = [os.SCHED_IDLE if idle else os.SCHED_OTHER], LOWEST_NICENESS if groups else 0
    assert during == [[policy, niceness if groups else during[0][1]]] * 2
    assert after == [[[os.SCHED_OTHER], 0 if groups else after[0][1]]] * 2


@needs_idle
def test_children_of_a_lowered_process_are_restored() -> None:
    child = os.fork()
    if child == 0:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        leave_idle_class()
        os._exit(0 if os.sched_getscheduler(0) == os.SCHED_OTHER else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
