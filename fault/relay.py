"""Relay of the proxy: it passes and disturbs bytes between pairs of connections, in one event loop.

A link is one connection through the relay. It has an end on either side and a lane for each direction, which preserves
the order.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import socket
import struct
import time
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Any

# Reading pauses while one direction holds more than this, so memory stays bounded even during a cut. During a delay it
# limits the bytes in flight, like the window of a real connection.
MAX_HELD_BYTES = 1 << 20
# Maximum write buffer of a transport.
_WRITE_BUFFER = 1 << 16
# SO_LINGER with 0 s: closing discards unsent bytes and sends RST.
_LINGER_ZERO = struct.pack("ii", 1, 0)
# Full packet size, and TCP's minimum retransmission timeout on Linux, which doubles each time.
SEGMENT_BYTES, MIN_RETRANSMIT_S = 1448, 0.2
MAX_RETRANSMITS = 6
# With this many later packets the receiver requests a lost one at once (fast retransmit).
_FAST_RETRANSMIT_PACKETS = 3


class Mode(StrEnum):
    """Treatment of arriving bytes."""

    PLAIN = "plain"
    DELAY = "delay"
    LOSS = "loss"
    CUT = "cut"


@dataclass(frozen=True)
class Impairment:
    """Delay of bytes: `delay_s` plus or minus up to `jitter_s`, and more if a packet is lost (share `loss`).

    With TCP, lost bytes and all later ones of their connection are late. A lost packet followed by three others is
    resent at once; one of the last three of a burst is resent after a timeout that doubles.
    """

    delay_s: float = 0.0
    jitter_s: float = 0.0
    loss: float = 0.0

    def seconds(self, size: int, draws: tuple[float, float]) -> float:
        """Return the delay of `size` bytes that arrived together; `draws`: two numbers in [0, 1)."""
        held = max(0.0, self.delay_s + self.jitter_s * (2 * draws[0] - 1))
        if self.loss and size:
            packets = min(_FAST_RETRANSMIT_PACKETS, -(-size // SEGMENT_BYTES))
            loss_probability = 1 - (1 - self.loss) ** packets
            if draws[1] < loss_probability:
                # The same draw gives the number of repeated losses, each with probability `loss`.
                repeats = math.log(max(draws[1] / loss_probability, 1e-12)) / math.log(self.loss)
                held += MIN_RETRANSMIT_S * (2 ** (1 + min(MAX_RETRANSMITS - 1, int(repeats))) - 1)
        return held


_NO_IMPAIRMENT = Impairment()


class _Marker(Enum):
    """Events that travel through a lane in order with the bytes."""

    EOF = 0
    ABORT = 1


class Relay:
    """All links to one upstream address, and their mode. Create it inside a running loop."""

    def __init__(self, upstream: tuple[str, int]) -> None:
        self.loop = asyncio.get_running_loop()
        self.upstream = upstream
        self.links: set[_Link] = set()
        self.mode = Mode.PLAIN
        self.impairment = _NO_IMPAIRMENT
        # Affected client addresses; None: all.
        self.clients: frozenset[str] | None = None
        # A fixed seed makes random losses reproducible.
        self.random = random.Random(0)
        self.open_event = asyncio.Event()
        self.open_event.set()
        self.passed_bytes = {"up": 0, "down": 0}
        self._since_wall_ns = time.time_ns()

    def accept(self) -> asyncio.Protocol:
        """Return the protocol of a new client."""
        return _Link(self).client

    def switch(
        self, mode: Mode, impairment: Impairment = _NO_IMPAIRMENT, clients: Collection[str] | None = None
    ) -> int:
        """Set the mode and return the number of affected connections.

        The mode also applies to held bytes; their delay counts from their arrival. `clients`: affect only these
        addresses.
        """
        self.mode, self.impairment, self._since_wall_ns = mode, impairment, time.time_ns()
        self.clients = None if clients is None else frozenset(clients)
        if mode is Mode.CUT:
            self.open_event.clear()
        else:
            self.open_event.set()
        for link in list(self.links):
            link.up.pump()
            link.down.pump()
        return sum(self.affects(link) for link in self.links)

    def affects(self, link: _Link) -> bool:
        """Return whether the mode applies to this connection."""
        return self.clients is None or link.peer in self.clients

    async def reset(self) -> int:
        """Close every open link with RST on both sides; return their number once the sockets are closed."""
        links = list(self.links)
        for link in links:
            link.abort()
        for link in links:
            await link.wait_closed()
        return len(links)

    def status(self) -> dict[str, Any]:
        """Return mode and its start (wall ns), open links, passed bytes and currently held bytes."""
        return {
            "mode": self.mode.value,
            "since": self._since_wall_ns,
            "delay_ms": self.impairment.delay_s * 1000,
            "jitter_ms": self.impairment.jitter_s * 1000,
            "loss_percent": self.impairment.loss * 100,
            "clients": None if self.clients is None else sorted(self.clients),
            "connections": len(self.links),
            "bytes_up": self.passed_bytes["up"],
            "bytes_down": self.passed_bytes["down"],
            "held_up": sum(link.up.held for link in self.links),
            "held_down": sum(link.down.held for link in self.links),
        }


class _Link:
    """A connection through the relay: the client's end, the upstream end and a lane each way."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self.up, self.down = _Lane(self, relay, "up"), _Lane(self, relay, "down")
        self.client = _End(self, self.up, self.down)
        self._server = _End(self, self.down, self.up)
        self.peer = ""
        self._is_closing = False
        self._opening: asyncio.Task[None] | None = None

    def on_connected(self, end: _End) -> None:
        """Handle a connected end; the client's comes first."""
        if end is self.client:
            self.peer = str((end.transport.get_extra_info("peername") or ("",))[0])
            self._relay.links.add(self)
            self._opening = self._relay.loop.create_task(self._open())
        elif self._is_closing:
            end.abort()

    async def _open(self) -> None:
        # In a cut even the refusal of a dead upstream does not get through.
        await self._relay.open_event.wait()
        try:
            await self._relay.loop.create_connection(lambda: self._server, *self._relay.upstream)
        except OSError:
            self.abort()

    def on_lost(self, end: _End) -> None:
        """Handle a closed end: abort the other end after the bytes that arrived before."""
        other = self._server if end is self.client else self.client
        if not other.is_connected:
            self._unregister()
        elif not self._is_closing:
            (self.up if end is self.client else self.down).take(_Marker.ABORT)

    def close_when_done(self) -> None:
        """Close both ends once both have sent everything."""
        if self.up.has_passed_eof and self.down.has_passed_eof:
            self._is_closing = True
            self.client.transport.close()
            self._server.transport.close()

    def abort(self) -> None:
        """Close the link at once, with RST on both sides."""
        self._is_closing = True
        self.client.abort()
        self._server.abort()

    async def wait_closed(self) -> None:
        """Wait until both sockets are closed."""
        for end in (self.client, self._server):
            if end.is_connected:
                await end.closed.wait()

    def _unregister(self) -> None:
        self._is_closing = True
        self._relay.links.discard(self)
        if self._opening is not None:
            self._opening.cancel()


