"""What is refused before anything is made: what the engine of a configuration says that it cannot do."""

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
    """An engine that has aligned commits, checkpoints and a driver."""

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
        ({"fault": "none", "commit_mode": "none"}, "commit_mode: the engine plain has no none; use aligned"),
        (AT_SNAPSHOT, "commit_mode: the engine plain has no aligned-changelog; use aligned"),
        ({"fault": "none", "spark_build": "twin"}, None),
        (
            {"fault": "none", "jvm_options.driver": "-XX:+UseZGC"},
            "jvm_options: the engine plain does not read it; leave it out",
        ),
        ({"fault": "executor"}, "victim: the engine plain has no executor; use driver, kafka"),
        ({"fault": "any"}, "victim: the engine plain has no any; use driver, kafka"),
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
        assert str(caught.value) == refused
    assert engine.checked is (refused is None)


def test_an_engine_without_snapshots_is_aimed_at_none(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Plain(capabilities=replace(Plain.capabilities, commit_modes=frozenset({"aligned-changelog"})))
    monkeypatch.setattr(prepare, "engine_of", lambda config: engine)
    with pytest.raises(ConfigError, match="^cycle: the engine plain has no snapshot cycle; leave it out$"):
        prepare.check_engine(parse_configuration(AT_SNAPSHOT))


# --- what is refused before anything starts, since this machine cannot run it


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"rate": 500_000, "duration_s": 86_400}, "rate: 500,000 records/s for 86,420 s take 2,160 GB at least, and "),
        ({"partitions": 1024}, "partitions: got 1,026 tasks per batch"),
        (
            {"state_store": "memory", "commit_mode": "aligned-changelog"},
            "commit_mode: got aligned-changelog",
        ),
    ],
)
def test_what_this_machine_cannot_do_is_refused_with_the_remedy(
    values: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare.shutil, "disk_usage", lambda folder: type("Usage", (), {"free": 76e9}))
    with pytest.raises(ConfigError) as refused:
        check_configuration(parse_configuration(values))
    assert str(refused.value).startswith(said)


@pytest.mark.parametrize(
    ("victim", "why"), [("driver", "of a driver needs a disk of the checkpoints' own"), ("kafka", "of a kafka is done")]
)
def test_what_is_done_to_hosts_needs_some(victim: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare, "ssh_hosts", lambda settings: {})
    with pytest.raises(ConfigError, match=f"^fault_action: disk_full {why}.*and there is none here; ./faultline down"):
        check_configuration(parse_configuration({"fault": victim, "fault_action": "disk_full"}))


def test_the_room_that_is_named_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare.shutil, "disk_usage", lambda folder: type("Usage", (), {"free": 76e9}))
    with pytest.raises(ConfigError, match="or duration_s to 3,020$"):
        check_configuration(parse_configuration({"rate": 500_000, "duration_s": 86_400}))
    check_configuration(parse_configuration({"rate": 500_000, "duration_s": 3_020}))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["rate=0.001"], "rate: 0.001 records/s make no record in 75 s; use at least 0.02"),
        (["fault="], "fault: is empty; give a value, or leave it out"),
        (["preset=smoke"], "preset: is of a sweep, and this is one experiment; see ./faultline sweep --help"),
        (["fault_at_s=35", 'fault_plan={"faults": [{"victim": "driver", "action": "kill", "at_s": 45}]}'],
         "fault_at_s: 35 is not when the plan's first fault comes (45 s)"),
    ],
)  # fmt: skip
def test_bad_words_of_one_experiment_are_refused_in_one_line(words: list[str], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_order("word_count", words)
    assert str(refused.value).startswith(said) and "\n" not in str(refused.value)


def test_mechanisms_that_stand_alone_are_not_joined() -> None:
    with pytest.raises(ConfigError, match=r"mechanisms: all stands alone, and 'all\+none' joins it to others; use all"):
        parse_order("topology", ["mechanisms=all+none"])


def test_points_that_are_refused_are_told_together() -> None:
    spec = MATRICES["input_rate"]
    params = spec.resolve({"preset": "smoke", "commit_mode": "unaligned", "workload": "word_count", "fault": "none",
                           "axes": {"checkpoint_interval_s": [1, 2, 5, 10]}})  # fmt: skip
    with pytest.raises(ConfigError) as refused:
        spec.matrix(params).configurations()
    assert str(refused.value).startswith(
        "checkpoint_interval_s: real-time mode (unaligned) has batches of 5 s at least"
    )
    assert str(refused.value).endswith(
        "(of 4 points 2 are refused: rate 100.0, checkpoint_interval_s 1; rate 100.0, checkpoint_interval_s 2)"
    )
