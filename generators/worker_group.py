"""Several processes that share one schedule: process i sends the records k ≡ i (mod n).

The members are processes of this machine or tasks of others. They skip the primer, wait for the same T0, and report to
the lead, which adds their reports up. Each has one TCP connection, JSON lines both ways. Whoever starts the members
gives them the lead's address and a secret, which is the first thing that they send; a connection without it is closed.
The end of the connection ends either side: a member without a lead stops, and a lead without a member fails.

    member -> {"secret", "member"}
    lead   -> {"probe"}, PROBES times       member -> {"probe", "wall_ns"}: how far its clock is off
    lead   -> {"t0_wall_ns"}                member -> events, as a generator says them
"""

from __future__ import annotations

import contextlib
import hmac
import json
import queue
import secrets
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol, TextIO

from generators.send_progress import GeneratorError, Progress, SendProgress
from generators.start_barrier import StartInstant, StopSwitch

LOOPBACK = "127.0.0.1"
# T0 is an instant of each member's wall clock; what one is off, its records are late or early.
MOST_OFF_NS = 5_000_000
PROBES = 8
# A member that has connected answers at once, if it is one.
ANSWER_S = 10.0
HELLO_BYTES = 1000
# For a process to end, and for the reason that a member has given to arrive.
_END_S, _REASON_S = 5.0, 1.0


@dataclass(frozen=True)
class Address:
    """Where a lead listens, and what a member says first."""

    host: str
    port: int
    secret: str


@dataclass(frozen=True)
class WorkerReport:
    """One line of one member; `event` is None when nothing more comes from it."""

    member: int
    event: dict[str, Any] | None


Tell = Callable[[WorkerReport], None]


class Workers(Protocol):
    """What starts the members somewhere, each of which calls `member.serve`."""

    host: str  # an address of this machine that they reach

    def start(self, address: Address, tell: Tell) -> None:
        """Start them all and return at once. `tell`: for those that end before they connect; from any thread."""

    def end(self) -> None:
        """End those that do not end with their connection."""


