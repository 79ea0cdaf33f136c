"""Instant of a planned fault: a fixed time, or a phase of an engine cycle."""

from __future__ import annotations

from dataclasses import dataclass

from fault.plan import PlannedFault
from faultline.engines.protocol import Progress
from faultline.experiment.attempt_plan import FaultPhase
from faultline.lifecycle.scheduler_input import SchedulerInput
from faultline.system.journal import Instant
from faultline.system.kafka import OFFSETS_LEAD_S


@dataclass(frozen=True)
class InjectionTime:
    """Instant of an injection.

    `cycle_ns`: wall-clock start of the cycle that it is counted from; None without a cycle.
    """

    at: Instant
    cycle_ns: int | None = None


def injection_time_of(
    planned: PlannedFault,
    t0: Instant,
    scheduler_input: SchedulerInput,
    progress: Progress,
    *,
    aim: FaultPhase | None = None,
    start: Instant | None = None,
) -> InjectionTime | None:
    """Return when the fault is due, waiting for its cycle if it has one; None if none began in time.

    `aim`: replaces the plan's. `start`: start of the measured window, from which the aim counts commits; None: after
    the planned warm-up.
    """
    aim, start = aim or scheduler_input.aim, start or t0.plus(scheduler_input.warmup_s)
    fault = planned.fault
    if fault.cycle is not None and fault.phase is not None:
        latest = t0.plus(planned.latest_s)
        began_ns = progress.await_cycle(fault.cycle, t0.plus(planned.earliest_s).wall_ns, latest.mono_ns)
        if began_ns is None:
            return None
        lengths = {"checkpoint": scheduler_input.checkpoint_interval_s, "snapshot": scheduler_input.snapshot_interval_s}
        return _time_after_cycle(t0, began_ns, fault.phase * lengths[fault.cycle])
    at = t0.plus(planned.earliest_s)
    return InjectionTime(at) if aim is None else _time_in_phase(at, t0, aim, start, scheduler_input, progress)


def _time_in_phase(
    at: Instant, t0: Instant, aim: FaultPhase, start: Instant, scheduler_input: SchedulerInput, progress: Progress
) -> InjectionTime:
    """Return the instant in the aimed cycle, or the latest permitted one if commits are too rare."""
    latest = max(t0.plus(aim.latest_s), at, key=lambda instant: instant.mono_ns)
    # The end offsets must be read before the injection.
    until_ns = latest.plus(-2 * OFFSETS_LEAD_S).mono_ns
    after_s = aim.phase * scheduler_input.checkpoint_interval_s
    wanted_ns = at.plus(-after_s).wall_ns
    began_ns = start.wall_ns
    # Cycles of the baseline commits, then the one that contains the planned time.
    for number in range(aim.commits + 1):
        if number == aim.commits and began_ns >= wanted_ns:
            break
        start_ns = began_ns + 1 if number < aim.commits else wanted_ns
        found = progress.await_cycle("checkpoint", start_ns, until_ns)
        if found is None:
            return InjectionTime(latest)
        began_ns = found
    due = _time_after_cycle(t0, began_ns, after_s)
    return due if due.at.mono_ns <= latest.mono_ns else InjectionTime(latest)


def _time_after_cycle(t0: Instant, began_ns: int, after_s: float) -> InjectionTime:
    """Return the instant `after_s` after a cycle began, or the earliest one at which end offsets can be read before."""
    due, soonest = t0.plus((began_ns - t0.wall_ns) / 1e9 + after_s), Instant.now().plus(OFFSETS_LEAD_S)
    return InjectionTime(due if due.mono_ns >= soonest.mono_ns else soonest, began_ns)
