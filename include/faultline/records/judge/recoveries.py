"""Recovery from each planned fault of an attempt, with timeline and impact, and the placebo recovery of a control run.

The placebo test applies the recovery rule to a control run, at the t0 that a fault would have. It gives the rule's
false-positive rate and its delay.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from faultline.engines.protocol import covers
from faultline.experiment.common_parameters import required_commits
from faultline.records.judge.end import limits_between, placebo_of, threshold_fields
from faultline.records.judge.evidence import Evidence
from faultline.records.judge.journals import LEFT_OUT, InjectedFault, SettledFault
from faultline.records.judge.parts import (
    dip_depth,
    lag_area_of_bins,
    largest_schedule_lag_ms,
    last_level_start_ns,
    measure,
    phase_at,
)
from faultline.records.judge.signals import Signals, bin_columns, bins_between, offered_rate
from faultline.records.judge.steady import Limits, drifts_of, unsteady
from faultline.records.judge.timeline import (
    EvidenceEvent,
    FaultEvidence,
    longest_silence,
    no_effect_reason,
    other_events,
    read_timeline,
)
from faultline.records.judge.tuples import MS, first_outputs_until
from faultline.records.record import RecoveryPart
from faultline.records.recoveries import run_value
from faultline.system.measured_window import NS

# Largest schedule lag of the generator in a recovery, in ms: a tuple sent late would prolong the recovery.
LATENESS_MS = 250.0


@dataclass(frozen=True)
class FaultRecovery:
    """Recovery from one planned fault, without a timeline if the fault had no effect.

    `settled`: outcome of the fault. `problems`: reasons that make the whole record invalid. A problem of a later
    injection alone is the `note` of its recovery, which then has no figures or a limited baseline.
    """

    settled: SettledFault
    recovery: RecoveryPart
    events: tuple[EvidenceEvent, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def t7_ns(self) -> int | None:
        """End of the recovery, None if not observed."""
        return next((event.wall_ns for event in self.events if event.name.partition("#")[0] == "t7"), None)


@dataclass(frozen=True)
class Recoveries:
    """Recoveries from all planned faults, in order.

    `recovery`: their value for the run. `placebo`: the placebo recovery of a control run.
    """

    faults: tuple[FaultRecovery, ...]
    recovery: RecoveryPart
    placebo: RecoveryPart | None


@dataclass(frozen=True)
class BaselineWindow:
    """Baseline window of one fault: the time bins before it and the recovery thresholds computed from them.

    `note`: why the baseline is limited; None for the first baseline, which the record's rules check.
    """

    bins: pd.DataFrame
    limits: Limits | None
    note: str | None = None


def recoveries_of(evidence: Evidence, signals: Signals, *, is_mapping_known: bool = True) -> Recoveries:
    """Return the recovery from each planned fault, observed until the next delivered fault.

    If one fault is injected repeatedly, each injection has its own baseline, which starts at the end of the previous
    recovery. The faults of a plan share the baseline before the first fault. `is_mapping_known`: whether the tuples of
    each output are known; t5 is otherwise a commit.
    """
    injected, recoveries = evidence.scheduler.injected, list[FaultRecovery]()
    placebo, emits_at_once = placebo_of(evidence, signals), evidence.emits_at_once and is_mapping_known
    if any(signals.deaths.values()):  # A recovery would be unobserved or cut short.
        recoveries = [FaultRecovery(fault.settled, RecoveryPart.empty()) for fault in injected]
    elif injected:
        first_t0_ns = min((one.t0_ns for one in injected if one.t0_ns is not None), default=0)
        limits = limits_between(evidence, signals, signals.window.start_ns, first_t0_ns)
        first = BaselineWindow(signals.baseline, limits)
        for fault in injected:
            is_later = fault.index > 0 and evidence.is_repeated
            baseline = _baseline_of(evidence, signals, fault, recoveries[-1], first) if is_later else first
            recovery = _recovery_of(evidence, signals, fault, baseline, first, emits_at_once=emits_at_once)
            recoveries.append(_exclude_if_invalid(recovery) if is_later else recovery)
    parts = [one.recovery for one in recoveries]
    return Recoveries(tuple(recoveries), run_value(parts if evidence.is_repeated else parts[:1]), placebo)


def _recovery_of(
    evidence: Evidence,
    signals: Signals,
    fault: InjectedFault,
    baseline: BaselineWindow,
    first: BaselineWindow,
    *,
    emits_at_once: bool,
) -> FaultRecovery:
    """Return the recovery from one fault, with its problems.

    `first`: baseline before the first fault. `emits_at_once`: whether t5 is an output instead of a commit.
    """
    injected, window = evidence.scheduler.injected, signals.window
    empty, injection_fields = RecoveryPart.empty(), dict[str, Any]()
    if evidence.is_repeated:
        at_s = None if fault.t0_ns is None else window.t_s(fault.t0_ns)
        injection_fields = {"injection": fault.index + 1, "at_s": at_s}
        injection_fields |= {"trigger": fault.trigger, "note": baseline.note}
        empty = RecoveryPart.model_validate({**dict(empty), **injection_fields})
    if fault.settled.outcome != "effective":
        return FaultRecovery(fault.settled, empty)
    if fault.t0_ns is None:
        return FaultRecovery(fault.settled, empty, problems=("missing: t0, no delivery was journalled",))
    fault_evidence = FaultEvidence(
        engine=evidence.engine,
        traces=evidence.traces,
        t0_ns=fault.t0_ns,
        victim=evidence.planned[fault.index].fault.victim,
        victims=fault.victims,
        end_offsets=fault.end_offsets or {},
        bins=signals.bins,
        production=signals.tuples.production,
        limits=baseline.limits,
        emissions_ms=signals.tuples.emissions_ms,
        emits_at_once=emits_at_once,
        emitted_ns=_emitted_ns(evidence, fault) if emits_at_once else None,
        window=window,
        services=evidence.services,
        undo_lines=fault.undo_lines,
        until_ns=min((one.t0_ns for one in injected[fault.index + 1 :] if one.t0_ns is not None), default=None),
    )
    if why := no_effect_reason(fault_evidence):
        return FaultRecovery(SettledFault("no-effect", why), empty)
    if signals.baseline.empty:  # A rule makes this record invalid.
        return FaultRecovery(fault.settled, empty)
    timeline = read_timeline(fault_evidence)
    recovery, problems = measure(timeline)
    if fault.end_offsets is None:
        problems = (*problems, "missing: the broker's end offsets before the signal")
    if fault_evidence.limits is None:
        # Without this problem, the missing t7 would count as a censored recovery.
        problems = (*problems, "missing: what is normal, no tuple was emitted before the fault")
    drift_s = None
    if baseline is not first and recovery.macro_s is not None:
        by_first, _ = measure(read_timeline(replace(fault_evidence, limits=first.limits)))
        drift_s = None if by_first.macro_s is None else recovery.macro_s - by_first.macro_s
    impact = _impact(evidence, signals, fault_evidence, timeline, baseline.bins)
    events = (replace(one, name=fault.name(one.name)) for one in (*timeline.values(), *other_events(fault_evidence)))
    recovery = RecoveryPart.model_validate(
        {**dict(recovery), **impact, **injection_fields, "drift_since_first_s": drift_s}
    )
    return FaultRecovery(fault.settled, recovery, tuple(events), problems)


def _baseline_of(
    evidence: Evidence, signals: Signals, fault: InjectedFault, previous: FaultRecovery, first: BaselineWindow
) -> BaselineWindow:
    """Return the baseline from the previous recovery to this fault; the first one if that window is unknown or empty.

    The previous recovery ended at its t7, else when the fault scheduler found the engine steady. With too few commits,
    the baseline keeps its own thresholds and has a note.
    """
    over_ns, previous_t0_ns = previous.t7_ns, evidence.scheduler.injected[fault.index - 1].t0_ns
    normal_s = None if fault.trigger is None else fault.trigger.normal_s
    if over_ns is None and normal_s is not None and previous_t0_ns is not None:
        over_ns = previous_t0_ns + round(normal_s * NS)
    if over_ns is None or fault.t0_ns is None:
        return replace(first, note="baseline-too-short: when the engine was back is not known, the first one stands in")
    interval_s, bins = evidence.config.checkpoint_interval_s, bins_between(signals.bins, over_ns, fault.t0_ns)
    commits = bins_between(signals.commits, over_ns, fault.t0_ns)
    limits, needed = limits_between(evidence, signals, over_ns, fault.t0_ns), required_commits(interval_s)
    if limits is None:
        return replace(first, note="baseline-too-short: nothing was put out since, the first one stands in")
    if len(commits) < needed:
        return BaselineWindow(
            bins, limits, f"baseline-too-short: {len(commits)} commits since the last recovery, {needed} needed"
        )
    series, offered_rps = bin_columns(bins, signals.window), offered_rate(signals.schedule, bins)
    moved = unsteady(drifts_of(*series, checkpoint_interval_s=interval_s, offered_rps=offered_rps))
    return BaselineWindow(bins, limits, None if moved is None else f"not-steady: {moved}")


def _emitted_ns(evidence: Evidence, fault: InjectedFault) -> int | None:
    """Return the last first output of the tuples due at the fault, or None if some of them were never processed.

    t0 if all of them were emitted before. Lost tuples, which a commit covers, do not count.
    """
    t0_ns = fault.t0_ns or 0
    found = first_outputs_until(evidence.tuples_path, t0_ns // MS)
    if found.missing and not covers(evidence.traces.reached, fault.end_offsets or {}):
        return None
    return max(t0_ns, found.last_ns)


def _exclude_if_invalid(found: FaultRecovery) -> FaultRecovery:
    """Return the recovery from a later injection; if it is invalid, with a note instead of figures.

    The other injections stay valid. An injection with an unknown outcome is kept, because its fault may still act on
    later injections; it makes the record invalid.
    """
    note = None
    lateness_ms = found.recovery.lateness_ms
    if found.settled.outcome in ("no-effect", "missed-window"):
        note = f"{found.settled.outcome}: {found.settled.detail}" if found.settled.detail else found.settled.outcome
    elif found.problems:
        note = f"timeline-incomplete: {'; '.join(found.problems)}"
    elif lateness_ms is not None and lateness_ms > LATENESS_MS:
        note = f"schedule-lag: {lateness_ms:.0f} ms in this recovery > {LATENESS_MS:g} ms"
    if note is None:
        return found
    kept = {name: getattr(found.recovery, name) for name in ("injection", "at_s", "trigger")}
    empty = RecoveryPart.model_validate({**dict(RecoveryPart.empty()), **kept, "note": note})
    return FaultRecovery(SettledFault(LEFT_OUT, note), empty, found.events)


def _impact(
    evidence: Evidence,
    signals: Signals,
    fault_evidence: FaultEvidence,
    timeline: Mapping[str, EvidenceEvent],
    baseline: pd.DataFrame,
) -> dict[str, Any]:
    """Return the impact of a fault and the recovery thresholds used, as fields of `RecoveryPart`."""
    t0_ns, bins, config = fault_evidence.t0_ns, signals.bins, evidence.config
    ended_ns = fault_evidence.watched_until_ns if fault_evidence.until_ns is not None else signals.window.end_ns
    t6_ns, t7_ns = (timeline[name].wall_ns if name in timeline else ended_ns for name in ("t6", "t7"))
    thresholds = threshold_fields(evidence, signals, fault_evidence.limits, fault_evidence.produced_until_ns)
    silence = longest_silence(fault_evidence.emissions_ms, t0_ns, t6_ns)
    area = (
        signals.schedule.lag_area(evidence.traces.commits, t0_ns, t7_ns)
        if not evidence.emits_per_record
        else lag_area_of_bins(bins, t0_ns, t7_ns)
    )
    lateness_ms = largest_schedule_lag_ms(evidence.generator.latest, t0_ns, t7_ns)
    dip = dip_depth(bins, float(baseline["throughput_rps"].median()), signals.resolution_s, t0_ns, t7_ns)
    phase = phase_at(signals.commits, t0_ns, config.checkpoint_interval_s) if config.paced else None
    job_restarts = evidence.traces.job_restarts
    restarts = None if job_restarts is None else sum(t0_ns <= at_ns <= t6_ns for at_ns in job_restarts)
    durable = timeline.get("durable" if fault_evidence.emits_at_once else "t5")
    settled = last_level_start_ns(bins, t0_ns, min(fault_evidence.watched_until_ns, ended_ns))
    return {
        **thresholds,
        "dip_depth": dip,
        "silence_s": None if silence is None else (silence[1] - silence[0]) / NS,
        "lag_area_record_s": area,
        "phase": phase,
        "lateness_ms": lateness_ms,
        "restarts": restarts,
        "durable_s": None if durable is None else (durable.wall_ns - t0_ns) / NS,
        "settled_s": None if settled is None else (settled - t0_ns) / NS,
    }
