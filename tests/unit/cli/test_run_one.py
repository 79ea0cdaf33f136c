"""`run` without Airflow stops the services that it started, unless another command uses them."""

from __future__ import annotations

import io
import json
import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from faultline.cli import run_command, service_control
from faultline.cli.main import Interrupted
from faultline.cli.service_control import bring_up
from faultline.cli.sweep_progress import ProgressLine
from faultline.experiment.attempt import write_json
from faultline.experiment.config import parse_configuration
from faultline.installation import server_proof
from faultline.installation.service_users import ENVIRONMENT
from faultline.lifecycle.prepare import Order
from faultline.lifecycle.progress import Phase
from faultline.system.errors import InfrastructureError
from faultline.system.files import write_private
from faultline.system.journal import JournalCache
from faultline.system.process_tags import INSTANCE_MARK
from faultline.system.secrets import make_secrets, read_secrets
from faultline.system.settings import ROOT, Settings
from faultline.system.waiting import wait_until

CONFIG = parse_configuration({})
LEFT = "services: kept for another process; `./faultline down` stops them"


@dataclass
class Desk:
    """Installation with simulated services and runs that last until `end`."""

    settings: Settings
    running: bool = False
    downs: int = 0
    under_way: dict[str, threading.Event] = field(default_factory=dict)
    lines: dict[str, list[str]] = field(default_factory=dict)
    pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(4))

    def up(self, settings: Settings, *_: object, **__: object) -> Settings:
        self.running = True
        return settings

    def down(self, *_: object) -> None:
        self.running, self.downs = False, self.downs + 1

    def run(self, name: str) -> Future[None]:
        """Start a run and return when it is measuring."""
        self.lines[name] = []
        run = self.pool.submit(run_command._run_in_process, Order(CONFIG, sweep_id=name), self.lines[name].append)
        wait_until(lambda: name in self.under_way or run.done(), timeout_s=120, what=name)
        return run

    def measure(self, order: Order, *_: object) -> None:
        end = self.under_way[str(order.sweep_id)] = threading.Event()
        assert end.wait(120)
        if order.sweep_id == "broken":
            raise InfrastructureError("broken")

    def end(self, name: str, run: Future[None]) -> list[str]:
        """End a run and return its progress lines."""
        self.under_way[name].set()
        run.result(20)
        return self.lines[name]


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    desk = Desk(Settings(ROOT, tmp_path / "home", tmp_path / "results"))
    for module in (service_control, run_command):
        monkeypatch.setattr(module, "load_settings", lambda: desk.settings)
        monkeypatch.setattr(module, "Supervisor", lambda _: SimpleNamespace(is_running=lambda: desk.running))
    monkeypatch.setenv(service_control.CREDENTIALS_ENV, "")
    java = SimpleNamespace(executable=Path("java"), home=Path("/"))
    for name, fake in {"require": lambda _: java, "make_archive": lambda *_: None, "up": desk.up}.items():
        monkeypatch.setattr(service_control, name, fake)
    for name, fake in {"find_target": lambda *_: None, "down": desk.down, "_measure": desk.measure}.items():
        monkeypatch.setattr(run_command, name, fake)
    yield desk
    for end in desk.under_way.values():
        end.set()
    desk.pool.shutdown()


def test_a_run_stops_its_services_unless_another_run_uses_them(desk: Desk) -> None:
    assert desk.end("a", desk.run("a")) == [] and desk.downs == 1
    with pytest.raises(InfrastructureError, match="broken"):
        desk.end("broken", desk.run("broken"))
    assert desk.lines["broken"] == [] and desk.downs == 2
    first, last = desk.run("first"), desk.run("last")
    assert desk.end("first", first) == [LEFT] and desk.downs == 2
    assert desk.end("last", last) == [] and desk.downs == 3


