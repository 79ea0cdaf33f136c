"""CPU time and memory by role, held against psutil's reading of real processes."""

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

from fault.sampling import SETTLED_S, RoleRule, Table, Usage, machine
from tests.support.decoys import only_root

RULE = RoleRule("executors", "Main", "mark-of-run")
# Works for a while, starts one that works as well, and waits to be told.
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
def worker(*prefix: str) -> Iterator[subprocess.Popen[str]]:
    command = [*prefix, sys.executable, "-c", WORK, "Main", "mark-of-run"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "up\n"
        try:
            yield process
        finally:
            process.communicate("go\n")


def seen(table: Table, pids: set[int]) -> dict[int, Usage]:
    """What the table says of these, once all are old enough to be looked at."""
    until = time.monotonic() + SETTLED_S + 20
    while True:
        found = {one.pid: one for one in table.look({}).values() if one.pid in pids}
        if len(found) == len(pids) or time.monotonic() > until:
            return found


def test_a_process_and_what_it_starts_are_counted_as_psutil_counts_them() -> None:
    table = Table([RULE], {"executors": "python_workers"})
    with worker() as process:
        ours = psutil.Process(process.pid)
        (child,) = ours.children()
        found = seen(table, {ours.pid, child.pid})
        assert {pid: one.role for pid, one in found.items()} == {ours.pid: "executors", child.pid: "python_workers"}
        assert found[ours.pid].create_time == pytest.approx(ours.create_time(), abs=0.02)
        assert (
            found[ours.pid].cpu_s == pytest.approx(sum(ours.cpu_times()[:2]), abs=0.03) and found[ours.pid].cpu_s > 0.25
        )
        assert found[ours.pid].rss_bytes == pytest.approx(ours.memory_info().rss, rel=0.05)
        before = found[child.pid].cpu_s
        time.sleep(0.2)
        assert seen(table, {child.pid})[child.pid].cpu_s > before
    assert not seen_now(table, {ours.pid, child.pid})


def seen_now(table: Table, pids: set[int]) -> set[int]:
    return {one.pid for one in table.look({}).values() if one.pid in pids}


@pytest.mark.parametrize("words", [("Main",), ("mark-of-run",), ("Main mark-of-run",), ("xMain", "mark-of-run")])
def test_a_rule_asks_for_whole_arguments(words: tuple[str, ...]) -> None:
    assert RULE.fits(["java", "mark-of-run", "x", "Main"])
    assert not RULE.fits(["java", *words])


@only_root
def test_what_lives_in_another_space_of_process_ids_is_left_out_where_that_is_asked_for() -> None:
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("there is no unshare here")
    with worker(unshare, "--pid", "--fork", "--kill-child") as outside, worker() as here:
        (first,) = psutil.Process(outside.pid).children()
        assert set(seen(Table([RULE], {}), {first.pid, here.pid})) == {first.pid, here.pid}
        apart = Table([RULE], {}, apart=True)
        seen(apart, {here.pid})
        assert seen_now(apart, {first.pid, here.pid}) == {here.pid}
        assert first.pid not in {one.pid for one in apart.look({}, (os.getpid(), "services")).values()}


def test_the_machine_is_counted_as_psutil_counts_it() -> None:
    times = psutil.cpu_times()
    busy = sum(getattr(times, kind) for kind in ("user", "nice", "system", "irq", "softirq"))
    assert machine()["busy_s"] == pytest.approx(busy, abs=2.0)
    assert machine()["stolen_s"] == pytest.approx(times.steal, abs=1.0)
