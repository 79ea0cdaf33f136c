"""The recovery from each planned fault of an attempt, with its timeline and its impact."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from faultline.experiment.common import baseline_bins
from faultline.records.judge.bins import between
from faultline.records.judge.observations import Measured
from faultline.records.judge.recovery.detection import without_effect
from faultline.records.judge.recovery.end import limits_of
from faultline.records.judge.recovery.evidence import Event, Evidence
from faultline.records.judge.recovery.impact import (
    dip_depth,
    lag_area,
    lag_area_of_bins,
    largest_lateness_ms,
    longest_silence,
    phase_at,
    settled_ns,
)
from faultline.records.judge.recovery.injected import Injected
from faultline.records.judge.recovery.limits import Limits
from faultline.records.judge.recovery.on_time import p99_ms
from faultline.records.judge.recovery.parts import Recovery, measure
from faultline.records.judge.recovery.timeline import companions, read_timeline
from faultline.records.judge.validity import LATENESS_MS, LEFT_OUT, Settled, unsteady
from faultline.records.record import EndedEarlyPart, InjectionsPart, WarmupPart
from faultline.system.journal import Line, last
from faultline.system.window import NS

# Of the conductor's line on why an injection came when it did.
TRIGGER = ("normal_s", "baseline_commits", "phase", "waited_s")


@dataclass(frozen=True)
class Recovered:
    """What became of one planned fault; without a timeline when it had no effect.

    `problems`: what makes the whole record unsound. What speaks against one later injection of a run alone is the
    `note` of its recovery, which has no figures then, or only a baseline that tells little.
    """

    settled: Settled
    events: tuple[Event, ...] = ()
    recovery: Recovery = Recovery()
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class Baseline:
    """What one fault is judged against: the bins before it, and up to where the engine counts as recovered.

    `note`: why they tell little; None for the first baseline, of which the rules of the record ask the same.
    """

    bins: pd.DataFrame
    limits: Limits | None
    note: str | None = None


def is_repeated(measured: Measured) -> bool:
    """Whether one fault was to be injected several times, each once the engine is back to normal."""
    return measured.raw.attempt.config.injections > 1


def recoveries_of(measured: Measured) -> list[Recovered]:
    """One for each planned fault; a fault is watched until the next one that was delivered.

    Injections of one fault are judged each against its own baseline, which begins where the one before was over; the
    faults of a plan all against what was before the first.
    """
    injected = measured.injected
    if not injected:
        return []
    if any(measured.deaths.values()):  # what was cut short or not watched is no recovery
        return [Recovered(fault.settled) for fault in injected]
    begun_ns = min((one.t0_ns for one in injected if one.t0_ns is not None), default=0)
    first = Baseline(measured.reference, limits_between(measured, measured.window.start_ns, begun_ns))
    found: list[Recovered] = []
    for fault in injected:
        own = first
        if fault.index and is_repeated(measured):
            own = _own_baseline(measured, fault, _over_ns(measured, found, fault), first)
        one = _of_fault(measured, fault, own, first)
        found.append(_left_out(one) if fault.index and is_repeated(measured) else one)
    return found


def _of_fault(measured: Measured, fault: Injected, own: Baseline, first: Baseline) -> Recovered:
    """The recovery from one fault, whatever speaks against it."""
    raw, window = measured.raw, measured.window
    place: dict[str, Any] = {}
    if is_repeated(measured):
        at_s = None if fault.t0_ns is None else window.t_s(fault.t0_ns)
        place = {"injection": fault.index + 1, "at_s": at_s, "trigger": trigger_of(fault.trigger), "note": own.note}
    if fault.settled.outcome != "effective":
        return Recovered(fault.settled, recovery=Recovery(**place))
    if fault.t0_ns is None:
        missing = "missing: t0, no delivery was journalled"
        return Recovered(fault.settled, recovery=Recovery(**place), problems=(missing,))
    later = [one.t0_ns for one in measured.injected[fault.index + 1 :] if one.t0_ns is not None]
    evidence = Evidence(
        engine=raw.engine,
        traces=raw.traces,
        t0_ns=fault.t0_ns,
        victim=raw.planned[fault.index].fault.victim,
        victims=fault.victims,
        end_offsets=fault.end_offsets or {},
        bins=measured.bins,
        production=measured.tuples.production,
        limits=own.limits,
        emissions_ms=measured.tuples.emissions_ms,
        window=window,
        services=raw.services,
        undone=fault.undone,
        until_ns=min(later, default=None),
    )
    if why := without_effect(evidence):
        return Recovered(Settled("no-effect", why), recovery=Recovery(**place))
    if measured.reference.empty:  # invalid for its baseline
        return Recovered(fault.settled, recovery=Recovery(**place))
    timeline = read_timeline(evidence)
    recovery, problems = measure(timeline)
    if fault.end_offsets is None:
        problems = (*problems, "missing: the broker's end offsets before the signal")
    if evidence.limits is None:
        # without this the unfound t7 would pass for censoring
        problems = (*problems, "missing: what is normal, no tuple was emitted before the fault")
    drift_s = None
    if own is not first and recovery.macro_s is not None:
        by_first, _ = measure(read_timeline(replace(evidence, limits=first.limits)))
        drift_s = None if by_first.macro_s is None else recovery.macro_s - by_first.macro_s
    return Recovered(
        fault.settled,
        tuple(replace(one, name=fault.name(one.name)) for one in (*timeline.values(), *companions(evidence))),
        replace(_with_impact(measured, evidence, timeline, recovery, own.bins), **place, drift_since_first_s=drift_s),
        problems,
    )


def _over_ns(measured: Measured, before: Sequence[Recovered], fault: Injected) -> int | None:
    """When the recovery before this fault was over: its t7, else when the conductor found the engine back to normal."""
    ends = [event.wall_ns for event in before[-1].events if event.name.partition("#")[0] == "t7"]
    if ends:
        return ends[0]
    since_ns = measured.injected[fault.index - 1].t0_ns
    if fault.trigger is None or since_ns is None:
        return None
    return since_ns + round(float(fault.trigger["normal_s"]) * NS)


def _own_baseline(measured: Measured, fault: Injected, over_ns: int | None, first: Baseline) -> Baseline:
    """What was between the end of the recovery before and this fault; the first baseline where that tells nothing."""
    if over_ns is None or fault.t0_ns is None:
        return replace(first, note="baseline-too-short: when the engine was back is not known, the first one stands in")
    bins, limits = between(measured.bins, over_ns, fault.t0_ns), limits_between(measured, over_ns, fault.t0_ns)
    needed = baseline_bins(measured.raw.attempt.config.checkpoint_interval_s)
    if limits is None:
        return replace(first, note="baseline-too-short: nothing was put out since, the first one stands in")
    if len(bins) < needed:
        return Baseline(bins, limits, f"baseline-too-short: {len(bins)} bins since the last recovery, {needed} needed")
    moved = unsteady(measured.drifts_over(bins))
    return Baseline(bins, limits, None if moved is None else f"not-steady: {moved}")


def _left_out(one: Recovered) -> Recovered:
    """A later injection that went wrong says nothing against the others: its recovery has no figures, and says why.

    But whether a fault took effect must be known, since it may reach into what comes next.
    """
    why = None
    lateness_ms = one.recovery.lateness_ms
    if one.settled.outcome in ("no-effect", "missed-window"):
        why = f"{one.settled.outcome}: {one.settled.detail}" if one.settled.detail else one.settled.outcome
    elif one.problems:
        why = f"timeline-broken: {'; '.join(one.problems)}"
    elif lateness_ms is not None and lateness_ms > LATENESS_MS:
        why = f"schedule-lag: {lateness_ms:.0f} ms in this recovery > {LATENESS_MS:g} ms"
    if why is None:
        return one
    kept = one.recovery
    empty = Recovery(injection=kept.injection, at_s=kept.at_s, trigger=kept.trigger, note=why)
    return Recovered(Settled(LEFT_OUT, why), one.events, empty)


def trigger_of(line: Line | None) -> dict[str, Any] | None:
    """Why an injection came when it did, from the conductor's line."""
    return None if line is None else {name: line.get(name) for name in TRIGGER}


