"""CPU and memory of an attempt, background CPU of its machines, and uncertainty of other hosts' clocks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fault.identity import KAFKA_HOST
from faultline.records.environment import ClockOffsetPart, HostPart, LatencyClock
from faultline.records.judge import cpu
from faultline.records.judge.evidence import Evidence
from faultline.records.judge.samples import OtherHost
from faultline.records.judge.signals import Signals
from faultline.records.record import BackgroundCpuPart, ByRole, CpuPerMillion, WaitedPart
from faultline.system.endpoints import EMBEDDED
from faultline.system.journal import Line

# Drift of another host's clock in a run, and half a round trip: latencies across hosts are marked beyond this.
CLOCK_UNCERTAIN_MS = 1.0
Cores = Mapping[str, float | None]


@dataclass(frozen=True)
class Resources:
    """Fields of `Metrics` and, the last three, of `RecordEnvironment`; `lost`, `taken`: see `cpu`."""

    cpu_cores: ByRole
    rss_mb: ByRole
    rps_per_core: float | None
    cpu_s_per_million: CpuPerMillion | None
    cpu_by_host: dict[str, float] | None
    background_cpu: BackgroundCpuPart
    waited: WaitedPart | None
    clock_offsets: dict[str, ClockOffsetPart] | None
    hosts: dict[str, HostPart] | None
    latency_clock: LatencyClock | None
    lost: cpu.Lost | None
    taken: cpu.BackgroundLoad | None


def resources_of(evidence: Evidence, signals: Signals, throughput_rps: float | None) -> Resources:
    """Return the resources of an attempt.

    `throughput_rps`: committed records per second of the measured window, None if unknown.
    """
    span = signals.window.start_ns, signals.window.end_ns
    machine, processes, others = evidence.machine, evidence.processes, evidence.hosts
    # Null for roles whose processes are not visible; 0 would mean no use.
    unseen = {name.rpartition(".")[::2] for name in evidence.not_measured}
    used, memory = (
        {role: None if (name, role) in unseen else value for role, value in found.items()}
        for name, found in (("cpu_cores", cpu.cores(processes, *span)), ("rss_mb", cpu.rss_mb(processes, *span)))
    )
    lost = cpu.highest_lost_cpu(machine, processes, others, *span)
    taken = cpu.highest_background_load(machine, processes, others, *span)
    background = cpu.background_cpu(machine, cpu.of_this_machine(processes, others), *span)
    here = str(evidence.attempt.environment.get("host"))
    nodes = cpu.cores_by_host(processes, here, *span) if others else cpu.cores_on_one_host(used, here)
    per_core = None if throughput_rps is None else cpu.rps_per_core(throughput_rps, used)
    per_million = cpu.seconds_per_million(used, throughput_rps)
    counted = {one.name: cpu.cores_of_host(one, *span) for one in others}
    return Resources(
        cpu_cores=_by_role(used),
        rss_mb=_by_role(memory),
        rps_per_core=per_core,
        cpu_s_per_million=per_million,
        cpu_by_host=nodes or None,
        background_cpu=background,
        waited=None if lost is None else WaitedPart(others=lost.others, stolen=lost.stolen, worst_5s=lost.worst),
        clock_offsets=_clock_offsets(evidence.conductor.clocks),
        hosts={one.name: _host(one, *counted[one.name]) for one in others} or None,
        latency_clock=_latency_clock(evidence),
        lost=lost,
        taken=taken,
    )


def _by_role(values: Cores) -> ByRole:
    return ByRole(**{role: None if value is None else round(value, 6) for role, value in values.items()})


# Other hosts, and the clocks of all.


def _clock_offsets(readings: Sequence[Line]) -> dict[str, ClockOffsetPart] | None:
    """Return clock offsets by remote host; the reading with the shortest round trip counts."""
    found: dict[str, ClockOffsetPart] = {}
    for line in readings:
        reading = ClockOffsetPart(offset_s=float(line["offset_s"]), round_trip_s=float(line["round_trip_s"]))
        before = found.get(str(line["host"]))
        if before is None or reading.round_trip_s < before.round_trip_s:
            found[str(line["host"])] = reading
    return found or None


def _host(one: OtherHost, used: float, counted: float | None) -> HostPart:
    return HostPart(
        same_machine=one.same_machine,
        clock_ahead_s=None if one.clock is None else one.clock.ahead_s,
        clock_uncertain_ms=_finite(None if one.clock is None else one.clock.uncertain_ms),
        cores_used=round(used, 6),
        cores_counted=None if counted is None else round(counted, 6),
    )


def _latency_clock(evidence: Evidence) -> LatencyClock | None:
    """Return the broker's clock: that of the generator if both are local, otherwise unknown without a reading."""
    if evidence.broker_ahead_ms is None:
        return None
    clock, here = evidence.clocks.get(KAFKA_HOST), evidence.config.target == EMBEDDED
    never_asked_ms = 0.0 if here else math.inf
    uncertain_ms = never_asked_ms if clock is None else clock.uncertain_ms
    return LatencyClock(
        host=str(evidence.attempt.environment.get("host")) if clock is None and here else KAFKA_HOST,
        ahead_ms=evidence.broker_ahead_ms,
        uncertain_ms=_finite(uncertain_ms),
        uncertain=is_clock_uncertain(uncertain_ms),
    )


def is_clock_uncertain(uncertain_ms: float) -> bool:
    """Return whether a clock known to `uncertain_ms` marks its latencies as uncertain."""
    return uncertain_ms > CLOCK_UNCERTAIN_MS


def _finite(value: float | None) -> float | None:
    """Return the rounded value, or None if it is unknown or infinite."""
    return None if value is None or not math.isfinite(value) else round(value, 6)
