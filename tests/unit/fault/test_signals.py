"""Injections on processes, step by step, on a fake host."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fault.action import Context, PartialInjection, UndoSpec
from fault.actions import processes as signals_module
from fault.actions.processes import WATCHDOG_MARGIN_S, SignalInjection
from fault.errors import IdentityMismatch, RemoteError, SignalRefused, WatchdogUnavailable
from fault.fault_spec import DURATION
from fault.handler import Handler
from fault.identity import EXECUTOR, KAFKA, PYTHON_WORKER, WORKER, Delivery, ProcessIdentity, Role, Tokens
from fault.injector import Channel, FaultOutcome, Injector, Settlement
from fault.plan import Fault, FaultPlan
from fault.registry import ACTIONS
from fault.victims import VictimGuard
from tests.support.fake_clock import Moment, SimulatedHost
from tests.unit.sleepers import Spawn

RUN, INSTANCE = "20261121T061500Z-3fa9c1", "0123456789abcdef"
# Injections on hosts: test_on_hosts.py.
ON_PROCESSES = sorted(name for name, action in ACTIONS.items() if action.resource is None and not action.targets_hosts)


def process(pid: int, role: Role = EXECUTOR, node: str = "127.0.0.1:7001") -> ProcessIdentity:
    if role is WORKER:
        host, port = node.split(":")
        command = (f"-Dfaultline.instance={INSTANCE}", WORKER.main, "--host", host, "--port", port)
        return ProcessIdentity(pid, 1.0, role, INSTANCE, command, pid, "", node)
    options = ("--executor-id", str(pid - 4000), "--worker-url", f"spark://Worker@{node}")
    return ProcessIdentity(pid, 1.0, role, RUN, (f"-Dfaultline.run={RUN}", EXECUTOR.main, *options), pid, "", node)


def act_on(host: Channel, victim: str = "executor", action: str = "kill", **changes: Any) -> SignalInjection:
    tokens, held = Tokens(changes.pop("run", RUN), INSTANCE), changes.pop("held", [])
    fault = Fault(victim, action, at_s=1.0, **{**ACTIONS[action].defaults, **changes})
    (planned,) = FaultPlan((fault,)).resolve(rate=1, checkpoint_interval_s=1, snapshot_interval_s=1)
    guard = VictimGuard(tokens, protected=frozenset())
    hold = lambda service, until: held.append((service, until))  # noqa: E731
    injector = Injector(here=host)
    context = Context(Path(), injector, tokens, guard, Moment, seed=1, delay_restart=hold, restart_delay_s=2.5)
    made = fault.definition.driver.create_injection(planned, context)
    assert isinstance(made, SignalInjection)
    return made


def armed(host: SimulatedHost, victim: str = "executor", action: str = "kill", **changes: Any) -> SignalInjection:
    act = act_on(host, victim, action, **changes)
    act.find_victims()
    act.arm(Moment())
    return act


def refusing(do: str, errors: dict[int, Exception]) -> Callable[[str, dict[str, Any]], None]:
    """Return a check that raises the error of a victim's pid."""

    def before(asked: str, fields: dict[str, Any]) -> None:
        if asked == do and fields["victim"].pid in errors:
            raise errors[fields["victim"].pid]

    return before


@pytest.mark.parametrize("name", ON_PROCESSES)
def test_signal_injection_from_find_to_undo(name: str) -> None:
    action, held = ACTIONS[name], list[tuple[str, int]]()
    host = SimulatedHost.of(process(4001), process(4002))
    act = act_on(host, action=name, held=held)
    assert act.find_victims() and not act.find_victims(), "the same victims as before"
    (named,) = act.victims()
    (line,) = act.describe()
    assert line.startswith(f"would {name} executor {named['command'][3]} (pid {named['pid']}, run {RUN})")
    undos = act.plan_undo()
    assert bool(undos) == bool(action.parameter(DURATION)) and act.await_ready(0)
    act.arm(Moment())
    (sent,) = act.perform()
    assert (sent.victim, sent.role, sent.delivery, sent.at) == (named["pid"], "executor", Delivery.SENT, Moment())
    assert [pid for pid, _ in host.sent] == [named["pid"]], "no other process"
    assert act.settle([sent]).outcome is FaultOutcome.EFFECTIVE
    assert held == [], "supervisord does not restart executors"
    for undo in undos:
        undo = UndoSpec(undo.action, undo.name, json.loads(json.dumps(undo.fields)))  # as read by another process
        assert undo.action == name and action.driver.is_active(undo, act.context)
        action.driver.undo(undo, act.context)
        action.driver.undo(undo, act.context)  # idempotent
        assert not action.driver.is_active(undo, act.context) and not host.watched


