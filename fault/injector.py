"""Finds victims on the hosts where they belong, hits each on its own, and settles what an act came to."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Protocol

from fault.errors import RemoteError, SignalRefused, VictimRefused
from fault.handler import Handler
from fault.identity import KAFKA_HOST, VICTIMS, Delivery, Presence, ProcessIdentity, Tokens
from fault.victims import executor_ids, sort_candidates

# How long an act may take to show.
SETTLE_TIMEOUT_S = 5.0
# The first probes follow closely, since most acts show at once.
_MIN_POLL_S, _MAX_POLL_S = 0.002, 0.02


class FaultOutcome(StrEnum):
    """How a fault ended."""

    EFFECTIVE = "effective"
    NO_EFFECT = "no-effect"
    MISSED_WINDOW = "missed-window"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Settlement:
    """An outcome and, in one line, what it rests on."""

    outcome: FaultOutcome
    detail: str


class Channel(Protocol):
    """The way to a host's handler: the handler itself on this host, else `fault.ssh_connection.SshChannel`."""

    def ask(self, do: str, **fields: Any) -> Any:
        """As `Handler.ask`. Raises RemoteError as well; from a signal that may be on its way comes `unknown`."""
        ...

    def close(self) -> None:
        """Ends the connection, if there is one."""
        ...


@dataclass(frozen=True)
class HostClockOffset:
    """A host's wall clock minus ours in s, true within half of the round trip (in s) that it was read over."""

    offset_s: float
    round_trip_s: float


def clock_offset(channel: Channel, samples: int = 5) -> HostClockOffset:
    """Reads a host's wall clock `samples` times; the reading with the shortest round trip counts.

    Its instant is taken as the middle of the round trip. Raises RemoteError.
    """
    found: list[HostClockOffset] = []
    for _ in range(samples):
        wall_ns, began_ns = time.time_ns(), time.monotonic_ns()
        there_ns = int(channel.ask("clock"))
        round_trip_ns = time.monotonic_ns() - began_ns
        found.append(HostClockOffset((there_ns - wall_ns - round_trip_ns / 2) / 1e9, round_trip_ns / 1e9))
    return min(found, key=lambda one: one.round_trip_s)


