"""Targets: looked at before they are needed, unless that disturbs an experiment, and never forgotten under one."""

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
    """One whose folder says on which target it is."""

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
    """With one open attempt, and services that run until a test says otherwise."""
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


def test_it_is_not_looked_at_while_an_experiment_is_at_work(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    assert looked == [1, 2], "what is open without services was cut off"


def test_it_is_not_forgotten_while_its_logins_are_needed_and_down_names_what_it_cut_off(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=r"^lab: removal failed: \S+-aaaaaa is running"):
        target_command.remove("lab")
    monkeypatch.setattr(supervision, "end_ledger", lambda _: None)
    said: list[str] = []
    supervision.down(settings, said.append)
    assert said == [f"experiment {NAME} was cut off; the next `up` closes it, and removes what is left of it"]
    run(monkeypatch, None)
    with pytest.raises(ConfigError, match=r"^lab: removal failed: \S+-aaaaaa is orphaned"):
        target_command.remove("lab")


def test_a_run_whose_services_were_ended_says_that(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    api = SimpleNamespace(trigger=lambda *_, **__: "r", run_state=lambda *_: "running")
    monkeypatch.setattr(run_command, "AirflowApi", lambda _: api)
    monkeypatch.setattr(run_command, "await_dags", lambda *_: None)
    monkeypatch.setattr(run_command, "current_attempt", lambda *_: None)
    monkeypatch.setattr(run_command, "POLL_S", 0.0)
    run(monkeypatch, None)
    with pytest.raises(InfrastructureError, match="^run: services stopped"):
        run_command._run_in_airflow(settings, {"sweep_id": "s"}, print)


LAB = Target("lab")


@pytest.mark.parametrize(("holder", "looked"), [(None, ["said lab", "well lab"]), ("an experiment", ["ahead lab"])])
def test_a_target_is_looked_at_once_unless_something_is_measured_and_what_is_wrong_is_raised(
    lab: Settings, monkeypatch: pytest.MonkeyPatch, holder: str | None, looked: list[str]
) -> None:
    found: list[str] = []
    monkeypatch.setattr(connections, "active_experiment", lambda _: holder)
    monkeypatch.setattr(connections, "import_target", lambda _, one: found.append(f"said {one.name}"))
    monkeypatch.setattr(connections, "require_preflight", lambda _, one, __: found.append(f"well {one.name}"))
    monkeypatch.setattr(connections, "check_targets", lambda _, names: found.extend(f"ahead {name}" for name in names))
    connections.preflight_targets(lab, ["lab"], found.append)
    assert found == looked

    def wrong(*_: object) -> None:
        raise ConfigError("Connection faultline_kafka: extra: sasl.password: refused; mend it")

    monkeypatch.setattr(connections, "active_experiment", lambda _: None)
    monkeypatch.setattr(connections, "import_target", wrong)
    connections.preflight_targets(lab, [EMBEDDED], print)  # its services are not asked
    with pytest.raises(ConfigError, match="sasl.password: refused"):
        connections.preflight_targets(lab, [EMBEDDED, "lab"], print)
