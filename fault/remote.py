"""The injector for processes of another host: it asks the agent there, which checks and acts on the spot."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fault.agent import form_of, victim_of
from fault.connection import Connection, RemoteHost
from fault.errors import ConnectionLost, RemoteError, UnsettledSignal
from fault.identity import ProcessIdentity, Tokens
from fault.injector import Delivery, Presence


@dataclass(frozen=True)
class ClockOffset:
    """The remote wall clock minus ours in s, true within half of the round trip (in s) that it was read over."""

    offset_s: float
    round_trip_s: float


class RemoteInjector:
    """Signals processes of one remote host. Close it after use; it connects when first needed."""

    def __init__(self, host: RemoteHost) -> None:
        self._host = host
        self._connection = Connection(host)
        self._unsettled: set[tuple[int, float]] = set()

    def __enter__(self) -> RemoteInjector:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection; harmless when there is none."""
        self._connection.close()

    def find(self, victim: str, tokens: Tokens) -> tuple[ProcessIdentity, ...]:
        """The live candidates for a victim word on that host, by the same rules as here; only reads.

        Raises VictimRefused when a needed token is missing, RemoteError when the host cannot tell.
        """
        asked = {"victim": victim, "run": tokens.run, "services": tokens.services}
        found = self._connection.ask(f"find {victim}", "find", **asked)
        return tuple(victim_of(one, self._host.host) for one in found)

    def busy(self, candidates: Sequence[ProcessIdentity]) -> set[ProcessIdentity]:
        """Those that worked during some 20 ms just now; see `fault.busy`. Raises RemoteError."""
        if not candidates:
            return set()
        places = self._connection.ask("read CPU times", "busy", candidates=[form_of(one) for one in candidates])
        return {candidates[place] for place in places}

    def clock_offset(self, samples: int = 5) -> ClockOffset:
        """Reads the remote wall clock `samples` times; the reading with the shortest round trip counts.

        The remote instant is taken as the middle of the round trip. Raises RemoteError.
        """
        self._connection.ready("read the clock")
        found: list[ClockOffset] = []
        for _ in range(samples):
            wall_ns, began_ns = time.time_ns(), time.monotonic_ns()
            there_ns = int(self._connection.ask("read the clock", "clock"))
            round_trip_ns = time.monotonic_ns() - began_ns
            found.append(ClockOffset((there_ns - wall_ns - round_trip_ns / 2) / 1e9, round_trip_ns / 1e9))
        return min(found, key=lambda one: one.round_trip_s)

    def probe(self, victim: ProcessIdentity) -> Presence:
        """What is under the victim's pid now. Raises RemoteError when the host cannot tell."""
        found = Presence(self._connection.ask(f"probe {victim.pid}", "probe", victim=form_of(victim)))
        self._unsettled.discard(_key(victim))
        return found

    def arm(self, victim: ProcessIdentity) -> None:
        """Has the agent hold the victim's pidfd, checked. Raises what `signal` raises; nothing was sent."""
        self._connection.ask(_command(victim, signal.SIGKILL), "arm", victim=form_of(victim))

    def signal(self, victim: ProcessIdentity, signum: int) -> Delivery:
        """Checks the identity there and sends `signum`, once.

        `unknown` when the connection broke after it was asked for. From then on every
        further signal to this victim raises UnsettledSignal, until a probe has answered.
        Raises IdentityMismatch, RemoteSignalRefused or another RemoteError; then nothing was sent.
        """
        command = _command(victim, signum)
        if _key(victim) in self._unsettled:
            raise UnsettledSignal(self._host.host, command)
        self._connection.ready(command)
        try:
            return Delivery(self._connection.ask(command, "signal", victim=form_of(victim), signum=signum))
        except ConnectionLost:
            self._unsettled.add(_key(victim))
            return Delivery.UNKNOWN

    def stand_by(self, victim: ProcessIdentity, seconds: float) -> None:
        """Posts a shell on that host; when the connection breaks, it stays.

        Raises IdentityMismatch, NobodyStandsBy or RemoteError.
        """
        self._connection.ask(f"stand by {victim.pid}", "stand_by", victim=form_of(victim), seconds=seconds)

    def stand_down(self, victim: ProcessIdentity) -> None:
        """Sends it home. Where the word cannot be sent, it leaves by itself once the victim runs."""
        with contextlib.suppress(RemoteError):
            self._connection.ask(f"stand down {victim.pid}", "stand_down", victim=form_of(victim))

    def host_act(self, do: str, *, kind: str, name: str, asked: Mapping[str, Any], seconds: float = 0.0) -> Any:
        """Has the agent check, do or undo what can be done to the host, say whether it holds, or post who undoes it
        after so many seconds (`undo_later`); see `fault.host_acts`. Raises ActRefused or RemoteError."""
        return self._connection.ask(
            f"{do} {kind}", "host_act", act=do, kind=kind, name=name, asked=asked, seconds=seconds
        )


def _command(victim: ProcessIdentity, signum: int) -> str:
    return f"kill -s {signal.Signals(signum).name.removeprefix('SIG')} {victim.pid}"


def _key(victim: ProcessIdentity) -> tuple[int, float]:
    return victim.pid, victim.create_time
