"""Delay and loss: on a host by its kernel or the relay, on Kafka connections by the relay."""

from __future__ import annotations

import asyncio
import json
import math
import random
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fault.actions import connections
from fault.errors import ActionRefused, KernelUnsupported, PlanError
from fault.injector import FaultOutcome
from fault.plan import Fault, FaultPlan
from fault.registry import ACTIONS
from fault.relay import MAX_RETRANSMITS, MIN_RETRANSMIT_S, SEGMENT_BYTES, Impairment
from fault.relay import Relay as Links
from tests.support.fake_clock import Moment
from tests.support.fake_clock import SimulatedHost as Agent
from tests.unit.fault.test_on_hosts import act_on, broker, context, planned, refusing, untouched, worker

SECONDS = 120.0


@dataclass
class Relay:
    """Record of the relay's commands."""

    commands: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)
    mode: str = "plain"

    def status(self) -> dict[str, Any]:
        return {"mode": self.mode, "connections": 9}

    def delay(self, ms: float, jitter_ms: float | None, only: Sequence[str] | None) -> int:
        self.commands.append(("delay", (ms, jitter_ms, only)))
        self.mode = "delay"
        return 3

    def loss(self, percent: float, only: Sequence[str] | None) -> int:
        self.commands.append(("loss", (percent, only)))
        self.mode = "loss"
        return 3

    def restore(self) -> None:
        self.mode = "plain"


@pytest.fixture
def relay(monkeypatch: pytest.MonkeyPatch) -> Relay:
    made = Relay()
    monkeypatch.setattr(connections, "ProxyControl", lambda path: made)
    return made


def agents(*, netem: bool = True) -> dict[str, Agent]:
    made = {"kafka": Agent.of(broker()), "worker-1": Agent.of(worker(1)), "worker-2": Agent.of(worker(2))}

    def lacks(do: str, what: dict[str, Any]) -> None:
        if do == "check" and what["kind"] == "delay":
            raise KernelUnsupported("10.0.0.3: netem: not in this host's kernel (unknown)")

    for agent in made.values() if not netem else ():
        agent.before = lacks
    return made


def test_kernel_delay_covers_both_directions(relay: Relay) -> None:
    hosts, driver = agents(), ACTIONS["delay"].driver
    act = act_on(context(hosts), "delay", jitter_ms=20.0)
    act.find_victims()
    (named,) = act.victims()
    (undo,) = act.plan_undo()
    act.arm(Moment())
    settled = act.settle(act.perform())
    assert settled.outcome is FaultOutcome.EFFECTIVE and settled.detail.endswith(", by the host's kernel")
    asked = next(what["asked"] for do, what in hosts[named["host"]].asked if do == "do")
    assert (asked["delay_ms"], asked["jitter_ms"]) == (400.0, 40.0)
    here = context(hosts)
    assert undo.fields["host"] == named["host"] and driver.is_active(undo, here)
    driver.undo(undo, here)
    assert not driver.is_active(undo, here) and relay.commands == []


def test_relay_replaces_a_kernel_without_netem(relay: Relay) -> None:
    hosts, driver = agents(netem=False), ACTIONS["delay"].driver
    act = act_on(context(hosts), "delay", jitter_ms=20.0)
    assert act.find_victims()
    assert not act.find_victims(), "it is found out once"
    (undo,) = act.plan_undo()
    act.arm(Moment())
    settled = act.settle(act.perform())
    assert settled.outcome is FaultOutcome.EFFECTIVE
    assert settled.detail == (
        "delay: 3 connections, by the relay, on its Kafka connections only: 10.0.0.3: netem: not in this host's "
        "kernel (unknown)"
    )
    ((command, (ms, jitter_ms, only)),) = relay.commands
    assert (command, ms, jitter_ms) == ("delay", 200.0, 20.0) and only in (["10.0.0.3"], ["10.0.0.4"])
    assert not any(do in ("do", "watch") for host in hosts.values() for do, _ in host.asked)
    here = context(hosts)
    assert "host" not in json.loads(json.dumps(dict(undo.fields))) and driver.is_active(undo, here)
    driver.undo(undo, here)
    assert not driver.is_active(undo, here)


