"""`./faultline up --foreground`: refusals, and which services it ends."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from faultline.cli import service_control
from faultline.cli.external_command import run_in_foreground
from faultline.installation import supervision
from faultline.installation.service_users import ENVIRONMENT, admit_steps, hold_foreground, is_for_runs, use_services
from faultline.installation.supervisord import Supervisor
from faultline.system.errors import ConfigError
from faultline.system.settings import INSTANCE, load_settings


class Services:
    """Fake services, which start completely unless `comes_up` says otherwise."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.known: dict[str, str] = {}
        self.done: list[str] = []
        self.comes_up: dict[str, str] = {}
        self.breaks = True

    def bring_up(self, *given: Any, **named: Any) -> Any:
        self.done.append("up")
        self.known |= self.comes_up
        if self.breaks:
            raise ConfigError("a broken jar")
        return load_settings()

    def down(self, *given: Any) -> list[int]:
        self.done.append("down")
        return []


@pytest.fixture
def services(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Services]:
    made = Services(tmp_path)
    monkeypatch.setenv("FAULTLINE_HOME", str(tmp_path))
    monkeypatch.setenv("FAULTLINE_RESULTS", str(tmp_path / "results"))
    monkeypatch.setattr(service_control, "require", lambda settings: None)
    monkeypatch.setattr(service_control, "bring_up", made.bring_up)
    monkeypatch.setattr(supervision, "down", made.down)
    monkeypatch.setattr(Supervisor, "states", lambda self: made.known)
    monkeypatch.setattr(Supervisor, "is_running", lambda self: bool(made.known))
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield made
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("known", "by", "ends"),
    [
        ({}, None, True),
        ({"kafka": "RUNNING"}, None, False),
        # State of a killed process.
        ({"kafka": "RUNNING"}, "foreground", True),
    ],
)
def test_it_ends_the_services_that_it_started(
    services: Services, known: dict[str, str], by: str | None, ends: bool
) -> None:
    services.known = known
    (services.home / INSTANCE).write_text(json.dumps({"instance": "i", "by": by}))
    with pytest.raises(ConfigError, match="a broken jar"):
        run_in_foreground()
    assert services.done == (["up", "down"] if ends else ["up"])


def test_services_that_a_run_uses_are_left_to_it_and_a_second_one_ends_nothing(services: Services) -> None:
    settings = load_settings()
    with hold_foreground(settings), pytest.raises(ConfigError, match="another process holds the services"):
        run_in_foreground()
    assert services.done == []
    with use_services(settings) as alone:
        with pytest.raises(ConfigError, match="a broken jar"):
            run_in_foreground()
        assert services.done == ["up"]
        assert is_for_runs(settings) and alone(), "the run ends them"


def test_what_is_missing_is_refused_before_anything_is_done(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    def require(settings: Any) -> None:
        raise ConfigError("no Java")

    monkeypatch.setattr(service_control, "require", require)
    with pytest.raises(ConfigError, match="no Java"):
        run_in_foreground()
    assert services.done == [] and list(services.home.iterdir()) == []


@pytest.mark.parametrize(
    ("known", "comes_up", "expected", "done"),
    [
        ({"kafka": "RUNNING", "airflow-scheduler": "BACKOFF"}, {}, "^--foreground: ", []),
        ({"airflow-scheduler": "STOPPED"}, {}, "a broken jar", ["up"]),
        ({}, {"airflow-scheduler": "RUNNING"}, "a broken jar", ["up"]),
    ],
    ids=["runs", "stopped", "came up meanwhile"],
)
def test_an_airflow_of_faultlines_own_is_left_up(
    services: Services, known: dict[str, str], comes_up: dict[str, str], expected: str, done: list[str]
) -> None:
    services.known, services.comes_up = known, comes_up
    with pytest.raises(ConfigError, match=expected):
        run_in_foreground()
    assert services.done == done


def test_steps_may_begin_once_all_is_up_and_what_ended_is_closed(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, seen = load_settings(), list[bool]()
    admit_steps(settings)

    def close(*_: object) -> None:
        seen.append((services.home / ENVIRONMENT).exists())

    def stop() -> None:
        seen.append((services.home / ENVIRONMENT).exists())
        raise SystemExit(0)

    monkeypatch.setattr(service_control, "close_orphans", close)
    monkeypatch.setattr(signal, "pause", stop)
    with pytest.raises(ConfigError, match="a broken jar"):
        run_in_foreground()
    assert not (services.home / ENVIRONMENT).exists(), "of the start before"
    services.breaks = False
    with pytest.raises(SystemExit):
        run_in_foreground()
    assert seen == [False, True]
