"""Recovery from each planned fault of an attempt, with timeline and impact; and the placebo recovery of a control.

The placebo applies the rule of the end to a control at the t0 of a fault. It gives the rule's false-positive rate and
its delay.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from faultline.experiment.common_parameters import baseline_bins
from faultline.records.judge.end import choices, limits_between, placebo_of
from faultline.records.judge.evidence import Evidence
from faultline.records.judge.journals import LEFT_OUT, InjectedFault, SettledFault
from faultline.records.judge.parts import (
    dip_depth,
    lag_area_of_bins,
    largest_lateness_ms,
    measure,
    phase_at,
    settled_ns,
)
from faultline.records.judge.signals import Signals, between, columns, offered_rates
from faultline.records.judge.steady import Limits, drifts_of, unsteady
from faultline.records.judge.timeline import (
    EvidenceEvent,
    FaultEvidence,
    companions,
    longest_silence,
    read_timeline,
    without_effect,
)
from faultline.records.record import RecoveryPart
from faultline.records.recoveries import run_value
from faultline.system.measured_window import NS

# The generator's schedule lag in a recovery: tuples define the recovery, and none may be much later than the engine can
# make them.
LATENESS_MS = 250.0


@dataclass(frozen=True)
class FaultRecovery:
    """Recovery from one planned fault; without a timeline if it had no effect.

    `problems`: what makes the whole record invalid. A problem of one later injection alone is the `note` of its
    recovery, which then has no figures or a limited baseline.
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
    """Recoveries from all planned faults, in order; the placebo of a control. `recovery`: value of the run."""

    faults: tuple[FaultRecovery, ...]
    recovery: RecoveryPart
    placebo: RecoveryPart | None


@dataclass(frozen=True)
class BaselineWindow:
    """Baseline window of one fault: the bins before it, and the recovery thresholds.

    `note`: why it is limited; None for the first baseline, which the rules of the record check.
    """

    bins: pd.DataFrame
    limits: Limits | None
    note: str | None = None


def recoveries_of(evidence: Evidence, signals: Signals) -> Recoveries:
    """Return one for each planned fault; a fault is watched until the next one that was delivered.

    Injections of one fault are judged each against its own baseline, which begins where the one before was over; the
    faults of a plan all against what was before the first.
    """
    injected, repeated, found = evidence.conductor.injected, evidence.is_repeated, list[FaultRecovery]()
    placebo = placebo_of(evidence, signals)
    if any(signals.deaths.values()):  # Unobserved or shortened ones are excluded.
        found = [FaultRecovery(fault.settled, RecoveryPart.empty()) for fault in injected]
    elif injected:
        begun_ns = min((one.t0_ns for one in injected if one.t0_ns is not None), default=0)
        first = BaselineWindow(signals.reference, limits_between(evidence, signals, signals.window.start_ns, begun_ns))
        for fault in injected:
            own = _own_baseline(evidence, signals, fault, found[-1], first) if fault.index and repeated else first
            one = _of_fault(evidence, signals, fault, own, first)
            found.append(_left_out(one) if fault.index and repeated else one)
    parts = [one.recovery for one in found]
    return Recoveries(tuple(found), run_value(parts if repeated else parts[:1]), placebo)


def _of_fault(
    evidence: Evidence, signals: Signals, fault: InjectedFault, own: BaselineWindow, first: BaselineWindow
) -> FaultRecovery:
    """Return the recovery from one fault, whatever speaks against it."""
    injected, window = evidence.conductor.injected, signals.window
    empty, place = RecoveryPart.empty(), dict[str, Any]()
    if evidence.is_repeated:
        at_s = None if fault.t0_ns is None else window.t_s(fault.t0_ns)
        place = {"injection": fault.index + 1, "at_s": at_s, "trigger": fault.trigger, "note": own.note}
        empty = RecoveryPart.model_validate({**dict(empty), **place})
    if fault.settled.outcome != "effective":
        return FaultRecovery(fault.settled, empty)
    if fault.t0_ns is None:
        return FaultRecovery(fault.settled, empty, problems=("missing: t0, no delivery was journalled",))
    watched = FaultEvidence(
        engine=evidence.engine,
        traces=evidence.traces,
        t0_ns=fault.t0_ns,
        victim=evidence.planned[fault.index].fault.victim,
        victims=fault.victims,
        end_offsets=fault.end_offsets or {},
        bins=signals.bins,
        production=signals.tuples.production,
        limits=own.limits,
        emissions_ms=signals.tuples.emissions_ms,
        window=window,
        services=evidence.services,
        undone=fault.undone,
        until_ns=min((one.t0_ns for one in injected[fault.index + 1 :] if one.t0_ns is not None), default=None),
    )
    if why := without_effect(watched):
        return FaultRecovery(SettledFault("no-effect", why), empty)
    if signals.reference.empty:  # invalid for its baseline
        return FaultRecovery(fault.settled, empty)
    timeline = read_timeline(watched)
    recovery, problems = measure(timeline)
    if fault.end_offsets is None:
        problems = (*problems, "missing: the broker's end offsets before the signal")
    if watched.limits is None:
        # without this the unfound t7 would pass for censoring
        problems = (*problems, "missing: what is normal, no tuple was emitted before the fault")
    drift_s = None
    if own is not first and recovery.macro_s is not None:
        by_first, _ = measure(read_timeline(replace(watched, limits=first.limits)))
        drift_s = None if by_first.macro_s is None else recovery.macro_s - by_first.macro_s
    impact = _impact(evidence, signals, watched, timeline, own.bins)
    events = (replace(one, name=fault.name(one.name)) for one in (*timeline.values(), *companions(watched)))
    whole = RecoveryPart.model_validate({**dict(recovery), **impact, **place, "drift_since_first_s": drift_s})
    return FaultRecovery(fault.settled, whole, tuple(events), problems)


