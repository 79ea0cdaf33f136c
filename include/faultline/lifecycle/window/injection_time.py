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
    target_phase: FaultPhase | None = None,
    start: Instant | None = None,
) -> InjectionTime | None:
    """Return when the fault is due, after waiting for its cycle if it has one; None if no cycle began in time.

    `target_phase`: phase of the checkpoint cycle to inject at; None: the plan's. `start`: instant from which its
    baseline commits are counted; None: the end of the planned warm-up.
    """
    target_phase, start = target_phase or scheduler_input.target_phase, start or t0.plus(scheduler_input.warmup_s)
    fault = planned.fault
    if fault.cycle is not None and fault.phase is not None:
        latest = t0.plus(planned.latest_s)
        began_ns = progress.await_cycle(fault.cycle, t0.plus(planned.earliest_s).wall_ns, latest.mono_ns)
        if began_ns is None:
            return None
        lengths = {"checkpoint": scheduler_input.checkpoint_interval_s, "snapshot": scheduler_input.snapshot_interval_s}
        return _time_after_cycle(t0, began_ns, fault.phase * lengths[fault.cycle])
    at = t0.plus(planned.earliest_s)
    if target_phase is None:
        return InjectionTime(at)
    return _time_in_phase(at, t0, target_phase, start, scheduler_input, progress)


def _time_in_phase(
    at: Instant, t0: Instant, target: FaultPhase, start: Instant, scheduler_input: SchedulerInput, progress: Progress
) -> InjectionTime:
    """Return the instant of the target phase, or the latest permitted instant if commits are too rare."""
    latest = max(t0.plus(target.latest_s), at, key=lambda instant: instant.mono_ns)
    # The end offsets must be read before the injection.
    until_ns = latest.plus(-2 * OFFSETS_LEAD_S).mono_ns
    after_s = target.phase * scheduler_input.checkpoint_interval_s
    wanted_ns = at.plus(-after_s).wall_ns
    began_ns = start.wall_ns
    # One cycle per baseline commit, then the cycle that contains the planned time.
    for cycle in range(target.commits + 1):
        if cycle == target.commits and began_ns >= wanted_ns:
            break
        search_ns = began_ns + 1 if cycle < target.commits else wanted_ns
        cycle_ns = progress.await_cycle("checkpoint", search_ns, until_ns)
        if cycle_ns is None:
            return InjectionTime(latest)
        began_ns = cycle_ns
    due = _time_after_cycle(t0, began_ns, after_s)
    return due if due.at.mono_ns <= latest.mono_ns else InjectionTime(latest)


def _time_after_cycle(t0: Instant, began_ns: int, after_s: float) -> InjectionTime:
    """Return the instant `after_s` after a cycle began, but not before the end offsets can be read."""
    due, soonest = t0.plus((began_ns - t0.wall_ns) / 1e9 + after_s), Instant.now().plus(OFFSETS_LEAD_S)
    return InjectionTime(due if due.mono_ns >= soonest.mono_ns else soonest, began_ns)
