"""Whose processes other hosts record, and as what."""

from __future__ import annotations

from pathlib import Path

from fault.host_acts import name_of, neighbour_mark
from fault.sampling import RoleRule
from faultline.experiment.plan import Places
from faultline.lifecycle.hosts.recordings import rules_of
from faultline.system.marks import NEIGHBOURS, SERVICES
from tests.support.attempts import ID, run_in

FAULTS = [
    {"victim": "worker", "action": "cpu_pressure", "at_s": 60, "duration_s": 5, "cores": 2},
    {"victim": "kafka", "action": "memory_pressure", "at_s": 90, "duration_s": 5, "memory_mb": 64},
]


def test_what_a_fault_starts_on_a_host_is_the_experiments_own(tmp_path: Path) -> None:
    """Else it would be others' load, and the record of every such fault unsound."""
    values = {"duration_s": 200, "fault_plan": {"faults": FAULTS}}
    run = run_in(tmp_path / ID, values, places=Places(instance="i"))
    rules = rules_of(run, [RoleRule("executors", "main", "mark")])
    role = {
        index: [rule.role for rule in rules if rule.fits(("python3", "-c", "", neighbour_mark(name_of(ID, index))))]
        for index in range(3)
    }
    assert role == {0: [NEIGHBOURS], 1: [NEIGHBOURS], 2: []}
    assert [rule.role for rule in rules if rule.role != NEIGHBOURS] == ["executors", "kafka", SERVICES]
