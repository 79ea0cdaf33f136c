"""Rules that a record may break. Each is a pure function from its inputs to a reason or None.

Most rules detect a failed measurement: the record is `invalid`, kept, and its cell measured again. Rules in UNMET
detect that the engine missed the request: a result that counts, with this label.

A reason starts with the rule's code, which scripts may rely on: `schedule-lag: p99 73 ms > 50 ms`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from faultline.experiment.common_parameters import baseline_bins
from faultline.experiment.config import Configuration
from faultline.records.judge.counts import Counts
from faultline.records.judge.cpu import WORST_S, BackgroundLoad, Lost
from faultline.records.judge.evidence import Evidence
from faultline.records.judge.journals import LEFT_OUT, SettledFault
from faultline.records.judge.recoveries import LATENESS_MS, Recoveries
from faultline.records.judge.resources import Resources
from faultline.records.judge.samples import HostClock
from faultline.records.judge.signals import Signals
from faultline.records.judge.steady import SUSTAINED_SHARE, Drift, sustained, unsteady
from faultline.records.record import BackgroundCpuPart
from faultline.system.measured_window import Window
from generators.schedule_lag import LATE_MS

SCHEDULE_LAG_MS = LATE_MS
# An interval is held when it is usually kept, and rarely missed by much.
MEDIAN_INTERVAL_EXCESS = 1.05
INTERVAL_EXCESS = 1.2
# More than a clock that is drawn to the right time slowly (500 ppm) gains in three minutes.
CLOCK_JUMP_MS = 100.0
# Drift of another host's clock in a run, and half a round trip.
CLOCKS_APART_MS = 5.0
# Cores that the measured processes may lose to others and the host: all the while, and for some seconds. At the first
# the bias of the p50 passes the scatter of one repetition (docs/explanation/validity.md); both are no stricter than the
# rule before, since what is lost is at most what others use.
LOST_CORES, LOST_BRIEFLY = 0.3, 1.0
# Where it is not known what they lost: cores that others may have.
DISTURBED_CORES, DISTURBED_BRIEFLY = 0.3, 1.0

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
    # Cores that the experiment did not get, by who had them: what made the generator late, more often than not.
    background: BackgroundCpuPart | None = None
    # Lost CPU; background load of machines that do not report lost CPU.
    lost: Lost | None = None
    taken: BackgroundLoad | None = None
    # The host whose instants are the least sure on this host's clock, and by how many ms.
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
    """Return the host whose instants are the least sure, and by how many ms; None without other hosts."""
    return max(((name, clock.uncertain_ms) for name, clock in clocks.items()), key=lambda one: one[1], default=None)


def _losses(evidence: Evidence, window: Window) -> list[str]:
    """Return faults between T0 and the end of the window, planned or not, as a control must not see them."""

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


def reasons(findings: RuleInputs) -> list[str]:
    """Which rules the record breaks and how, in the order of RULES; empty for a valid one."""
    return [f"{code}: {detail}" for code, rule in RULES.items() if (detail := rule(findings)) is not None]


def schedule_lag(findings: RuleInputs) -> str | None:
    """Return a reason if p99 of the schedule lag > SCHEDULE_LAG_MS ms, or any > LATENESS_MS ms during a recovery."""
    lag, largest = findings.schedule_lag_p99_ms, findings.recovery_lateness_ms
    late = []
    if lag is not None and lag > SCHEDULE_LAG_MS:
        late.append(f"p99 {lag:.0f} ms > {SCHEDULE_LAG_MS:.0f} ms")
    if largest is not None and largest > LATENESS_MS:
        late.append(f"up to {largest:.0f} ms > {LATENESS_MS:.0f} ms during a recovery")
    if not late:
        return None
    causes = {"processes": "other processes used", "steal": "the host took"}
    taken = [
        f"{text} {cores:.2f} cores"
        for name, text in causes.items()
        if (cores := getattr(findings.background, name, None)) is not None
    ]
    return "; ".join([*late, *taken])


def clock_jumped(findings: RuleInputs) -> str | None:
    """Return a reason if the wall clock moved by > CLOCK_JUMP_MS ms against the monotonic clock during the run."""
    moved = findings.clock_jump_ms
    if moved is None or abs(moved) <= CLOCK_JUMP_MS:
        return None
    return f"the wall clock moved by {moved:+,.0f} ms during the run; keep it from being set, and measure again"


def clock_skew(findings: RuleInputs) -> str | None:
    """Return a reason if another host's clock offset is uncertain by > CLOCKS_APART_MS ms, or unknown at the end."""
    if findings.clock_uncertain is None or findings.clock_uncertain[1] <= CLOCKS_APART_MS:
        return None
    host, uncertain_ms = findings.clock_uncertain
    if math.isinf(uncertain_ms):
        return f"the clock of {host} was not read at the end, so its drift is unknown"
    return f"the clock of {host} is known to {uncertain_ms:.1f} ms > {CLOCKS_APART_MS:g} ms; let it be kept by NTP"


