"""Targets are looked at before experiments on them are asked for, but where a look would disturb one."""

from __future__ import annotations

from typing import Any

import pytest

from faultline.orchestration import connections
from faultline.system.errors import ConfigError
from faultline.system.settings import ROOT, Settings
from faultline.system.target import EMBEDDED, Target, keep

LAB = Target("lab")


@pytest.fixture
def settings(tmp_path: Any) -> Settings:
    made = Settings(ROOT, tmp_path / "home", tmp_path / "results")
    keep(made, LAB)
    return made


@pytest.mark.parametrize(("holder", "looked"), [(None, ["said lab", "well lab"]), ("an experiment", ["ahead lab"])])
def test_a_target_is_looked_at_once_unless_something_is_measured(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, holder: str | None, looked: list[str]
) -> None:
    found: list[str] = []
    monkeypatch.setattr(connections, "at_work", lambda _: holder)
    monkeypatch.setattr(connections, "take_in", lambda _, one: found.append(f"said {one.name}"))
    monkeypatch.setattr(connections, "require_well", lambda _, one, __: found.append(f"well {one.name}"))
    monkeypatch.setattr(connections, "look_ahead", lambda _, names: found.extend(f"ahead {name}" for name in names))
    connections.require_targets(settings, ["lab"], found.append)
    assert found == looked


def test_what_is_wrong_is_raised_and_the_embedded_services_are_not_asked(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(*_: object) -> None:
        raise ConfigError("Connection faultline_kafka: extra: sasl.password: refused; mend it")

    monkeypatch.setattr(connections, "at_work", lambda _: None)
    monkeypatch.setattr(connections, "take_in", wrong)
    connections.require_targets(settings, [EMBEDDED], print)
    with pytest.raises(ConfigError, match="sasl.password: refused"):
        connections.require_targets(settings, [EMBEDDED, "lab"], print)
