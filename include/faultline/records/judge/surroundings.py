"""What is known of where an attempt was measured: other hosts, their clocks, and the clock that ends its latencies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from fault.identity import KAFKA_HOST
from faultline.records.environment import ClockOffset, HostPart, LatencyClock
from faultline.records.judge.hosts import OtherHost
from faultline.records.judge.raw_files import Raw
from faultline.records.judge.validity import are_unsure
from faultline.system.endpoints import EMBEDDED
from faultline.system.journal import Line, events


def surroundings(raw: Raw, start_ns: int, end_ns: int) -> dict[str, Any]:
    """By field of `Environment`. `start_ns`, `end_ns`: the measured window."""
    return {
        "clock_offsets": _clock_offsets(raw.conductor),
        "hosts": _hosts(raw.hosts, start_ns, end_ns),
        "latency_clock": _latency_clock(raw),
    }


def _clock_offsets(conductor: Sequence[Line]) -> dict[str, ClockOffset] | None:
    """By remote host, as the conductor measured them; of several readings the one with the shortest round trip."""
    found: dict[str, ClockOffset] = {}
    for line in events(conductor, "clock"):
        reading = ClockOffset(offset_s=float(line["offset_s"]), round_trip_s=float(line["round_trip_s"]))
        before = found.get(str(line["host"]))
        if before is None or reading.round_trip_s < before.round_trip_s:
            found[str(line["host"])] = reading
    return found or None


def _hosts(hosts: Sequence[OtherHost], start_ns: int, end_ns: int) -> dict[str, HostPart] | None:
    """What the other hosts did in the measured window."""
    found = {}
    for one in hosts:
        used, counted = one.cores(start_ns, end_ns)
        found[one.name] = HostPart(
            same_machine=one.same_machine,
            clock_ahead_s=None if one.clock is None else one.clock.ahead_s,
            clock_uncertain_ms=_finite(None if one.clock is None else one.clock.uncertain_ms),
            cores_used=round(used, 6),
            cores_counted=None if counted is None else round(counted, 6),
        )
    return found or None


def _latency_clock(raw: Raw) -> LatencyClock | None:
    """The broker's, which is the generator's where both run here, and nobody knows what where it was never asked."""
    if raw.broker_ahead_ms is None:
        return None
    clock, here = raw.clocks.get(KAFKA_HOST), raw.attempt.config.target == EMBEDDED
    never_asked_ms = 0.0 if here else math.inf
    uncertain_ms = never_asked_ms if clock is None else clock.uncertain_ms
    return LatencyClock(
        host=str(raw.attempt.environment.get("host")) if clock is None and here else KAFKA_HOST,
        ahead_ms=raw.broker_ahead_ms,
        uncertain_ms=_finite(uncertain_ms),
        unsure=are_unsure(uncertain_ms),
    )


def _finite(value: float | None) -> float | None:
    """Null for what nobody knows."""
    return None if value is None or not math.isfinite(value) else round(value, 6)