def background_load(findings: RuleInputs) -> str | None:
    """Return a reason if other work took too much CPU from the measured processes.

    Limits: > LOST_CORES cores on average, or > LOST_BRIEFLY over any WORST_S s.
    Without run-delay data, the background CPU itself must not exceed these limits.
    """
    lost, found = findings.lost, findings.taken
    if lost is not None and lost.mean > LOST_CORES:
        return f"{lost.mean:.2f} cores lost to others and the host > {LOST_CORES:g}"
    if lost is not None and lost.worst > LOST_BRIEFLY:
        return f"{lost.worst:.2f} cores lost to others and the host > {LOST_BRIEFLY:g} for {WORST_S} s"
    if found is None or (found.mean <= DISTURBED_CORES and found.worst <= DISTURBED_BRIEFLY):
        return None
    if found.mean > DISTURBED_CORES:
        return f"others and the host took {found.mean:.2f} cores > {DISTURBED_CORES:g}"
    return f"others and the host took {found.worst:.2f} cores > {DISTURBED_BRIEFLY:g} for {WORST_S} s"


def generator_died(findings: RuleInputs) -> str | None:
    """Return a reason if the generator failed or did not report its end."""
    return findings.generator_died


def recorder_died(findings: RuleInputs) -> str | None:
    """Return a reason if the recorder ended without its stop line, so samples are missing."""
    return findings.recorder_died


def scheduler_died(findings: RuleInputs) -> str | None:
    """Return a reason if the fault scheduler failed or did not report its end."""
    return findings.scheduler_death


def baseline_too_short(findings: RuleInputs) -> str | None:
    """Return a reason if the baseline has < 10 time bins (4 at intervals ≥ 5 s), although the interval was held."""
    if interval_not_held(findings):
        return None
    needed = baseline_bins(findings.configuration.checkpoint_interval_s)
    bins = findings.baseline_bins
    return f"{bins} bins before the fault, {needed} needed" if not findings.control and bins < needed else None


def not_steady(findings: RuleInputs) -> str | None:
    """Return a reason if latency or consumer lag is not shown to drift by less than 25 % over the baseline window.

    Controls are exempt.
    """
    # An engine that is too slow has no steady baseline; that it is too slow is what there is to say, and a result.
    if findings.control or overloaded(findings) or interval_not_held(findings):
        return None
    return unsteady(findings.drifts)


def overloaded(findings: RuleInputs) -> str | None:
    """Return a reason if consumer lag grew (95 %) by > 1 % of the rate; controls with `accept_overload` are exempt."""
    growth, rate = findings.growth, findings.offered_rps
    if growth is None or findings.overload_asked_for or sustained(growth, rate) is not False:
        return None
    low, high = growth
    return f"lag grew by {low:,.0f} to {high:,.0f} of {rate:,.0f} records/s > {SUSTAINED_SHARE:.0%}"


def backlog_at_t0(findings: RuleInputs) -> str | None:
    """Return a reason if part of the preload was not committed at T0."""
    return f"{findings.t0_backlog} offsets of the primer not committed at T0" if findings.t0_backlog else None