def limits_between(measured: Measured, start_ns: int, until_ns: int) -> Limits | None:
    """Up to where the engine counts as recovered, from what was seen between `start_ns` and `until_ns`, the fault."""
    window, config = measured.window, measured.raw.attempt.config
    return limits_of(
        measured.tuples.production,
        measured.bins,
        start_ns=start_ns,
        until_ns=min(window.end_ns, until_ns),
        checkpoint_interval_s=config.checkpoint_interval_s if config.paced else measured.resolution_s,
        within=config.recovered_within,
        by_lag=not measured.tells_tuples,
    )


def _with_impact(
    measured: Measured, evidence: Evidence, timeline: Mapping[str, Event], recovery: Recovery, baseline: pd.DataFrame
) -> Recovery:
    t0_ns, bins, raw = evidence.t0_ns, measured.bins, measured.raw
    ended_ns = evidence.watched_until_ns if evidence.until_ns is not None else measured.window.end_ns
    t6_ns, t7_ns = (timeline[name].wall_ns if name in timeline else ended_ns for name in ("t6", "t7"))
    median = float(baseline["throughput_rps"].median())
    silence = longest_silence(evidence.emissions_ms, t0_ns, t6_ns)
    area = (
        lag_area_of_bins(bins, t0_ns, t7_ns)
        if raw.traces.method == "rank"
        else lag_area(measured.schedule, raw.traces.commits, t0_ns, t7_ns)
    )
    settled = settled_ns(bins, t0_ns, min(evidence.watched_until_ns, ended_ns))
    return replace(
        recovery,
        **choices(measured, evidence.limits, evidence.produced_until_ns),
        dip_depth=dip_depth(bins, median, measured.resolution_s, t0_ns, t7_ns),
        silence_s=None if silence is None else (silence[1] - silence[0]) / NS,
        lag_area_record_s=area,
        settled_s=None if settled is None else (settled - t0_ns) / NS,
        phase=phase_at(bins, t0_ns, raw.attempt.config.checkpoint_interval_s) if raw.attempt.config.paced else None,
        lateness_ms=largest_lateness_ms(raw.generator, t0_ns, t7_ns),
    )


