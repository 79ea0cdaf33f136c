"""The injector with fake handlers: requests per host, outcomes from probes, and the undo stack."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from fault import injector as injector_module
from fault.action import UndoStack
from fault.actions.processes import SignalDriver
from fault.errors import RemoteError, SignalRefused, VictimRefused
from fault.identity import EXECUTOR, Delivery, Presence, ProcessIdentity, Tokens
from fault.injector import FaultOutcome, Injector, hosts_by_victim, resume, settle
from fault.plan import ALLOWED
from fault.registry import ACTIONS
from tests.support.fake_clock import SimulatedHost
from tests.unit.fault.conftest import SleepClock

RUN = "20261121T061500Z-3fa9c1"
TOKENS = Tokens(RUN, "0123456789abcdef")
VICTIM = ProcessIdentity(4000, 1.0, EXECUTOR, RUN)
LOST = RemoteError("node1", "probe 4000", stderr="gone away")


def answering(probes: Sequence[Presence | RemoteError]) -> SimulatedHost:
    """Return a host whose probes return the given values; the last one repeats."""
    left = list(probes)

    def before(do: str, fields: dict[str, Any]) -> object:
        if do != "probe":
            return None
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, RemoteError):
            raise answer
        return answer

    return SimulatedHost({VICTIM: Presence.ALIVE}, before)


def test_hosts_of_each_victim() -> None:
    assert hosts_by_victim([]) == dict.fromkeys(ALLOWED, ("",))
    spark = ("worker-1", "worker-2")
    assert hosts_by_victim(spark) == {**dict.fromkeys(ALLOWED, spark), "driver": ("",), "kafka": ("",)}
    assert hosts_by_victim(["kafka", *spark]) == {**dict.fromkeys(ALLOWED, spark), "driver": ("",), "kafka": ("kafka",)}
    assert hosts_by_victim(["kafka"]) == {**dict.fromkeys(ALLOWED, ("",)), "kafka": ("kafka",)}


def test_requests_go_to_the_hosts_of_the_victims() -> None:
    hosts = {name: SimulatedHost.of(VICTIM) for name in ("", "worker-1", "worker-2")}
    here, one, two = hosts.values()
    injector = Injector({name: one for name, one in hosts.items() if name}, here=hosts[""])
    found = injector.find("executor", TOKENS)
    assert [each.host for each in found] == ["worker-1", "worker-2"]
    injector.find("driver", TOKENS)
    assert [fields["victim"] for _, fields in here.asked] == ["driver"]
    assert injector.signal(found[1], signal.SIGKILL) is Delivery.SENT
    assert injector.probe(found[0]) is Presence.ALIVE
    injector.start_watchdog(found[1], 3.0)
    two.before = lambda do, fields: lose()
    injector.end_watchdog(found[1])  # a lost request is harmless
    assert [do for do, _ in one.asked] == ["find", "probe"]
    assert [do for do, _ in two.asked] == ["find", "signal", "watch", "release"]


def test_another_host_without_a_name_is_refused() -> None:
    """Its requests would go to this host."""
    with pytest.raises(VictimRefused, match="^host: "):
        Injector({"worker-1": SimulatedHost(), "": SimulatedHost()})


def lose() -> None:
    raise LOST


def test_busy_is_requested_from_each_other_host() -> None:
    hosts = {name: SimulatedHost() for name in ("", "worker-1", "worker-2", "idle")}
    for host in hosts.values():
        host.before = lambda do, fields: fields["candidates"][:1]
    injector = Injector({name: one for name, one in hosts.items() if name}, here=hosts[""])
    one, two, other = (replace(VICTIM, pid=pid, host=f"worker-{host}") for pid, host in ((5, 1), (6, 1), (7, 2)))
    assert injector.busy([two, one, other, VICTIM]) == {two, other}
    assert hosts[""].asked == hosts["idle"].asked == [] and injector.busy([]) == set()


def test_an_unknown_host_is_refused() -> None:
    with pytest.raises(VictimRefused, match="^host: .*worker-1"):
        Injector({"worker-1": SimulatedHost()}).signal(replace(VICTIM, host="elsewhere"), signal.SIGKILL)


# --- settling and resuming


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SleepClock:
    made = SleepClock()
    monkeypatch.setattr(injector_module.time, "monotonic", lambda: made() / 1e9)
    return made


@pytest.mark.parametrize(
    ("answers", "wanted", "outcome"),
    [
        ([Presence.ALIVE, LOST, Presence.GONE], Presence.GONE, FaultOutcome.EFFECTIVE),
        ([Presence.OTHER], Presence.GONE, FaultOutcome.EFFECTIVE),
        ([Presence.ALIVE], Presence.GONE, FaultOutcome.NO_EFFECT),
        ([LOST], Presence.GONE, FaultOutcome.UNKNOWN),
        ([Presence.ALIVE, Presence.STOPPED], Presence.STOPPED, FaultOutcome.EFFECTIVE),
        ([Presence.GONE], Presence.STOPPED, FaultOutcome.NO_EFFECT),
    ],
)
def test_outcome_comes_from_probes_and_notes_a_missing_reply(
    clock: SleepClock, answers: list[Presence | RemoteError], wanted: Presence, outcome: FaultOutcome
) -> None:
    for delivery in (Delivery.SENT, Delivery.UNKNOWN):
        there = answering(answers)
        found = settle(Injector(here=there), VICTIM, wanted, delivery, within_s=0.1, sleep=clock.sleep)
        assert found.outcome is outcome and not there.sent
        hinted = delivery is Delivery.UNKNOWN and outcome is not FaultOutcome.UNKNOWN
        assert ("not acknowledged" in found.detail) is hinted


@pytest.mark.parametrize(("action", "within_s"), [("kill", 5.0), ("pause", 5.0), ("term", 15.0)])
def test_settle_timeout_depends_on_the_action(clock: SleepClock, action: str, within_s: float) -> None:
    driver, alive = ACTIONS[action].driver, Injector(here=answering([Presence.ALIVE]))
    assert isinstance(driver, SignalDriver)
    given: dict[str, Any] = {"within_s": driver.within_s, "sleep": clock.sleep}
    assert settle(alive, VICTIM, driver.expected, Delivery.SENT, **given).outcome is FaultOutcome.NO_EFFECT
    assert within_s <= clock() / 1e9 < within_s + 0.1
    late = Injector(here=answering([Presence.ALIVE, driver.expected]))
    at_once = settle(late, VICTIM, driver.expected, Delivery.SENT, within_s=0.0)
    assert at_once.outcome is FaultOutcome.NO_EFFECT, "the last probe lies at the end of the time"


def test_resume_repeats_until_running_or_timeout(clock: SleepClock) -> None:
    stopped = Presence.STOPPED
    for answers, continued in (
        ((Presence.ALIVE,), 0), ((Presence.GONE,), 0), ((stopped, Presence.ALIVE), 1),
        ((LOST, stopped, stopped, stopped, Presence.ALIVE), 2), ((LOST, LOST, Presence.ALIVE), 0),
    ):  # fmt: skip
        there = answering(answers)
        resume(Injector(here=there), VICTIM, sleep=clock.sleep)
        assert len(there.sent) == continued
    for answer, error in ((stopped, SignalRefused), (LOST, RemoteError)):
        began = clock()
        with pytest.raises(error):
            resume(Injector(here=answering((answer,))), VICTIM, sleep=clock.sleep)
        assert 5e9 <= clock() - began < 5.2e9


def test_undo_runs_newest_first_and_past_failures() -> None:
    seen: list[str] = []

    def fail() -> None:
        raise OSError("no such file")

    undo = UndoStack()
    undo.register("first", lambda: seen.append("first"))
    undo.register("broken", fail)
    undo.register("last", lambda: seen.append("last"))
    results = [(name, error and str(error)) for name, error in undo.run()]
    assert results == [("last", None), ("broken", "no such file"), ("first", None)]
    assert len(undo) == 1, "what failed is tried again"
    assert [name for name, _ in undo.run()] == ["broken"]
    assert seen == ["last", "first"]