class _Lane:
    """One direction of a link: bytes read at one end and not yet written at the other, in order."""

    def __init__(self, link: _Link, relay: Relay, direction: str) -> None:
        self._link, self._relay, self._direction = link, relay, direction
        self._items: deque[tuple[float, tuple[float, float], bytes | _Marker]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._is_read_paused = False
        self._is_source_closed = False
        self.source: _End | None = None
        self.sink: _End | None = None
        self.is_writable = True
        self.has_passed_eof = False
        self.held = 0

    def take(self, item: bytes | _Marker) -> None:
        """Add an arrived item and pass on what is due."""
        if isinstance(item, _Marker):
            self._is_source_closed = True
        else:
            self.held += len(item)
        draws = self._relay.random.random(), self._relay.random.random()
        self._items.append((self._relay.loop.time(), draws, item))
        self.pump()

    def pump(self) -> None:
        """Pass on what is due, as mode and sink allow; schedule the next call."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        relay = self._relay
        while self._items and self.sink is not None and self.is_writable and relay.mode is not Mode.CUT:
            arrived, draws, item = self._items[0]
            size = len(item) if isinstance(item, bytes) else 0
            due = arrived + (relay.impairment.seconds(size, draws) if relay.affects(self._link) else 0.0)
            if due > relay.loop.time():
                self._timer = relay.loop.call_at(due, self.pump)
                break
            self._items.popleft()
            self._pass(item, self.sink)
        self._throttle()

    def drop(self) -> None:
        """Discard held items after the sink is gone."""
        self.sink = None
        self._items.clear()
        self.held = 0
        if self._timer is not None:
            self._timer.cancel()

    def _pass(self, item: bytes | _Marker, sink: _End) -> None:
        if item is _Marker.ABORT:
            self._link.abort()
        elif item is _Marker.EOF:
            self.has_passed_eof = True
            # The other side may just have closed; `connection_lost` of its end handles that.
            with contextlib.suppress(OSError):
                sink.transport.write_eof()
            self._link.close_when_done()
        elif isinstance(item, bytes):
            self.held -= len(item)
            self._relay.passed_bytes[self._direction] += len(item)
            sink.transport.write(item)

    def _throttle(self) -> None:
        # Resuming a transport after its end of stream would report the end repeatedly.
        if self.source is None or self._is_source_closed or self._is_read_paused == (self.held > MAX_HELD_BYTES):
            return
        self._is_read_paused = not self._is_read_paused
        if self._is_read_paused:
            self.source.transport.pause_reading()
        else:
            self.source.transport.resume_reading()


class _End(asyncio.Protocol):
    """One socket of a link: it puts received bytes into the lane `out`, and writes those of the lane `into`."""

    transport: asyncio.Transport

    def __init__(self, link: _Link, out: _Lane, into: _Lane) -> None:
        self._link, self._out, self._into = link, out, into
        self.is_connected = False
        self.closed = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.is_connected = True
        transport.set_write_buffer_limits(high=_WRITE_BUFFER)
        self._out.source = self._into.sink = self
        self._link.on_connected(self)
        self._into.pump()

    def data_received(self, data: bytes) -> None:
        self._out.take(data)

    def eof_received(self) -> bool:
        self._out.take(_Marker.EOF)
        return True  # keep the other direction open

    def pause_writing(self) -> None:
        self._into.is_writable = False

    def resume_writing(self) -> None:
        self._into.is_writable = True
        self._into.pump()

    def connection_lost(self, error: Exception | None) -> None:
        self.closed.set()
        self.is_connected = False
        self._into.drop()
        self._link.on_lost(self)

    def abort(self) -> None:
        """Close at once, with RST."""
        if self.is_connected:
            # The peer's RST may have closed it already.
            with contextlib.suppress(OSError):
                self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_ZERO)
            self.transport.abort()
