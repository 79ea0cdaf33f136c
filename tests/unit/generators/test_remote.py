"""Members on other machines: who is let in, what they are told, and that either side ends with the other.

What they send is a stand-in's here; the system layer has real ones on Spark's executors.
"""

from __future__ import annotations

import contextlib
import json
import queue
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from generators import remote
from generators.crew import Crew, Report
from generators.gate import Start, StopSwitch
from generators.journal import GeneratorError, Journal
from generators.remote import Address, RemoteMembers, serve
from generators.spec import GeneratorSpec

HOST = "127.0.0.1"
SPEC = GeneratorSpec.model_validate(
    {"bootstrap": "b:1", "topic": "t", "partitions": 2, "rate": 10, "seconds": 1, "source": "ids", "processes": 2}
)


def stand_in(spec: GeneratorSpec, index: int, gate: Callable[[], Start], journal: Journal, stop: StopSwitch) -> None:
    """Says what a member says, without a broker."""
    journal.event("prepared")
    start = gate()
    journal.event("done", member=index, t0_wall_ns=start.wall_ns, t0_mono_ns=start.mono_ns)


@pytest.fixture(autouse=True)
def _no_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "send_stripe", stand_in)


def serve_quietly(member: int, address: Address) -> None:
    with contextlib.suppress(GeneratorError, OSError):
        serve(SPEC, member, address)


def launch(*members: int) -> Callable[[Address], None]:
    """Each of these members in a thread."""

    def start(address: Address) -> None:
        for member in members:
            threading.Thread(target=serve_quietly, args=(member, address), daemon=True).start()

    return start


def test_each_member_learns_the_gate_on_its_own_clocks_and_reports() -> None:
    with Crew(RemoteMembers(2, HOST, launch(1, 0)), StopSwitch()) as crew:
        crew.await_all("prepared")
        ahead_ns = 500_000_000
        start = Start(time.time_ns() + ahead_ns, time.monotonic_ns() + ahead_ns)
        crew.open_gate(start)
        done = crew.follow(lambda standing: None)
    assert [event["member"] for event in done] == [0, 1]
    for event in done:
        assert event["t0_wall_ns"] == start.wall_ns
        assert abs(event["t0_mono_ns"] - start.mono_ns) < 5_000_000


def talk(address: Address, **hello: Any) -> str:
    """What the lead answers to a greeting; empty when it hangs up."""
    with socket.create_connection((address.host, address.port), 30) as connection, connection.makefile("r") as lines:
        connection.sendall((json.dumps(hello) + "\n").encode())
        return lines.readline()


@pytest.mark.parametrize("hello", [{"secret": "x", "member": 0}, {"member": 0}, {"secret": "x", "member": "one"}, {}])
def test_a_stranger_is_not_let_in_and_changes_nothing(hello: dict[str, Any]) -> None:
    found: queue.Queue[Address] = queue.Queue()
    members, reports = RemoteMembers(2, HOST, found.put), queue.Queue[Report]()
    members.begin(reports.put)
    address = found.get(timeout=120)
    assert talk(address, **hello) == ""
    assert talk(address, secret=address.secret, member=2) == "", "no member has that number"
    assert json.loads(talk(address, secret=address.secret, member=0)) == {"probe": 0}
    assert reports.get(timeout=120) == Report(0, None), "only a member that was let in and left is told of"
    assert reports.empty()
    members.end()


def test_a_member_that_leaves_fails_the_crew() -> None:
    def leave(address: Address) -> None:
        launch(0)(address)
        talk(address, secret=address.secret, member=1)

    with Crew(RemoteMembers(2, HOST, leave), StopSwitch()) as crew, pytest.raises(GeneratorError, match="process 1"):
        crew.await_all("prepared")


def test_members_that_cannot_be_started_fail_the_crew_with_the_reason() -> None:
    members = RemoteMembers(2, HOST, lambda address: members.fail("no module named numpy"))
    with Crew(members, StopSwitch()) as crew, pytest.raises(GeneratorError, match="no module named numpy"):
        crew.await_all("prepared")


def test_a_lead_that_leaves_stops_its_members() -> None:
    ended: queue.Queue[str] = queue.Queue()

    def serve_and_tell(address: Address) -> None:
        def run() -> None:
            try:
                serve(SPEC, 0, address)
            except GeneratorError as error:
                ended.put(str(error))

        threading.Thread(target=run, daemon=True).start()

    members, reports = RemoteMembers(1, HOST, serve_and_tell), queue.Queue[Report]()
    members.begin(reports.put)
    prepared = reports.get(timeout=120).event
    assert prepared is not None and prepared["event"] == "prepared"
    members.end()
    assert "lead" in ended.get(timeout=120)


def test_a_host_whose_clock_is_off_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "MOST_OFF_NS", -(10**9))  # whatever the clocks of one machine show is too much
    members = RemoteMembers(2, HOST, launch(0, 1))
    with Crew(members, StopSwitch()) as crew, pytest.raises(GeneratorError, match=r"clock of its host .* time server"):
        crew.await_all("done")


class Telling:
    """Members of whom each report is given."""

    count = 2

    def __init__(self, *reports: Report) -> None:
        self._reports = reports

    def begin(self, tell: Any) -> None:
        for report in self._reports:
            tell(report)

    def open_gate(self, start: Start) -> None:
        raise NotImplementedError

    def end(self) -> None:
        """Nothing was begun."""


def test_no_member_hides_the_lateness_of_another_nor_its_own_of_before() -> None:
    def progress(member: int, latest_ms: float) -> Report:
        return Report(member, {"event": "progress", "sent": 1, "due": 1, "late": 0, "latest_ms": latest_ms})

    told = [progress(1, 300.0), progress(1, 5.0), progress(0, 2.0), progress(0, 1.0)]
    members = Telling(*told, *(Report(member, {"event": "done"}) for member in (0, 1)))
    found = []
    with Crew(members, StopSwitch()) as crew:
        crew.follow(lambda standing: found.append(standing.latest_ms))
    assert found == [300.0, 1.0]
