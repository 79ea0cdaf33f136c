"""Acts on hosts, seen from here: which host is chosen, what its agent is asked, and how it is undone. The agents are
made up; real ones are in tests/component/test_host_acts.py."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from fault.action import Context, HalfDone, Moment
from fault.actions.hosts import LATE_S, others
from fault.errors import ActRefused, ConnectionLost, PlanError, TooFewVictims, VictimRefused
from fault.identity import DRIVER, KAFKA, WORKER, Delivery, ProcessIdentity, Tokens
from fault.injector import Injector, Outcome
from fault.plan import Fault, FaultPlan, PlannedFault
from fault.registry import ACTIONS
from fault.victims import Guard

RUN, SERVICES = "20261121T061500Z-3fa9c1", "0123456789abcdef"
ADDRESSES = {"": "10.0.0.1", "kafka": "10.0.0.2", "worker-1": "10.0.0.3", "worker-2": "10.0.0.4"}
# What is done to Kafka's connections instead of its host is in test_impaired.py.
ON_HOSTS = [name for name, action in ACTIONS.items() if action.on_hosts and action.hits is None]


@dataclass(frozen=True)
class Now:
    wall_ns: int = 1
    mono_ns: int = 1


@dataclass
class Agent:
    """A host's agent, which does what it is told and notes it."""

    processes: tuple[ProcessIdentity, ...] = ()
    refuses: bool = False
    effective: bool = True
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    done: set[str] = field(default_factory=set)

    def ask(self, do: str, **what: Any) -> Any:
        if do == "find":
            return [one for one in self.processes if one.role.name == what["victim"]]
        json.dumps(what)
        step = what.pop("step", do)
        self.asked.append((step, what))
        if step == "check" and self.refuses:
            raise ActRefused("nft: not on this host")
        if step == "do" and self.effective:
            self.done.add(what["name"])
        if step == "undo":
            self.done.discard(what["name"])
        return what["name"] in self.done if step == "holds" else None

    def close(self) -> None:
        """It has no connection."""


def worker(number: int) -> ProcessIdentity:
    command = (f"-Dfaultline.instance={SERVICES}", WORKER.main, "--host", f"10.0.0.{number + 2}", "--port", "1")
    return ProcessIdentity(1000 + number, 1.0, WORKER, SERVICES, command, 5, node=f"10.0.0.{number + 2}:1")


def broker() -> ProcessIdentity:
    return ProcessIdentity(900, 1.0, KAFKA, SERVICES, (f"-Dfaultline.instance={SERVICES}", KAFKA.main), 5)


@pytest.fixture
def agents() -> dict[str, Agent]:
    return {"kafka": Agent((broker(),)), "worker-1": Agent((worker(1),)), "worker-2": Agent((worker(2),))}


def context(agents: Mapping[str, Agent], seed: int = 0) -> Context:
    tokens = Tokens(RUN, SERVICES)
    hosts = Injector({"": Agent(), **agents})
    disks = {name: f"/data/{name}" for name in agents}
    now: Moment = Now()
    return Context(Path("/"), hosts, tokens, Guard(tokens), lambda: now, seed=seed, addresses=ADDRESSES, disks=disks)


def planned(action: str, victim: str = "worker", **more: Any) -> PlannedFault:
    taken = {one.name: one.short for one in ACTIONS[action].parameters if one.short is not None}
    fault = Fault(victim, action, at_s=1.0, **{**taken, **more})
    return PlannedFault(0, fault, 1.0, 1.0, 11.0, "faults.0.at_s")


