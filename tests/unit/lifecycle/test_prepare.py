"""What is refused before anything is made: what the engine of a configuration says that it cannot do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from faultline.engines.base import Capabilities
from faultline.experiment.config import Configuration, parse_configuration
from faultline.lifecycle import prepare
from faultline.system.errors import ConfigError


@dataclass
class Plain:
    """An engine that has aligned commits, checkpoints and a driver."""

    name: str = "plain"
    roles: frozenset[str] = frozenset({"driver", "kafka"})
    capabilities: Capabilities = Capabilities(frozenset({"aligned"}), frozenset({"checkpoint"}), frozenset({"batch"}))
    checked: bool = False

    def check(self, config: Configuration) -> None:
        self.checked = True


SNAPSHOT = {"victim": "driver", "action": "kill", "at_s": 45, "cycle": "snapshot", "phase": 0.5}
CHECKPOINT = {**SNAPSHOT, "cycle": "checkpoint"}


@pytest.mark.parametrize(
    ("values", "refused"),
    [
        ({"fault": "none"}, None),
        ({"fault": "driver"}, None),
        ({"fault_plan": {"faults": [CHECKPOINT]}, "duration_s": 100}, None),
        ({"fault": "none", "commit_mode": "none"}, "commit_mode: the engine plain has no none; use aligned"),
        (
            {"fault_plan": {"faults": [SNAPSHOT]}, "commit_mode": "aligned-changelog", "duration_s": 200},
            "commit_mode: the engine plain has no aligned-changelog; use aligned",
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
    modes = frozenset({"aligned-changelog"})
    engine = Plain(capabilities=Capabilities(modes, frozenset({"checkpoint"}), frozenset({"batch"})))
    monkeypatch.setattr(prepare, "engine_of", lambda config: engine)
    values = {"fault_plan": {"faults": [SNAPSHOT]}, "commit_mode": "aligned-changelog", "duration_s": 200}
    with pytest.raises(ConfigError, match="^cycle: the engine plain has no snapshot cycle; leave it out$"):
        prepare.check_engine(parse_configuration(values))
