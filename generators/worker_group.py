"""Worker group: several processes that share one schedule; process i sends the records k ≡ i (mod n).

The workers are processes of this machine or tasks on others. They skip the preload, wait for the same T0, and report to
the lead, which merges their reports. Each has one TCP connection with JSON lines both ways. Their starter passes the
lead's address and a secret, which is their first message; a connection without it is closed. The end of the connection
ends either side: a worker without a lead stops, and a lead without a worker fails.

    worker -> {"secret", "worker"}
    lead   -> {"probe"}, PROBES times       worker -> {"probe", "wall_ns"}: its clock offset
    lead   -> {"t0_wall_ns"}                worker -> events of a generator
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
from generators.start_barrier import StartInstant, StopRequest

LOOPBACK = "127.0.0.1"
# T0 is an instant on each worker's wall clock; a clock offset shifts its records.
MAX_CLOCK_OFFSET_NS = 5_000_000
PROBES = 8
# A genuine worker replies at once.
REPLY_TIMEOUT_S = 10.0
HELLO_BYTES = 1000
# Time for a process to end, and for a worker's failure reason to arrive.
_END_S, _REASON_S = 5.0, 1.0


@dataclass(frozen=True)
class Address:
    """Address of a lead, and the secret of its workers."""

    host: str
    port: int
    secret: str


@dataclass(frozen=True)
class WorkerReport:
    """One event of one worker; `event` is None after its end."""

    worker: int
    event: dict[str, Any] | None


ReportHandler = Callable[[WorkerReport], None]


class Workers(Protocol):
    """Starter of worker processes, each of which calls `worker.serve`."""

    host: str  # address of this machine for the workers

    def start(self, address: Address, report: ReportHandler) -> None:
        """Start all and return at once. `report` is called, from any thread, for a worker that ends unconnected."""

    def end(self) -> None:
        """End the workers that do not end with their connection."""


class LocalWorkers:
    """Processes of this machine, which read the lead's address from standard input."""

    host = LOOPBACK

    def __init__(self, commands: Sequence[Sequence[str]]) -> None:
        """Store one command per worker."""
        self._commands = commands
        self._processes: list[subprocess.Popen[str]] = []

    def start(self, address: Address, report: ReportHandler) -> None:
        for number, command in enumerate(self._commands):
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
            self._processes.append(process)
            threading.Thread(target=_report_failure, args=(number, process, report), daemon=True).start()
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError), process.stdin as pipe:
                pipe.write(json.dumps(asdict(address)))

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


def _report_failure(number: int, process: subprocess.Popen[str], report: ReportHandler) -> None:
    """Report a failed process; a connected one has already reported its reason."""
    if process.wait():
        time.sleep(_REASON_S)
        report(WorkerReport(number, None))


