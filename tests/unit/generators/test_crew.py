"""Worker groups: admission, reports, and the common end of lead and workers.

A stand-in sends the records here; system tests use real workers, also on Spark executors.
"""

from __future__ import annotations

import contextlib
import json
import queue
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.system.waiting import wait_until
from generators import worker as member_module
from generators import worker_group as crew_module
from generators.send_progress import EventOutput, GeneratorError, sent_between
from generators.spec import GeneratorSpec
from generators.start_barrier import LoadEnd, StartInstant, StopRequest
from generators.worker import serve
from generators.worker_group import Address, LocalWorkers, ReportHandler, WorkerGroup, WorkerReport
from tests.unit.generators.conftest import spec_of

HOST = "127.0.0.1"
SPEC = spec_of(source="ids", rate=10, seconds=1, processes=2)


def stand_in(
    spec: GeneratorSpec,
    index: int,
    gate: Callable[[], StartInstant],
    journal: EventOutput,
    stop: StopRequest,
    load_end: LoadEnd,
) -> None:
    """Send a worker's events without a broker."""
    journal.event("prepared")
    start = gate()
    journal.event("done", worker=index, t0_wall_ns=start.wall_ns, t0_mono_ns=start.mono_ns)


@pytest.fixture(autouse=True)
def _no_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member_module, "send_shard", stand_in)


def serve_quietly(worker: int, address: Address) -> None:
    with contextlib.suppress(GeneratorError, OSError):
        serve(SPEC, worker, address)


class Threads:
    """Workers as threads; `started` may replace their start."""

    host = HOST

    def __init__(
        self, *workers: int, started: Callable[[Address, ReportHandler], None] = lambda address, report: None
    ) -> None:
        self._members, self._started = workers, started

    def start(self, address: Address, report: ReportHandler) -> None:
        for worker in self._members:
            threading.Thread(target=serve_quietly, args=(worker, address), daemon=True).start()
        self._started(address, report)

    def end(self) -> None:
        """Do nothing: they end with their connections."""


def group_of(
    *workers: int, started: Callable[[Address, ReportHandler], None] = lambda address, report: None
) -> WorkerGroup:
    return WorkerGroup(Threads(*workers, started=started), 2, StopRequest())


def test_workers_get_t0_on_their_clocks_and_report() -> None:
    with group_of(1, 0) as group:
        group.await_all("prepared")
        ahead_ns = 500_000_000
        start = StartInstant(time.time_ns() + ahead_ns, time.monotonic_ns() + ahead_ns)
        group.send_start(start)
        done = group.follow(lambda standing: None)
    assert [event["worker"] for event in done] == [0, 1]
    for event in done:
        assert event["t0_wall_ns"] == start.wall_ns
        assert abs(event["t0_mono_ns"] - start.mono_ns) < 5_000_000


def talk(address: Address, **hello: Any) -> str:
    """Return the lead's reply to a first message; empty if it closes the connection."""
    with socket.create_connection((address.host, address.port), 30) as connection, connection.makefile("r") as lines:
        connection.sendall((json.dumps(hello) + "\n").encode())
        return lines.readline()


@pytest.mark.parametrize("hello", [{"secret": "x", "worker": 0}, {"worker": 0}, {"secret": "x", "worker": "one"}, {}])
def test_connection_without_secret_is_closed(hello: dict[str, Any]) -> None:
    found: queue.Queue[Address] = queue.Queue()
    with group_of(started=lambda address, report: found.put(address)) as group:
        address = found.get(timeout=120)
        assert talk(address, **hello) == ""
        assert talk(address, secret=address.secret, worker=2) == "", "no worker has that number"
        assert group.next_report() is None
        assert json.loads(talk(address, secret=address.secret, worker=1)) == {"probe": 0}
        with pytest.raises(GeneratorError, match="worker 1"):  # a worker that connected and left
            group.next_report(timeout_s=120)


