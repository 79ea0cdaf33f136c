"""Passing bytes between pairs of connections, and disturbing them: the inside of the proxy, for one event loop.

A link is one connection through the relay. It has an end on either side and a lane for each direction, which keeps
the order of what it was given whatever happens between.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import time
from collections import deque
from enum import Enum, StrEnum
from typing import Any

# Reading pauses while more than this is held in one direction, so memory stays bounded, also in a cut. With a delay
# it bounds what is under way at once, as the window of a real connection does.
HELD_BYTES = 1 << 20
# What a transport may buffer by itself before it asks us to wait.
_WRITE_BUFFER = 1 << 16
# SO_LINGER switched on with 0 s: closing throws away what is unsent and sends RST.
_AT_ONCE = struct.pack("ii", 1, 0)


class Mode(StrEnum):
    """What happens to bytes that arrive."""

    PLAIN = "plain"
    DELAY = "delay"
    CUT = "cut"


class _Mark(Enum):
    """What travels through a lane beside bytes, at its place in the order."""

    EOF = 0
    ABORT = 1


class Relay:
    """All links to one upstream address, and the mode that holds for them. To be made inside a running loop."""

    def __init__(self, upstream: tuple[str, int]) -> None:
        self.loop = asyncio.get_running_loop()
        self.upstream = upstream
        self.links: set[_Link] = set()
        self.mode = Mode.PLAIN
        self.delay_s = 0.0
        self.passing = asyncio.Event()
        self.passing.set()
        self.passed = {"up": 0, "down": 0}
        self._since_wall_ns = time.time_ns()

    def accept(self) -> asyncio.Protocol:
        """The protocol of a new client."""
        return _Link(self).client

    def switch(self, mode: Mode, delay_s: float = 0.0) -> None:
        """From now on `mode`, also for the bytes that are held: they are due `delay_s` seconds after they arrived."""
        self.mode, self.delay_s, self._since_wall_ns = mode, delay_s, time.time_ns()
        if mode is Mode.CUT:
            self.passing.clear()
        else:
            self.passing.set()
        for link in list(self.links):
            link.up.pump()
            link.down.pump()

    async def reset(self) -> int:
        """Ends every open link with RST on both sides; returns how many, once their sockets are closed."""
        links = list(self.links)
        for link in links:
            link.abort()
        for link in links:
            await link.ended()
        return len(links)

    def status(self) -> dict[str, Any]:
        """The mode and since when (wall nanoseconds), open links, bytes passed on, and bytes held at this moment."""
        return {
            "mode": self.mode.value,
            "since": self._since_wall_ns,
            "delay_ms": self.delay_s * 1000,
            "connections": len(self.links),
            "bytes_up": self.passed["up"],
            "bytes_down": self.passed["down"],
            "held_up": sum(link.up.held for link in self.links),
            "held_down": sum(link.down.held for link in self.links),
        }


class _Link:
    """A connection through the relay: the client's end, the upstream end, and a lane each way."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self.up, self.down = _Lane(self, relay, "up"), _Lane(self, relay, "down")
        self.client = _End(self, self.up, self.down)
        self._server = _End(self, self.down, self.up)
        self._closing = False
        self._opening: asyncio.Task[None] | None = None

    def made(self, end: _End) -> None:
        """An end stands; the client's is the first one."""
        if end is self.client:
            self._relay.links.add(self)
            self._opening = self._relay.loop.create_task(self._open())
        elif self._closing:
            end.abort()

    async def _open(self) -> None:
        # In a cut not even the refusal of a dead upstream gets through.
        await self._relay.passing.wait()
        try:
            await self._relay.loop.create_connection(lambda: self._server, *self._relay.upstream)
        except OSError:
            self.abort()

    def lost(self, end: _End) -> None:
        """An end is gone; the other one learns of it at the place in the order where it happened."""
        other = self._server if end is self.client else self.client
        if not other.connected:
            self._forget()
        elif not self._closing:
            (self.up if end is self.client else self.down).take(_Mark.ABORT)

    def close_when_done(self) -> None:
        """Closes both ends once both have sent all they had."""
        if self.up.passed_eof and self.down.passed_eof:
            self._closing = True
            self.client.transport.close()
            self._server.transport.close()

    def abort(self) -> None:
        """Ends the link at once, with RST on both sides."""
        self._closing = True
        self.client.abort()
        self._server.abort()

    async def ended(self) -> None:
        """Returns once both sockets are closed."""
        for end in (self.client, self._server):
            if end.connected:
                await end.gone.wait()

    def _forget(self) -> None:
        self._closing = True
        self._relay.links.discard(self)
        if self._opening is not None:
            self._opening.cancel()