@pytest.mark.parametrize("action", ON_HOSTS)
@pytest.mark.parametrize("victim", ["worker", "kafka"])
def test_the_host_of_the_victim_is_told_after_somebody_was_posted_there(
    agents: dict[str, Agent], action: str, victim: str
) -> None:
    one = planned(action, victim)
    act = one.fault.how.hands.act(one, context(agents))
    act.find()
    act.find()
    (named,) = act.victims()
    host = named["host"]
    assert host.startswith(victim) and named["role"] == victim
    undo = act.undo()
    act.arm(Now())
    sent = act.perform()
    assert [each.delivery for each in sent] == [Delivery.SENT]
    assert act.settle(sent).outcome is Outcome.EFFECTIVE
    said = [do for do, _ in agents[host].asked]
    assert said.index("watch") < said.index("do"), "before the act"
    later = next(what for do, what in agents[host].asked if do == "watch")
    assert later["seconds"] == 10.0 + LATE_S
    assert all(not agent.asked for name, agent in agents.items() if name != host), "no other host is touched"
    hands = one.fault.how.hands
    assert all(hands.holds(step, context(agents)) for step in undo)
    for step in undo:
        hands.undo(step, context(agents))
        hands.undo(step, context(agents))
        assert not hands.holds(step, context(agents))
        assert json.loads(json.dumps(dict(step.fields)))["host"] == host
    assert len({json.dumps(what["asked"], sort_keys=True) for _, what in agents[host].asked}) == 1