def test_run_and_up_do_not_change_the_environment_of_steps(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAULTLINE_MACHINE", "of the run")
    file = desk.settings.home / ENVIRONMENT
    desk.end("a", desk.run("a"))
    bring_up(print, airflow=False)
    assert not file.exists()
    write_private(file, "of `up --foreground`")
    desk.end("b", desk.run("b"))
    assert file.read_text() == "of `up --foreground`"


def test_services_used_by_another_command_are_kept(desk: Desk) -> None:
    a = desk.run("a")
    bring_up(print, airflow=False)
    assert desk.end("a", a) == [LEFT] and desk.downs == 0
    assert desk.end("b", desk.run("b")) == [] and desk.downs == 0, "it found them up, and says nothing"


def test_a_command_waits_for_the_shutdown_and_restarts_the_services(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    ending, ended = threading.Event(), threading.Event()

    def down(*_: object) -> None:
        ending.set()
        assert ended.wait(120)
        desk.down()

    monkeypatch.setattr(run_command, "down", down)
    a = desk.run("a")
    desk.under_way["a"].set()
    assert ending.wait(120)
    joined = desk.pool.submit(bring_up, print)
    with pytest.raises(TimeoutError):
        joined.result(0.2)
    ended.set()
    a.result(20)
    joined.result(20)
    assert desk.running and desk.downs == 1


def test_an_interrupted_run_stops_its_progress_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, lines = Settings(ROOT, tmp_path, tmp_path / "results"), list[str]()
    settings.logs.mkdir()

    def interrupted(*_: object) -> None:
        assert os.environ[INSTANCE_MARK] == "0"
        raise Interrupted

    monkeypatch.setattr(run_command, "run", interrupted)
    monkeypatch.delenv(INSTANCE_MARK, raising=False)
    write_json(settings.home / "instance.json", {"instance": "0"})
    before = threading.active_count()
    with pytest.raises(Interrupted):
        run_command._measure(Order(CONFIG, sweep_id="s"), settings, lines.append)
    assert threading.active_count() == before and lines[0].startswith("interrupted")
    assert INSTANCE_MARK not in os.environ


class Health(BaseHTTPRequestHandler):
    """Health endpoint of an Airflow; with `key`, it also answers the authentication challenge."""

    key: str | None = None

    def do_GET(self) -> None:
        challenge = self.path.partition("challenge=")[2]
        port = self.server.server_address[1]  # type: ignore[index]
        reply: object = (
            server_proof.compute_proof(self.key or "", challenge, port)
            if challenge
            else {"scheduler": {"status": "healthy"}}
        )
        self.send_response(200)
        self.end_headers()
        # Airflow answers unknown addresses with a page.
        self.wfile.write(b"<html>" if challenge and self.key is None else json.dumps(reply).encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("own", [True, False])
def test_an_airflow_of_another_installation_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: bool
) -> None:
    settings = Settings(ROOT, tmp_path, tmp_path / "results")
    make_secrets(settings.secrets)
    monkeypatch.setattr(Health, "key", read_secrets(settings.secrets).proof if own else None)
    with HTTPServer(("127.0.0.1", 0), Health) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        there = replace(settings, ports={**settings.ports, "airflow": server.server_address[1]})
        assert run_command._is_healthy(there, "scheduler") is own
        assert not run_command._is_healthy(there, "triggerer")
        server.shutdown()


@pytest.mark.parametrize(("left_s", "left"), [(95.0, ", about 2 min left"), (None, "")])
def test_the_progress_line_shows_phase_and_time_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left_s: float | None, left: str
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(run_command, "current_attempt", lambda *_: SimpleNamespace(id="a1"))
    monkeypatch.setattr(run_command, "phase_of", lambda *_, **__: Phase("warm-up", "T0 + 3 s", left_s))
    line = ProgressLine(lines.append, io.StringIO())
    for _ in range(2):
        run_command._show(Settings(ROOT, tmp_path, tmp_path), "s", line, JournalCache())
    assert lines == [f"a1: warm-up, T0 + 3 s{left}"]
