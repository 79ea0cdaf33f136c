"""Refusals before an attempt is made: capabilities of the engine and limits of the machine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from faultline.cli.run_command import parse_order
from faultline.engines.protocol import Capabilities
from faultline.experiment.config import Configuration, parse_configuration
from faultline.experiment.matrices import MATRICES
from faultline.lifecycle import prepare
from faultline.lifecycle.prepare import check_configuration
from faultline.system.errors import ConfigError


@dataclass
class Plain:
    """Engine with aligned commits, checkpoints and a driver."""

    name: str = "plain"
    roles: frozenset[str] = frozenset({"driver", "kafka"})
    parameters: frozenset[str] = frozenset({"spark_build"})
    capabilities: Capabilities = Capabilities(frozenset({"aligned"}), frozenset({"checkpoint"}), frozenset({"batch"}))
    checked: bool = False

    def check(self, config: Configuration) -> None:
        self.checked = True


SNAPSHOT = {"victim": "driver", "action": "kill", "at_s": 45, "cycle": "snapshot", "phase": 0.5}
CHECKPOINT = {**SNAPSHOT, "cycle": "checkpoint"}
AT_SNAPSHOT = {"fault_plan": {"faults": [SNAPSHOT]}, "commit_mode": "aligned-changelog", "duration_s": 200}


@pytest.mark.parametrize(
    ("values", "refused"),
    [
        ({"fault": "none"}, None),
        ({"fault": "driver"}, None),
        ({"fault_plan": {"faults": [CHECKPOINT]}, "duration_s": 100}, None),
        ({"fault": "none", "commit_mode": "none"}, "commit_mode: got none"),
        (AT_SNAPSHOT, "commit_mode: got aligned-changelog"),
        ({"fault": "none", "spark_build": "twin"}, None),
        (
            {"fault": "none", "jvm_options.driver": "-XX:+UseZGC"},
            "jvm_options: unsupported",
        ),
        ({"fault": "executor"}, "fault: got victim executor; expected driver, kafka"),
        ({"fault": "any"}, "fault: got victim any; expected driver, kafka"),
    ],
)
def test_an_engine_is_asked_for_what_it_can_do_only(
    values: dict[str, Any], refused: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Plain()
    monkeypatch.setattr(prepare, "engine_of", lambda config: engine)
    if refused is None:
        prepare.check_engine(parse_configuration(values))
    else:
        with pytest.raises(ConfigError) as caught:
            prepare.check_engine(parse_configuration(values))
        assert str(caught.value).startswith(refused)
    assert engine.checked is (refused is None)


def test_an_engine_without_snapshots_is_aimed_at_none(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Plain(capabilities=replace(Plain.capabilities, commit_modes=frozenset({"aligned-changelog"})))
    monkeypatch.setattr(prepare, "engine_of", lambda config: engine)
    with pytest.raises(ConfigError, match="^cycle: got snapshot"):
        prepare.check_engine(parse_configuration(AT_SNAPSHOT))


# --- what is refused before anything starts, since this machine cannot run it


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"rate": 500_000, "duration_s": 86_400}, "rate: got 500,000 records/s"),
        ({"partitions": 1024}, "partitions: got 1,026 tasks per batch"),
        (
            {"state_store": "memory", "commit_mode": "aligned-changelog"},
            "commit_mode: got aligned-changelog",
        ),
    ],
)
def test_what_this_machine_cannot_do_is_refused_with_the_remedy(
    values: dict[str, Any], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare.shutil, "disk_usage", lambda folder: type("Usage", (), {"free": 76e9}))
    with pytest.raises(ConfigError) as refused:
        check_configuration(parse_configuration(values))
    assert str(refused.value).startswith(expected)


@pytest.mark.parametrize("victim", ["driver", "kafka"])
def test_what_is_done_to_hosts_needs_some(victim: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare, "ssh_hosts", lambda settings: {})
    with pytest.raises(ConfigError, match=f"^fault_action: got disk_full of a {victim}; expected "):
        check_configuration(parse_configuration({"fault": victim, "fault_action": "disk_full"}))


def test_the_room_that_is_named_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare.shutil, "disk_usage", lambda folder: type("Usage", (), {"free": 76e9}))
    with pytest.raises(ConfigError, match="or duration_s to 3,020$"):
        check_configuration(parse_configuration({"rate": 500_000, "duration_s": 86_400}))
    check_configuration(parse_configuration({"rate": 500_000, "duration_s": 3_020}))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["rate=0.001"], "rate: got 0.001 records/s"),
        (["fault="], "fault: empty"),
        (["preset=smoke"], "preset: "),
        (["fault_at_s=35", 'fault_plan={"faults": [{"victim": "driver", "action": "kill", "at_s": 45}]}'],
         "fault_at_s: "),
    ],
)  # fmt: skip
def test_bad_words_of_one_experiment_are_refused_in_one_line(words: list[str], expected: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_order("word_count", words)
    assert str(refused.value).startswith(expected) and "\n" not in str(refused.value)


def test_mechanisms_that_stand_alone_are_not_joined() -> None:
    with pytest.raises(ConfigError, match="^mechanisms: "):
        parse_order("topology", ["mechanisms=all+none"])


def test_refused_points_are_reported_together() -> None:
    spec = MATRICES["input_rate"]
    params = spec.resolve({"preset": "smoke", "commit_mode": "unaligned", "workload": "word_count", "fault": "none",
                           "axes": {"checkpoint_interval_s": [1, 2, 5, 10]}})  # fmt: skip
    with pytest.raises(ConfigError) as refused:
        spec.matrix(params).configurations()
    text = str(refused.value)
    assert text.startswith("checkpoint_interval_s: ")
    assert "2 of 4" in text and "rate 100.0, checkpoint_interval_s 1; rate 100.0, checkpoint_interval_s 2)" in text
