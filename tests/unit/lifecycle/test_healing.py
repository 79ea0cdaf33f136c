"""Undo replay after a fault scheduler crash, including journals of earlier versions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fault.action import UndoSpec
from fault.actions import connections
from fault.identity import EXECUTOR, Presence, ProcessIdentity
from fault.injector import Injector
from faultline.experiment.attempt import Attempt
from faultline.lifecycle.ending import undo_replay as subject
from faultline.lifecycle.ending.undo_replay import replay_undos, undo_fields
from faultline.system.errors import InfrastructureError
from faultline.system.journal import Journal
from tests.support.attempts import prepared
from tests.support.fake_clock import SimulatedHost

RUN = "20261121T061500Z-3fa9c1"
VICTIM = ProcessIdentity(4_194_400, 1.0, EXECUTOR, RUN, (f"-Dfaultline.run={RUN}", EXECUTOR.main), 5)


@dataclass
class Proxy:
    """Proxy of a cut connection."""

    mode: str = "cut"

    def status(self) -> dict[str, str]:
        return {"mode": self.mode}

    def restore(self) -> None:
        self.mode = "plain"


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    return Attempt(tmp_path)


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> SimulatedHost:
    """Host with an executor that a pause left stopped."""
    made = SimulatedHost({VICTIM: Presence.STOPPED})
    monkeypatch.setattr(subject, "injector_of", lambda assignment: Injector(here=made))
    return made


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Proxy:
    made = Proxy()
    monkeypatch.setattr(connections, "ProxyControl", lambda path: made)
    return made


def left(attempt: Attempt, faults: list[dict[str, Any]], *undos: dict[str, Any]) -> None:
    """Write the plan and the registered undos of an attempt."""
    prepared(attempt.folder, {"duration_s": 200, "fault_plan": {"faults": faults}}, facts={"attempt": RUN})
    with Journal(attempt.conductor_journal) as journal:
        for undo in undos:
            journal.write("undo_registered", **undo)


PAUSE = {"victim": "executor", "action": "pause", "at_s": 45, "duration_s": 5}
CUT = {"victim": "kafka", "action": "cut", "at_s": 60, "duration_s": 5}
HEAL_PROXY = undo_fields(UndoSpec("cut", "restore the proxy"), 0)


@pytest.mark.parametrize("named", [True, False], ids=["names its action", "from before"])
def test_a_pause_and_a_cut_are_healed(attempt: Attempt, host: SimulatedHost, proxy: Proxy, named: bool) -> None:
    undos = [UndoSpec("pause", f"SIGCONT to {VICTIM}", VICTIM.as_json()), UndoSpec("cut", "restore the proxy")]
    lines = [undo_fields(undo, fault) for fault, undo in enumerate(undos)]
    before = [{**undo.fields, "fault": fault, "undo": undo.name} for fault, undo in enumerate(undos)]
    left(attempt, [PAUSE, CUT], *(lines if named else before))
    assert replay_undos(attempt) == ["restore the proxy", f"SIGCONT to {VICTIM}"], "newest first"
    assert host.states[VICTIM] is Presence.ALIVE and proxy.mode == "plain"
    assert replay_undos(attempt) == []


def test_a_missing_proxy_needs_no_undo(attempt: Attempt) -> None:
    left(attempt, [CUT], HEAL_PROXY)
    assert replay_undos(attempt) == []


def test_a_failed_undo_is_named_with_its_fix_and_stops_no_other(
    attempt: Attempt, host: SimulatedHost, proxy: Proxy
) -> None:
    """One host is unknown, and one action exists in another version only."""
    lost = undo_fields(UndoSpec("pause", "SIGCONT to it", {**VICTIM.as_json(), "host": "node9"}), 1)
    left(attempt, [CUT, {**PAUSE, "at_s": 70}], HEAL_PROXY, lost, undo_fields(UndoSpec("melt", "freeze it"), 2))
    with pytest.raises(InfrastructureError) as caught:
        replay_undos(attempt)
    message = str(caught.value)
    assert message.startswith("undo: ") and "melt" in message and "host: got node9" in message
    assert message.endswith("kill -CONT")
    assert proxy.mode == "plain" and host.states[VICTIM] is Presence.STOPPED


@pytest.mark.parametrize("presence", [Presence.OTHER, Presence.GONE, Presence.ALIVE])
def test_another_process_with_the_victims_pid_is_left_alone(
    attempt: Attempt, host: SimulatedHost, presence: Presence
) -> None:
    left(attempt, [PAUSE], undo_fields(UndoSpec("pause", "SIGCONT to it", VICTIM.as_json()), 0))
    host.states[VICTIM] = presence
    assert replay_undos(attempt) == [] and host.sent == []


def test_an_undo_that_breaks_or_cannot_be_built_stops_no_other(attempt: Attempt, proxy: Proxy) -> None:
    """The lines lack fields or name a missing fault, as after an update; the errors are unexpected ones."""
    broken = undo_fields(UndoSpec("pause", "SIGCONT to it", {}), 1)
    unbuilt = [{"fault": 7, "undo": "stop it"}, {"fault": 8, "undo": "thaw it", "action": "pause"}]
    left(attempt, [CUT, {**PAUSE, "at_s": 70}], HEAL_PROXY, broken, *unbuilt)
    expected = "^undo: thaw it: KeyError: .*; stop it: IndexError: .*; SIGCONT to it: KeyError: .*kill -CONT"
    with pytest.raises(InfrastructureError, match=expected):
        replay_undos(attempt)
    assert proxy.mode == "plain"
