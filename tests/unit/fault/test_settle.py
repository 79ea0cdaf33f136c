"""What an act came to, by probes, and what is undone."""

from __future__ import annotations

import signal

import pytest

from fault import injector as injector_module
from fault import local
from fault.errors import RemoteError
from fault.identity import EXECUTOR, LiveProcess, ProcessIdentity, Tokens
from fault.injector import Delivery, Outcome, Presence, settle
from fault.local import LocalInjector
from fault.registry import ACTIONS
from fault.signals import Signals
from fault.undo import UndoStack
from tests.unit.sleepers import Spawn


class Scripted:
    """An injector whose probes give what the test wrote down."""

    def find(self, victim: str, tokens: Tokens) -> tuple[ProcessIdentity, ...]:
        raise AssertionError("settling never searches")

    def __init__(self, *answers: Presence | RemoteError) -> None:
        self._answers = list(answers)

    def probe(self, victim: ProcessIdentity) -> Presence:
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, RemoteError):
            raise answer
        return answer

    def signal(self, victim: ProcessIdentity, signum: int) -> Delivery:
        raise AssertionError("settling never sends")


LOST = RemoteError("node1", "probe 4000", stderr="gone away")


@pytest.mark.parametrize(
    ("answers", "wanted", "outcome"),
    [
        ([Presence.ALIVE, LOST, Presence.GONE], Presence.GONE, Outcome.EFFECTIVE),
        ([Presence.OTHER], Presence.GONE, Outcome.EFFECTIVE),
        ([Presence.ALIVE], Presence.GONE, Outcome.NO_EFFECT),
        ([LOST], Presence.GONE, Outcome.UNKNOWN),
        ([Presence.ALIVE, Presence.STOPPED], Presence.STOPPED, Outcome.EFFECTIVE),
        ([Presence.GONE], Presence.STOPPED, Outcome.NO_EFFECT),
    ],
)
def test_an_unacknowledged_signal_is_settled_by_probes(
    answers: list[Presence | RemoteError], wanted: Presence, outcome: Outcome
) -> None:
    victim = ProcessIdentity(4000, 1.0, EXECUTOR, "20261121T061500Z-3fa9c1")
    settlement = settle(Scripted(*answers), victim, wanted, Delivery.UNKNOWN, within_s=0.1)
    assert settlement.outcome is outcome


def test_the_last_probe_lies_at_the_end_of_the_time() -> None:
    victim = ProcessIdentity(4000, 1.0, EXECUTOR, "20261121T061500Z-3fa9c1")
    asked = Scripted(Presence.ALIVE, Presence.GONE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(injector_module.time, "monotonic", lambda: 100.0)
        assert settle(asked, victim, Presence.GONE, Delivery.SENT, within_s=0.0).outcome is Outcome.NO_EFFECT


@pytest.mark.parametrize(
    ("ticks", "command", "presence"),
    [(55, (), Presence.ALIVE), (56, (), Presence.OTHER), (55, ("stranger",), Presence.OTHER)],
)
def test_a_process_that_is_being_torn_down_is_no_stranger(
    ticks: int, command: tuple[str, ...], presence: Presence, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = ProcessIdentity(4000, 1000.0, EXECUTOR, "20261121T061500Z-3fa9c1", (), 55)
    monkeypatch.setattr(local, "read_process", lambda pid: LiveProcess(pid, 1, 1000.0, ticks, command))
    assert LocalInjector().probe(victim) is presence


@pytest.mark.parametrize(("action", "within_s"), [("kill", 5.0), ("pause", 5.0), ("term", 15.0)])
def test_how_long_an_act_may_take_hangs_on_the_action(
    action: str, within_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    hands = ACTIONS[action].hands
    assert isinstance(hands, Signals)
    now = [100.0]
    monkeypatch.setattr(injector_module.time, "monotonic", lambda: now[0])

    def sleep(seconds: float) -> None:
        now[0] += seconds

    victim = ProcessIdentity(4000, 1.0, EXECUTOR, "20261121T061500Z-3fa9c1")
    settlement = settle(
        Scripted(Presence.ALIVE), victim, hands.shows, Delivery.SENT, within_s=hands.within_s, sleep=sleep
    )
    assert settlement.outcome is Outcome.NO_EFFECT
    assert within_s <= now[0] - 100.0 < within_s + 0.1


def test_undoing_runs_newest_first_and_past_a_failing_step() -> None:
    seen: list[str] = []

    def fail() -> None:
        raise OSError("no such file")

    undo = UndoStack()
    undo.register("first", lambda: seen.append("first"))
    undo.register("broken", fail)
    undo.register("last", lambda: seen.append("last"))
    results = undo.run()
    assert seen == ["last", "first"]
    assert [(name, str(error) if error else None) for name, error in results] == [
        ("last", None),
        ("broken", "no such file"),
        ("first", None),
    ]
    assert len(undo) == 1, "what failed is tried again"
    assert [name for name, _ in undo.run()] == ["broken"]
    assert seen == ["last", "first"]


@pytest.mark.parametrize("error", [OSError(38, "Function not implemented"), AttributeError("pidfd_open")])
def test_without_pidfds_a_signal_goes_by_its_pid(
    spawn: Spawn, run: str, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refuse(pid: int) -> int:
        raise error

    process = spawn()
    injector = LocalInjector()
    (victim,) = injector.find("executor", Tokens(run))
    monkeypatch.setattr("fault.local.os.pidfd_open", refuse)
    injector.arm(victim)
    assert injector.signal(victim, signal.SIGKILL) is Delivery.SENT
    assert process.wait(120) == -signal.SIGKILL
