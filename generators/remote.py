"""Members of a crew on other machines: they connect to the lead, which tells them the gate and hears their reports.

One TCP connection a member, JSON lines both ways. Whoever started the members gave them the lead's address and a
secret, which is the first thing that they say; a connection without it is closed. The end of the connection ends
either side: a member without a lead stops, and a lead without a member fails.

    member -> {"secret", "member"}
    lead   -> {"probe"}, PROBES times       member -> {"probe", "wall_ns"}: how far its clock is off
    lead   -> {"t0_wall_ns"}                member -> events, as a generator says them
"""

from __future__ import annotations

import contextlib
import hmac
import io
import json
import secrets
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TextIO, cast

from generators.crew import Report, Tell
from generators.gate import Start, StopSwitch
from generators.journal import GeneratorError, Journal
from generators.process import send_stripe
from generators.spec import GeneratorSpec

# T0 is an instant of each member's wall clock; what one is off, its records are late or early.
MOST_OFF_NS = 5_000_000
PROBES = 8
# A member that has connected answers at once, if it is one.
ANSWER_S = 10.0
HELLO_BYTES = 1000
_GATE_POLL_S = 0.2


@dataclass(frozen=True)
class Address:
    """Where a lead listens, and what a member says first."""

    host: str
    port: int
    secret: str


class RemoteMembers:
    """The lead's side. `launch(address)` has each member call `serve` somewhere; it returns at once."""

    def __init__(self, count: int, host: str, launch: Callable[[Address], None]) -> None:
        """`host`: an address of this machine that the members reach."""
        self.count = count
        self._host, self._launch = host, launch
        self._connections: dict[int, socket.socket] = {}
        self._listener: socket.socket | None = None
        self._lock = threading.Lock()
        self._tell: Tell | None = None

    def begin(self, tell: Tell) -> None:
        self._tell = tell
        self._listener = socket.create_server((self._host, 0), backlog=self.count)
        address = Address(self._host, self._listener.getsockname()[1], secrets.token_hex(16))
        threading.Thread(target=self._accept, args=(self._listener, address.secret, tell), daemon=True).start()
        self._launch(address)

    def fail(self, message: str) -> None:
        """Whoever was to start the members could not, or has lost one; called from any thread."""
        if self._tell is not None:
            self._tell(Report(0, {"event": "failed", "message": message}))

    def open_gate(self, start: Start) -> None:
        for connection in self._connections.values():
            # One that is gone is told of by whoever listens to it.
            with contextlib.suppress(OSError):
                _say(connection, t0_wall_ns=start.wall_ns)

    def end(self) -> None:
        with self._lock:
            listener, self._listener = self._listener, None
            connections = list(self._connections.values())
        for one in [*connections, *filter(None, [listener])]:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self, listener: socket.socket, secret: str, tell: Tell) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return  # closed: the crew is at its end
            threading.Thread(target=self._hear, args=(connection, secret, tell), daemon=True).start()

    def _hear(self, connection: socket.socket, secret: str, tell: Tell) -> None:
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
                    tell(Report(number, {"event": "failed", "message": _off(connection.getpeername()[0], off_ns)}))
                connection.settimeout(None)
                for line in lines:
                    tell(Report(number, json.loads(line)))
            finally:
                tell(Report(number, None))

    def _take(self, number: int, connection: socket.socket) -> bool:
        with self._lock:
            if self._listener is None or number in self._connections or not 0 <= number < self.count:
                return False
            self._connections[number] = connection
            return True


def _off(host: str, off_ns: int) -> str:
    return f"the clock of its host {host} is {off_ns / 1e6:+.1f} ms off this one's; let both follow one time server"


def clock_offset(connection: socket.socket, lines: TextIO) -> tuple[int, int]:
    """How far the other side's wall clock is ahead, and how sure that is, in ns: half of the shortest round trip."""
    shortest: tuple[int, int] | None = None
    for number in range(PROBES):
        sent_ns = time.time_ns()
        _say(connection, probe=number)
        theirs_ns = int(json.loads(lines.readline())["wall_ns"])
        took_ns = time.time_ns() - sent_ns
        if shortest is None or took_ns < shortest[1]:
            shortest = theirs_ns - sent_ns - took_ns // 2, took_ns
    assert shortest is not None
    return shortest[0], shortest[1] // 2


def serve(spec: GeneratorSpec, member: int, address: Address) -> None:
    """A member's side: sends its stripe; returns when it has. Raises GeneratorError when it failed or was stopped."""
    with (
        socket.create_connection((address.host, address.port), ANSWER_S) as connection,
        connection.makefile("r") as lines,
    ):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _say(connection, secret=address.secret, member=member)
        for _ in range(PROBES):
            if not (line := lines.readline()):
                raise GeneratorError("the lead of the generator hung up; it is over, or has this member already")
            _say(connection, probe=json.loads(line)["probe"], wall_ns=time.time_ns())
        connection.settimeout(None)
        stop, gate, journal = StopSwitch(), _RemoteGate(), Journal(cast(TextIO, _Output(connection)))
        threading.Thread(target=gate.listen, args=(lines, stop), daemon=True).start()
        try:
            send_stripe(spec, member, lambda: gate.wait(stop), journal, stop)
        except GeneratorError as error:
            journal.event("failed", message=str(error))
            raise
        finally:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class _Output(io.TextIOBase):
    """What a member says, on its connection. A lead that is gone is told of by the end of what it says."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            self._connection.sendall(text.encode())
        return len(text)


class _RemoteGate:
    """T0 as the lead tells it."""

    def __init__(self) -> None:
        self._opened = threading.Event()
        self._t0_wall_ns = 0

    def listen(self, lines: TextIO, stop: StopSwitch) -> None:
        """Hears the lead until the connection ends, which ends this member."""
        with contextlib.suppress(OSError, ValueError):
            for line in lines:
                self._t0_wall_ns = int(json.loads(line)["t0_wall_ns"])
                self._opened.set()
        stop.pull("the lead of the generator is gone")

    def wait(self, stop: StopSwitch) -> Start:
        """T0 on this machine's clocks. Raises Stopped."""
        while not self._opened.wait(_GATE_POLL_S):
            stop.check()
        ahead_ns = self._t0_wall_ns - time.time_ns()
        return Start(self._t0_wall_ns, time.monotonic_ns() + ahead_ns)


def _say(connection: socket.socket, **line: Any) -> None:
    connection.sendall((json.dumps(line) + "\n").encode())
