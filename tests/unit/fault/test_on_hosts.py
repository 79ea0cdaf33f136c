"""Injections on hosts with fake agents: choice of the host, requests and undo.

Real ones: tests/component/test_host_faults.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fault.action import Context, Injection, PartialInjection
from fault.actions.hosts import WATCHDOG_MARGIN_S, peer_addresses
from fault.errors import ActionRefused, ConnectionLost, TooFewVictims, VictimRefused
from fault.identity import DRIVER, KAFKA, WORKER, Delivery, ProcessIdentity, Tokens
from fault.injector import FaultOutcome, Injector
from fault.plan import Fault, FaultPlan, PlannedFault
from fault.registry import ACTIONS
from fault.victims import VictimGuard
from tests.support.fake_clock import Moment
from tests.support.fake_clock import SimulatedHost as Agent

RUN, SERVICES = "20261121T061500Z-3fa9c1", "0123456789abcdef"
ADDRESSES = {"": "10.0.0.1", "kafka": "10.0.0.2", "worker-1": "10.0.0.3", "worker-2": "10.0.0.4"}
# Faults on Kafka's connections: test_impaired.py.
ON_HOSTS = [name for name, action in ACTIONS.items() if action.targets_hosts and action.resource is None]


def worker(number: int) -> ProcessIdentity:
    command = (f"-Dfaultline.instance={SERVICES}", WORKER.main, "--host", f"10.0.0.{number + 2}", "--port", "1")
    return ProcessIdentity(1000 + number, 1.0, WORKER, SERVICES, command, 5, node=f"10.0.0.{number + 2}:1")


def broker() -> ProcessIdentity:
    return ProcessIdentity(900, 1.0, KAFKA, SERVICES, (f"-Dfaultline.instance={SERVICES}", KAFKA.main), 5)


@pytest.fixture
def agents() -> dict[str, Agent]:
    return {"kafka": Agent.of(broker()), "worker-1": Agent.of(worker(1)), "worker-2": Agent.of(worker(2))}


def context(agents: Mapping[str, Agent], seed: int = 0, here: Agent | None = None) -> Context:
    tokens = Tokens(RUN, SERVICES)
    hosts = Injector(agents, here=here or Agent())
    disks = {name: f"/data/{name}" for name in agents}
    return Context(Path("/"), hosts, tokens, VictimGuard(tokens), Moment, seed=seed, addresses=ADDRESSES, disks=disks)


def untouched(agent: Agent) -> bool:
    return agent.times("find") == len(agent.asked)


def refusing(do: str, error: Exception) -> Callable[[str, Any], None]:
    def before(asked: str, what: Any) -> None:
        if asked == do:
            raise error

    return before


def planned(action: str, victim: str = "worker", **more: Any) -> PlannedFault:
    taken = {one.name: one.default for one in ACTIONS[action].parameters if one.default is not None}
    fault = Fault(victim, action, at_s=1.0, **{**taken, **more})
    return PlannedFault(0, fault, 1.0, 1.0, 11.0, "faults.0.at_s")


def act_on(known: Context, action: str, victim: str = "worker", **more: Any) -> Injection:
    one = planned(action, victim, **more)
    return one.fault.definition.driver.create_injection(one, known)


@pytest.mark.parametrize("action", ON_HOSTS)
@pytest.mark.parametrize("victim", ["worker", "kafka"])
def test_watchdog_starts_before_the_host_fault(agents: dict[str, Agent], action: str, victim: str) -> None:
    act, driver = act_on(context(agents), action, victim), ACTIONS[action].driver
    act.find_victims()
    act.find_victims()
    (named,) = act.victims()
    host = named["host"]
    assert host.startswith(victim) and named["role"] == victim
    undo = act.plan_undo()
    act.arm(Moment())
    sent = act.perform()
    assert [each.delivery for each in sent] == [Delivery.SENT]
    assert act.settle(sent).outcome is FaultOutcome.EFFECTIVE
    requests = [do for do, _ in agents[host].asked]
    assert requests.index("watch") < requests.index("do"), "before the act"
    later = next(what for do, what in agents[host].asked if do == "watch")
    assert later["seconds"] == 10.0 + WATCHDOG_MARGIN_S
    assert all(untouched(agent) for name, agent in agents.items() if name != host), "no other host is touched"
    assert all(driver.is_active(step, context(agents)) for step in undo)
    for step in undo:
        driver.undo(step, context(agents))
        driver.undo(step, context(agents))
        assert not driver.is_active(step, context(agents))
        assert json.loads(json.dumps(dict(step.fields)))["host"] == host
    asked = [what["asked"] for do, what in agents[host].asked if do != "find"]
    assert all(one == asked[0] for one in asked)


def test_partial_injection_lists_deliveries_and_probes_lost_replies(
    agents: dict[str, Agent],
) -> None:
    act = act_on(context(agents), "partition", count=2)
    act.find_victims()
    first, second = (named["host"] for named in act.victims())

    def lost(do: str, what: Mapping[str, Any]) -> None:
        if do == "do":
            agents[first].acts.add(what["name"])
            raise ConnectionLost("10.0.0.3", "do partition")

    agents[first].before = lost
    agents[second].before = refusing("do", ActionRefused("nft: busy"))
    with pytest.raises(PartialInjection, match="^nft: busy$") as caught:
        act.perform()
    assert [each.delivery for each in caught.value.deliveries] == [Delivery.UNKNOWN]
    agents[second].acts |= agents[first].acts
    assert act.settle(caught.value.deliveries).outcome is FaultOutcome.EFFECTIVE, "the hosts say that it holds"


def test_inactive_fault_has_no_effect(agents: dict[str, Agent]) -> None:
    agents["kafka"].effective = False
    act = act_on(context(agents), "partition", "kafka")
    act.find_victims()
    assert act.settle(act.perform()).outcome is FaultOutcome.NO_EFFECT


def test_unsupported_host_is_refused_before_the_start(agents: dict[str, Agent]) -> None:
    for agent in agents.values():
        agent.before = refusing("check", ActionRefused("nft: not on this host"))
    with pytest.raises(ActionRefused, match="^nft: "):
        act_on(context(agents), "partition").find_victims()


def test_seed_chooses_hosts_and_count_is_respected(agents: dict[str, Agent]) -> None:
    def chosen(seed: int, count: int = 1) -> list[str]:
        act = act_on(context(agents, seed), "partition", count=count)
        act.find_victims()
        return sorted(each["host"] for each in act.victims())

    assert {tuple(chosen(seed)) for seed in range(20)} == {("worker-1",), ("worker-2",)}
    assert chosen(3) == chosen(3) and chosen(1, 2) == ["worker-1", "worker-2"]
    with pytest.raises(TooFewVictims):
        chosen(1, 3)


def test_replaced_victim_is_updated_and_live_one_stays(
    agents: dict[str, Agent],
) -> None:
    act = act_on(context(agents), "partition", count=2)
    act.find_victims()
    first, second = act.victims()
    agent = agents[first["host"]]
    (former,) = agent.states
    successor = replace(former, pid=former.pid + 500, start_ticks=77)
    agent.start(successor)
    assert not act.find_victims() and act.victims() == [first, second], "it lives"
    agent.end(former)
    assert act.find_victims()
    assert [each["pid"] for each in act.victims()] == [successor.pid, second["pid"]]
    assert not act.find_victims()


def driver_process() -> ProcessIdentity:
    return ProcessIdentity(700, 1.0, DRIVER, RUN, (DRIVER.main, f"faultline-run={RUN}"), 5)


def test_driver_disk_full_uses_the_checkpoint_disk(agents: dict[str, Agent]) -> None:
    here = Agent.of(driver_process())
    known = context(agents, here=here)
    known = replace(known, disks={**known.disks, "": "/checkpoints"})
    act = act_on(known, "disk_full", "driver")
    act.find_victims()
    (undo,) = act.plan_undo()
    act.arm(Moment())
    assert act.settle(act.perform()).detail == "disk_full: active on this host"
    assert {what["asked"]["folder"] for do, what in here.asked if do != "find"} == {"/checkpoints"}
    driver = ACTIONS["disk_full"].driver
    driver.undo(undo, known)
    assert not driver.is_active(undo, known)
    assert all(map(untouched, agents.values()))


OWN_DISK = "^disk_full: .*up --hosts 3"


@pytest.mark.parametrize(
    ("action", "victim", "local", "disks", "message"),
    [
        ("disk_full", "worker", False, {}, r"^disk_full: missing disk of worker-[12]"),
        ("disk_full", "driver", True, {}, OWN_DISK),
        ("disk_full", "worker", True, {"": "/checkpoints"}, OWN_DISK),
        *((action, "worker", True, {}, f"^{action}: .*up --hosts 3") for action in ("partition", "delay", "loss")),
    ],
)
def test_missing_disk_and_local_victim_are_refused(
    agents: dict[str, Agent], action: str, victim: str, local: bool, disks: dict[str, str], message: str
) -> None:
    agents, here = {} if local else agents, Agent.of(driver_process(), worker(1))
    act = act_on(replace(context(agents, here=here), disks=disks), action, victim)
    with pytest.raises(VictimRefused, match=message):
        act.find_victims()
    assert all(map(untouched, (here, *agents.values())))


@pytest.mark.parametrize(
    ("peer", "host", "expected"),
    [
        ("all", "worker-1", ["10.0.0.1", "10.0.0.2", "10.0.0.4"]),
        ("kafka", "worker-1", ["10.0.0.2"]),
        ("driver", "worker-1", ["10.0.0.1"]),
        ("workers", "worker-1", ["10.0.0.4"]),
        ("workers", "kafka", ["10.0.0.3", "10.0.0.4"]),
    ],
)  # fmt: skip
def test_peers_are_the_addresses_of_a_kind_of_host(
    agents: dict[str, Agent], peer: str, host: str, expected: Sequence[str]
) -> None:
    assert peer_addresses(peer, host, context(agents)) == list(expected)
    with pytest.raises(VictimRefused, match="^peer: got kafka"):
        peer_addresses("kafka", "kafka", context(agents))


def test_plans_without_host_parameters_keep_their_text() -> None:
    """Their text is part of the configuration id."""
    plan = FaultPlan((Fault("executor", "kill", at_s=1.0),))
    assert set(plan.as_mapping()["faults"][0]) == {
        "victim", "action", "at_s", "at_record", "cycle", "phase", "duration_s", "delay_ms", "count", "every_s", "times"
    }  # fmt: skip
    cut = FaultPlan((Fault("kafka", "partition", at_s=1.0, duration_s=5.0, peer="workers", way="in"),))
    assert FaultPlan.from_mapping(json.loads(cut.to_json())) == cut
    (one,) = cut.resolve(rate=1.0, checkpoint_interval_s=1.0, snapshot_interval_s=1.0)
    assert one.describe() == "partition kafka from workers (in only) for 5 s at T0 + 1 s"
