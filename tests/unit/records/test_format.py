"""Records in words."""

from __future__ import annotations

from typing import Any

import pytest

from fault.identity import VICTIM_WORDS, VICTIMS
from fault.registry import ACTIONS
from faultline.records.format import broken

PLAN = {
    "faults": [
        {"victim": "kafka", "action": "pause", "duration_s": 5, "at_s": 40},
        {"victim": "executor", "action": "kill", "times": 3, "count": 2, "at_s": 60},
    ]
}


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({}, "without a fault"),
        ({"fault": "executor", "fault_action": "kill"}, "after an executor was killed"),
        ({"fault": "kafka", "fault_action": "pause"}, "with the broker paused for 10 s"),
        ({"fault": "kafka", "fault_action": "delay"}, "with the connections to Kafka delayed by 200 ms for 10 s"),
        (
            {"fault": "plan", "fault_plan": PLAN},
            "with the broker paused for 5 s and after an executor was killed (2 at once, 3 times)",
        ),
        ({"fault": "moon", "fault_action": "kill"}, "with moon kill"),
        ({"fault": "executor", "fault_action": "melt"}, "with executor melt"),
        ({"fault": "plan", "fault_plan": {"faults": [{"victim": "kafka", "action": "cut", "duration_s": "x"}]}},
         "with kafka cut"),
    ],
)  # fmt: skip
def test_what_was_broken_is_told_in_plain_words(config: dict[str, Any], words: str) -> None:
    assert broken(config) == words


def test_every_action_tells_itself_of_every_victim() -> None:
    assert set(VICTIM_WORDS) == set(VICTIMS)
    for action in ACTIONS.values():
        for victim in action.targets:
            said = action.told(victim, {})
            assert said.startswith(("after ", "with ")) and "{" not in said
