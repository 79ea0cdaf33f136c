"""Targets: checked before use except during an experiment, and not removed while in use."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from faultline.cli import run_command, target_command
from faultline.experiment.attempt import Attempt
from faultline.installation import service_users, supervision
from faultline.orchestration import connections
from faultline.system.errors import ConfigError, InfrastructureError
from faultline.system.settings import ROOT, Settings
from faultline.system.target_registry import EMBEDDED, Target, register

KEEPER = 4711


class Open(Attempt):
    """Attempt with the given target."""

    def read(self) -> dict[str, Any]:
        return {"config": {"target": "lab"}}


NAME = "20261127T000000Z-aaaaaa"


@pytest.fixture
def lab(tmp_path: Path) -> Settings:
    made = Settings(ROOT, tmp_path / "home", tmp_path / "results")
    register(made, LAB)
    return made


@pytest.fixture
def settings(lab: Settings, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Settings with one open attempt and running services."""
    folder = lab.attempts / NAME
    folder.mkdir(parents=True)
    for where in ("experiment.attempt", "orchestration.connections", "installation.supervision"):
        monkeypatch.setattr(f"faultline.{where}.open_attempts", lambda *_: [Open(folder)])
    monkeypatch.setattr("faultline.system.settings.load_settings", lambda: lab)
    monkeypatch.setattr("faultline.cli.service_control.require", lambda _: None)
    monkeypatch.setattr(connections.MachineLock, "holder", lambda _: None)
    run(monkeypatch, KEEPER)
    return lab


def run(monkeypatch: pytest.MonkeyPatch, keeper: int | None) -> None:
    for where in (service_users, connections, run_command):
        monkeypatch.setattr(where, "supervisor_pid", lambda _: keeper)


def test_a_target_is_not_checked_during_an_experiment(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[object] = []
    monkeypatch.setattr(connections, "import_target", lambda *_: looked.append(1))
    monkeypatch.setattr("faultline.installation.targets.preflight.run_preflight", lambda *_: looked.append(2))
    with pytest.raises(InfrastructureError, match=r"^machine: check failed: 20261127T000000Z-aaaaaa"):
        target_command.check("lab")
    monkeypatch.setattr(connections.MachineLock, "holder", lambda _: SimpleNamespace(text="another's"))
    with pytest.raises(InfrastructureError, match="^machine: check failed: another's"):
        target_command.check("lab")
    assert looked == []
    monkeypatch.setattr(connections.MachineLock, "holder", lambda _: None)
    run(monkeypatch, None)
    target_command.check("lab")
    assert looked == [1, 2], "an open attempt without services is orphaned"


def test_a_target_of_an_open_experiment_is_not_removed(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"^lab: removal failed: \S+-aaaaaa is running"):
        target_command.remove("lab")
    monkeypatch.setattr(supervision, "end_ledger", lambda _: None)
    lines: list[str] = []
    supervision.down(settings, lines.append)
    assert len(lines) == 1 and lines[0].startswith(f"experiment {NAME}: ")
    run(monkeypatch, None)
    with pytest.raises(ConfigError, match=r"^lab: removal failed: \S+-aaaaaa is orphaned"):
        target_command.remove("lab")


def test_a_run_reports_stopped_services(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    api = SimpleNamespace(trigger=lambda *_, **__: "r", run_state=lambda *_: "running")
    monkeypatch.setattr(run_command, "AirflowApi", lambda _: api)
    monkeypatch.setattr(run_command, "await_dags", lambda *_: None)
    monkeypatch.setattr(run_command, "current_attempt", lambda *_: None)
    monkeypatch.setattr(run_command, "POLL_S", 0.0)
    run(monkeypatch, None)
    with pytest.raises(InfrastructureError, match="^run: services stopped"):
        run_command._run_in_airflow(settings, {"sweep_id": "s"}, print)


LAB = Target("lab")


@pytest.mark.parametrize(
    ("holder", "looked"), [(None, ["import lab", "preflight lab"]), ("an experiment", ["check lab"])]
)
def test_a_target_is_checked_once_unless_an_experiment_is_running(
    lab: Settings, monkeypatch: pytest.MonkeyPatch, holder: str | None, looked: list[str]
) -> None:
    found: list[str] = []
    monkeypatch.setattr(connections, "active_experiment", lambda _: holder)
    monkeypatch.setattr(connections, "import_target", lambda _, one: found.append(f"import {one.name}"))
    monkeypatch.setattr(connections, "require_preflight", lambda _, one, __: found.append(f"preflight {one.name}"))
    monkeypatch.setattr(connections, "check_targets", lambda _, names: found.extend(f"check {name}" for name in names))
    connections.preflight_targets(lab, ["lab"], found.append)
    assert found == looked

    def wrong(*_: object) -> None:
        raise ConfigError("Connection faultline_kafka: extra: sasl.password: refused")

    monkeypatch.setattr(connections, "active_experiment", lambda _: None)
    monkeypatch.setattr(connections, "import_target", wrong)
    connections.preflight_targets(lab, [EMBEDDED], print)  # its services are not asked
    with pytest.raises(ConfigError, match="sasl.password: refused"):
        connections.preflight_targets(lab, [EMBEDDED, "lab"], print)