class _Lane:
    """One direction of a link: what was read at one end and not yet written at the other, in order."""

    def __init__(self, link: _Link, relay: Relay, direction: str) -> None:
        self._link, self._relay, self._direction = link, relay, direction
        self._items: deque[tuple[float, bytes | _Mark]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._read_paused = False
        self._ended = False  # the source sends nothing more
        self.source: _End | None = None
        self.sink: _End | None = None
        self.writable = True
        self.passed_eof = False
        self.held = 0

    def take(self, item: bytes | _Mark) -> None:
        """Adds what has just arrived, and passes on what is due."""
        if isinstance(item, _Mark):
            self._ended = True
        else:
            self.held += len(item)
        self._items.append((self._relay.loop.time(), item))
        self.pump()

    def pump(self) -> None:
        """Passes on what is due, as far as mode and sink allow; comes again when the next item is due."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        relay = self._relay
        while self._items and self.sink is not None and self.writable and relay.mode is not Mode.CUT:
            arrived, item = self._items[0]
            due = arrived + relay.delay_s
            if due > relay.loop.time():
                self._timer = relay.loop.call_at(due, self.pump)
                break
            self._items.popleft()
            self._pass(item, self.sink)
        self._throttle()

    def drop(self) -> None:
        """Forgets what is held: nobody is there to take it."""
        self.sink = None
        self._items.clear()
        self.held = 0
        if self._timer is not None:
            self._timer.cancel()

    def _pass(self, item: bytes | _Mark, sink: _End) -> None:
        if item is _Mark.ABORT:
            self._link.abort()
        elif item is _Mark.EOF:
            self.passed_eof = True
            # The other side may have gone in this instant; its own end tells so.
            with contextlib.suppress(OSError):
                sink.transport.write_eof()
            self._link.close_when_done()
        elif isinstance(item, bytes):
            self.held -= len(item)
            self._relay.passed[self._direction] += len(item)
            sink.transport.write(item)

    def _throttle(self) -> None:
        # A transport that has seen the end of its stream must not be resumed: it would tell the end again, for ever.
        if self.source is None or self._ended or self._read_paused == (self.held > HELD_BYTES):
            return
        self._read_paused = not self._read_paused
        if self._read_paused:
            self.source.transport.pause_reading()
        else:
            self.source.transport.resume_reading()


class _End(asyncio.Protocol):
    """One of the two sockets of a link: what it reads goes `out`, what is to be written comes `into` it."""

    transport: asyncio.Transport

    def __init__(self, link: _Link, out: _Lane, into: _Lane) -> None:
        self._link, self._out, self._into = link, out, into
        self.connected = False
        self.gone = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.connected = True
        transport.set_write_buffer_limits(high=_WRITE_BUFFER)
        self._out.source = self._into.sink = self
        self._link.made(self)
        self._into.pump()

    def data_received(self, data: bytes) -> None:
        self._out.take(data)

    def eof_received(self) -> bool:
        self._out.take(_Mark.EOF)
        return True  # the other direction goes on

    def pause_writing(self) -> None:
        self._into.writable = False

    def resume_writing(self) -> None:
        self._into.writable = True
        self._into.pump()

    def connection_lost(self, error: Exception | None) -> None:
        self.gone.set()
        self.connected = False
        self._into.drop()
        self._link.lost(self)

    def abort(self) -> None:
        """Closes at once, with RST."""
        if self.connected:
            # Gone already where the peer's own RST came first.
            with contextlib.suppress(OSError):
                self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
            self.transport.abort()
