"""CPU time and memory by role, compared with psutil's reading of real processes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fault import process_sampler
from fault.process_sampler import (
    MIN_AGE_S,
    Key,
    ProcessTable,
    RoleRule,
    RunDelays,
    ShortLivedChildren,
    Usage,
    has_run_delay,
    machine_usage,
)
from faultline.system.waiting import wait_until
from tests.support.decoys import only_root

RULE = RoleRule("executors", "Main", "mark-of-run")
# Works for a while, starts a working child, and waits for a line.
WORK = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "x = list(range(10**6))\\nwhile len(x): sum(x)"])
data = bytearray(50 * 2**20)
until = time.process_time() + 0.3
while time.process_time() < until: pass
print("up", flush=True)
sys.stdin.readline()
child.kill()
child.wait()
"""


@contextmanager
def worker(*prefix: str, program: str = WORK, stdin: str = "") -> Iterator[subprocess.Popen[str]]:
    """A process that runs until it reads a line."""
    command = [*prefix, sys.executable, "-c", program, stdin, "Main", "mark-of-run"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "up\n"
        try:
            yield process
        finally:
            process.communicate("go\n")


def seen(table: ProcessTable, pids: set[int]) -> dict[int, Usage]:
    """Return the table's sample once all processes are old enough."""
    until = time.monotonic() + MIN_AGE_S + 120
    while True:
        found = {one.pid: one for one in table.sample({}).values() if one.pid in pids}
        if len(found) == len(pids) or time.monotonic() > until:
            return found


def test_usage_of_a_process_tree_matches_psutil() -> None:
    table = ProcessTable([RULE], {"executors": "python_workers"})
    with worker() as process:
        ours = psutil.Process(process.pid)
        (child,) = ours.children()
        found = seen(table, {ours.pid, child.pid})
        assert {pid: one.role for pid, one in found.items()} == {ours.pid: "executors", child.pid: "python_workers"}
        one, before = found[ours.pid], found[child.pid].cpu_s
        assert one.create_time == pytest.approx(ours.create_time(), abs=0.02)
        assert one.cpu_s == pytest.approx(sum(ours.cpu_times()[:2]), abs=0.03) and one.cpu_s > 0.25
        assert one.rss_bytes == pytest.approx(ours.memory_info().rss, rel=0.05)
        wait_until(lambda: seen(table, {child.pid})[child.pid].cpu_s > before, timeout_s=120, what="more of its work")
    assert not {ours.pid, child.pid} & {one.pid for one in table.sample({}).values()}


@pytest.mark.parametrize("words", [("Main",), ("mark-of-run",), ("Main mark-of-run",), ("xMain", "mark-of-run")])
def test_rule_matches_whole_arguments(words: tuple[str, ...]) -> None:
    assert RULE.matches(["java", "mark-of-run", "x", "Main"])
    assert not RULE.matches(["java", *words])


@only_root
def test_own_namespace_only_skips_other_pid_namespaces() -> None:
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("there is no unshare here")
    with worker(unshare, "--pid", "--fork", "--kill-child") as outside, worker() as here:
        (first,) = psutil.Process(outside.pid).children()
        assert set(seen(ProcessTable([RULE], {}), {first.pid, here.pid})) == {first.pid, here.pid}
        apart = ProcessTable([RULE], {}, own_namespace_only=True)
        assert set(seen(apart, {here.pid})) == {here.pid}
        assert first.pid not in {one.pid for one in apart.sample({}).values()}
        assert first.pid not in {one.pid for one in apart.sample({}, (os.getpid(), "services")).values()}


HERTZ = os.sysconf("SC_CLK_TCK")
# Runs programs in sequence, each shorter than a sample, and prints the kernel's count.
SHORT_LIVED = """
import resource, subprocess, sys
print("up", flush=True)
sys.stdin.readline()
for _ in range(8):
    subprocess.run([sys.executable, "-S", "-c", "import time\\nwhile time.process_time() < 0.1: pass"], check=True)
dead = resource.getrusage(resource.RUSAGE_CHILDREN)
print(dead.ru_utime + dead.ru_stime, flush=True)
sys.stdin.readline()
"""


def test_short_lived_children_count_to_their_parent() -> None:
    table = ProcessTable([RULE], {})
    with worker(program=SHORT_LIVED) as process:
        assert process.stdin is not None and process.stdout is not None
        before = seen(table, {process.pid})[process.pid].cpu_s
        process.stdin.write("go\n")
        process.stdin.flush()
        dead_s = float(process.stdout.readline())
        after = seen(table, {process.pid})[process.pid].cpu_s
        own = psutil.Process(process.pid).cpu_times()
        assert dead_s > 0.5 and after == pytest.approx(own.user + own.system + dead_s, abs=0.05) and after > before


class Tree:
    """Fake processes that start others, work, end and are waited for; `used`: ticks of all of them."""

    def __init__(self) -> None:
        self.used = 0
        self.own, self.dead, self.parent = {1: 0}, {1: 0}, {1: 0}

    def start(self, parent: int) -> None:
        pid = max(self.parent) + 1
        self.own[pid], self.dead[pid], self.parent[pid] = 0, 0, parent

    def work(self, pid: int, ticks: int) -> None:
        self.own[pid] += ticks
        self.used += ticks

    def end(self, pid: int) -> None:
        """End a process with all its descendants, and wait for it."""
        for child in [one for one in self.own if self.parent[one] == pid]:
            self.end(child)
        self.dead[self.parent[pid]] += self.own.pop(pid) + self.dead.pop(pid)

    def stats(self) -> dict[Key, list[str]]:
        rows = {}
        for pid in self.own:
            row = ["0"] * 22
            row[1], row[11], row[13] = str(self.parent[pid]), str(self.own[pid]), str(self.dead[pid])
            rows[pid, pid] = row
        return rows


STEP = st.tuples(
    st.sampled_from(["start", "work", "end"]), st.integers(0, 20), st.integers(1, 300), st.sampled_from([True, False])
)


@given(steps=st.lists(STEP, min_size=5, max_size=60))
def test_tree_usage_is_counted_once_in_any_order_of_ends(steps: list[tuple[str, int, int, bool]]) -> None:
    tree, short, counted = Tree(), ShortLivedChildren(), dict[Key, float]()

    def look() -> None:
        stats = tree.stats()
        for key, dead_s in short.update(stats, stats.keys()).items():
            counted[key] = int(stats[key][11]) / HERTZ + dead_s

    look()
    for do, whom, ticks, looked in steps:
        pid = sorted(tree.own)[whom % len(tree.own)]
        if do == "start":
            tree.start(pid)
        elif do == "work":
            tree.work(pid, ticks)
        elif pid != 1:
            tree.end(pid)
        if looked:
            look()
    look()
    assert sum(counted.values()) == pytest.approx(tree.used / HERTZ)


def test_usage_before_the_first_sample_and_unwaited_children_are_excluded() -> None:
    tree, short = Tree(), ShortLivedChildren()
    tree.start(1)
    (child,) = set(tree.own) - {1}
    tree.work(child, 500)
    tree.end(child)
    assert short.update(tree.stats(), [(1, 1)]) == {(1, 1): 0.0}
    tree.start(1)
    (child,) = set(tree.own) - {1}
    tree.work(child, 300)
    short.update(tree.stats(), [(1, 1), (child, child)])
    del tree.own[child], tree.dead[child]  # as for a parent that ignores SIGCHLD
    assert short.update(tree.stats(), [(1, 1)]) == {(1, 1): 0.0}


def test_child_ending_between_readings_does_not_reduce_usage() -> None:
    tree, short = Tree(), ShortLivedChildren()
    short.update(tree.stats(), [(1, 1)])
    tree.dead[1] += 100
    assert short.update(tree.stats(), [(1, 1)]) == {(1, 1): 100 / HERTZ}
    tree.start(1)
    (child,) = set(tree.own) - {1}
    tree.work(child, 40)
    short.update(tree.stats(), [(1, 1), (child, child)])
    before = tree.stats()
    tree.work(child, 10)
    tree.end(child)
    assert short.update({(1, 1): before[1, 1]}, [(1, 1)]) == {(1, 1): 100 / HERTZ}
    assert short.update(tree.stats(), [(1, 1)])[1, 1] == pytest.approx(110 / HERTZ)


def test_a_parent_is_read_before_its_child_whatever_their_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pids wrap around; otherwise a child that ends between both readings would be counted twice."""
    read: list[int] = []

    def stat_of(pid: int) -> list[str]:
        read.append(pid)
        row = ["0"] * 22
        row[19] = {5: "200", 9: "100"}[pid]
        return row

    monkeypatch.setattr(process_sampler, "all_pids", lambda: iter([5, 9]))
    monkeypatch.setattr(process_sampler, "stat_of", stat_of)
    table = ProcessTable([RULE], {})
    table.sample({})
    table.sample({})
    assert read[2:] == [9, 5]


def test_machine_usage_matches_psutil() -> None:
    times = psutil.cpu_times()
    busy = sum(getattr(times, kind) for kind in ("user", "nice", "system", "irq", "softirq"))
    assert machine_usage()["busy_s"] == pytest.approx(busy, abs=2.0)
    assert machine_usage()["stolen_s"] == pytest.approx(times.steal, abs=1.0)


# Computes until a line arrives, then reads it.
BURN = """
import os, sys, threading
os.sched_setaffinity(0, {int(sys.argv[1])})
threading.Thread(target=lambda: (sys.stdin.readline(), os._exit(0)), daemon=True).start()
print("up", flush=True)
while True: pass
"""


needs_delay = pytest.mark.skipif(not has_run_delay(), reason="this kernel does not count run delay")


@needs_delay
def test_two_busy_processes_on_one_core_have_run_delay() -> None:
    """CPU time plus run delay equals the elapsed time, however busy the machine is."""
    on = {"program": BURN, "stdin": str(min(os.sched_getaffinity(0)))}
    table = ProcessTable([RULE], {}, delay_roles=("executors",))
    with worker(**on) as first, worker(**on) as second:
        pids = {first.pid, second.pid}
        before, began = seen(table, pids), time.monotonic()
        while time.monotonic() - began < 2.0:
            time.sleep(0.1)
        after, passed_s = seen(table, pids), time.monotonic() - began
    for pid in pids:
        waited_s, used_s = after[pid].waited_s - before[pid].waited_s, after[pid].cpu_s - before[pid].cpu_s  # type: ignore[operator]
        assert waited_s > 0.1 and waited_s + used_s == pytest.approx(passed_s, rel=0.2)
        assert after[pid].as_json()["waited_s"] == after[pid].waited_s


def test_other_roles_have_no_run_delay() -> None:
    with worker() as process:
        (found,) = seen(ProcessTable([RULE], {}, delay_roles=("kafka",)), {process.pid}).values()
        assert found.waited_s is None and "waited_s" not in found.as_json()


LOOKS = st.lists(
    st.dictionaries(st.sampled_from("abcd"), st.integers(0, 10**9), min_size=1, max_size=4), min_size=1, max_size=12
)


@given(LOOKS)
def test_run_delay_of_ended_threads_stays_counted(growth: list[dict[str, int]]) -> None:
    """Each sample has the live threads with their run delay since the previous one."""
    delays, counters, total = RunDelays(), dict[str, int](), 0
    for step in growth:
        counters = {name: counters.get(name, 0) + more for name, more in step.items()}
        total += sum(step.values())
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(process_sampler, "_thread_delays", lambda pid, now=counters: dict(now))
            found = delays.update([(1, 1)])
        assert found == {(1, 1): pytest.approx(total / 1e9)}
    assert delays.update([]) == {}


def test_reused_thread_number_does_not_reduce_run_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    delays = RunDelays()
    for counter, total in ((5, 5), (3, 8), (4, 9)):
        monkeypatch.setattr(process_sampler, "_thread_delays", lambda pid, now=counter: {"7": now})
        assert delays.update([(1, 1)]) == {(1, 1): total / 1e9}
