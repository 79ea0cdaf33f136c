"""Topics of an attempt keep what they are given until they are deleted."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from faultline.experiment.attempt import Attempt
from faultline.system.settings import load_settings
from faultline.experiment.config import parse_configuration
from faultline.orchestration import kafka as subject


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("varied", [None, {"segment.bytes": "1048576"}])
def test_records_stay_however_long_the_run_and_however_late_its_harvest(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, varied: dict[str, str] | None, several: bool
) -> None:
    made: list[Any] = []
    done: Future[None] = Future()
    done.set_result(None)

    def create(topics: list[Any], **limits: float) -> dict[str, Future[None]]:
        made.extend(topics)
        return {topic.topic: done for topic in topics}

    client = SimpleNamespace(get_conn=SimpleNamespace(create_topics=create))
    monkeypatch.setattr(subject, "KafkaAdminClientHook", lambda kafka_config_id: client)
    monkeypatch.setattr(subject, "let_workload_in", lambda client: None)
    topics = {role: SimpleNamespace(name=f"t-{role}", partitions=4) for role in ("input", "output")}
    plan = SimpleNamespace(topics=topics, endpoints=load_settings().endpoints, stamped_by_broker=several)
    monkeypatch.setattr(subject, "plan_of", lambda attempt: plan)
    monkeypatch.setattr(subject, "configuration_of", lambda attempt: parse_configuration({"topic_conf": varied}))
    subject.create_topics(Attempt(tmp_path))
    assert [topic.topic for topic in made] == ["t-input", "t-output"]
    for topic, by_broker in zip(made, (False, several), strict=True):
        stamp = "LogAppendTime" if by_broker else "CreateTime"
        kept = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
        assert topic.config == {"message.timestamp.type": stamp, **kept, **(varied or {})}
