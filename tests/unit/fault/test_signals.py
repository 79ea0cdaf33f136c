"""An act on processes, step by step, on an injector that only notes what it is asked."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from fault.action import Context, HalfDone
from fault.actions import processes as signals_module
from fault.actions.processes import LATE_S, SignalAct
from fault.errors import IdentityMismatch, RemoteError, SignalRefused, WatchdogUnavailable
from fault.identity import EXECUTOR, PYTHON_WORKER, WORKER, Delivery, Presence, ProcessIdentity, Role, Tokens
from fault.injector import Outcome, Settlement
from fault.plan import Fault, FaultPlan
from fault.victims import Guard

RUN, INSTANCE = "20261121T061500Z-3fa9c1", "0123456789abcdef"


@dataclass(frozen=True)
class Moment:
    wall_ns: int = 7
    mono_ns: int = 5_000


class Noting:
    """Gives the processes and answers that the test wrote down; the last answer stays."""

    def __init__(self, *living: ProcessIdentity, answers: tuple[Any, ...] = (Presence.ALIVE,)) -> None:
        self.living = list(living)
        self.answers = list(answers)
        self.armed: list[int] = []
        self.sent: list[tuple[int, int]] = []
        self.refuses: dict[int, Exception] = {}
        self.posted: list[tuple[int, float | None]] = []
        self.unposted: dict[int, Exception] = {}

    def start_watchdog(self, victim: ProcessIdentity, seconds: float) -> None:
        if victim.pid in self.unposted:
            raise self.unposted[victim.pid]
        self.posted.append((victim.pid, seconds))

    def end_watchdog(self, victim: ProcessIdentity) -> None:
        self.posted.append((victim.pid, None))

    def busy(self, candidates: object) -> set[ProcessIdentity]:
        return set()

    def find(self, victim: str, tokens: Tokens) -> tuple[ProcessIdentity, ...]:
        role = {"worker": WORKER, "executor": EXECUTOR}[victim]
        return tuple(one for one in self.living if one.role is role)

    def probe(self, victim: ProcessIdentity) -> Presence:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def arm(self, victim: ProcessIdentity) -> None:
        self.armed.append(victim.pid)
        if victim.pid in self.refuses:
            raise self.refuses[victim.pid]

    def signal(self, victim: ProcessIdentity, signum: int) -> Delivery:
        if victim.pid in self.refuses:
            raise self.refuses[victim.pid]
        self.sent.append((victim.pid, signum))
        return Delivery.SENT


def process(pid: int, role: Role = EXECUTOR, node: str = "127.0.0.1:7001") -> ProcessIdentity:
    if role is WORKER:
        host, port = node.split(":")
        command = (f"-Dfaultline.instance={INSTANCE}", WORKER.main, "--host", host, "--port", port)
        return ProcessIdentity(pid, 1.0, role, INSTANCE, command, pid, "", node)
    options = ("--executor-id", str(pid - 4000), "--worker-url", f"spark://Worker@{node}")
    return ProcessIdentity(pid, 1.0, role, RUN, (f"-Dfaultline.run={RUN}", EXECUTOR.main, *options), pid, "", node)


def act_on(injector: Noting, victim: str = "executor", action: str = "kill", **changes: Any) -> SignalAct:
    tokens, held = Tokens(RUN, INSTANCE), changes.pop("held", [])
    fault = Fault(victim, action, at_s=1.0, **changes)
    (planned,) = FaultPlan((fault,)).resolve(rate=1, checkpoint_interval_s=1, snapshot_interval_s=1)
    guard = Guard(tokens, protected=frozenset())
    hold = lambda service, until: held.append((service, until))  # noqa: E731
    context = Context(Path(), injector, tokens, guard, Moment, seed=1, hold=hold, restart_delay_s=2.5)  # type: ignore[arg-type]
    made = fault.how.hands.act(planned, context)
    assert isinstance(made, SignalAct)
    return made


def test_those_chosen_stay_while_all_of_them_live() -> None:
    injector = Noting(*(process(4000 + number) for number in range(8)))
    act = act_on(injector, count=2)
    assert act.find() is True
    chosen = [one["pid"] for one in act.victims()]
    assert len(chosen) == 2 and all(one["fault"] == 0 and one["executors"] is None for one in act.victims())
    # Others come first in the order of the candidates now; who was chosen is still there.
    injector.living = [replace(process(3000 + number), create_time=0.5) for number in range(8)] + injector.living
    assert act.find() is False
    assert [one["pid"] for one in act.victims()] == chosen
    injector.living = [one for one in injector.living if one.pid != chosen[0]]
    assert act.find() is True
    assert chosen[0] not in [one["pid"] for one in act.victims()]


def test_what_a_worker_hosts_is_looked_at_anew() -> None:
    here, there = process(4001), process(4002, node="127.0.0.1:7002")
    injector = Noting(process(5000, WORKER), here, there)
    held: list[tuple[str, int]] = []
    act = act_on(injector, "worker", held=held)
    assert act.find()
    assert [one["executors"] for one in act.victims()] == [["1"]]
    injector.living.append(process(4007))
    assert act.find()
    assert [one["executors"] for one in act.victims()] == [["1", "7"]]
    act.arm(Moment())
    assert held == [("127.0.0.1:7001", 5_000 + 2_500_000_000)]


def test_each_victim_is_armed_and_an_executor_holds_nothing_down() -> None:
    held: list[tuple[str, int]] = []
    injector = Noting(process(4001), process(4002))
    injector.refuses[4001] = SignalRefused("pid: not yours")
    act = act_on(injector, count=2, held=held)
    act.find()
    act.arm(Moment())
    assert sorted(injector.armed) == [4001, 4002]
    assert held == []
    pausing = act_on(Noting(process(5000, WORKER)), "worker", "pause", duration_s=1.0, held=held)
    pausing.find()
    pausing.arm(Moment())
    assert held == [], "who is stopped is not started again"
    assert act.undo() == []
    assert [(one.action, one.fields["pid"]) for one in pausing.undo()] == [("pause", 5000)]


def test_what_fails_at_one_victim_is_raised_after_all_were_tried() -> None:
    injector = Noting(process(4001), process(4002), process(4003))
    act = act_on(injector, count=3)
    act.find()
    injector.refuses = {4001: SignalRefused("pid: not yours"), 4002: IdentityMismatch(4002, "token", "another")}
    with pytest.raises(HalfDone, match="not yours") as caught:
        act.perform()
    sent = {one.victim: one for one in caught.value.sent}
    assert sorted(sent) == [4002, 4003]
    assert (sent[4002].delivery, sent[4003].delivery) == (Delivery.GONE, Delivery.SENT)
    assert sent[4002].settlement is not None and sent[4002].settlement.outcome is Outcome.NO_EFFECT
    assert sent[4003].settlement is None and sent[4003].at == Moment()


def test_the_worst_of_all_victims_is_what_became_of_the_act() -> None:
    injector = Noting(process(4001), process(4002), answers=(Presence.GONE, Presence.ALIVE))
    act = act_on(injector, count=2)
    act.hands = replace(act.hands, within_s=0.0)
    act.find()
    settled = act.settle(act.perform())
    assert settled.outcome is Outcome.NO_EFFECT
    assert "gone within" in settled.detail and "still" in settled.detail


def test_before_a_pause_somebody_stands_by_who_ends_it_and_nobody_before_a_kill() -> None:
    injector = Noting(process(4001), process(4002))
    act = act_on(injector, action="pause", count=2, duration_s=7.0)
    act.find()
    act.arm(Moment())
    both = [(one["pid"], 7.0 + LATE_S) for one in act.victims()]
    assert injector.posted == both and injector.sent == []
    act.perform()
    assert injector.posted == both * 2, "one who is there already stays"
    for one in act.undo():
        act.hands.undo(one, act.context)
    assert injector.posted[4:] == [(pid, None) for pid, _ in both]
    killing = Noting(process(4001))
    act = act_on(killing)
    act.find()
    act.arm(Moment())
    act.perform()
    assert killing.posted == [] and killing.sent


def test_a_victim_for_whom_nobody_stands_by_is_not_stopped() -> None:
    injector = Noting(process(4001), process(4002))
    injector.unposted = {4001: WatchdogUnavailable("pause: not this one"), 4002: RemoteError("node1", "stand by 4002")}
    act = act_on(injector, action="pause", count=2, duration_s=7.0)
    act.find()
    act.arm(Moment())
    with pytest.raises(HalfDone):
        act.perform()
    assert injector.sent == []
    del injector.unposted[4001]
    with pytest.raises(HalfDone):
        act.perform()
    assert [pid for pid, _ in injector.sent] == [4001]


def test_the_node_is_drawn_first_for_any_and_for_no_other_victim(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(signals_module, "choose", lambda candidates, count, **how: asked.append(how["by_node"]) or ())
    for victim in ("executor", "any"):
        act_on(Everything(process(4000)), victim).find()
    assert asked == [False, True]


class Everything(Noting):
    """Whatever lives may be the victim."""

    def find(self, victim: str, tokens: Tokens) -> tuple[ProcessIdentity, ...]:
        return tuple(self.living)


@pytest.mark.parametrize(("busy", "ready"), [(0, False), (1, False), (2, True)])
def test_python_workers_are_hit_only_when_as_many_are_at_work_as_are_to_be(
    monkeypatch: pytest.MonkeyPatch, busy: int, ready: bool
) -> None:
    daemon = ("python3", "-m", "pyspark.daemon")
    living = [ProcessIdentity(pid, 1.0, PYTHON_WORKER, RUN, daemon, pid) for pid in (4001, 4002)]
    monkeypatch.setattr(signals_module, "await_busy", lambda *asked, **how: tuple(living[:busy]))
    act = act_on(Everything(*living), "python_worker", count=2)
    assert act.await_ready(0) is ready
    assert [one["pid"] for one in act.victims()] == ([4001, 4002] if ready else [])


def test_a_short_pause_is_settled_before_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    within: list[float] = []

    def note(*asked: object, within_s: float) -> Settlement:
        within.append(within_s)
        return Settlement(Outcome.EFFECTIVE, "")

    monkeypatch.setattr(signals_module, "settle", note)
    for duration_s in (0.25, 600.0):
        act = act_on(Noting(process(4000)), action="pause", duration_s=duration_s)
        act.find()
        act.settle(act.perform())
    assert within[0] == 0.25 < within[1] < 600.0
