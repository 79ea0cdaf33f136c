"""Inputs of the validity rules, collected from the results of the earlier stages of the judge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from faultline.experiment.config import Configuration
from faultline.records.judge.counts import Counts
from faultline.records.judge.cpu import BackgroundLoad, Lost
from faultline.records.judge.evidence import Evidence
from faultline.records.judge.journals import SettledFault
from faultline.records.judge.recoveries import Recoveries
from faultline.records.judge.resources import Resources
from faultline.records.judge.samples import HostClock
from faultline.records.judge.signals import Signals
from faultline.records.judge.steady import Drift
from faultline.records.record import BackgroundCpuPart
from faultline.system.measured_window import Window

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class RuleInputs:
    """Inputs of the rules. A `…_death` text is None for a process that finished.

    `recovery_lateness_ms`: largest schedule lag during any recovery; None without one.

    `baseline_bins`: number of bins before the fault. `drifts`: drift over them, by signal. `growth`: 95 % interval of
    the lag slope in records/s, and `offered_rps` the scheduled rate; None without a schedule. `spans_s`: times between
    commits before the fault. `outcomes`: outcome of each planned fault, in order. `losses`: faults that a control saw.
    `*_backlog`, `undrained`: offsets. `chain_problems`: from the recovery. `last_batch_lost`: for an engine without a
    schedule, whether nothing was committed after the window.
    """

    configuration: Configuration
    schedule_lag_p99_ms: float | None
    recovery_lateness_ms: float | None
    generator_died: str | None
    recorder_died: str | None
    scheduler_death: str | None
    baseline_bins: int
    drifts: Mapping[str, Drift | None]
    growth: tuple[float, float] | None
    offered_rps: float
    t0_backlog: int
    spans_s: Floats
    outcomes: Sequence[SettledFault]
    losses: Sequence[str]
    undrained: int
    chain_problems: Sequence[str]
    clock_jump_ms: float | None = None
    store_not_read: bool = False
    last_batch_lost: bool = False
    # Background CPU by its user, the usual cause of schedule lag.
    background: BackgroundCpuPart | None = None
    # Lost CPU; `taken`, the background CPU, is used on machines that do not report lost CPU.
    lost: Lost | None = None
    taken: BackgroundLoad | None = None
    # The host whose clock offset is the most uncertain, and by how many ms.
    clock_uncertain: tuple[str, float] | None = None

    @property
    def control(self) -> bool:
        """True if no fault was planned."""
        return self.configuration.fault == "none"

    @property
    def overload_asked_for(self) -> bool:
        """True if overload is part of the request: `sustained` and the effective interval report it, not a rule."""
        return self.control and self.configuration.accept_overload


def findings_of(
    evidence: Evidence, signals: Signals, recoveries: Recoveries, counts: Counts, resources: Resources
) -> RuleInputs:
    """Return the inputs of the rules."""
    window, commits, faults = signals.window, evidence.traces.commits, recoveries.faults
    latenesses = [one.recovery.lateness_ms for one in faults if one.recovery.lateness_ms is not None]
    return RuleInputs(
        configuration=evidence.config,
        schedule_lag_p99_ms=evidence.generator.schedule_lag.p99,
        recovery_lateness_ms=max(latenesses, default=None),
        generator_died=signals.deaths["generator"],
        recorder_died=signals.deaths["recorder"],
        scheduler_death=signals.deaths["conductor"],
        baseline_bins=len(signals.reference),
        drifts=signals.drifts,
        growth=signals.growth,
        offered_rps=signals.offered_rps,
        t0_backlog=signals.t0_backlog,
        spans_s=signals.reference["span_s"].to_numpy(dtype=np.float64),
        outcomes=[one.settled for one in faults],
        losses=_losses(evidence, window),
        undrained=signals.undrained,
        chain_problems=[
            f"fault {number}: {problem}" if len(faults) > 1 else problem
            for number, one in enumerate(faults, start=1)
            for problem in one.problems
        ],
        clock_jump_ms=evidence.clock_jump_ms,
        store_not_read=counts.store_not_read,
        last_batch_lost=not evidence.config.paced and all(one.committed_ns < window.end_ns for one in commits),
        background=resources.background_cpu,
        lost=resources.lost,
        taken=resources.taken,
        clock_uncertain=uncertain_ms(evidence.clocks),
    )


def uncertain_ms(clocks: Mapping[str, HostClock]) -> tuple[str, float] | None:
    """Return the host whose clock offset is the most uncertain, and by how many ms; None without other hosts."""
    return max(((name, clock.uncertain_ms) for name, clock in clocks.items()), key=lambda one: one[1], default=None)


def _losses(evidence: Evidence, window: Window) -> list[str]:
    """Return one line per delivered signal, and per process lost between T0 and the end of the window."""

    def inside(wall_ns: int | None) -> bool:
        return wall_ns is not None and window.t0_ns <= wall_ns <= window.end_ns

    traces = evidence.traces
    lost = {(one.name, one.role) for one in traces.events_of("lost") if inside(one.wall_ns)}
    return [
        *(f"a signal was delivered to {victim}" for victim in evidence.conductor.signalled),
        *(f"{role} {name} was lost" for name, role in sorted(lost)),
        *(
            f"the driver exited (incarnation {life.incarnation})"
            for life in traces.process_runs
            if inside(life.ended_ns)
        ),
    ]
