"""What is said of a running experiment whose fault came."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from faultline.experiment.attempt import Attempt
from faultline.lifecycle.progress import current_attempt, phase_of
from faultline.system.settings import Settings
from faultline.system.window import NS
from tests.support.attempts import prepared

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
    prepared(tmp_path)

    def at(seconds: float, event: str, **fields: Any) -> str:
        wall_ns = T0 + round(seconds * NS)
        return json.dumps({"wall_ns": wall_ns, "mono_ns": wall_ns, "event": event, **fields}) + "\n"

    gate = at(0, "gate", t0_wall_ns=T0, t0_mono_ns=T0)
    attempt.conductor_journal.write_text(gate + at(41, "delivered", fault=0, victim=victim, action=action))
    phase = phase_of(attempt, T0 + 45 * NS)
    assert phase.name == "measuring"
    assert phase.detail == f"T0 + 45 s; {words} 4 s ago; recorder not started"


def test_of_two_attempts_in_work_the_one_whose_turn_it_is_is_shown(tmp_path: Path) -> None:
    settings = Settings(root=tmp_path, home=tmp_path / "home", results=tmp_path)
    assert current_attempt(settings, "mine") is None

    def made(name: str, sweep_id: str = "mine") -> Attempt:
        return prepared(settings.attempts / name, sweep_id=sweep_id)

    def shown() -> str:
        attempt = current_attempt(settings, "mine")
        assert attempt is not None
        return attempt.id

    first = made("1")
    assert shown() == "1", "nothing of it has begun"
    first.recorder_journal.touch()
    second = made("2")
    made("3", sweep_id="another")
    assert shown() == "1"
    second.recorder_journal.touch()
    assert shown() == "2", "begins beside the harvest of the first"
    first.closed.touch()
    second.closed.touch()
    assert shown() == "2"
    made("4")
    assert shown() == "4"
