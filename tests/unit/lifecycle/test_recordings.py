"""Whose processes other hosts record, and as what."""

from __future__ import annotations

import json
from pathlib import Path

from fault.host_acts import name_of, neighbour_mark
from fault.sampling import RoleRule
from faultline.experiment.attempt import Attempt
from faultline.experiment.config import Configuration
from faultline.lifecycle.hosts.recordings import rules_of
from faultline.system.marks import NEIGHBOURS, SERVICES

RUN = "20261121T061500Z-3fa9c1"
FAULTS = [
    {"victim": "worker", "action": "cpu_pressure", "at_s": 60, "duration_s": 5, "cores": 2},
    {"victim": "kafka", "action": "memory_pressure", "at_s": 90, "duration_s": 5, "memory_mb": 64},
]


def test_what_a_fault_starts_on_a_host_is_the_experiments_own(tmp_path: Path) -> None:
    """Else it would be others' load, and the record of every such fault unsound."""
    attempt = Attempt(tmp_path / RUN)
    attempt.folder.mkdir()
    config = Configuration(duration_s=200, fault_plan={"faults": FAULTS}).model_dump(mode="json")
    rest = {"attempt": RUN, "repetition": 0, "kafka": {"bootstrap": ""}, "topics": {"input": ""}}
    (attempt.folder / "attempt.json").write_text(json.dumps({**rest, "services": {"instance": "i"}, "config": config}))
    rules = rules_of(attempt, [RoleRule("executors", "main", "mark")])
    role = {
        index: [rule.role for rule in rules if rule.fits(("python3", "-c", "", neighbour_mark(name_of(RUN, index))))]
        for index in range(3)
    }
    assert role == {0: [NEIGHBOURS], 1: [NEIGHBOURS], 2: []}
    assert [rule.role for rule in rules if rule.role != NEIGHBOURS] == ["executors", "kafka", SERVICES]
