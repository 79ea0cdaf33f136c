"""What is said of a running experiment whose fault came."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from faultline.base.attempt import Attempt
from faultline.base.window import NS
from faultline.experiment.config import Configuration
from faultline.runner.progress import phase_of

T0 = 1_795_241_700 * NS


@pytest.mark.parametrize(
    ("action", "victim", "words"),
    [
        ("kill", 12, "killed pid 12"),
        ("term", 12, "terminated pid 12"),
        ("pause", 12, "paused pid 12"),
        ("delay", None, "delayed the connections to Kafka"),
        ("reset", None, "reset the connections to Kafka"),
        ("cut", None, "cut the connections to Kafka"),
        ("melted", 12, "hit pid 12"),  # of an attempt whose action is there no more
    ],
)
def test_a_fault_is_told_by_what_it_did_and_to_whom(
    tmp_path: Path, action: str, victim: int | None, words: str
) -> None:
    attempt = Attempt(tmp_path)
    (tmp_path / "attempt.json").write_text(json.dumps({"config": Configuration().model_dump(mode="json")}))

    def at(seconds: float, event: str, **fields: Any) -> str:
        wall_ns = T0 + round(seconds * NS)
        return json.dumps({"wall_ns": wall_ns, "mono_ns": wall_ns, "event": event, **fields}) + "\n"

    gate = at(0, "gate", t0_wall_ns=T0, t0_mono_ns=T0)
    attempt.conductor_journal.write_text(gate + at(41, "delivered", fault=0, victim=victim, action=action))
    phase = phase_of(attempt, T0 + 45 * NS)
    assert phase.name == "measuring"
    assert phase.detail == f"T0 + 45 s; {words} 4 s ago; recorder not started"