def choices(measured: Measured, limits: Limits | None, until_ns: int) -> dict[str, Any]:
    """What was taken for recovered, and how the tail of what was watched compares with what was before the fault."""
    if limits is None:
        return {}
    tail = p99_ms(measured.tuples.production, until_ns - round(limits.hold_s * NS), until_ns)
    return {
        "recovered_within": measured.raw.attempt.config.recovered_within,
        "latency_limit_ms": limits.latency_ms,
        "lag_limit": limits.lag,
        "hold_s": limits.hold_s,
        "plateau_ratio": tail / limits.baseline_p99_ms if tail is not None and limits.baseline_p99_ms else None,
    }


# How one run went, by the conductor's journal: when it was measured, why then, and how many injections were made.


def injections_of(measured: Measured) -> InjectionsPart | None:
    """How many injections were planned and made, and which signal kept the others from it; None for a single one."""
    if not is_repeated(measured):
        return None
    given_up = last(measured.raw.conductor, event="not_normal")
    return InjectionsPart(
        planned=len(measured.raw.planned),
        made=len(measured.injected),
        ended_early=None
        if given_up is None
        else EndedEarlyPart.model_validate({name: given_up.get(name) for name in EndedEarlyPart.model_fields}),
    )


def warmup_of(measured: Measured) -> WarmupPart | None:
    """How long it took until the engine was steady; None where the warm-up has a fixed length."""
    begun = last(measured.raw.conductor, event="measured_from")
    if begun is None:
        return None
    bound_s = measured.raw.attempt.config.warmup_max_s
    return WarmupPart(waited_s=begun.get("waited_s"), steady=begun.get("steady"), bound_s=bound_s)


def begin_source(measured: Measured) -> str:
    """Why the measured window begins where it does."""
    begun = last(measured.raw.conductor, event="measured_from")
    if begun is None:
        return "T0 + warmup_s"
    over = f"over {begun['commits']} commits" if begun.get("commits") else "over the last commits"
    steady = f"latency and lag were steady {over}" if begun.get("steady") else "not steady yet at warmup_max_s"
    return f"conductor.jsonl: {steady}"


def end_source(measured: Measured) -> str:
    """Why it ends where it does."""
    if last(measured.raw.conductor, event="measured_until") is not None:
        return "conductor.jsonl: the last recovery was over, or the next injection was given up"
    begin = "T0 + warmup_s" if last(measured.raw.conductor, event="measured_from") is None else "measured_from"
    return f"{begin} + duration_s"