def interval_not_held(findings: RuleInputs) -> str | None:
    """Return a reason if nothing was committed, or the time between commits is too long.

    Limits: median > MEDIAN_INTERVAL_EXCESS × or p90 > INTERVAL_EXCESS × the interval.
    Controls with `accept_overload` and workloads without a send schedule are exempt from both limits.
    """
    nominal = findings.configuration.checkpoint_interval_s
    if not len(findings.spans_s):
        return "no commit in the measured window"
    if not findings.configuration.paced:
        return None  # Batches follow each other; no interval was set.
    if findings.overload_asked_for:
        return None
    usual, rare = float(np.median(findings.spans_s)), float(np.quantile(findings.spans_s, 0.9))
    if usual > MEDIAN_INTERVAL_EXCESS * nominal:
        return f"{usual:.2f} s between commits > {MEDIAN_INTERVAL_EXCESS * nominal:.2f} s"
    if rare > INTERVAL_EXCESS * nominal:
        return f"{rare:.2f} s between one commit in ten and the one before > {INTERVAL_EXCESS * nominal:.2f} s"
    return None


def no_effect(findings: RuleInputs) -> str | None:
    """Return a reason if a fault changed nothing for its victim or for the run."""
    return _of_faults(findings, {"no-effect"}, "changed nothing")


def missed_window(findings: RuleInputs) -> str | None:
    """Return a reason if a fault was not injected at its planned time."""
    return _of_faults(findings, {"missed-window"}, "was not delivered at its time")


def fault_outcome_unknown(findings: RuleInputs) -> str | None:
    """Return a reason if it is unknown whether a fault took effect."""
    others = {settled.outcome for settled in findings.outcomes} - {"effective", "no-effect", "missed-window", LEFT_OUT}
    return _of_faults(findings, others, "has an unknown outcome")


def fault_in_control(findings: RuleInputs) -> str | None:
    """Return a reason if a control run received a signal or lost an executor or the driver before the window's end."""
    return "; ".join(findings.losses) if findings.control and findings.losses else None


def drain_incomplete(findings: RuleInputs) -> str | None:
    """Return a reason if input remained uncommitted when the drain limit passed.

    For events created by the engine: the last batch of the window was not committed.
    """
    if findings.last_batch_lost:
        return "nothing was committed after the window: the query had ended, or its last batch was too long"
    return f"{findings.undrained} offsets not committed after the drain" if findings.undrained else None


def store_unverified(findings: RuleInputs) -> str | None:
    """Return a reason if a topology with `persist` ended before its store was written and read back."""
    return "the chain ended before its store was read back" if findings.store_not_read else None


def timeline_incomplete(findings: RuleInputs) -> str | None:
    """Return a reason if a part of the recovery is negative or missing without censoring, or its threshold unknown."""
    return "; ".join(findings.chain_problems) or None


RULES: dict[str, Callable[[RuleInputs], str | None]] = {
    "schedule-lag": schedule_lag,
    "clock-jumped": clock_jumped,
    "clock-skew": clock_skew,
    "background-load": background_load,
    "generator-died": generator_died,
    "recorder-died": recorder_died,
    "scheduler-died": scheduler_died,
    "baseline-too-short": baseline_too_short,
    "not-steady": not_steady,
    "backlog-at-t0": backlog_at_t0,
    "overloaded": overloaded,
    "interval-not-held": interval_not_held,
    "no-effect": no_effect,
    "missed-window": missed_window,
    "fault-outcome-unknown": fault_outcome_unknown,
    "fault-in-control": fault_in_control,
    "drain-incomplete": drain_incomplete,
    "store-unverified": store_unverified,
    "timeline-incomplete": timeline_incomplete,
}


UNMET = frozenset({"overloaded", "interval-not-held", "drain-incomplete"})


def status_of(why: Sequence[str]) -> Literal["valid", "unmet", "invalid"]:
    """Return the status of a record with these reasons."""
    if not why:
        return "valid"
    return "unmet" if {reason.partition(":")[0] for reason in why} <= UNMET else "invalid"


def _of_faults(findings: RuleInputs, outcomes: Collection[str | None], text: str) -> str | None:
    """Return the text of each planned fault with such an outcome; a fault has a number where there are several."""
    several = len(findings.outcomes) > 1
    found = [
        f"{f'fault {number}' if several else 'the fault'} {text}{f' ({settled.detail})' if settled.detail else ''}"
        for number, settled in enumerate(findings.outcomes, start=1)
        if settled.outcome in outcomes
    ]
    return "; ".join(found) or None
