"""Topics are harvested whole, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from faultline.lifecycle import collect as subject
from faultline.system.errors import InfrastructureError
from tests.support.attempts import ID, run_in


class Broker:
    """Its topics begin where `begins` says, else at 0."""

    begins: dict[str, dict[str, int]] = {}
    asked: list[str] = []

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._topic = topic

    def first(self, timeout_s: float) -> dict[str, int]:
        self.asked.append(self._topic)
        return self.begins.get(self._topic, {"0": 0, "1": 0})


@pytest.mark.parametrize("topic", [f"{ID}-input", f"{ID}-output"])
def test_a_topic_that_lost_its_beginning_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, topic: str
) -> None:
    monkeypatch.setattr(subject, "KafkaEndOffsets", Broker)
    subject.require_whole(run_in(tmp_path / ID).plan)
    monkeypatch.setattr(Broker, "begins", {topic: {"0": 0, "1": 4200}})
    with pytest.raises(InfrastructureError) as raised:
        subject.require_whole(run_in(tmp_path / ID).plan)
    assert str(raised.value) == (
        f"topic {topic}: partition 1 begins at offset 4200, its first records were deleted before they were read; "
        "measure again"
    )


def test_what_the_engine_makes_lies_in_no_topic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "KafkaEndOffsets", Broker)
    monkeypatch.setattr(Broker, "asked", [])
    subject.require_whole(run_in(tmp_path / ID, {"workload": "nexmark", "query": "q8"}).plan)
    assert Broker.asked == []
