"""Victims: identities, tokens, the choice by seed, and the guard, on fake processes."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fault.errors import IdentityMismatch, TooFewVictims, VictimRefused
from fault.identity import (
    DRIVER,
    EXECUTOR,
    KAFKA,
    PYTHON_WORKER,
    ROLES,
    WORKER,
    LiveProcess,
    ProcessIdentity,
    Role,
    Tokens,
    has_token,
    node_of,
    number_of,
    require_match,
    require_same,
)
from fault.plan import ALLOWED, Fault, FaultPlan
from fault.victims import (
    ROLES_BY_VICTIM,
    ProcessSnapshot,
    VictimGuard,
    choose_victims,
    executor_ids,
    own_ancestry,
    select_victims,
    sort_candidates,
)

RUN = "20261121T061500Z-3fa9c1"
OTHER_RUN = "20261121T061500Z-3fa9c2"
INSTANCE = "0123456789abcdef"
TOKENS = Tokens(RUN, INSTANCE)
KILL = Fault("executor", "kill", 1)
DAEMON = ("python3", "-m", "pyspark.daemon", "pyspark.worker")


def executor_command(
    run: str = RUN, executor_id: str = "0", main: str = EXECUTOR.main, node: str = "127.0.0.1:7001"
) -> tuple[str, ...]:
    options = ("--executor-id", executor_id, "--worker-url", f"spark://Worker@{node}")
    return ("java", "-cp", "jars/*", f"-Dfaultline.run={run}", main, *options)


def worker_command(node: str, instance: str = INSTANCE) -> tuple[str, ...]:
    host, port = node.split(":")
    return ("java", f"-Dfaultline.instance={instance}", WORKER.main, "--host", host, "--port", port, "--cores", "2")


def live(pid: int = 4000, *, created: float = 1000.0, ticks: int | None = 55, run: str = RUN) -> LiveProcess:
    return LiveProcess(pid, 1, created, ticks, executor_command(run))


def victim(
    pid: int = 4000,
    created: float = 1000.0,
    ticks: int | None = 55,
    number: int = 0,
    node: str = "127.0.0.1:7001",
    host: str = "",
) -> ProcessIdentity:
    command = executor_command(executor_id=str(number), node=node)
    return ProcessIdentity(pid, created, EXECUTOR, RUN, command, ticks, host, node)


def snapshot(*processes: tuple[int, int, Iterable[str]], protected: Iterable[int] = ()) -> ProcessSnapshot:
    """Return a snapshot of (pid, parent, command line); a process without a role's main has only its parent."""
    parents = {pid: parent for pid, parent, _ in processes}
    known = {
        pid: LiveProcess(pid, parent, 1000.0 + pid, pid, tuple(command))
        for pid, parent, command in processes
        if any(role.matches(tuple(command)) for role in ROLES.values())
    }
    return ProcessSnapshot(known, parents, frozenset(protected))


def pids(word: str, seen: ProcessSnapshot, tokens: Tokens = TOKENS) -> list[int]:
    return [one.pid for one in select_victims(word, tokens, seen)]


# --- identities


@pytest.mark.parametrize(
    ("process", "part"),
    [
        (live(pid=4001), "pid"),
        (live(ticks=56), "create_time"),
        (live(created=1010.0), "create_time"),
        (live(run=OTHER_RUN), "token"),
        (live(run=RUN + "0"), "token"),
        (live(run="x" + RUN), "token"),
        (replace(live(), command=("tail", f"results/{RUN}/log", EXECUTOR.main)), "token"),
        (replace(live(), command=executor_command(main=WORKER.main)), "role"),
        (replace(live(), command=("tail", f"-Dfaultline.run={RUN}", f"{EXECUTOR.main}.log")), "role"),
        (replace(live(), command=()), "token"),
        (replace(live(), is_foreign=True), "user"),
    ],
)
def test_mismatch_names_the_part(process: LiveProcess, part: str) -> None:
    with pytest.raises(IdentityMismatch) as caught:
        require_match(victim(), process)
    assert caught.value.part == part
    assert str(caught.value).startswith(f"{part}: ")
    assert "\n" not in str(caught.value)