def test_relay_follows_a_victim_to_its_new_host(relay: Relay) -> None:
    hosts = agents(netem=False)
    act = act_on(context(hosts), "delay", jitter_ms=20.0)
    act.find_victims()
    (named,) = act.victims()
    gone, other = named["host"], next(name for name in hosts if name not in ("kafka", named["host"]))
    hosts[gone].states.clear()
    assert act.find_victims(), "another host was chosen"
    (named,) = act.victims()
    assert named["host"] == other
    act.perform()
    ((_, (_, _, only)),) = relay.commands
    assert only == [{"worker-1": "10.0.0.3", "worker-2": "10.0.0.4"}[other]]


@pytest.mark.parametrize("action", ["delay", "loss"])
def test_other_host_refusals_are_raised(relay: Relay, action: str) -> None:
    hosts = agents()
    for host in hosts.values():
        host.before = refusing("check", ActionRefused("nft: not on this host"))
    with pytest.raises(ActionRefused, match="^nft: |^tc: "):
        act_on(context(hosts), action).find_victims()
    assert relay.commands == []


def test_kernel_drops_packets_of_a_host(relay: Relay) -> None:
    hosts = agents(netem=False)
    act = act_on(context(hosts), "loss", loss_percent=2.0)
    act.find_victims()
    act.arm(Moment())
    assert act.settle(act.perform()).detail.endswith(", by the host's kernel")
    asked = [what["asked"] for host in hosts.values() for do, what in host.asked if do == "do"]
    assert [(one["percent"], one["way"]) for one in asked] == [(2.0, "both")] and relay.commands == []


@pytest.mark.parametrize(("action", "command"), [("delay", (200.0, None, None)), ("loss", (5.0, None))])
def test_broker_faults_use_the_relay(relay: Relay, action: str, command: tuple[Any, ...]) -> None:
    hosts, one = agents(), planned(action, "kafka")
    assert one.fault.max_processes == 0 and not one.fault.needs_hosts
    assert one.describe().startswith(f"{action} the workload's connections to Kafka")
    assert planned(action).fault.needs_hosts
    act = act_on(context(hosts), action, "kafka")
    act.find_victims()
    assert act.settle(act.perform()).detail == f"{action}: 3 connections"
    assert relay.commands == [(action, command)] and all(map(untouched, hosts.values()))


def test_descriptions_name_the_target() -> None:
    delay, loss = ACTIONS["delay"], ACTIONS["loss"]
    assert delay.describe("kafka", {}) == "with the connections to Kafka delayed by 200 ms for 10 s"
    assert delay.describe("worker", {"delay_ms": 50}).startswith("with the network of the host of ")
    assert loss.describe("kafka", {}) == "with 5 % of the packets of the connections to Kafka lost for 10 s"
    assert loss.describe("worker", {}).startswith("with 5 % of the packets of the host of ")
    (one,) = FaultPlan((Fault("worker", "delay", at_s=1, duration_s=5, delay_ms=80, jitter_ms=8),)).resolve(
        rate=1, checkpoint_interval_s=1, snapshot_interval_s=1
    )
    assert one.describe() == "delay worker by 80 ms ± 8 ms for 5 s at T0 + 1 s"


@pytest.mark.parametrize(
    ("victim", "action", "more", "message"),
    [
        ("worker", "clock", {}, "^action: "),
        ("worker", "delay", {"jitter_ms": 300.0}, "^jitter_ms: "),
        ("worker", "loss", {"loss_percent": 100}, "^loss_percent: "),
        ("worker", "loss", {"loss_percent": 0}, "^loss_percent: "),
        ("worker", "loss", {"jitter_ms": 1}, "^jitter_ms: "),
        ("worker", "kill", {"loss_percent": 1}, "^loss_percent: "),
    ],
)
def test_invalid_parameters_are_refused_by_key(victim: str, action: str, more: dict[str, Any], message: str) -> None:
    taken = {} if action not in ACTIONS else ACTIONS[action].defaults
    with pytest.raises(PlanError, match=message):
        Fault(victim, action, at_s=1.0, **{**taken, **more})