class WorkerGroup:
    """Workers of a shared schedule. As a context manager it ends every worker on exit."""

    def __init__(self, workers: Workers, count: int, stop: StopRequest) -> None:
        """Set the number of workers, which are numbered from 0."""
        self._workers, self._count, self._stop = workers, count, stop
        self._reports: queue.Queue[WorkerReport] = queue.Queue()
        self._done: set[int] = set()
        self._connections: dict[int, socket.socket] = {}
        self._listener: socket.socket | None = None
        self._lock = threading.Lock()

    def __enter__(self) -> WorkerGroup:
        self._listener = socket.create_server((self._workers.host, 0), backlog=self._count)
        address = Address(self._workers.host, self._listener.getsockname()[1], secrets.token_hex(16))
        threading.Thread(target=self._accept, args=(self._listener, address.secret), daemon=True).start()
        try:
            self._workers.start(address, self._reports.put)
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
        self._workers.end()

    def send_start(self, start: StartInstant) -> None:
        """Send T0 to the workers."""
        for connection in self._connections.values():
            # If the connection ended, its thread reports that.
            with contextlib.suppress(OSError):
                send_line(connection, t0_wall_ns=start.wall_ns)

    def next_report(self, timeout_s: float = 0.05) -> WorkerReport | None:
        """Return the next event of a worker, or None after the timeout.

        Raises GeneratorError if a worker failed or ended without `done`, Stopped on a stop request.
        """
        self._stop.check()
        try:
            report = self._reports.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if report.event is None:
            if report.worker in self._done:
                return None
            raise GeneratorError(f"worker {report.worker}: died; see its standard error")
        if report.event["event"] == "failed":
            raise GeneratorError(f"worker {report.worker}: {report.event['message']}")
        if report.event["event"] == "done":
            self._done.add(report.worker)
        return report

    def await_all(self, name: str) -> list[dict[str, Any]]:
        """Wait until each worker has sent event `name`; return those events by worker."""
        events: dict[int, dict[str, Any]] = {}
        while len(events) < self._count:
            report = self.next_report()
            if report is not None and report.event is not None and report.event["event"] == name:
                events[report.worker] = report.event
        return [events[number] for number in range(self._count)]

    def follow(self, progress: Progress) -> list[dict[str, Any]]:
        """Add up the workers' progress until each is done; return the `done` events by worker.

        `progress` is called whenever the first worker reports, so about once a second.
        """
        latest: dict[int, SendProgress] = {}
        done: dict[int, dict[str, Any]] = {}
        while len(done) < self._count:
            report = self.next_report()
            if report is None or report.event is None:
                continue
            if report.event["event"] == "done":
                done[report.worker] = report.event
            elif report.event["event"] == "progress":
                current = SendProgress(**{name: report.event[name] for name in SendProgress.__dataclass_fields__})
                before = latest[report.worker].latest_ms if report.worker in latest else 0.0
                latest[report.worker] = replace(current, latest_ms=max(before, current.latest_ms))
                if report.worker == min(set(range(self._count)) - self._done):
                    progress(SendProgress.combine(latest.values()))
                    # The largest schedule lag counts from 0 again after each report.
                    latest = {worker: replace(one, latest_ms=0.0) for worker, one in latest.items()}
        return [done[number] for number in range(self._count)]

    def _accept(self, listener: socket.socket, secret: str) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return  # closed at the end of the group
            threading.Thread(target=self._receive, args=(connection, secret), daemon=True).start()

    def _receive(self, connection: socket.socket, secret: str) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(REPLY_TIMEOUT_S)
        with (
            connection,
            contextlib.suppress(OSError, ValueError, KeyError, TypeError),
            connection.makefile("r") as lines,
        ):
            hello = json.loads(lines.readline(HELLO_BYTES))
            number = int(hello["worker"])
            if not hmac.compare_digest(str(hello["secret"]), secret) or not self._register(number, connection):
                return
            try:
                off_ns, within_ns = clock_offset(connection, lines)
                if abs(off_ns) - within_ns > MAX_CLOCK_OFFSET_NS:
                    message = _clock_message(connection.getpeername()[0], off_ns)
                    self._reports.put(WorkerReport(number, {"event": "failed", "message": message}))
                connection.settimeout(None)
                for line in lines:
                    self._reports.put(WorkerReport(number, json.loads(line)))
            finally:
                self._reports.put(WorkerReport(number, None))

    def _register(self, number: int, connection: socket.socket) -> bool:
        with self._lock:
            if self._listener is None or number in self._connections or not 0 <= number < self._count:
                return False
            self._connections[number] = connection
            return True


def _clock_message(host: str, off_ns: int) -> str:
    return f"clock of host {host}: got {off_ns / 1e6:+.1f} ms offset; fix: synchronise both hosts with one time server"


def clock_offset(connection: socket.socket, lines: TextIO) -> tuple[int, int]:
    """Return the other side's clock offset and half of the shortest round trip, in ns."""
    trips = []
    for number in range(PROBES):
        sent_ns = time.time_ns()
        send_line(connection, probe=number)
        theirs_ns = int(json.loads(lines.readline())["wall_ns"])
        took_ns = time.time_ns() - sent_ns
        trips.append((took_ns, theirs_ns - sent_ns - took_ns // 2))
    took_ns, off_ns = min(trips)
    return off_ns, took_ns // 2


def send_line(connection: socket.socket, **line: Any) -> None:
    """Send one JSON line."""
    connection.sendall((json.dumps(line) + "\n").encode())