def test_failed_worker_start_fails_the_group_with_the_reason() -> None:
    failed = WorkerReport(0, {"event": "failed", "message": "no module named numpy"})
    with (
        group_of(started=lambda address, report: report(failed)) as group,
        pytest.raises(GeneratorError, match="no module named numpy"),
    ):
        group.await_all("prepared")


# A program that sends a worker's events until it is prepared.
MEMBER = """
import json, socket, sys
reports = json.loads(sys.stdin.read())
lead = socket.create_connection((reports["host"], reports["port"]))
lead.sendall((json.dumps({"secret": reports["secret"], "worker": 0}) + "\\n").encode())
for line in lead.makefile():
    lead.sendall((json.dumps({"wall_ns": __import__("time").time_ns(), "event": "prepared"}) + "\\n").encode())
"""


def test_local_workers_get_the_address_and_end_with_the_lead() -> None:
    workers = LocalWorkers([[sys.executable, "-c", MEMBER]])
    with WorkerGroup(workers, 1, StopRequest()) as group:
        wait_until(lambda: group._connections, timeout_s=60, what="the worker")
        group.send_start(StartInstant(1, 1))
        group.await_all("prepared")
    assert workers._processes[0].poll() in (0, -signal.SIGTERM)


def test_worker_that_ends_before_connecting_fails_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew_module, "_REASON_S", 0.0)
    workers = LocalWorkers([[sys.executable, "-c", "raise SystemExit(3)"]])
    with WorkerGroup(workers, 1, StopRequest()) as group, pytest.raises(GeneratorError, match="worker 0: died"):
        group.await_all("prepared")


def test_lost_lead_stops_its_workers() -> None:
    ended: queue.Queue[str] = queue.Queue()

    def serve_and_report(address: Address) -> None:
        with pytest.raises(GeneratorError) as error:
            serve(SPEC, 0, address)
        ended.put(str(error.value))

    def start(address: Address, report: ReportHandler) -> None:
        threading.Thread(target=serve_and_report, args=(address,), daemon=True).start()

    with WorkerGroup(Threads(started=start), 1, StopRequest()) as group:
        group.await_all("prepared")
    assert "lead" in ended.get(timeout=120)


def test_host_with_clock_offset_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew_module, "MAX_CLOCK_OFFSET_NS", -(10**9))  # any offset is too large
    with group_of(0, 1) as group, pytest.raises(GeneratorError, match=r"clock of host .* time server"):
        group.await_all("done")


def test_progress_keeps_the_largest_lag_of_all_workers() -> None:
    def progress(worker: int, latest_ms: float) -> WorkerReport:
        return WorkerReport(worker, {"event": "progress", "sent": 1, "due": 1, "late": 0, "latest_ms": latest_ms})

    reports = [progress(1, 300.0), progress(1, 5.0), progress(0, 2.0), progress(0, 1.0)]
    reports += [WorkerReport(worker, {"event": "done"}) for worker in (0, 1)]
    found = []
    with group_of(started=lambda address, report: deque(map(report, reports), maxlen=0) and None) as group:
        group.follow(lambda standing: found.append(standing.latest_ms))
    assert found == [300.0, 1.0]


@given(
    seconds=st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 50)), max_size=30),
    cuts=st.tuples(st.integers(0, 35), st.integers(0, 35)).map(sorted),
)
def test_records_of_adjacent_intervals_add_up(seconds: list[tuple[int, int]], cuts: list[int]) -> None:
    lines, sent, late = [], 0, 0
    for at, (more, delayed) in enumerate(seconds, start=1):
        sent, late = sent + more, late + min(more, delayed)
        lines.append({"wall_ns": at, "sent": sent, "late": late})
    begin, end = cuts
    parts = [sent_between(lines, *bounds) for bounds in ((0, begin), (begin, end), (end, 99))]
    assert (sum(one for one, _ in parts), sum(two for _, two in parts)) == (sent, late)
    inside = seconds[begin:end]
    assert parts[1] == (sum(more for more, _ in inside), sum(min(one) for one in inside))
