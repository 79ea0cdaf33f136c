"""Rules that a record may break. The check of each is a pure function from RuleInputs to a reason or None.

Most rules detect a failed measurement: the record is `invalid` and kept, and its cell is measured again. Rules with the
status `unmet` detect that the engine did not sustain the load or interval: the record counts, under this status.

A reason starts with the rule's code, which scripts may rely on: `schedule-lag: p99 73 ms > 50 ms`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from faultline.experiment.common_parameters import required_commits
from faultline.records.judge.cpu import WORST_S
from faultline.records.judge.journals import LEFT_OUT
from faultline.records.judge.recoveries import LATENESS_MS
from faultline.records.judge.rule_inputs import RuleInputs
from faultline.records.judge.steady import STEADY_SHARE, SUSTAINED_SHARE, sustained, unsteady
from generators.schedule_lag import LATE_MS, LATE_SHARE

# Factors above the interval: limit of the median and of the p90 of the time between commits.
MEDIAN_INTERVAL_EXCESS = 1.05
INTERVAL_EXCESS = 1.2
# A clock that is slewed, at most by 500 ppm, gains less than this in three minutes.
CLOCK_JUMP_MS = 100.0
# Limit for another host: drift of its clock during the run plus half a round trip.
CLOCKS_APART_MS = 5.0
# Cores that the measured processes may lose to other work and the hypervisor: on average, and over WORST_S seconds.
# Above the first, the bias of the p50 exceeds the run-to-run variation (docs/explanation/validity.md).
LOST_CORES, LOST_BRIEFLY = 0.3, 1.0
# The same limits for the background CPU, if the lost CPU is unknown.
DISTURBED_CORES, DISTURBED_BRIEFLY = 0.3, 1.0


@dataclass(frozen=True)
class ValidityRule:
    """A rule, its condition as documented, and the `status` of a record that breaks it.

    `check` returns the detail of the reason if the rule is broken, else None.
    """

    code: str
    status: Literal["unmet", "invalid"]
    condition: str
    check: Callable[[RuleInputs], str | None]


def reasons(findings: RuleInputs) -> list[str]:
    """Return a reason for each broken rule, in the order of RULES; empty for a valid record."""
    return [f"{rule.code}: {detail}" for rule in RULES if (detail := rule.check(findings)) is not None]


def schedule_lag(findings: RuleInputs) -> str | None:
    share, largest = findings.late_share, findings.recovery_lateness_ms
    late = []
    if share is not None and share > LATE_SHARE:
        late.append(f"{share:.1%} of the records were more than {LATE_MS:.0f} ms late")
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
    moved = findings.clock_jump_ms
    if moved is None or abs(moved) <= CLOCK_JUMP_MS:
        return None
    return f"the wall clock moved by {moved:+,.0f} ms during the run; fix: keep other programs from setting it"


def clock_skew(findings: RuleInputs) -> str | None:
    if findings.clock_uncertain is None or findings.clock_uncertain[1] <= CLOCKS_APART_MS:
        return None
    host, uncertain_ms = findings.clock_uncertain
    if math.isinf(uncertain_ms):
        return f"the clock of {host} was not read at the end, so its drift is unknown"
    return f"the clock of {host} is uncertain by {uncertain_ms:.1f} ms > {CLOCKS_APART_MS:g} ms; fix: use NTP"


def background_load(findings: RuleInputs) -> str | None:
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
    return findings.generator_died


def recorder_died(findings: RuleInputs) -> str | None:
    return findings.recorder_died


def scheduler_died(findings: RuleInputs) -> str | None:
    return findings.scheduler_death


def baseline_too_short(findings: RuleInputs) -> str | None:
    if interval_not_held(findings):
        return None
    needed = required_commits(findings.configuration.checkpoint_interval_s)
    commits = findings.baseline_commits
    return f"{commits} commits before the fault, {needed} needed" if not findings.control and commits < needed else None


def not_steady(findings: RuleInputs) -> str | None:
    # A slow engine has no steady baseline; `overloaded` or `interval-not-held` already reports it.
    if findings.control or overloaded(findings) or interval_not_held(findings):
        return None
    return unsteady(findings.drifts)


def overloaded(findings: RuleInputs) -> str | None:
    growth, rate = findings.growth, findings.offered_rps
    if growth is None or findings.overload_asked_for or sustained(growth, rate) is not False:
        return None
    low, high = growth
    return f"lag grew by {low:,.0f} to {high:,.0f} of {rate:,.0f} records/s > {SUSTAINED_SHARE:.0%}"


def backlog_at_t0(findings: RuleInputs) -> str | None:
    return f"{findings.t0_backlog} offsets of the primer not committed at T0" if findings.t0_backlog else None


def interval_not_held(findings: RuleInputs) -> str | None:
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
    return _of_faults(findings, {"no-effect"}, "changed nothing")


def missed_window(findings: RuleInputs) -> str | None:
    return _of_faults(findings, {"missed-window"}, "was not delivered at its time")


def fault_outcome_unknown(findings: RuleInputs) -> str | None:
    others = {settled.outcome for settled in findings.outcomes} - {"effective", "no-effect", "missed-window", LEFT_OUT}
    return _of_faults(findings, others, "has an unknown outcome")


def fault_in_control(findings: RuleInputs) -> str | None:
    return "; ".join(findings.losses) if findings.control and findings.losses else None


def drain_incomplete(findings: RuleInputs) -> str | None:
    if findings.last_batch_lost:
        return "nothing was committed after the window: the query had ended, or its last batch was too long"
    return f"{findings.undrained} offsets not committed after the drain" if findings.undrained else None


def store_unverified(findings: RuleInputs) -> str | None:
    return "the chain ended before its store was read back" if findings.store_not_read else None


def timeline_incomplete(findings: RuleInputs) -> str | None:
    return "; ".join(findings.chain_problems) or None


RULES = (
    ValidityRule(
        "schedule-lag",
        "invalid",
        f"In the measured window, p99 of the schedule lag (actual − intended send time) > {LATE_MS:g} ms, or any "
        f"> {LATENESS_MS:g} ms during a recovery.",
        schedule_lag,
    ),
    ValidityRule(
        "clock-jumped",
        "invalid",
        f"The wall clock moved by > {CLOCK_JUMP_MS:g} ms against the monotonic clock during the run.",
        clock_jumped,
    ),
    ValidityRule(
        "clock-skew",
        "invalid",
        f"The clock offset of another host is uncertain by > {CLOCKS_APART_MS:g} ms, or was not read at the end.",
        clock_skew,
    ),
    ValidityRule(
        "background-load",
        "invalid",
        "Other processes (background CPU) and the hypervisor (steal) took too much CPU from the measured ones "
        f"([lost CPU](#lost-cpu)): > {LOST_CORES:g} cores on average, or > {LOST_BRIEFLY:g} over any {WORST_S} s. "
        "Without run-delay data, the same limits apply to background CPU plus steal.",
        background_load,
    ),
    ValidityRule("generator-died", "invalid", "The generator failed or did not report its end.", generator_died),
    ValidityRule(
        "recorder-died",
        "invalid",
        "The recorder (the process that samples the machine) ended without writing its final line, so samples are "
        "missing.",
        recorder_died,
    ),
    ValidityRule("scheduler-died", "invalid", "The fault scheduler failed or did not report its end.", scheduler_died),
    ValidityRule(
        "baseline-too-short",
        "invalid",
        "The [baseline window](recovery.md#baseline-window) has < 10 commits (4 at checkpoint intervals ≥ 5 s), "
        "although the engine kept to the interval.",
        baseline_too_short,
    ),
    ValidityRule(
        "not-steady",
        "invalid",
        f"The data of the [baseline window](recovery.md#baseline-window) do not rule out a {STEADY_SHARE * 100:g} % "
        "drift in latency or consumer lag. Control runs are exempt.",
        not_steady,
    ),
    ValidityRule(
        "backlog-at-t0",
        "invalid",
        "Part of the preload (records sent in advance) was not committed when the start barrier opened (T0; not the "
        "t0 of a fault).",
        backlog_at_t0,
    ),
    ValidityRule(
        "overloaded",
        "unmet",
        "The whole 95 % confidence interval of the growth rate of consumer lag is above 1 % of the offered load. "
        "Control runs with `accept_overload` are exempt.",
        overloaded,
    ),
    ValidityRule(
        "interval-not-held",
        "unmet",
        "Nothing was committed, or the time between commits is too long: "
        f"median > {MEDIAN_INTERVAL_EXCESS:g} × or p90 > {INTERVAL_EXCESS:g} × the interval. "
        "Control runs with `accept_overload` and workloads without a send schedule are exempt from both limits.",
        interval_not_held,
    ),
    ValidityRule("no-effect", "invalid", "A fault had no effect on its victim, or none on the run.", no_effect),
    ValidityRule("missed-window", "invalid", "A fault was not injected at its planned time.", missed_window),
    ValidityRule(
        "fault-outcome-unknown", "invalid", "It is unknown whether a fault took effect.", fault_outcome_unknown
    ),
    ValidityRule(
        "fault-in-control",
        "invalid",
        "In a control run, a signal was delivered, or an executor or the driver was lost before the window ended.",
        fault_in_control,
    ),
    ValidityRule(
        "drain-incomplete",
        "unmet",
        "Input remained uncommitted when the drain limit passed. "
        "If the engine creates its own input: the last batch of the window was not committed.",
        drain_incomplete,
    ),
    ValidityRule(
        "store-unverified",
        "invalid",
        "The workload [`topology`](../reference/workloads.md#dynamic-topology) with the stage `persist` ended before "
        "its result store had been written and read back.",
        store_unverified,
    ),
    ValidityRule(
        "timeline-incomplete",
        "invalid",
        "A duration in the timeline is negative, or missing in an uncensored recovery, or the recovery thresholds are "
        "unknown.",
        timeline_incomplete,
    ),
)

UNMET = frozenset(rule.code for rule in RULES if rule.status == "unmet")


def status_of(why: Sequence[str]) -> Literal["valid", "unmet", "invalid"]:
    """Return the status of a record with these reasons."""
    if not why:
        return "valid"
    return "unmet" if {reason.partition(":")[0] for reason in why} <= UNMET else "invalid"


def _of_faults(findings: RuleInputs, outcomes: Collection[str | None], text: str) -> str | None:
    """Return one text for all planned faults with one of `outcomes`, or None; several planned faults are numbered."""
    several = len(findings.outcomes) > 1
    found = [
        f"{f'fault {number}' if several else 'the fault'} {text}{f' ({settled.detail})' if settled.detail else ''}"
        for number, settled in enumerate(findings.outcomes, start=1)
        if settled.outcome in outcomes
    ]
    return "; ".join(found) or None