def test_known_ticks_decide_after_a_clock_step() -> None:
    require_match(victim(ticks=None), live())
    require_match(victim(), live(created=1001.0))
    with pytest.raises(IdentityMismatch, match="create_time"):
        require_match(victim(ticks=None), live(created=1001.0))


def test_python_worker_is_traced_to_its_executor() -> None:
    worker = LiveProcess(4002, 4001, 1.0, 7, DAEMON)
    daemon, executor = LiveProcess(4001, 4000, 1.0, 6, DAEMON), live()
    wrapper = LiveProcess(3999, 4000, 1.0, 6, ("sh", "-c", "python3 …"))
    identity = ProcessIdentity(4002, 1.0, PYTHON_WORKER, RUN, DAEMON, 7)
    require_match(identity, worker, [daemon, executor])
    require_match(identity, worker, [daemon, wrapper, executor])
    for ancestors, part in (
        ([], "role"),
        ([executor], "role"),
        ([daemon], "token"),
        ([daemon, daemon, executor], "role"),
        ([daemon, live(run=OTHER_RUN)], "token"),
        ([daemon, live(run=OTHER_RUN), executor], "token"),
        ([daemon, replace(executor, is_foreign=True)], "token"),
    ):
        with pytest.raises(IdentityMismatch) as caught:
            require_match(identity, worker, ancestors)
        assert caught.value.part == part
        require_same(identity, worker)  # the same process, for any owner
    with pytest.raises(IdentityMismatch, match="^role"):
        require_match(identity, replace(worker, command=("python3",)), [daemon, executor])


@pytest.mark.parametrize("token", ["", "short", "has space in it", "quote'quote'quote", "*-star-star", "a/b/c/d/e/f"])
def test_ambiguous_token_is_refused(token: str) -> None:
    for make in (
        lambda: ProcessIdentity(4000, 1.0, EXECUTOR, token),
        lambda: Tokens(token),
        lambda: Tokens(RUN, token),
    ):
        with pytest.raises(VictimRefused, match="^token: "):
            make()


@given(st.text("abcXYZ019-.=/", min_size=1, max_size=3), st.sampled_from([EXECUTOR, DRIVER, WORKER, KAFKA]))
def test_only_a_whole_tag_with_the_exact_token_counts(more: str, role: Role) -> None:
    mark = f"-Dfaultline.{'run' if role.scope == 'run' else 'instance'}="
    assert has_token([f"{mark}{RUN}"], RUN, role)
    assert has_token([f"faultline-run={RUN}"], RUN, role) == (role.scope == "run")
    for argument in (f"{mark}{RUN}{more}", f"{mark}{more}{RUN}", f"{more}{mark}{RUN}", RUN, f"/results/{RUN}/x"):
        assert not has_token([argument], RUN, role)


@given(st.sampled_from(sorted(ROLES)), st.booleans())
def test_each_role_has_the_token_of_its_scope(name: str, services: bool) -> None:
    role, tokens = ROLES[name], Tokens(RUN, INSTANCE if services else None)
    if role.scope == "services" and not services:
        with pytest.raises(VictimRefused, match=f"^victim: got {name} "):
            tokens.of(role)
    else:
        assert tokens.of(role) == (RUN if role.scope == "run" else INSTANCE)


def test_number_is_the_executor_id_and_node_the_spark_worker() -> None:
    assert number_of(EXECUTOR, executor_command(executor_id="12")) == 12
    assert number_of(EXECUTOR, executor_command(executor_id="driver")) is None
    assert number_of(EXECUTOR, ("java", "--executor-id")) is None
    assert [v.pid for v in sort_candidates([victim(4002, number=10), victim(4003, number=9)])] == [4003, 4002]
    assert node_of(EXECUTOR, executor_command(node="10.0.0.7:41000")) == "10.0.0.7:41000"
    assert node_of(EXECUTOR, ("java", EXECUTOR.main)) is None
    assert node_of(WORKER, worker_command("spark-worker-1:17081")) == "spark-worker-1:17081"
    assert node_of(WORKER, ("java", WORKER.main, "--host", "h")) is None
    assert node_of(DRIVER, ("java", DRIVER.main, "--host", "h", "--port", "1")) is None


