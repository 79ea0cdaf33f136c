"""Topics of an attempt keep what they are given until they are deleted."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from faultline.experiment.config import parse_configuration
from faultline.lifecycle import start as subject
from faultline.system.settings import load_settings


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("varied", [None, {"segment.bytes": "1048576"}])
def test_records_stay_however_long_the_run_and_however_late_its_harvest(
    monkeypatch: pytest.MonkeyPatch, varied: dict[str, str] | None, several: bool
) -> None:
    made: list[Any] = []
    done: Future[None] = Future()
    done.set_result(None)

    def create(topics: list[Any], **limits: float) -> dict[str, Future[None]]:
        made.extend(topics)
        return {topic.topic: done for topic in topics}

    monkeypatch.setattr(subject, "let_workload_in", lambda client: None)
    settings = load_settings()
    topics = {role: SimpleNamespace(name=f"t-{role}", partitions=4) for role in ("input", "output")}
    run: Any = SimpleNamespace(
        plan=SimpleNamespace(topics=topics, stamped_by_broker=several),
        there=settings,
        config=parse_configuration({"topic_conf": varied}),
        hooks=SimpleNamespace(kafka_admin=lambda: SimpleNamespace(create_topics=create)),
    )
    subject.provision_topics(run)
    assert [topic.topic for topic in made] == ["t-input", "t-output"]
    for topic, by_broker in zip(made, (False, several), strict=True):
        stamp = "LogAppendTime" if by_broker else "CreateTime"
        kept = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
        assert topic.config == {"message.timestamp.type": stamp, **kept, **(varied or {})}
