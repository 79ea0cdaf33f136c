"""Topics are harvested whole, or not at all."""

from __future__ import annotations

from typing import Any

import pytest

from faultline.engines.spark.engine import ENGINE
from faultline.experiment.config import parse_configuration
from faultline.experiment.plan import AttemptPlan, resolve, topic_partitions
from faultline.lifecycle import collect as subject
from faultline.system.endpoints import Endpoints
from faultline.system.errors import InfrastructureError
from faultline.system.settings import DEFAULT_PORTS


def plan(**values: Any) -> AttemptPlan:
    config = parse_configuration(values)
    topics = {role: f"t-{role}" for role in topic_partitions(config)}
    where = Endpoints.embedded(DEFAULT_PORTS)
    return resolve(
        config, engine="spark", repetition=0, endpoints=where, topics=topics, cycles=ENGINE.capabilities.cycles
    )


class Broker:
    """Its topics begin where `begins` says, else at 0."""

    begins: dict[str, dict[str, int]] = {}
    asked: list[str] = []

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._topic = topic

    def first(self, timeout_s: float) -> dict[str, int]:
        self.asked.append(self._topic)
        return self.begins.get(self._topic, {"0": 0, "1": 0})


@pytest.mark.parametrize("topic", ["t-input", "t-output"])
def test_a_topic_that_lost_its_beginning_is_refused(monkeypatch: pytest.MonkeyPatch, topic: str) -> None:
    monkeypatch.setattr(subject, "KafkaEndOffsets", Broker)
    subject.require_whole(plan())
    monkeypatch.setattr(Broker, "begins", {topic: {"0": 0, "1": 4200}})
    with pytest.raises(InfrastructureError) as raised:
        subject.require_whole(plan())
    assert str(raised.value) == (
        f"topic {topic}: partition 1 begins at offset 4200, its first records were deleted before they were read; "
        "measure again"
    )


def test_what_the_engine_makes_lies_in_no_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "KafkaEndOffsets", Broker)
    monkeypatch.setattr(Broker, "asked", [])
    subject.require_whole(plan(workload="nexmark", query="q8"))
    assert Broker.asked == []