def _own_baseline(
    evidence: Evidence, signals: Signals, fault: InjectedFault, before: FaultRecovery, first: BaselineWindow
) -> BaselineWindow:
    """Return the baseline between the previous recovery and this fault, or the first baseline if that is too short.

    The previous recovery ended at its t7, or when the fault scheduler found the engine steady.
    """
    over_ns, since_ns = before.t7_ns, evidence.conductor.injected[fault.index - 1].t0_ns
    if over_ns is None and fault.trigger is not None and fault.trigger.normal_s is not None and since_ns is not None:
        over_ns = since_ns + round(fault.trigger.normal_s * NS)
    if over_ns is None or fault.t0_ns is None:
        return replace(first, note="baseline-too-short: when the engine was back is not known, the first one stands in")
    interval_s, bins = evidence.config.checkpoint_interval_s, between(signals.bins, over_ns, fault.t0_ns)
    limits, needed = limits_between(evidence, signals, over_ns, fault.t0_ns), baseline_bins(interval_s)
    if limits is None:
        return replace(first, note="baseline-too-short: nothing was put out since, the first one stands in")
    if len(bins) < needed:
        return BaselineWindow(
            bins, limits, f"baseline-too-short: {len(bins)} bins since the last recovery, {needed} needed"
        )
    course, offered_rps = columns(bins, signals.window), offered_rates(signals.schedule, bins)
    moved = unsteady(drifts_of(*course, checkpoint_interval_s=interval_s, offered_rps=offered_rps))
    return BaselineWindow(bins, limits, None if moved is None else f"not-steady: {moved}")


def _left_out(one: FaultRecovery) -> FaultRecovery:
    """Return a recovery without figures, but with its reason, if a later injection is invalid.

    The other injections stay valid. An unknown fault outcome still counts, because it may affect later injections.
    """
    why = None
    lateness_ms = one.recovery.lateness_ms
    if one.settled.outcome in ("no-effect", "missed-window"):
        why = f"{one.settled.outcome}: {one.settled.detail}" if one.settled.detail else one.settled.outcome
    elif one.problems:
        why = f"timeline-incomplete: {'; '.join(one.problems)}"
    elif lateness_ms is not None and lateness_ms > LATENESS_MS:
        why = f"schedule-lag: {lateness_ms:.0f} ms in this recovery > {LATENESS_MS:g} ms"
    if why is None:
        return one
    kept = {name: getattr(one.recovery, name) for name in ("injection", "at_s", "trigger")}
    empty = RecoveryPart.model_validate({**dict(RecoveryPart.empty()), **kept, "note": why})
    return FaultRecovery(SettledFault(LEFT_OUT, why), empty, one.events)


def _impact(
    evidence: Evidence,
    signals: Signals,
    watched: FaultEvidence,
    timeline: Mapping[str, EvidenceEvent],
    baseline: pd.DataFrame,
) -> dict[str, Any]:
    """Return the impact of a fault and the thresholds used."""
    t0_ns, bins, config = watched.t0_ns, signals.bins, evidence.config
    ended_ns = watched.watched_until_ns if watched.until_ns is not None else signals.window.end_ns
    t6_ns, t7_ns = (timeline[name].wall_ns if name in timeline else ended_ns for name in ("t6", "t7"))
    chosen = choices(evidence, signals, watched.limits, watched.produced_until_ns)
    silence = longest_silence(watched.emissions_ms, t0_ns, t6_ns)
    area = (
        signals.schedule.lag_area(evidence.traces.commits, t0_ns, t7_ns)
        if evidence.traces.method != "rank"
        else lag_area_of_bins(bins, t0_ns, t7_ns)
    )
    lateness_ms = largest_lateness_ms(evidence.generator.latest, t0_ns, t7_ns)
    dip = dip_depth(bins, float(baseline["throughput_rps"].median()), signals.resolution_s, t0_ns, t7_ns)
    phase = phase_at(bins, t0_ns, config.checkpoint_interval_s) if config.paced else None
    settled = settled_ns(bins, t0_ns, min(watched.watched_until_ns, ended_ns))
    return {
        **chosen,
        "dip_depth": dip,
        "silence_s": None if silence is None else (silence[1] - silence[0]) / NS,
        "lag_area_record_s": area,
        "phase": phase,
        "lateness_ms": lateness_ms,
        "settled_s": None if settled is None else (settled - t0_ns) / NS,
    }
