"""Contract of each action on connections, with real ones: find, arm, perform, settle, undo, replay."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from fault.action import Action, Context, DaemonContext, Injection, UndoSpec
from fault.actions.processes import SignalDriver
from fault.errors import FaultError
from fault.fault_spec import DURATION
from fault.identity import Delivery, Presence, Tokens
from fault.injector import FaultOutcome, Injector
from fault.plan import Fault, FaultPlan
from fault.proxy_control import ProxyControl
from fault.registry import ACTIONS
from fault.victims import VictimGuard
from faultline.system.settings import free_port
from tests.support.fake_clock import Moment
from tests.unit.fault.conftest import until

# Actions on processes: test_signals.py; on hosts: test_on_hosts.py.
ON_CONNECTIONS = sorted(name for name, action in ACTIONS.items() if action.uses_proxy)
SECONDS = 120.0


class Bench:
    """One run: the proxy of an action, and the context of its injections."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tokens = Tokens(f"20261121T061500Z-{uuid.uuid4().hex[:6]}", uuid.uuid4().hex[:16])
        self._processes: list[subprocess.Popen[bytes]] = []
        self._sockets: list[socket.socket] = []

    def context(self) -> Context:
        return Context(self.folder, Injector(), self.tokens, VictimGuard(self.tokens), Moment)

    def daemons(self, action: Action) -> tuple[socket.socket, socket.socket]:
        """Start the action's daemons and yield both ends of a connection through the proxy."""
        upstream, detour = socket.create_server(("127.0.0.1", 0)), free_port()
        self._sockets.append(upstream)
        host, port = upstream.getsockname()
        for daemon in action.driver.prepare(DaemonContext(self.folder, f"{host}:{port}", f"{host}:{detour}")):
            command = [sys.executable, "-m", daemon.module, *daemon.arguments, f"faultline-run={self.tokens.run}"]
            self._processes.append(subprocess.Popen(command))
            until(daemon.ready.exists, f"{daemon.role} is ready")
        client = socket.create_connection((host, detour), SECONDS)
        server, _ = upstream.accept()
        server.settimeout(SECONDS)
        self._sockets += [client, server]
        return client, server

    def end(self) -> None:
        for one in self._sockets:
            one.close()
        for process in self._processes:
            process.terminate()
            process.wait(SECONDS)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.end()


def act_of(name: str, context: Context) -> Injection:
    fault = Fault("kafka", name, at_s=1.0, **ACTIONS[name].defaults)
    (planned,) = FaultPlan((fault,)).resolve(rate=1, checkpoint_interval_s=1, snapshot_interval_s=1)
    return planned.fault.definition.driver.create_injection(planned, context)


@pytest.mark.parametrize("name", sorted(ACTIONS))
def test_action_declaration_matches_its_driver(name: str, tmp_path: Path) -> None:
    action = ACTIONS[name]
    daemons = action.driver.prepare(DaemonContext(tmp_path, "127.0.0.1:1", "127.0.0.1:2"))
    assert bool(daemons) == action.uses_proxy
    assert all(daemon.ready.parent == tmp_path for daemon in daemons)
    assert hash(daemons) == hash(action.driver.prepare(DaemonContext(tmp_path, "127.0.0.1:1", "127.0.0.1:2")))
    assert bool(action.manual_undo) == bool(action.parameter(DURATION)), (
        "what is undone says what to do when that fails"
    )
    if isinstance(action.driver, SignalDriver):
        assert action.ends_victim == (action.driver.expected is Presence.GONE)
        assert bool(action.parameter(DURATION)) == (action.driver.expected is Presence.STOPPED)


@pytest.mark.parametrize("name", ON_CONNECTIONS)
def test_connection_injection_from_find_to_undo(name: str, bench: Bench) -> None:
    action, context = ACTIONS[name], bench.context()
    client, server = bench.daemons(action)
    act = act_of(name, context)
    assert not act.find_victims(), "a connection fault chooses no process"
    (named,) = act.victims()
    assert (named["role"], named["pid"]) == ("kafka_connection", None)
    (line,) = act.describe()
    assert line.startswith(f"would {name} the workload's connections to Kafka")
    undos = act.plan_undo()
    assert bool(undos) == bool(action.parameter(DURATION))
    act.arm(Moment())
    (sent,) = act.perform()
    assert (sent.victim, sent.role, sent.delivery) == (None, "kafka_connection", Delivery.SENT)
    assert act.settle([sent]).outcome is FaultOutcome.EFFECTIVE
    assert act.settle([sent]).detail == f"{name}: 1 connections"
    assert mode(bench)["mode"] == (name if action.parameter(DURATION) else "plain")
    assert mode(bench)["delay_ms"] == action.defaults.get("delay_ms", mode(bench)["delay_ms"])
    for undo in undos:
        undo = UndoSpec(undo.action, undo.name, json.loads(json.dumps(undo.fields)))  # as read by another process
        assert (undo.action, undo.fields) == (name, {})
        assert action.driver.is_active(undo, context)
        action.driver.undo(undo, context)
        action.driver.undo(undo, context)
        assert not action.driver.is_active(undo, context)
    if action.parameter(DURATION):
        client.sendall(b"all is plain")
        assert server.recv(100) == b"all is plain"
    else:
        with pytest.raises(ConnectionResetError):
            client.recv(1)


@pytest.mark.parametrize("name", ON_CONNECTIONS)
def test_injection_without_connections_has_no_effect(name: str, bench: Bench) -> None:
    ends = bench.daemons(ACTIONS[name])
    for one in ends:
        one.close()
    until(lambda: mode(bench)["connections"] == 0, "the proxy sees the end")
    act = act_of(name, bench.context())
    assert act.settle(act.perform()).outcome is FaultOutcome.NO_EFFECT


@pytest.mark.parametrize("name", ON_CONNECTIONS)
def test_missing_proxy_raises_and_needs_no_undo(name: str, bench: Bench) -> None:
    action, context = ACTIONS[name], bench.context()
    act = act_of(name, context)
    for call in (act.find_victims, act.perform):
        with pytest.raises(FaultError, match="no proxy behind"):
            call()
    undo = UndoSpec(name, "restore the proxy")
    assert not action.driver.is_active(undo, context)
    with pytest.raises(FaultError, match="no proxy behind"):
        action.driver.undo(undo, context)  # an undo replay must report it


def mode(bench: Bench) -> Mapping[str, Any]:
    return ProxyControl(bench.folder / "proxy.json").status()
