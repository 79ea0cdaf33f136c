"""Inputs of the validity rules, from the results of the judge's earlier stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from faultline.experiment.config import Configuration
from faultline.records.judge.counts import Counts
from faultline.records.judge.cpu import BackgroundLoad, LostCpu
from faultline.records.judge.evidence import Evidence
from faultline.records.judge.journals import SettledFault
from faultline.records.judge.recoveries import Recoveries
from faultline.records.judge.resources import Resources
from faultline.records.judge.samples import HostClock
from faultline.records.judge.signals import Signals
from faultline.records.judge.steady import Drift
from faultline.records.work_parts import BackgroundCpuPart
from faultline.system.measured_window import Window
from generators.send_progress import sent_between

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class RuleInputs:
    """Inputs of the validity rules.

    `late_share`: share of the measured window's records that were sent more than LATE_MS late; None without records.
    `recovery_lateness_ms`: largest schedule lag during any recovery; None without recoveries. `*_died`, `*_death`: why
    a process did not finish; None if it did. `baseline_commits`: number of commits in the baseline window. `drifts`:
    drift over its time bins, by signal. `growth`: 95 % interval of the lag slope in records/s; None without a send
    schedule. `offered_rps`: scheduled rate. `spans_s`: times between commits before the fault. `outcomes`: outcome of
    each planned fault, in order. `losses`: delivered signals and lost processes, which a control run must not have.
    `t0_backlog`, `undrained`: uncommitted offsets of the preload at T0, and of the input at the end. `chain_problems`:
    problems of the timelines. `last_batch_lost`: without a send schedule, whether nothing was committed after the
    window.
    """

    configuration: Configuration
    late_share: float | None
    recovery_lateness_ms: float | None
    generator_died: str | None
    recorder_died: str | None
    scheduler_death: str | None
    baseline_commits: int
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
    # `taken` is the background load of machines that do not report lost CPU.
    lost: LostCpu | None = None
    taken: BackgroundLoad | None = None
    # Host with the least certain clock offset, and its error in ms.
    clock_uncertain: tuple[str, float] | None = None

    @property
    def control(self) -> bool:
        """True if no fault was planned."""
        return self.configuration.fault == "none"

    @property
    def overload_asked_for(self) -> bool:
        """True if overload is requested: `sustained` and the effective interval report it, so no rule does."""
        return self.control and self.configuration.accept_overload


def rule_inputs_of(
    evidence: Evidence, signals: Signals, recoveries: Recoveries, counts: Counts, resources: Resources
) -> RuleInputs:
    """Return the inputs of the rules."""
    window, commits, faults = signals.window, evidence.traces.commits, recoveries.faults
    sent, late = sent_between(evidence.generator.progress, window.start_ns, window.end_ns)
    latenesses = [one.recovery.lateness_ms for one in faults if one.recovery.lateness_ms is not None]
    return RuleInputs(
        configuration=evidence.config,
        late_share=late / sent if sent else None,
        recovery_lateness_ms=max(latenesses, default=None),
        generator_died=signals.deaths["generator"],
        recorder_died=signals.deaths["recorder"],
        scheduler_death=signals.deaths["conductor"],
        baseline_commits=len(signals.baseline_commits),
        drifts=signals.drifts,
        growth=signals.growth,
        offered_rps=signals.offered_rps,
        t0_backlog=signals.t0_backlog,
        spans_s=signals.baseline_commits["span_s"].to_numpy(dtype=np.float64),
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
        clock_uncertain=most_uncertain_clock(evidence.clocks),
    )


def most_uncertain_clock(clocks: Mapping[str, HostClock]) -> tuple[str, float] | None:
    """Return the host with the least certain clock offset, and its error in ms; None without other hosts."""
    return max(((name, clock.uncertain_ms) for name, clock in clocks.items()), key=lambda one: one[1], default=None)


def _losses(evidence: Evidence, window: Window) -> list[str]:
    """Describe each delivered signal, and each process lost between T0 and the end of the window."""

    def is_inside(wall_ns: int | None) -> bool:
        return wall_ns is not None and window.t0_ns <= wall_ns <= window.end_ns

    traces = evidence.traces
    lost = {(one.name, one.role) for one in traces.events_of("lost") if is_inside(one.wall_ns)}
    return [
        *(f"a signal was delivered to {victim}" for victim in evidence.scheduler.signalled),
        *(f"{role} {name} was lost" for name, role in sorted(lost)),
        *(
            f"the driver exited (incarnation {run.incarnation})"
            for run in traces.process_runs
            if is_inside(run.ended_ns)
        ),
    ]
