"""Roles of processes in the recorder."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from fault.process_sampler import MIN_AGE_S, ProcessTable, RoleRule
from faultline.experiment.attempt import Attempt
from faultline.lifecycle.recorder import claim_turn
from faultline.system.locks import LockClaim
from faultline.system.process_ledger import read_ledger
from faultline.system.process_tags import SERVICES
from faultline.system.waiting import wait_until
from tests.support.decoys import OTHER_UID, decoy, only_root
from tests.support.processes import detached, shown

RULE = RoleRule("kafka", "kafka", "of-this-run")
# Waits, then becomes another program under the same pid, as a held service does.
HELD = """
import os, sys
sys.stdin.readline()
os.execvp("sh", ["sh", "-c", "read x", "kafka", "of-this-run"])
"""
# Starts two processes, and stays.
KEEPER = """
import subprocess, sys, time
for name in ("scheduler", "of-this-run"):
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(900)", "kafka", name])
time.sleep(900)
"""


def reported(table: ProcessTable, *asked: Any) -> dict[int, str]:
    """Return the roles by pid."""
    return {one.pid: one.role for one in table.sample(*(asked or ({},))).values()}


def test_a_service_that_was_held_down_gets_its_role_once_it_runs() -> None:
    roles = ProcessTable([RULE], {}, reread_s=60.0)
    process = subprocess.Popen([sys.executable, "-c", HELD], stdin=subprocess.PIPE, text=True)
    try:
        shown(process.pid, HELD)
        began = time.monotonic()
        wait_until(lambda: time.monotonic() - began > MIN_AGE_S, timeout_s=120, what="an age that is looked at")
        assert process.pid not in reported(roles)
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
        assert wait_until(lambda: reported(roles).get(process.pid), timeout_s=120, what="its role") == "kafka"
    finally:
        process.kill()
        process.communicate()


@only_root
def test_another_users_look_alike_is_others_load() -> None:
    with decoy("kafka", "of-this-run", user=OTHER_UID) as planted, decoy("kafka", "of-this-run") as ours:
        roles = ProcessTable([RULE], {})
        wait_until(lambda: ours.pid in reported(roles), timeout_s=120, what="an age that is looked at")
        assert planted.pid not in reported(roles)


@pytest.mark.parametrize("role", ["proxy", "memcached", "whatever a workload brings"])
def test_what_the_ledger_names_is_the_experiments_own(tmp_path: Path, role: str) -> None:
    """Without a role their CPU would count as background CPU."""
    attempt = Attempt(tmp_path / "20261121T061500Z-3fa9c1")
    entry, roles = detached(attempt, role), ProcessTable([], {})

    def found() -> str | None:
        ledger = {(one.pid, one.start_ticks or 0): one.role for one in read_ledger(attempt.ledger)}
        return reported(roles, ledger).get(entry.pid)

    try:
        assert wait_until(found, timeout_s=120, what="an age that is looked at") == role
    finally:
        psutil.Process(entry.pid).kill()


def test_what_runs_the_experiments_is_known_by_whose_children_it_is_unless_it_is_measured() -> None:
    keeper = subprocess.Popen([sys.executable, "-c", KEEPER])
    try:
        family = wait_until(
            lambda: len(found := psutil.Process(keeper.pid).children()) == 2 and found,
            timeout_s=120,
            what="its children",
        )
        # Before the first sample, which fixes the roles.
        names = {child.pid: shown(child.pid, lambda words: "kafka" in words)[-1] for child in family}
        roles, by_family = ProcessTable([RULE], {}), ({}, (keeper.pid, SERVICES))
        wait_until(
            lambda: "kafka" in reported(roles, *by_family).values(), timeout_s=120, what="an age that is looked at"
        )
        now = reported(roles, *by_family)
        assert {name: now[pid] for pid, name in names.items()} == {"scheduler": "services", "of-this-run": "kafka"}
        assert now[keeper.pid] == "services"
        assert "services" not in reported(roles).values()
    finally:
        for process in (*psutil.Process(keeper.pid).children(), keeper):
            process.kill()
        keeper.wait()


def test_it_notes_the_holder_and_returns_the_previous_one(tmp_path: Path) -> None:
    turn, attempts = tmp_path / "turn.json", tmp_path / "attempts"
    first, second, third, fourth = (Attempt(attempts / name) for name in ("a1", "a2", "a3", "a4"))
    assert claim_turn(turn, first, None) is None
    assert claim_turn(turn, second, None) == "a1", "it may still be harvested without a waiting attempt"
    words = ("python", "--attempt-dir", str(first.folder))
    assert claim_turn(turn, third, LockClaim(1, 1, "me", words, True)) == "a1", "who was waited for"
    words = ("python", "--attempt-dir", "/home/other/results/attempts/b1")
    assert claim_turn(turn, fourth, LockClaim(1, 1, "other", words, True)) == "/home/other/results/attempts/b1"
    turn.write_text("{")
    assert claim_turn(turn, first, None) is None
    assert claim_turn(turn, second, None) == "a1", "mended"
