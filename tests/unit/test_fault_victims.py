"""Who is a victim: identities, the choice by seed, and the guard rails, on made-up processes."""

from __future__ import annotations

import os
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fault.errors import IdentityMismatch, TooFewVictims, VictimRefused
from fault.guard import Guard
from fault.identity import EXECUTOR, LiveProcess, ProcessIdentity, carries_token, order_of, require_match
from fault.plan import Fault
from fault.victims import choose, own_line, sort_candidates

RUN = "20261121T061500Z-3fa9c1"
OTHER_RUN = "20261121T061500Z-3fa9c2"
KILL = Fault("executor", "kill", 1)


def command(run: str = RUN, executor_id: str = "0", main: str = EXECUTOR.main) -> tuple[str, ...]:
    return ("java", "-cp", "jars/*", f"-Dfaultline.run={run}", main, "--executor-id", executor_id, "--cores", "1")


def live(pid: int = 4000, created: float = 1000.0, ticks: int | None = 55, run: str = RUN) -> LiveProcess:
    return LiveProcess(pid, 1, created, ticks, command(run))


def victim(pid: int = 4000, created: float = 1000.0, ticks: int | None = 55, number: int = 0) -> ProcessIdentity:
    return ProcessIdentity(pid, created, EXECUTOR, RUN, command(executor_id=str(number)), ticks)


def test_the_same_process_matches() -> None:
    require_match(victim(), live())
    require_match(victim(ticks=None), live())


@pytest.mark.parametrize(
    ("process", "part"),
    [
        (live(pid=4001), "pid"),
        (live(ticks=56), "create_time"),
        (live(created=1010.0), "create_time"),
        (live(run=OTHER_RUN), "token"),
        (live(run=RUN + "0"), "token"),
        (live(run="x" + RUN), "token"),
        (replace(live(), command=command(main="org.apache.spark.deploy.worker.Worker")), "role"),
        (replace(live(), command=("tail", f"{RUN}/{EXECUTOR.main}.log")), "role"),
        (replace(live(), command=()), "token"),
    ],
)
def test_what_does_not_match_is_named(process: LiveProcess, part: str) -> None:
    with pytest.raises(IdentityMismatch) as caught:
        require_match(victim(), process)
    assert caught.value.part == part
    assert str(caught.value).startswith(f"{part}: ")
    assert "\n" not in str(caught.value)


def test_known_ticks_decide_when_the_wall_clock_was_set() -> None:
    require_match(victim(created=1000.0), live(created=1001.0))
    with pytest.raises(IdentityMismatch, match="create_time"):
        require_match(victim(created=1000.0, ticks=None), live(created=1001.0))


@pytest.mark.parametrize("pid", [1, 0, -1])
def test_pid_one_and_below_is_never_a_victim(pid: int) -> None:
    with pytest.raises(VictimRefused, match="^pid: "):
        victim(pid=pid)


@pytest.mark.parametrize("token", ["", "short", "has space in it", "quote'quote'quote", "*-star-star", "a/b/c/d/e/f"])
def test_a_token_that_cannot_single_out_a_run_is_refused(token: str) -> None:
    with pytest.raises(VictimRefused, match="^token: "):
        ProcessIdentity(4000, 1.0, EXECUTOR, token)
    with pytest.raises(VictimRefused, match="^token: "):
        Guard(token)


@given(st.text("abcXYZ019", min_size=1, max_size=3))
def test_a_longer_token_is_another_token(more: str) -> None:
    assert carries_token([f"-Dfaultline.run={RUN}"], RUN)
    assert carries_token([f"/results/{RUN}/x"], RUN)
    assert not carries_token([f"-Dfaultline.run={RUN}{more}"], RUN)
    assert not carries_token([f"-Dfaultline.run={more}{RUN}"], RUN)


def test_the_executor_id_orders() -> None:
    assert order_of(EXECUTOR, command(executor_id="12")) == 12
    assert order_of(EXECUTOR, command(executor_id="driver")) is None
    assert order_of(EXECUTOR, ("java", "--executor-id")) is None
    assert [v.pid for v in sort_candidates([victim(4002, number=10), victim(4003, number=9)])] == [4003, 4002]


@given(
    numbers=st.lists(st.integers(0, 50), min_size=1, max_size=8, unique=True),
    seed=st.integers(0, 2**31),
    repetition=st.integers(0, 100),
    shuffle=st.integers(0, 1000),
    data=st.data(),
)
def test_the_choice_hangs_on_seed_and_candidates_only(
    numbers: list[int], seed: int, repetition: int, shuffle: int, data: st.DataObject
) -> None:
    candidates = [victim(4000 + number, 1000.0 + number, number, number) for number in numbers]
    count = data.draw(st.integers(1, len(candidates)))
    first = choose(candidates, count, seed=seed, repetition=repetition)
    random.Random(shuffle).shuffle(candidates)
    assert choose(candidates, count, seed=seed, repetition=repetition) == first
    assert len(set(first)) == count
    assert set(first) <= set(candidates)


def test_the_choice_is_the_same_in_every_process_and_differs_over_repetitions() -> None:
    candidates = [victim(4000 + number, number=number) for number in range(4)]
    chosen = [choose(candidates, 1, seed=1, repetition=k)[0].pid - 4000 for k in range(12)]
    assert chosen == [3, 3, 2, 3, 0, 2, 3, 3, 2, 0, 1, 1]
    assert set(chosen) == {0, 1, 2, 3}


def test_every_candidate_is_chosen_about_equally_often() -> None:
    candidates = [victim(4000 + number, number=number) for number in range(2)]
    hits = sum(choose(candidates, 1, seed=seed, repetition=1)[0].pid == 4000 for seed in range(1000))
    assert 400 < hits < 600


def test_too_few_candidates_are_refused() -> None:
    with pytest.raises(TooFewVictims, match="^count: 2 victims .* only 1"):
        choose([victim()], 2, seed=1, repetition=1)


def test_the_guard_lets_the_runs_own_processes_through_and_names_them() -> None:
    guard = Guard(RUN)
    guard.check(KILL, [victim()])
    (line,) = guard.describe(KILL, [victim(number=3)])
    assert line == f"would kill executor 3 (pid 4000, run {RUN}) at T0 + 1 s"


def test_the_guard_refuses() -> None:
    guard = Guard(RUN, protected=frozenset([4007]))
    with pytest.raises(VictimRefused, match="^count: 2 victims"):
        guard.check(KILL, [victim(), victim(4001)])
    with pytest.raises(VictimRefused, match="named twice"):
        guard.check(replace(KILL, count=2), [victim(), victim()])
    with pytest.raises(VictimRefused, match="^pid: .* ancestor"):
        guard.check(KILL, [victim(4007)])
    with pytest.raises(VictimRefused, match="^token: "):
        guard.check(KILL, [replace(victim(), token=OTHER_RUN)])
    with pytest.raises(VictimRefused, match="^role: "):
        guard.check(KILL, [replace(victim(), role=replace(EXECUTOR, name="worker"))])


def test_this_process_and_its_ancestors_are_protected() -> None:
    assert {os.getpid(), os.getppid()} <= own_line()
    for pid in own_line() - {0, 1}:
        with pytest.raises(VictimRefused, match="^pid: "):
            Guard(RUN).check(KILL, [victim(pid)])