class LocalWorkers:
    """Processes of this machine, which read the lead's address from their standard input."""

    host = LOOPBACK

    def __init__(self, commands: Sequence[Sequence[str]]) -> None:
        """`commands`: one per member."""
        self._commands = commands
        self._processes: list[subprocess.Popen[str]] = []

    def start(self, address: Address, tell: Tell) -> None:
        for number, command in enumerate(self._commands):
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
            self._processes.append(process)
            threading.Thread(target=_watch, args=(number, process, tell), daemon=True).start()
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError), process.stdin as told:
                told.write(json.dumps(asdict(address)))

    def end(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.terminate()
        for process in self._processes:
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _watch(number: int, process: subprocess.Popen[str], tell: Tell) -> None:
    """Report a process that failed. The reason of one that could connect comes from its connection, and earlier."""
    if process.wait():
        time.sleep(_REASON_S)
        tell(WorkerReport(number, None))


class WorkerGroup:
    """The members of a shared schedule. Use it as a context: leaving it ends every member."""

    def __init__(self, members: Workers, count: int, stop: StopSwitch) -> None:
        """`count`: the number of members, which are numbered from 0."""
        self._members, self._count, self._stop = members, count, stop
        self._reports: queue.Queue[WorkerReport] = queue.Queue()
        self._done: set[int] = set()
        self._connections: dict[int, socket.socket] = {}
        self._listener: socket.socket | None = None
        self._lock = threading.Lock()

    def __enter__(self) -> WorkerGroup:
        self._listener = socket.create_server((self._members.host, 0), backlog=self._count)
        address = Address(self._members.host, self._listener.getsockname()[1], secrets.token_hex(16))
        threading.Thread(target=self._accept, args=(self._listener, address.secret), daemon=True).start()
        try:
            self._members.start(address, self._reports.put)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            listener, self._listener = self._listener, None
            connections = list(self._connections.values())
        for one in [*connections, *filter(None, [listener])]:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        self._members.end()

    def open_gate(self, start: StartInstant) -> None:
        """Tell the members when the schedule begins."""
        for connection in self._connections.values():
            # The thread that listens to a connection reports its end.
            with contextlib.suppress(OSError):
                say(connection, t0_wall_ns=start.wall_ns)

    def next_report(self, timeout_s: float = 0.05) -> WorkerReport | None:
        """Return the next event of a member, or None when there was none in time.

        Raises GeneratorError when a member failed or ended without a `done`, Stopped when asked to stop.
        """
        self._stop.check()
        try:
            report = self._reports.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if report.event is None:
            if report.member in self._done:
                return None
            raise GeneratorError(f"process {report.member} of the generator died; see its standard error")
        if report.event["event"] == "failed":
            raise GeneratorError(f"process {report.member} of the generator: {report.event['message']}")
        if report.event["event"] == "done":
            self._done.add(report.member)
        return report

    def await_all(self, name: str) -> list[dict[str, Any]]:
        """Wait until each member has said `name`; return those events by member."""
        said: dict[int, dict[str, Any]] = {}
        while len(said) < self._count:
            report = self.next_report()
            if report is not None and report.event is not None and report.event["event"] == name:
                said[report.member] = report.event
        return [said[number] for number in range(self._count)]

    def follow(self, progress: Progress) -> list[dict[str, Any]]:
        """Add up the members' progress until each is done; return the `done` events by member.

        `progress` is called whenever the first member reports, so about once a second.
        """
        latest: dict[int, SendProgress] = {}
        done: dict[int, dict[str, Any]] = {}
        while len(done) < self._count:
            report = self.next_report()
            if report is None or report.event is None:
                continue
            if report.event["event"] == "done":
                done[report.member] = report.event
            elif report.event["event"] == "progress":
                said = SendProgress(**{name: report.event[name] for name in SendProgress.__dataclass_fields__})
                before = latest[report.member].latest_ms if report.member in latest else 0.0
                latest[report.member] = replace(said, latest_ms=max(before, said.latest_ms))
                if report.member == min(set(range(self._count)) - self._done):
                    progress(SendProgress.together(latest.values()))
                    # Reported: later lateness is counted from 0.
                    latest = {member: replace(one, latest_ms=0.0) for member, one in latest.items()}
        return [done[number] for number in range(self._count)]

    def _accept(self, listener: socket.socket, secret: str) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return  # closed: the crew is at its end
            threading.Thread(target=self._hear, args=(connection, secret), daemon=True).start()

    def _hear(self, connection: socket.socket, secret: str) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(ANSWER_S)
        with (
            connection,
            contextlib.suppress(OSError, ValueError, KeyError, TypeError),
            connection.makefile("r") as lines,
        ):
            hello = json.loads(lines.readline(HELLO_BYTES))
            number = int(hello["member"])
            if not hmac.compare_digest(str(hello["secret"]), secret) or not self._take(number, connection):
                return
            try:
                off_ns, within_ns = clock_offset(connection, lines)
                if abs(off_ns) - within_ns > MOST_OFF_NS:
                    message = _off(connection.getpeername()[0], off_ns)
                    self._reports.put(WorkerReport(number, {"event": "failed", "message": message}))
                connection.settimeout(None)
                for line in lines:
                    self._reports.put(WorkerReport(number, json.loads(line)))
            finally:
                self._reports.put(WorkerReport(number, None))

    def _take(self, number: int, connection: socket.socket) -> bool:
        with self._lock:
            if self._listener is None or number in self._connections or not 0 <= number < self._count:
                return False
            self._connections[number] = connection
            return True


def _off(host: str, off_ns: int) -> str:
    return f"the clock of its host {host} is {off_ns / 1e6:+.1f} ms off this one's; let both follow one time server"


def clock_offset(connection: socket.socket, lines: TextIO) -> tuple[int, int]:
    """Return how far the other side's wall clock is ahead, and half of the shortest round trip, in ns."""
    trips = []
    for number in range(PROBES):
        sent_ns = time.time_ns()
        say(connection, probe=number)
        theirs_ns = int(json.loads(lines.readline())["wall_ns"])
        took_ns = time.time_ns() - sent_ns
        trips.append((took_ns, theirs_ns - sent_ns - took_ns // 2))
    took_ns, off_ns = min(trips)
    return off_ns, took_ns // 2


def say(connection: socket.socket, **line: Any) -> None:
    """Send one line."""
    connection.sendall((json.dumps(line) + "\n").encode())
