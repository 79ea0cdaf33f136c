"""What a sweep's plan finds out of targets before any cell is tried."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from faultline.installation.targets.said import Said
from faultline.orchestration import connections as outside
from faultline.orchestration.external.hooks import ExternalHooks
from faultline.orchestration.targets import connections
from faultline.orchestration.targets.connections import look_before
from faultline.system.endpoints import EMBEDDED
from faultline.system.errors import ConfigError, InfrastructureError
from faultline.system.settings import ROOT, Settings
from faultline.system.target import Target, keep

LAB = Target("lab")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    made = Settings(ROOT, tmp_path / "home", tmp_path / "results")
    keep(made, LAB)
    return made


def test_a_target_is_looked_at_and_what_is_wrong_ends_the_plan(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []
    monkeypatch.setattr(connections, "at_work", lambda _: None)
    monkeypatch.setattr(connections, "prepare_target", lambda _, name: looked.append(name))
    look_before(settings, [EMBEDDED, "lab"])
    assert looked == ["lab"]

    def wrong(_: Settings, name: str) -> None:
        raise ConfigError("Connection faultline_kafka: extra: sasl.password: refused; mend it")

    monkeypatch.setattr(connections, "prepare_target", wrong)
    with pytest.raises(ConfigError, match="sasl.password: refused"):
        look_before(settings, ["lab"])


def test_one_that_does_not_answer_is_left_to_the_experiments(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def away(_: Settings, name: str) -> None:
        raise InfrastructureError("Connection faultline_kafka: lab:9092 does not answer")

    monkeypatch.setattr(connections, "at_work", lambda _: None)
    monkeypatch.setattr(connections, "prepare_target", away)
    look_before(settings, ["lab"])
    assert "lab:9092 does not answer; each experiment looks again" in capsys.readouterr().out


def test_an_experiment_at_work_is_not_disturbed_by_more_than_what_connections_say(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[tuple[Target, Mapping[str, Said]]] = []
    said = {name: Said(name) for name in LAB.connections}
    monkeypatch.setattr(connections, "at_work", lambda _: "an experiment")
    monkeypatch.setattr(connections, "prepare_target", lambda *_: pytest.fail("it is disturbed"))
    monkeypatch.setattr(connections, "said_in_task", lambda one: said)
    monkeypatch.setattr(connections, "check_said", lambda one, found: checked.append((one, found)))
    look_before(settings, ["lab"])
    assert checked == [(LAB, said)]


def test_a_target_of_an_external_airflow_is_as_the_tables_of_this_installation_say(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: dict[str, Said | None] = {name: Said(name) for name in LAB.connections}
    written: list[tuple[Target, dict[str, Said]]] = []
    monkeypatch.setattr(outside, "ask", lambda _, ids: outside.Answer(told))
    monkeypatch.setattr(outside, "write_target", lambda _, one, said: written.append((one, dict(said))))
    monkeypatch.setattr(outside, "require_well", lambda *given: None)
    hooks = ExternalHooks(settings, {"prefix": "theirs_", "run_id": "r", "connections": {}}, Path("/nowhere"))
    hooks.take_target(LAB)
    outside.look_at_targets(settings, ["lab", EMBEDDED])
    assert written == [(LAB, told)] * 2
    told["faultline_kafka"] = None
    with pytest.raises(ConfigError, match="Connection faultline_kafka: missing, and the target lab needs it"):
        outside.look_at_targets(settings, ["lab"])