# --- candidates


A, B, C = "127.0.0.1:7001", "127.0.0.1:7002", "127.0.0.1:7003"
CLUSTER = (
    (10, 1, worker_command(A)),
    (11, 1, worker_command(B)),
    (12, 1, worker_command(C)),
    (13, 1, worker_command(A, "fedcba9876543210")),
    (20, 10, executor_command(executor_id="1", node=A)),
    (21, 11, executor_command(executor_id="0", node=B)),
    (30, 1, ("java", f"-Dfaultline.run={RUN}", DRIVER.main, "word_count.py", f"faultline-run={RUN}")),
    (31, 30, ("python3", "word_count.py", f"faultline-run={RUN}")),
    (33, 1, ("python3", "-m", "faultline.engines.ground_truth", f"faultline-run={RUN}")),
    (32, 1, ("java", DRIVER.main, "word_count.py", f"faultline-run={OTHER_RUN}")),
    (40, 1, ("java", f"-Dfaultline.instance={INSTANCE}", "kafka.Kafka", "server.properties")),
    (41, 1, ("java", "-Dfaultline.instance=fedcba9876543210", "kafka.Kafka", "server.properties")),
    (42, 1, ("java", f"-Dfaultline.run={INSTANCE}", "kafka.Kafka")),
    (50, 20, DAEMON),
    (51, 50, DAEMON),
    (52, 50, DAEMON),
    (53, 52, DAEMON),  # a program that a worker is about to exec
    (54, 1, DAEMON),
    (55, 54, DAEMON),  # of an unmarked daemon
    (56, 30, DAEMON),
    (57, 56, DAEMON),  # of the driver's daemon
)
OTHER_RUN_ON_B = (22, 11, executor_command(run=OTHER_RUN, node=B))
OF_THE_OTHER_RUN = ((58, 22, DAEMON), (59, 58, DAEMON))


def test_each_victim_finds_only_its_processes() -> None:
    seen = snapshot(*CLUSTER)
    assert set(ROLES_BY_VICTIM) == set(ALLOWED)
    assert pids("executor", seen) == [21, 20]
    assert pids("worker", seen) == [10, 11]
    assert pids("driver", seen) == [30, 33]
    assert pids("kafka", seen) == [40]
    assert pids("python_worker", seen) == [51, 52]
    assert pids("any", seen) == [21, 20, 10, 11]
    assert {one.node for one in select_victims("python_worker", TOKENS, seen)} == {A}
    assert all(one.token == TOKENS.of(one.role) for word in ALLOWED for one in select_victims(word, TOKENS, seen))


def test_a_worker_that_hosts_another_runs_executor_is_no_candidate() -> None:
    seen = snapshot(*CLUSTER, OTHER_RUN_ON_B, *OF_THE_OTHER_RUN)
    assert pids("worker", seen) == [10]
    assert pids("any", seen) == [21, 20, 10]
    assert pids("python_worker", seen) == [51, 52]
    assert pids("python_worker", seen, Tokens(OTHER_RUN)) == [59]


def test_protected_processes_and_fork_copies_are_no_candidates() -> None:
    command = executor_command()
    assert pids("executor", snapshot((20, 1, command), (21, 20, command), (22, 21, command))) == [20]
    assert pids("executor", snapshot((20, 1, command), (1, 0, command), protected=[20])) == []
    assert pids("python_worker", snapshot(*CLUSTER, protected=[51])) == [52]


