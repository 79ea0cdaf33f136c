"""Injector: it finds victims on their hosts, signals each, and determines ("settles") the outcome."""

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

# Maximum seconds until an effect shows.
SETTLE_TIMEOUT_S = 5.0
# Most effects show at once, so the first probes are close together.
_MIN_POLL_S, _MAX_POLL_S = 0.002, 0.02


class FaultOutcome(StrEnum):
    """Outcome of a fault."""

    EFFECTIVE = "effective"
    NO_EFFECT = "no-effect"
    MISSED_WINDOW = "missed-window"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Settlement:
    """Settled outcome of a fault; `detail` is its evidence in one line."""

    outcome: FaultOutcome
    detail: str


class Channel(Protocol):
    """Access to a host's handler: the handler itself, or a `fault.ssh_connection.SshChannel`."""

    def ask(self, do: str, **fields: Any) -> Any:
        """Run a request as `Handler.ask` does; also raises RemoteError. A signal without a reply returns `unknown`."""
        ...

    def close(self) -> None:
        """Close the connection, if there is one."""
        ...


@dataclass(frozen=True)
class HostClockOffset:
    """A host's wall clock minus the local one in s, with an error of at most half of the round trip in s."""

    offset_s: float
    round_trip_s: float


def clock_offset(channel: Channel, samples: int = 5) -> HostClockOffset:
    """Read a host's wall clock `samples` times and use the reading with the shortest round trip.

    The host's clock is assumed to be read in the middle of the round trip. Raises RemoteError.
    """
    offsets: list[HostClockOffset] = []
    for _ in range(samples):
        wall_ns, began_ns = time.time_ns(), time.monotonic_ns()
        host_ns = int(channel.ask("clock"))
        round_trip_ns = time.monotonic_ns() - began_ns
        offsets.append(HostClockOffset((host_ns - wall_ns - round_trip_ns / 2) / 1e9, round_trip_ns / 1e9))
    return min(offsets, key=lambda offset: offset.round_trip_s)


