"""Worker of a group: it connects to the lead, receives T0, sends its shard and reports."""

from __future__ import annotations

import contextlib
import io
import json
import socket
import threading
import time
from pathlib import Path
from typing import TextIO, cast

from generators.generator_process import send_shard
from generators.send_progress import EventOutput, GeneratorError
from generators.spec import GeneratorSpec
from generators.start_barrier import LoadEnd, StartInstant, StopRequest, await_barrier
from generators.worker_group import PROBES, REPLY_TIMEOUT_S, Address, send_line

_START_POLL_S = 0.2


def serve(
    spec: GeneratorSpec, worker: int, address: Address, barrier: Path | None = None, stop: StopRequest | None = None
) -> None:
    """Send one shard of the schedule.

    `barrier`: path of the start barrier for a worker that sees the file; it then shares the lead's clock and the load's
    end. Raises GeneratorError if it failed or was stopped.
    """
    stop = StopRequest() if stop is None else stop
    with _connect(address) as connection, connection.makefile("r") as lines:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        send_line(connection, secret=address.secret, worker=worker)
        for _ in range(PROBES):
            if not (line := lines.readline()):
                raise GeneratorError("lead: connection closed; it ended, or this worker is already connected")
            send_line(connection, probe=json.loads(line)["probe"], wall_ns=time.time_ns())
        connection.settimeout(None)
        message, journal = _StartMessage(), EventOutput(cast(TextIO, _ConnectionOutput(connection)))
        threading.Thread(target=message.listen, args=(lines, stop), daemon=True).start()

        def await_start() -> StartInstant:
            return message.await_start(stop) if barrier is None else await_barrier(barrier, stop)

        try:
            send_shard(spec, worker, await_start, journal, stop, LoadEnd(barrier))
        except Exception as error:
            name = "" if isinstance(error, GeneratorError) else f"unexpected {type(error).__name__}: "
            journal.event("failed", message=f"{name}{error}")
            raise
        finally:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


def _connect(address: Address) -> socket.socket:
    try:
        return socket.create_connection((address.host, address.port), REPLY_TIMEOUT_S)
    except OSError as error:
        raise GeneratorError(f"lead: connection failed: {error}") from None


class _ConnectionOutput(io.TextIOBase):
    """Output of a worker's events on its connection; the listening thread notices a lost lead."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            self._connection.sendall(text.encode())
        return len(text)


class _StartMessage:
    """T0 as sent by the lead."""

    def __init__(self) -> None:
        self._is_set = threading.Event()
        self._t0_wall_ns = 0

    def listen(self, lines: TextIO, stop: StopRequest) -> None:
        """Read messages of the lead until the connection ends, which stops this worker."""
        with contextlib.suppress(OSError, ValueError):
            for line in lines:
                self._t0_wall_ns = int(json.loads(line)["t0_wall_ns"])
                self._is_set.set()
        stop.set("lead: connection lost")

    def await_start(self, stop: StopRequest) -> StartInstant:
        """Wait for T0 and return it on this machine's clocks. Raises Stopped."""
        while not self._is_set.wait(_START_POLL_S):
            stop.check()
        ahead_ns = self._t0_wall_ns - time.time_ns()
        return StartInstant(self._t0_wall_ns, time.monotonic_ns() + ahead_ns)