# --- the relay's loss


UNIT = st.floats(0.0, 1.0, exclude_max=True)


@given(UNIT, UNIT, st.floats(0.0, 1.0), st.floats(0.0, 1.0), st.integers(0, 10**6))
def test_delay_stays_within_its_jitter_and_is_not_negative(
    first: float, second: float, delay_s: float, jitter_s: float, size: int
) -> None:
    held = Impairment(delay_s, jitter_s).seconds(size, (first, second))
    assert max(0.0, delay_s - jitter_s) - 1e-9 <= held <= delay_s + jitter_s + 1e-9
    assert Impairment(delay_s).seconds(size, (first, second)) == delay_s


@given(UNIT, st.floats(0.0001, 0.9), st.integers(0, 10**6))
def test_lost_bytes_arrive_after_a_doubling_timeout(luck: float, loss: float, size: int) -> None:
    held = Impairment(loss=loss).seconds(size, (0.5, luck))
    steps = [MIN_RETRANSMIT_S * (2**n - 1) for n in range(MAX_RETRANSMITS + 1)]
    assert any(math.isclose(held, one, abs_tol=1e-9) for one in steps)
    assert held == 0.0 or size > 0


@pytest.mark.parametrize(("size", "packets"), [(1, 1), (SEGMENT_BYTES, 1), (SEGMENT_BYTES + 1, 2), (10**6, 3)])
@pytest.mark.parametrize("loss", [0.01, 0.3])
def test_loss_rate_matches_also_for_retransmits(size: int, packets: int, loss: float) -> None:
    chance, hold, tries = random.Random(7), Impairment(loss=loss), 40_000
    held = [hold.seconds(size, (chance.random(), chance.random())) for _ in range(tries)]
    lost = [one for one in held if one > 0]

    def near(count: int, of: int, share: float) -> bool:
        return abs(count - of * share) <= 5 * math.sqrt(of * share * (1 - share)) + 1

    assert near(len(lost), tries, 1 - (1 - loss) ** packets)
    assert near(sum(one > 1.5 * MIN_RETRANSMIT_S for one in lost), len(lost), loss)


# --- links that end at instants hard to hit with a real connection


def test_link_closed_while_opening_is_reset_on_both_sides() -> None:
    """The upstream end connects after the link is closed."""
    with socket.create_server(("127.0.0.1", 0)) as upstream, socket.socket() as client:
        upstream.settimeout(SECONDS)
        asyncio.run(_broken_off_while_opening(upstream, client))
        server, _ = upstream.accept()
        with server:
            server.settimeout(SECONDS)
            for end in (client, server):
                with pytest.raises(ConnectionResetError):
                    end.recv(1)


async def _broken_off_while_opening(upstream: socket.socket, client: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    links, over, connect = Links(upstream.getsockname()), asyncio.Event(), loop.create_connection

    async def connect_late(protocol: Callable[[], asyncio.Protocol], *address: object) -> object:
        # The socket exists before its protocol is notified.
        return await connect(lambda: ended_before(protocol()), *address)  # type: ignore[call-overload]

    def ended_before(protocol: asyncio.Protocol) -> asyncio.Protocol:
        for link in links.links:
            link.abort()
        over.set()
        return protocol

    loop.create_connection = connect_late  # type: ignore[method-assign, assignment]
    listening = await loop.create_server(links.accept, "127.0.0.1", 0)
    client.setblocking(False)
    async with asyncio.timeout(SECONDS):
        await loop.sock_connect(client, listening.sockets[0].getsockname())
        await over.wait()
        while links.links:
            await asyncio.sleep(0)
    client.settimeout(SECONDS)
    listening.close()
