"""The recovery from each planned fault of an attempt, with its timeline and its impact."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from faultline.analysis.observations import Measured
from faultline.analysis.recovery.detection import without_effect
from faultline.analysis.recovery.end import limits_of
from faultline.analysis.recovery.evidence import Event, Evidence
from faultline.analysis.recovery.impact import (
    dip_depth,
    lag_area,
    lag_area_of_bins,
    largest_lateness_ms,
    longest_silence,
    phase_at,
    settled_ns,
)
from faultline.analysis.recovery.injected import Injected
from faultline.analysis.recovery.limits import Limits
from faultline.analysis.recovery.on_time import p99_ms
from faultline.analysis.recovery.parts import Recovery, measure
from faultline.analysis.recovery.timeline import companions, read_timeline
from faultline.analysis.validity import Settled
from faultline.base.window import NS


@dataclass(frozen=True)
class Recovered:
    """What became of one planned fault; without a timeline when it had no effect."""

    settled: Settled
    events: tuple[Event, ...] = ()
    recovery: Recovery = Recovery()
    problems: tuple[str, ...] = ()


def recoveries_of(measured: Measured) -> list[Recovered]:
    """One for each planned fault; a fault is watched until the next one that was delivered."""
    raw, injected = measured.raw, measured.injected
    if not injected:
        return []
    if any(measured.deaths.values()):  # what was cut short or not watched is no recovery
        return [Recovered(fault.settled) for fault in injected]
    limits = limits_until(measured, min((one.t0_ns for one in injected if one.t0_ns is not None), default=0))
    found = []
    for fault, planned in zip(injected, raw.planned, strict=True):
        if fault.settled.outcome != "effective":
            found.append(Recovered(fault.settled))
            continue
        if fault.t0_ns is None:
            found.append(Recovered(fault.settled, problems=("missing: t0, no delivery was journalled",)))
            continue
        later = [one.t0_ns for one in injected[fault.index + 1 :] if one.t0_ns is not None]
        evidence = Evidence(
            engine=raw.engine,
            traces=raw.traces,
            t0_ns=fault.t0_ns,
            victim=planned.fault.victim,
            victims=fault.victims,
            end_offsets=fault.end_offsets or {},
            bins=measured.bins,
            production=measured.tuples.production,
            limits=limits,
            emissions_ms=measured.tuples.emissions_ms,
            window=measured.window,
            services=raw.services,
            undone=fault.undone,
            until_ns=min(later, default=None),
        )
        found.append(_recovered(measured, fault, evidence))
    return found


def limits_until(measured: Measured, until_ns: int) -> Limits | None:
    """Up to where the engine counts as recovered, from what was seen between warm-up and `until_ns`, the fault."""
    window, config = measured.window, measured.raw.attempt.config
    return limits_of(
        measured.tuples.production,
        measured.bins,
        start_ns=window.start_ns,
        until_ns=min(window.end_ns, until_ns),
        interval_s=config.checkpoint_interval_s if config.paced else measured.resolution_s,
        within=config.recovered_within,
        by_lag=not measured.tells_tuples,
    )


def _recovered(measured: Measured, fault: Injected, evidence: Evidence) -> Recovered:
    """The recovery from a fault that took effect on its victims, unless it changed nothing for the run."""
    if why := without_effect(evidence):
        return Recovered(Settled("no-effect", why))
    if measured.reference.empty:  # invalid for its baseline
        return Recovered(fault.settled)
    timeline = read_timeline(evidence)
    ended_ns = evidence.watched_until_ns if evidence.until_ns is not None else measured.window.end_ns
    recovery, problems = measure(timeline)
    if fault.end_offsets is None:
        problems = (*problems, "missing: the broker's end offsets before the signal")
    if evidence.limits is None:
        # without this the unfound t7 would pass for censoring
        problems = (*problems, "missing: what is normal, no tuple was emitted before the fault")
    return Recovered(
        fault.settled,
        tuple(replace(one, name=fault.name(one.name)) for one in (*timeline.values(), *companions(evidence))),
        _with_impact(measured, evidence, timeline, recovery, ended_ns),
        problems,
    )


def _with_impact(
    measured: Measured, evidence: Evidence, timeline: Mapping[str, Event], recovery: Recovery, ended_ns: int
) -> Recovery:
    t0_ns, bins, raw = evidence.t0_ns, measured.bins, measured.raw
    t6_ns, t7_ns = (timeline[name].wall_ns if name in timeline else ended_ns for name in ("t6", "t7"))
    median = float(measured.reference["throughput_rps"].median())
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