def test_without_the_services_token_no_service_is_found() -> None:
    seen = snapshot(*CLUSTER)
    assert pids("executor", seen, Tokens(RUN)) == [21, 20]
    for word in ("worker", "kafka", "any"):
        with pytest.raises(VictimRefused, match="^victim: "):
            select_victims(word, Tokens(RUN), seen)


def test_the_executors_of_a_worker_are_known() -> None:
    executors = select_victims("executor", TOKENS, snapshot(*CLUSTER))
    assert [executor_ids(executors, node) for node in (A, C, None)] == [[1], [], []]


TREES = st.tuples(st.integers(2, 40), st.integers(0, 40), st.sampled_from(CLUSTER))


@given(st.lists(TREES, max_size=25, unique_by=lambda process: process[0]))
def test_only_marked_processes_are_found(made: list[tuple[int, int, Any]]) -> None:
    """Any shape of process tree, including loops, as in a snapshot taken over time."""
    commands = {pid: tuple(like[2]) for pid, _, like in made}
    seen = snapshot(*((pid, parent, like[2]) for pid, parent, like in made))
    for word in ALLOWED:
        for one in select_victims(word, TOKENS, seen):
            line = [one.pid, *(above.pid for above in seen.ancestors(one.pid) if above.command)]
            marked = [has_token(commands[pid], one.token, one.role) for pid in line]
            assert marked[0] or (one.role is PYTHON_WORKER and any(marked))


# --- choice


@st.composite
def candidates_over_nodes(draw: st.DrawFn) -> list[ProcessIdentity]:
    numbers = draw(st.lists(st.integers(0, 50), min_size=1, max_size=8, unique=True))
    nodes = st.sampled_from(["10.0.0.1:7001", "10.0.0.2:7001", "10.0.0.3:7001"])
    return [victim(4000 + number, 1000.0 + number, number, number, draw(nodes)) for number in numbers]


@given(
    candidates_over_nodes(), st.integers(0, 2**31), st.integers(0, 100), st.integers(0, 1000), st.booleans(), st.data()
)
def test_choice_depends_on_seed_and_candidates_only(
    candidates: list[ProcessIdentity], seed: int, repetition: int, shuffle: int, by_node: bool, data: st.DataObject
) -> None:
    count = data.draw(st.integers(1, len(candidates)))
    first = choose_victims(candidates, count, seed=seed, repetition=repetition, by_node=by_node)
    random.Random(shuffle).shuffle(candidates)
    assert choose_victims(candidates, count, seed=seed, repetition=repetition, by_node=by_node) == first
    assert len(set(first)) == count
    assert set(first) <= set(candidates)
    if by_node:
        # A second victim on a node only when every node has given one.
        nodes = {candidate.node for candidate in candidates}
        assert len({chosen.node for chosen in first}) == min(count, len(nodes))


def test_the_choice_is_the_same_in_every_process_and_differs_over_repetitions() -> None:
    candidates = [victim(4000 + number, number=number) for number in range(4)]
    chosen = [choose_victims(candidates, 1, seed=1, repetition=k)[0].pid - 4000 for k in range(12)]
    assert chosen == [3, 3, 2, 3, 0, 2, 3, 3, 2, 0, 1, 1]
    assert set(chosen) == {0, 1, 2, 3}


@pytest.mark.parametrize(("by_node", "count"), [(False, 2), (True, 4)], ids=["each process", "each node"])
def test_all_are_chosen_about_equally_often(by_node: bool, count: int) -> None:
    """For `any` the node is drawn before the process: three are on one node and one on the other."""
    candidates = [victim(4000 + number, node=B if number == count - 1 else A) for number in range(count)]
    hits = sum(
        choose_victims(candidates, 1, seed=seed, repetition=1, by_node=by_node)[0].node == B for seed in range(1000)
    )
    assert 400 < hits < 600