ENDS_ITSELF = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
print("up", flush=True)
time.sleep(900)
"""


def test_term_sends_sigterm_to_a_real_process_and_to_no_other(run: str, spawn: Spawn) -> None:
    victim, other = spawn(number=1, program=ENDS_ITSELF), spawn(token=f"{run}0")
    act = act_on(Handler(), action="term", run=run)
    assert act.find_victims()
    act.arm(Moment())
    (sent,) = act.perform()
    assert (sent.victim, sent.delivery) == (victim.pid, Delivery.SENT)
    assert act.settle([sent]).outcome is FaultOutcome.EFFECTIVE
    assert victim.wait(120) == 7, "it handled the signal itself"
    assert other.poll() is None


def test_chosen_victims_stay_while_all_live() -> None:
    host = SimulatedHost.of(*(process(4000 + number) for number in range(8)))
    act = act_on(host, count=2)
    assert act.find_victims()
    chosen = [one["pid"] for one in act.victims()]
    assert len(chosen) == 2 and all(one["fault"] == 0 and one["executors"] is None for one in act.victims())
    # Other candidates now come first; the chosen one still lives.
    host.start(*(replace(process(3000 + number), create_time=0.5) for number in range(8)))
    assert not act.find_victims()
    assert [one["pid"] for one in act.victims()] == chosen
    host.end(process(chosen[0]))
    assert act.find_victims()
    assert chosen[0] not in [one["pid"] for one in act.victims()]


def test_executors_of_a_worker_are_read_again() -> None:
    host = SimulatedHost.of(process(5000, WORKER), process(4001), process(4002, node="127.0.0.1:7002"))
    held: list[tuple[str, int]] = []
    act = act_on(host, "worker", held=held)
    assert act.find_victims()
    assert [one["executors"] for one in act.victims()] == [["1"]]
    host.start(process(4007))
    assert act.find_victims()
    assert [one["executors"] for one in act.victims()] == [["1", "7"]]
    act.arm(Moment())
    assert held == [("127.0.0.1:7001", 5_000 + 2_500_000_000)]


@pytest.mark.parametrize("name", ON_PROCESSES)
def test_killed_service_gets_the_restart_delay(name: str) -> None:
    """supervisord restarts dead services at once; a paused service does not die."""
    held: list[tuple[str, int]] = []
    broker = ProcessIdentity(6000, 1.0, KAFKA, INSTANCE, (f"-Dfaultline.instance={INSTANCE}", KAFKA.main), 6000)
    armed(SimulatedHost.of(broker), "kafka", name, held=held)
    assert held == [("kafka", 5_000 + 2_500_000_000)] * ACTIONS[name].ends_victim


def test_error_at_one_victim_is_raised_after_all_were_tried() -> None:
    host = SimulatedHost.of(process(4001), process(4002), process(4003))
    act = act_on(host, count=3)
    act.find_victims()
    host.before = refusing("arm", {4001: SignalRefused("pid: not yours")})
    act.arm(Moment())
    assert host.times("arm") == 3, "the signal will say it"
    errors = {4001: SignalRefused("pid: not yours"), 4002: IdentityMismatch(4002, "token", "another")}
    host.before = refusing("signal", errors)
    with pytest.raises(PartialInjection, match="not yours") as caught:
        act.perform()
    sent = {one.victim: one for one in caught.value.deliveries}
    assert sorted(sent) == [4002, 4003]
    assert (sent[4002].delivery, sent[4003].delivery) == (Delivery.GONE, Delivery.SENT)
    assert sent[4002].settlement is not None and sent[4002].settlement.outcome is FaultOutcome.NO_EFFECT
    assert sent[4003].settlement is None


def test_outcome_is_the_worst_of_all_victims() -> None:
    host = SimulatedHost.of(process(4001), process(4002))
    act = act_on(host, count=2)
    act.driver = replace(act.driver, within_s=0.0)
    act.find_victims()
    sent = act.perform()
    host.start(process(4002))
    settled = act.settle(sent)
    assert settled.outcome is FaultOutcome.NO_EFFECT
    assert "gone within" in settled.detail and "still" in settled.detail


def test_watchdog_starts_before_a_pause_only() -> None:
    host = SimulatedHost.of(process(4001), process(4002))
    act = armed(host, action="pause", count=2, duration_s=7.0)
    assert host.watched == dict.fromkeys((4001, 4002), 7.0 + WATCHDOG_MARGIN_S) and host.sent == []
    act.perform()
    assert host.times("watch") == 4, "looked at again right before the signal"
    killing = SimulatedHost.of(process(4001))
    armed(killing).perform()
    assert killing.times("watch") == 0 and killing.sent


def test_a_victim_without_a_watchdog_is_not_stopped() -> None:
    host = SimulatedHost.of(process(4001), process(4002))
    errors = {4001: WatchdogUnavailable("watchdog: not for this one"), 4002: RemoteError("node1", "watch 4002")}
    host.before = refusing("watch", errors)
    act = armed(host, action="pause", count=2, duration_s=7.0)
    with pytest.raises(PartialInjection):
        act.perform()
    assert host.sent == []
    del errors[4001]
    with pytest.raises(PartialInjection):
        act.perform()
    assert [pid for pid, _ in host.sent] == [4001]


def test_node_is_drawn_first_for_any_only(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(
        signals_module, "choose_victims", lambda candidates, count, **how: asked.append(how["by_node"]) or ()
    )
    for victim in ("executor", "any"):
        act_on(SimulatedHost.of(process(4000)), victim).find_victims()
    assert asked == [False, True]


@pytest.mark.parametrize(("busy", "ready"), [(0, False), (1, False), (2, True)])
def test_python_workers_need_enough_busy_ones(monkeypatch: pytest.MonkeyPatch, busy: int, ready: bool) -> None:
    living = python_workers(4001, 4002)
    monkeypatch.setattr(signals_module, "await_busy", lambda *asked, **how: tuple(living[:busy]))
    act = act_on(SimulatedHost.of(*living), "python_worker", count=2)
    assert act.await_ready(0) is ready
    assert [one["pid"] for one in act.victims()] == ([4001, 4002] if ready else [])


def python_workers(*pids: int) -> list[ProcessIdentity]:
    daemon = ("python3", "-m", "pyspark.daemon")
    return [ProcessIdentity(pid, 1.0, PYTHON_WORKER, RUN, daemon, pid) for pid in pids]


@pytest.mark.parametrize("at_work", [True, False])
def test_watchdogs_of_python_workers_start_before_the_wait(monkeypatch: pytest.MonkeyPatch, at_work: bool) -> None:
    """A worker may be idle again after the start of its watchdog; other watchdogs end."""
    living = python_workers(4001, 4002, 4003)
    monkeypatch.setattr(signals_module, "await_busy", lambda *asked, **how: tuple(living[1:2]) if at_work else ())
    host = SimulatedHost.of(*living)
    act = act_on(host, "python_worker", "pause", duration_s=7.0)
    act.find_victims()
    registered = {undo.fields["pid"] for undo in act.plan_undo()}
    act.arm(Moment(mono_ns=time.monotonic_ns() + 10**12))
    # The fault scheduler waits three intervals for a busy victim.
    assert host.watched == dict.fromkeys((4001, 4002, 4003), 3.0 + 7.0 + WATCHDOG_MARGIN_S) and host.sent == []
    if at_work:
        assert act.await_ready(0)
        act.perform()
        assert [pid for pid, _ in host.sent] == [4002]
        registered = {4002}
    for _ in range(2):
        act.disarm()
        assert host.watched.keys() == registered, "the undo ends it"


def test_no_early_watchdog_after_the_deadline_or_for_a_kill() -> None:
    for action, at_ns in (("pause", time.monotonic_ns()), ("kill", time.monotonic_ns() + 10**12)):
        host = SimulatedHost.of(*python_workers(4001))
        act = act_on(host, "python_worker", action)
        act.find_victims()
        act.arm(Moment(mono_ns=at_ns))
        act.disarm()
        assert host.times("watch") == host.times("release") == 0


def test_a_short_pause_is_settled_before_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    within: list[float] = []

    def note(*asked: object, within_s: float) -> Settlement:
        within.append(within_s)
        return Settlement(FaultOutcome.EFFECTIVE, "")

    monkeypatch.setattr(signals_module, "settle", note)
    for duration_s in (0.25, 600.0):
        act = act_on(SimulatedHost.of(process(4000)), action="pause", duration_s=duration_s)
        act.find_victims()
        act.settle(act.perform())
    assert within[0] == 0.25 < within[1] < 600.0
