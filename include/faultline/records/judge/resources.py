"""CPU and memory of an attempt, background CPU of its machines, and uncertainty of other hosts' clocks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fault.identity import KAFKA_HOST
from faultline.records.environment import ClockOffsetPart, HostPart, LatencyClock
from faultline.records.judge import cpu
from faultline.records.judge.evidence import Evidence
from faultline.records.judge.latency import Phases
from faultline.records.judge.samples import OtherHost
from faultline.records.judge.signals import Signals
from faultline.records.record import ByRole
from faultline.records.work_parts import BackgroundCpuPart, CpuByPhase, CpuPerMillion, WaitedPart
from faultline.system.endpoints import EMBEDDED
from faultline.system.journal import Line
from faultline.system.process_tags import ENGINE

# Largest error in ms of another host's clock; beyond it, latencies across hosts are marked as uncertain.
CLOCK_UNCERTAIN_MS = 1.0
Cores = Mapping[str, float | None]


@dataclass(frozen=True)
class Resources:
    """Fields of `Metrics` and `RecordEnvironment`, and inputs of the validity rules.

    `lost`: highest lost CPU of a machine. `taken`: highest background load of a machine that does not report lost CPU.
    """

    cpu_cores: ByRole
    rss_mb: ByRole
    rps_per_core: float | None
    cpu_s_per_million: CpuPerMillion | None
    cpu_by_phase: CpuByPhase | None
    cpu_by_host: dict[str, float] | None
    background_cpu: BackgroundCpuPart
    waited: WaitedPart | None
    clock_offsets: dict[str, ClockOffsetPart] | None
    hosts: dict[str, HostPart] | None
    latency_clock: LatencyClock | None
    lost: cpu.LostCpu | None
    taken: cpu.BackgroundLoad | None


def resources_of(evidence: Evidence, signals: Signals, phases: Phases, throughput_rps: float | None) -> Resources:
    """Return the resources of an attempt.

    `throughput_rps`: committed records per second of the measured window, None if unknown.
    """
    span = signals.window.start_ns, signals.window.end_ns
    machine, processes, others = evidence.machine, evidence.processes, evidence.hosts
    # None for roles whose processes are not visible; 0 would mean that they used nothing.
    unmeasured = {name.rpartition(".")[::2] for name in evidence.not_measured}
    used, memory = (
        {role: None if (name, role) in unmeasured else value for role, value in found.items()}
        for name, found in (("cpu_cores", cpu.cores(processes, *span)), ("rss_mb", cpu.rss_mb(processes, *span)))
    )
    lost = cpu.highest_lost_cpu(machine, processes, others, *span)
    taken = cpu.highest_background_load(machine, processes, others, *span)
    background = cpu.background_cpu(machine, cpu.of_this_machine(processes, others), *span)
    here = str(evidence.attempt.environment.get("host"))
    cores_by_host = cpu.cores_by_host(processes, here, *span) if others else cpu.cores_on_one_host(used, here)
    per_core = None if throughput_rps is None else cpu.rps_per_core(throughput_rps, used)
    per_million = cpu.seconds_per_million(used, throughput_rps)
    host_cores = {one.name: cpu.cores_of_host(one, *span) for one in others}
    return Resources(
        cpu_cores=_by_role(used),
        rss_mb=_by_role(memory),
        rps_per_core=per_core,
        cpu_s_per_million=per_million,
        cpu_by_phase=_cpu_by_phase(evidence, signals, phases, used) if phases.during else None,
        cpu_by_host=cores_by_host or None,
        background_cpu=background,
        waited=None if lost is None else WaitedPart(others=lost.others, stolen=lost.stolen, worst_5s=lost.worst),
        clock_offsets=_clock_offsets(evidence.scheduler.clocks),
        hosts={one.name: _host(one, *host_cores[one.name]) for one in others} or None,
        latency_clock=_latency_clock(evidence),
        lost=lost,
        taken=taken,
    )


def _cpu_by_phase(evidence: Evidence, signals: Signals, phases: Phases, used: Cores) -> CpuByPhase | None:
    """Return the engine's CPU seconds per million records due in each phase. `used`: cores by role."""
    if any(used[role] is None for role in ENGINE):
        return None
    found: dict[str, float | None] = {}
    for name, spans in vars(phases).items():
        due = sum(signals.schedule.due(until) - signals.schedule.due(start) for start, until in spans)
        seconds = sum(cpu.engine_seconds(evidence.processes, *span) for span in spans)
        found[name] = round(seconds / due * 1e6, 6) if due else None
    return CpuByPhase.model_validate(found)


def _by_role(values: Cores) -> ByRole:
    return ByRole(**{role: None if value is None else round(value, 6) for role, value in values.items()})


# Other hosts and their clocks.


def _clock_offsets(readings: Sequence[Line]) -> dict[str, ClockOffsetPart] | None:
    """Return the clock offset of each remote host, read with the shortest round trip; None without readings."""
    found: dict[str, ClockOffsetPart] = {}
    for line in readings:
        reading = ClockOffsetPart(offset_s=float(line["offset_s"]), round_trip_s=float(line["round_trip_s"]))
        best = found.get(str(line["host"]))
        if best is None or reading.round_trip_s < best.round_trip_s:
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
    """Return the broker's clock if it times the outputs, else None.

    Without a reading, it is exact if the broker is embedded, because the generator uses the same clock, and otherwise
    of unknown uncertainty.
    """
    if evidence.broker_ahead_ms is None:
        return None
    clock, is_embedded = evidence.clocks.get(KAFKA_HOST), evidence.config.target == EMBEDDED
    without_reading_ms = 0.0 if is_embedded else math.inf
    uncertain_ms = without_reading_ms if clock is None else clock.uncertain_ms
    return LatencyClock(
        host=str(evidence.attempt.environment.get("host")) if clock is None and is_embedded else KAFKA_HOST,
        ahead_ms=evidence.broker_ahead_ms,
        uncertain_ms=_finite(uncertain_ms),
        uncertain=is_clock_uncertain(uncertain_ms),
    )


def is_clock_uncertain(uncertain_ms: float) -> bool:
    """Return whether an error of up to `uncertain_ms` in a clock makes latencies uncertain."""
    return uncertain_ms > CLOCK_UNCERTAIN_MS


def _finite(value: float | None) -> float | None:
    """Return the rounded value, or None if it is unknown or infinite."""
    return None if value is None or not math.isfinite(value) else round(value, 6)