@pytest.mark.parametrize("by_node", [False, True])
def test_too_few_are_refused_and_the_same_node_name_on_two_hosts_is_two_nodes(by_node: bool) -> None:
    with pytest.raises(TooFewVictims, match="^count: got 2"):
        choose_victims([victim()], 2, seed=1, repetition=1, by_node=by_node)
    both = [victim(4000, host="a"), victim(4000, host="b")]
    assert {one.host for one in choose_victims(both, 2, seed=1, repetition=1, by_node=by_node)} == {"a", "b"}


# --- guard


def planned(*faults: Fault) -> list[object]:
    return list(FaultPlan(faults).resolve(rate=1.0, checkpoint_interval_s=2.0, snapshot_interval_s=8.0))


def test_guard_accepts_processes_of_the_run() -> None:
    VictimGuard(TOKENS, protected=frozenset([4000])).check(replace(KILL, count=2), [victim(host="a"), victim(host="b")])
    guard = VictimGuard(TOKENS)
    guard.check(KILL, [victim()])
    seen = snapshot(*CLUSTER)
    for word in ALLOWED:
        guard.check(replace(KILL, victim=word, count=1), select_victims(word, TOKENS, seen)[:1])
    (line,) = guard.describe(planned(KILL)[0], [victim(number=3)])
    assert line == f"would kill executor 3 (pid 4000, run {RUN}) at T0 + 1 s"
    (line,) = guard.describe(
        planned(Fault("worker", "pause", 3, duration_s=2))[0], select_victims("worker", TOKENS, seen)[:1]
    )
    assert line == f"would pause worker (pid 10, services {INSTANCE}) for 2 s at T0 + 3 s"


def test_dry_run_describes_connection_faults() -> None:
    guard = VictimGuard(TOKENS)
    (line,) = guard.describe(planned(replace(KILL, cycle="checkpoint", phase=0.25))[0], [victim()])
    assert line.endswith(" at phase 0.25 of the first checkpoint cycle that begins after T0 + 1 s")
    delay = planned(Fault("kafka", "delay", 1, duration_s=5, delay_ms=80))[0]
    assert delay.describe("the connections") == "delay the connections by 80 ms for 5 s at T0 + 1 s"
    with pytest.raises(VictimRefused, match="^count: got 1 "):
        guard.describe(delay, [victim()])


def test_the_guard_refuses() -> None:
    guard = VictimGuard(TOKENS, protected=frozenset([4007]))
    worker = select_victims("worker", TOKENS, snapshot(*CLUSTER))[0]
    for fault, victims, message in (
        (KILL, [victim(), victim(4001)], "^count: got 2"),
        (replace(KILL, count=2), [victim(), victim()], "^pid: got the same process"),
        (KILL, [victim(4007)], "^pid: .* ancestor"),
        (KILL, [replace(victim(), token=OTHER_RUN)], "^token: "),
        (KILL, [replace(victim(), command=executor_command(run=OTHER_RUN))], "^token: "),
        (KILL, [replace(victim(), command=("java", f"-Dfaultline.run={RUN}"))], "^role: "),
        (KILL, [worker], "^role: got worker"),
        (replace(KILL, victim="worker"), [replace(worker, token="fedcba9876543210")], "^token: "),
    ):
        with pytest.raises(VictimRefused, match=message):
            guard.check(fault, victims)


@pytest.mark.parametrize("pid", [1, 0, -1])
def test_pid_one_and_below_is_never_a_victim(pid: int) -> None:
    with pytest.raises(VictimRefused, match="^pid: "):
        victim(pid=pid)
    forged = victim()
    object.__setattr__(forged, "pid", pid)
    with pytest.raises(VictimRefused, match=f"^pid: got {pid};"):
        VictimGuard(TOKENS, protected=frozenset()).check(KILL, [forged])
    VictimGuard(TOKENS, protected=frozenset()).check(KILL, [victim(pid=2)])


def test_this_process_and_its_ancestors_are_protected() -> None:
    assert {os.getpid(), os.getppid()} <= own_ancestry()
    for pid in own_ancestry() - {0, 1}:
        with pytest.raises(VictimRefused, match="^pid: "):
            VictimGuard(TOKENS).check(KILL, [victim(pid)])