def hosts_by_victim(names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The hosts on which each victim word is looked for; "" is this one. `names`: of the others.

    The driver runs here. Executors and what belongs to them run on the other hosts, if there are
    any beside the broker's; the broker on the host named `kafka`, if there is one.
    """
    spark = tuple(name for name in names if name not in ("", KAFKA_HOST)) or ("",)
    return {
        **dict.fromkeys(VICTIMS, spark),
        "driver": ("",),
        "kafka": (KAFKA_HOST,) if KAFKA_HOST in names else ("",),
    }


class Injector:
    """Asks each host's handler. `channels`: of other hosts, by the name that identities and journals show; `here`: of
    this one, whose name is empty. Raises VictimRefused for another host without a name, which would get its acts."""

    def __init__(self, channels: Mapping[str, Channel] | None = None, *, here: Channel | None = None) -> None:
        if channels and "" in channels:
            raise VictimRefused("host: got an empty name; expected the name of another host than this one")
        self._channels: dict[str, Channel] = {"": here or Handler(), **(channels or {})}

    def find(self, victim: str, tokens: Tokens) -> tuple[ProcessIdentity, ...]:
        """The live candidates for a victim word on all hosts where it belongs, sorted; only reads.

        Raises VictimRefused when a needed token is missing, RemoteError when a host cannot tell.
        """
        found: list[ProcessIdentity] = []
        for name in hosts_by_victim(tuple(self._channels))[victim]:
            there = self._on(name).ask("find", victim=victim, run=tokens.run, services=tokens.services)
            found += [replace(one, host=name) for one in there]
        return sort_candidates(found)

    def probe(self, victim: ProcessIdentity) -> Presence:
        """What is under the victim's pid now. Raises RemoteError when the host cannot tell."""
        return Presence(self._on(victim.host).ask("probe", victim=victim))

    def arm(self, victim: ProcessIdentity) -> None:
        """Does beforehand what the next signal to the victim would lose time with, checks included.

        Raises what `signal` raises. Arming is no duty, and harmless when no signal follows.
        """
        self._on(victim.host).ask("arm", victim=victim)

    def signal(self, victim: ProcessIdentity, signum: int) -> Delivery:
        """Checks the identity once more, then sends `signum`, once.

        `unknown` when the connection broke after it was asked for. From then on every further signal to this victim
        raises UnsettledSignal, until a probe has answered. Raises IdentityMismatch when the pid is another process,
        SignalRefused when the system does not allow it, RemoteError when the host could not be used; then nothing was
        sent.
        """
        return Delivery(self._on(victim.host).ask("signal", victim=victim, signum=int(signum)))

    def start_watchdog(self, victim: ProcessIdentity, seconds: float) -> None:
        """Has the victim continued on its own host after so many seconds, whatever becomes of this process and of the
        way there. A watchdog that stands there already stays, and for a victim that is gone none is needed.

        Raises IdentityMismatch, WatchdogUnavailable or RemoteError; then the victim is not to be stopped.
        """
        self._on(victim.host).ask("watch", victim=victim, seconds=seconds)

    def end_watchdog(self, victim: ProcessIdentity) -> None:
        """Releases it: the victim was continued. Harmless when there is none; where the word cannot be sent, it leaves
        by itself once the victim runs."""
        with contextlib.suppress(RemoteError):
            self._on(victim.host).ask("release", victim=victim)

    def busy(self, candidates: Sequence[ProcessIdentity]) -> set[ProcessIdentity]:
        """Those candidates on other hosts that work just now, for `fault.cpu_busy.await_busy`. Raises RemoteError."""
        found: set[ProcessIdentity] = set()
        for name in {one.host for one in candidates} - {""}:
            there = self._on(name).ask("busy", candidates=[one for one in candidates if one.host == name])
            found |= {replace(one, host=name) for one in there}
        return found

    def run_host_step(self, host: str, step: str, *, kind: str, name: str, asked: Mapping[str, Any]) -> Any:
        """Takes a step of what can be done to a host; see `fault.host_faults`. Raises ActRefused or RemoteError."""
        return self._on(host).ask("act", step=step, kind=kind, name=name, asked=asked)

    def start_host_watchdog(self, host: str, seconds: float, *, kind: str, name: str, asked: Mapping[str, Any]) -> None:
        """Has such an act undone after so many seconds, whatever becomes of this process and of the way there. Raises
        ActRefused, WatchdogUnavailable or RemoteError."""
        self._on(host).ask("watch", seconds=seconds, kind=kind, name=name, asked=asked)

    def clock_offsets(self) -> dict[str, HostClockOffset]:
        """The clock of every other host against ours, by name. Raises RemoteError."""
        return {name: clock_offset(channel) for name, channel in self._channels.items() if name}

    def close(self) -> None:
        """Ends all connections."""
        for channel in self._channels.values():
            channel.close()

    def _on(self, name: str) -> Channel:
        if name not in self._channels:
            known = ", ".join(sorted(filter(None, self._channels))) or "none"
            raise VictimRefused(f"host: {name} is not known; known: {known}")
        return self._channels[name]


def executors_on(injector: Injector, node: str | None, tokens: Tokens) -> list[int]:
    """The ids of the run's executors that live on the Spark worker `node` (HOST:PORT), ascending."""
    return executor_ids(injector.find("executor", tokens), node) if node else []


def resume(injector: Injector, victim: ProcessIdentity, *, sleep: Callable[[float], None] = time.sleep) -> None:
    """Sends SIGCONT until a probe says that the victim is not stopped; what is gone needs none.

    Raises SignalRefused or RemoteError when it cannot be continued within `SETTLE_TIMEOUT_S` seconds.
    """
    deadline = time.monotonic() + SETTLE_TIMEOUT_S
    while True:
        try:
            if injector.probe(victim) is not Presence.STOPPED:
                return
            injector.signal(victim, signal.SIGCONT)
            if injector.probe(victim) is not Presence.STOPPED:
                return
        except RemoteError:
            if time.monotonic() >= deadline:
                raise
        if time.monotonic() >= deadline:
            raise SignalRefused(f"pid: {victim} is still stopped {SETTLE_TIMEOUT_S:g} s after SIGCONT")
        sleep(_MAX_POLL_S)


def settle(
    injector: Injector,
    victim: ProcessIdentity,
    wanted: Presence,
    delivery: Delivery,
    *,
    within_s: float = SETTLE_TIMEOUT_S,
    sleep: Callable[[float], None] = time.sleep,
) -> Settlement:
    """Probes until the act shows its effect, at most `within_s` seconds.

    `wanted`: GONE for an act that ends its victim, also when another process has its pid by now; STOPPED for
    one that holds it. An unacknowledged signal is settled by the same evidence; `unknown` stays only where
    no probe answers.
    """
    if delivery is Delivery.GONE:
        return Settlement(FaultOutcome.NO_EFFECT, f"{victim} was already gone")
    began = time.monotonic()
    pause_s = _MIN_POLL_S
    hint = " (the signal was not acknowledged)" if delivery is Delivery.UNKNOWN else ""
    while True:
        error: RemoteError | None = None
        presence: Presence | None = None
        try:
            presence = injector.probe(victim)
        except RemoteError as caught:
            error = caught
        elapsed = time.monotonic() - began
        gone = presence in (Presence.GONE, Presence.OTHER)
        if wanted is Presence.STOPPED:
            if presence is Presence.STOPPED:
                return Settlement(FaultOutcome.EFFECTIVE, f"{victim} stopped within {elapsed:.3f} s{hint}")
            if gone:
                return Settlement(FaultOutcome.NO_EFFECT, f"{victim} ended instead of stopping{hint}")
        elif gone:
            return Settlement(FaultOutcome.EFFECTIVE, f"{victim} gone within {elapsed:.3f} s{hint}")
        if elapsed >= within_s:
            if error is not None:
                return Settlement(FaultOutcome.UNKNOWN, f"{victim}: no probe answered within {within_s:g} s: {error}")
            return Settlement(FaultOutcome.NO_EFFECT, f"{victim} is still {presence} after {within_s:g} s{hint}")
        sleep(pause_s)
        pause_s = min(2 * pause_s, _MAX_POLL_S)