def hosts_by_victim(names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the hosts that can run each kind of victim; "" is this host. `names`: the other hosts.

    The driver runs here, the broker on the host named `kafka` if there is one. All others run on the remaining hosts,
    or here if none remains.
    """
    spark = tuple(name for name in names if name not in ("", KAFKA_HOST)) or ("",)
    return {
        **dict.fromkeys(VICTIMS, spark),
        "driver": ("",),
        "kafka": (KAFKA_HOST,) if KAFKA_HOST in names else ("",),
    }


class Injector:
    """Access to the handlers of all hosts.

    `channels`: of other hosts, by the name used in identities and journals. `here`: of this host, whose name is empty.
    Raises VictimRefused for a channel with an empty name, which would receive the requests for this host.
    """

    def __init__(self, channels: Mapping[str, Channel] | None = None, *, here: Channel | None = None) -> None:
        if channels and "" in channels:
            raise VictimRefused("host: got an empty name; expected the name of another host than this one")
        self._channels: dict[str, Channel] = {"": here or Handler(), **(channels or {})}

    def find(self, victim: str, tokens: Tokens) -> tuple[ProcessIdentity, ...]:
        """Return the live candidates for a victim on all of its hosts, sorted; reads only.

        Raises VictimRefused if a needed token is missing, RemoteError if a host fails.
        """
        found: list[ProcessIdentity] = []
        for name in hosts_by_victim(tuple(self._channels))[victim]:
            victims = self._on(name).ask("find", victim=victim, run=tokens.run, services=tokens.services)
            found += [replace(one, host=name) for one in victims]
        return sort_candidates(found)

    def probe(self, victim: ProcessIdentity) -> Presence:
        """Return the state of the victim's pid. Raises RemoteError."""
        return Presence(self._on(victim.host).ask("probe", victim=victim))

    def arm(self, victim: ProcessIdentity) -> None:
        """Do the checks of the next signal to the victim ahead of time.

        Raises what `signal` raises. Arming is optional, and harmless without a signal.
        """
        self._on(victim.host).ask("arm", victim=victim)

    def signal(self, victim: ProcessIdentity, signum: int) -> Delivery:
        """Check the identity again, then send `signum`, once.

        Returns `unknown` if the connection broke after the request. Further signals to this victim then raise
        UnsettledSignal until a probe has succeeded. Raises IdentityMismatch if the pid is another process,
        SignalRefused without permission, RemoteError if the host failed; in these cases nothing was sent.
        """
        return Delivery(self._on(victim.host).ask("signal", victim=victim, signum=int(signum)))

    def start_watchdog(self, victim: ProcessIdentity, seconds: float) -> None:
        """Start a watchdog on the victim's host that continues the victim after `seconds`.

        The watchdog outlives this process and the connection. An existing one stays; a victim that is gone needs none.
        Raises IdentityMismatch, WatchdogUnavailable or RemoteError; the victim must then not be stopped.
        """
        self._on(victim.host).ask("watch", victim=victim, seconds=seconds)

    def end_watchdog(self, victim: ProcessIdentity) -> None:
        """End the watchdog of a resumed victim; idempotent.

        If the host is unreachable, the watchdog ends by itself once the victim runs.
        """
        with contextlib.suppress(RemoteError):
            self._on(victim.host).ask("release", victim=victim)

    def busy(self, candidates: Sequence[ProcessIdentity]) -> set[ProcessIdentity]:
        """Return the busy candidates on other hosts, for `fault.cpu_busy.await_busy`. Raises RemoteError."""
        found: set[ProcessIdentity] = set()
        for name in {one.host for one in candidates} - {""}:
            busy = self._on(name).ask("busy", candidates=[one for one in candidates if one.host == name])
            found |= {replace(one, host=name) for one in busy}
        return found

    def run_host_step(self, host: str, step: str, *, kind: str, name: str, asked: Mapping[str, Any]) -> Any:
        """Run a step of a host fault; see `fault.host_faults`. Raises ActionRefused or RemoteError."""
        return self._on(host).ask("act", step=step, kind=kind, name=name, asked=asked)

    def start_host_watchdog(self, host: str, seconds: float, *, kind: str, name: str, asked: Mapping[str, Any]) -> None:
        """Start a watchdog on the host that undoes a host fault after `seconds`.

        The watchdog outlives this process and the connection. Raises ActionRefused, WatchdogUnavailable or RemoteError.
        """
        self._on(host).ask("watch", seconds=seconds, kind=kind, name=name, asked=asked)

    def clock_offsets(self) -> dict[str, HostClockOffset]:
        """Return the clock offset of every other host by name. Raises RemoteError."""
        return {name: clock_offset(channel) for name, channel in self._channels.items() if name}

    def close(self) -> None:
        """Close all connections."""
        for channel in self._channels.values():
            channel.close()

    def _on(self, name: str) -> Channel:
        if name not in self._channels:
            known = ", ".join(sorted(filter(None, self._channels))) or "none"
            raise VictimRefused(f"host: got {name}; expected one of: {known}")
        return self._channels[name]


def executors_on(injector: Injector, node: str | None, tokens: Tokens) -> list[int]:
    """Return the ids of the run's executors on the Spark worker `node` (HOST:PORT), ascending."""
    return executor_ids(injector.find("executor", tokens), node) if node else []


def resume(injector: Injector, victim: ProcessIdentity, *, sleep: Callable[[float], None] = time.sleep) -> None:
    """Send SIGCONT until a probe finds that the victim runs or is gone.

    Raises SignalRefused or RemoteError if the victim is still stopped after `SETTLE_TIMEOUT_S` seconds.
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
            raise SignalRefused(f"pid: SIGCONT failed: {victim} still stopped after {SETTLE_TIMEOUT_S:g} s")
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
    """Probe until the effect shows, at most `within_s` seconds.

    `wanted`: STOPPED for a pause; GONE for a fault that ends its victim, even if the pid is reused by now. The probes
    also settle a signal that was not acknowledged; its outcome stays `unknown` only if the last probe fails.
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