def test_what_was_done_to_one_host_is_told_when_the_next_refuses_and_a_lost_word_is_asked_for(
    agents: dict[str, Agent], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = planned("partition", count=2)
    act = one.fault.how.hands.act(one, context(agents))
    act.find()
    first, second = (named["host"] for named in act.victims())
    real = Agent.ask

    def ask(self: Agent, do: str, **what: Any) -> Any:
        said = real(self, do, **what)
        if what.get("step") == "do" and self is agents[first]:
            raise ConnectionLost("10.0.0.3", "do partition")
        if what.get("step") == "do" and self is agents[second]:
            raise ActRefused("nft: busy")
        return said

    monkeypatch.setattr(Agent, "ask", ask)
    with pytest.raises(HalfDone, match="^nft: busy$") as caught:
        act.perform()
    assert [each.delivery for each in caught.value.sent] == [Delivery.UNKNOWN]
    assert act.settle(caught.value.sent).outcome is Outcome.EFFECTIVE, "the hosts say that it holds"


def test_an_act_that_did_not_take_hold_had_no_effect(agents: dict[str, Agent]) -> None:
    agents["kafka"].effective = False
    one = planned("partition", "kafka")
    act = one.fault.how.hands.act(one, context(agents))
    act.find()
    assert act.settle(act.perform()).outcome is Outcome.NO_EFFECT


def test_a_host_that_cannot_do_it_says_so_before_the_gate(agents: dict[str, Agent]) -> None:
    for agent in agents.values():
        agent.refuses = True
    one = planned("partition")
    with pytest.raises(ActRefused, match="not on this host"):
        one.fault.how.hands.act(one, context(agents)).find()


def test_the_seed_chooses_among_hosts_and_two_are_hit_where_two_are_asked_for(agents: dict[str, Agent]) -> None:
    def chosen(seed: int, count: int = 1) -> list[str]:
        one = planned("partition", count=count)
        act = one.fault.how.hands.act(one, context(agents, seed))
        act.find()
        return sorted(each["host"] for each in act.victims())

    assert {tuple(chosen(seed)) for seed in range(20)} == {("worker-1",), ("worker-2",)}
    assert chosen(3) == chosen(3) and chosen(1, 2) == ["worker-1", "worker-2"]
    with pytest.raises(TooFewVictims):
        chosen(1, 3)


def test_a_victim_that_was_replaced_on_its_host_is_named_anew_and_one_that_lives_stays(
    agents: dict[str, Agent],
) -> None:
    one = planned("partition", count=2)
    act = one.fault.how.hands.act(one, context(agents))
    act.find()
    first, second = act.victims()
    agent = agents[first["host"]]
    (former,) = agent.processes
    successor = replace(former, pid=former.pid + 500, start_ticks=77)
    agent.processes = (successor, former)
    assert not act.find() and act.victims() == [first, second], "it lives"
    agent.processes = (successor,)
    assert act.find()
    assert [each["pid"] for each in act.victims()] == [successor.pid, second["pid"]]
    assert not act.find()


def test_a_host_of_which_no_disk_is_known_is_refused(agents: dict[str, Agent]) -> None:
    one = planned("disk_full")
    here = replace(context(agents), disks={})
    with pytest.raises(VictimRefused, match=r'names no disk of worker-[12] that may be filled; add "disk": FOLDER'):
        one.fault.how.hands.act(one, here).find()
    assert not any(agent.asked for agent in agents.values())


def driver() -> ProcessIdentity:
    return ProcessIdentity(700, 1.0, DRIVER, RUN, (DRIVER.main, f"faultline-run={RUN}"), 5)


def test_of_the_driver_the_disk_of_checkpoints_on_this_host_is_filled_and_emptied(
    agents: dict[str, Agent],
) -> None:
    here, disk = Agent((driver(),)), {"": "/checkpoints"}
    known = context({"": here, **agents})
    known = replace(known, disks={**known.disks, **disk})
    one = planned("disk_full", "driver")
    act = one.fault.how.hands.act(one, known)
    act.find()
    (undo,) = act.undo()
    act.arm(Now())
    assert act.settle(act.perform()).detail == "disk_full: holds on this host"
    assert [what["asked"] for _, what in here.asked] == [{"folder": "/checkpoints"}] * len(here.asked)
    one.fault.how.hands.undo(undo, known)
    assert not one.fault.how.hands.holds(undo, known)
    assert not any(agent.asked for agent in agents.values())


@pytest.mark.parametrize(("victim", "disks"), [("driver", {}), ("worker", {"": "/checkpoints"})])
def test_a_disk_of_this_host_is_never_filled_but_that_of_checkpoints(
    agents: dict[str, Agent], victim: str, disks: dict[str, str]
) -> None:
    here = Agent((driver(), worker(1)))
    hosts = Injector({"": here})
    one = planned("disk_full", victim)
    with pytest.raises(VictimRefused, match="lies on the disk of this machine, which is not filled; .*up --hosts 3"):
        one.fault.how.hands.act(one, replace(context(agents), injector=hosts, disks=disks)).find()
    assert not here.asked


def test_a_victim_on_this_host_is_refused(agents: dict[str, Agent]) -> None:
    here = context(agents)
    local = Injector({"": Agent((worker(1),))})
    one = planned("partition")
    act = one.fault.how.hands.act(one, Context(here.folder, local, here.tokens, here.guard, here.now))
    with pytest.raises(VictimRefused, match="runs on this host.*up --hosts 3"):
        act.find()


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
    assert others(peer, host, context(agents)) == list(expected)


def test_a_host_is_not_cut_off_from_itself(agents: dict[str, Agent]) -> None:
    with pytest.raises(VictimRefused, match="^peer: kafka has no host beside kafka"):
        others("kafka", "kafka", context(agents))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"peer": "moon"}, "^peer: 'moon' is not known"),
        ({"way": "up"}, "^way: 'up' is not known"),
        ({"mbit_s": 1.0}, "^mbit_s: the action partition narrows nothing"),
        ({"cores": 1.0}, "^cores: the action partition takes no cores"),
        ({"memory_mb": 1.0}, "^memory_mb: the action partition takes no memory"),
    ],
)
def test_words_and_sizes_are_checked_by_the_plan(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(PlanError, match=said):
        planned("partition", **wrong)


def test_plans_from_before_there_were_hosts_keep_their_text() -> None:
    """Their text is part of what a configuration is known by."""
    plan = FaultPlan((Fault("executor", "kill", at_s=1.0),))
    assert set(plan.as_mapping()["faults"][0]) == {
        "victim", "action", "at_s", "at_record", "cycle", "phase", "duration_s", "delay_ms", "count", "every_s", "times"
    }  # fmt: skip
    cut = FaultPlan((Fault("kafka", "partition", at_s=1.0, duration_s=5.0, peer="workers", way="in"),))
    assert FaultPlan.from_mapping(json.loads(cut.to_json())) == cut
    (one,) = cut.resolve(rate=1.0, checkpoint_interval_s=1.0, snapshot_interval_s=1.0)
    assert one.what() == "partition kafka from workers (in only) for 5 s at T0 + 1 s"
