"""Claims of the fault-tolerance paper: checkpoints, state, skew and computation, and recovery from a killed process.

Source: Jiang, Wang and Zhang, *Benchmarking for fault-tolerant performance in distributed stream processing systems*
(2019), sections 5.2 and 5.3. Five nodes, Flink 1.7 and Storm 1.2.2, 5,000 records/s. Its latency is the mean over all
tuples (section 4.1), its CPU that of the computing nodes.

Figures 5(a) and 5(b), Flink: at equal state a shorter checkpoint interval raises latency and CPU; at equal intervals so
does a larger state. Figures 5(c) and 5(d), Storm: an interval of 1 s with a larger state fails, so its intervals start
at 30 s; up to 5 MB the interval affects the latency more than the state does, from 5 to 15 MB less; the CPU likewise,
with the change at 10 MB; at equal intervals both are linear in the state. Figure 6, Flink: 30 s intervals without
checkpoints (NCP), with checkpoints but no alignment (CP+NA), and with both (CP+A). With even data alignment costs
little; with much skew it costs much. Figure 7, Flink: the heavier the computation, the more frequent checkpoints
disturb it.

Recovery from a killed process on a random node. Figures 8(a) and 8(b), Flink: reload takes the larger part, about 45 s
with default settings, because the loss is detected by a heartbeat timeout; recovery ends within 60 s; replay grows with
the state. Figures 9(a) and 9(b), Storm at 500 records/s, by its throughput: only the killed process restarts, in about
10 s; recovery grows with the checkpoint interval, because messages time out later. Section 3.1: Flink's checkpoints
give exactly-once processing; the paper claims this and measures no counts. A censored recovery (end not observed)
proves nothing that depends on its length.

Comparisons of Flink with Storm cannot be tested with one engine and are omitted.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise

from scipy.stats import linregress

from faultline.comparison.capacity import is_sustained
from faultline.comparison.findings.claims import (
    CPU,
    LATENCY,
    MACRO,
    REPLAY,
    ClaimResult,
    ClaimVerdict,
    Measure,
    PaperClaim,
    identifies_tuples,
    miscounts,
    not_covered,
    not_testable,
    restricted,
    valid_records,
    verdict_of,
    without_fault,
)
from faultline.comparison.findings.predicates import (
    Lies,
    Moves,
    Series,
    Stays,
    between,
    contrast,
    differences_of,
    direction,
    medians_text,
    series_of,
    trend,
    unanimous,
)
from faultline.comparison.statistics.estimate import ALPHA, p_text
from faultline.records.record import Record, RecoveryPart
from faultline.records.recoveries import is_repeated

STATE, INTERVAL, SKEW, MODE, ITERATIONS = "state_mb", "checkpoint_interval_s", "skew", "commit_mode", "iterations"
# CP+A of the paper. Both modes wait for the same commits; if both were measured, the first is used.
ALIGNED = ("aligned", "aligned-changelog")
# CP+NA of the paper: Spark's real-time mode, and Flink's checkpoints without alignment.
LOOSE = ("unaligned", "at-least-once")
# Checkpoint interval that Storm could not keep with a larger state.
TOO_FREQUENT_S = 1.0
# Minimum r² of a straight line.
LINEAR = 0.95
# The paper kills one process of the engine on a random node: here an executor, or a Spark worker with its executors.
PROCESSES = ("executor", "worker", "any")
FLINK_RELOAD_S, FLINK_TOTAL_S, STORM_RESTART_S = (30.0, 60.0), 60.0, (5.0, 20.0)
# Heartbeats that the paper left at their default.
HEARTBEAT, DEFAULT_HEARTBEAT = "heartbeat.interval", "10s"
NO_SUCH_KILL = "no usable record of such a kill"
# Word count in real-time mode waits for its shuffle (`realtime: false`).
NO_BARRIERS = "requires barriers within channels; Spark's real-time mode waits for each shuffle"


def linear_in_state(records: Sequence[Record], measure: Measure) -> ClaimResult:
    """Test whether the figure rises with the state and a straight line fits the medians at three or more states."""
    series = [one for one in series_of(without_fault(records), STATE, measure.read) if len(one.levels) > 2]
    if not series:
        return not_covered("requires three states at one interval without a fault")
    fits = [_r_squared(one) for one in series]
    found = trend(series)
    text = f"{medians_text(series, measure)}; r² {min(fits):.2f} to {max(fits):.2f} ({found.text})"
    straight = True if min(fits) >= LINEAR else False if max(fits) < LINEAR else None
    answer = None if not found.moves else False if found.moves < 0 else straight
    return ClaimResult(verdict_of(answer), text, found.step.p)


def moves_more(records: Sequence[Record], measure: Measure, low: float, high: float, *, interval: bool) -> ClaimResult:
    """Test whether the interval (or, without `interval`, the state) affects a figure more, from `low` to `high` MB.

    An effect is the distance between the means at the ends of an axis. An axis affects the figure more if each of its
    effects is shown to exceed each effect of the other axis.
    """
    chosen = [record for record in without_fault(records) if low <= float(record.config.get(STATE, 0)) <= high]
    along = {by: series_of(chosen, by, measure.read) for by in (INTERVAL, STATE)}
    if not (along[INTERVAL] and along[STATE]):
        return not_covered(f"requires two intervals at two states from {low:g} to {high:g} MB without a fault")
    effects = {by: [abs(one.change) for one in series] for by, series in along.items()}
    text = "; ".join(
        f"{by} moves the {measure.name} by {measure.text(min(sizes))} to {measure.text(max(sizes))}"
        for by, sizes in effects.items()
    )
    more, less = (INTERVAL, STATE) if interval else (STATE, INTERVAL)
    tests = ((more, less, ClaimVerdict.AGREES), (less, more, ClaimVerdict.DISAGREES))
    results = [
        (min(1.0, 2 * max(_p_not_larger(a, b) for a in along[first] for b in along[second])), found)
        for first, second, found in tests
    ]
    p, found = min(results, key=lambda result: result[0])
    return ClaimResult(found if p <= ALPHA else ClaimVerdict.INCONCLUSIVE, f"{text} (p {p_text(p)})", p)


def _p_not_larger(one: Series, other: Series) -> float:
    """Return the one-sided p that the first effect does not exceed the second; shared runs count in both effects."""
    weights: dict[tuple[float, ...], float] = {}
    for series, sign in ((one, 1.0), (other, -1.0)):
        for level, end in ((series.levels[-1], 1.0), (series.levels[0], -1.0)):
            up = 1.0 if series.change >= 0 else -1.0
            weights[level.values] = weights.get(level.values, 0.0) + sign * end * up
    if not any(weights.values()):
        return 1.0
    return contrast(list(weights), list(weights.values())).tail(0.0, below=True)


def fails_at_one_second(records: Sequence[Record]) -> ClaimResult:
    """Test whether runs at an interval of 1 s with the largest state failed to sustain the load.

    Runs that are invalid for that reason count, other invalid runs do not.
    """
    chosen = [
        record
        for record in records
        if record.config.get("fault") == "none" and float(record.config.get(INTERVAL, 0)) <= TOO_FREQUENT_S
    ]
    largest = max((float(record.config.get(STATE, 0)) for record in chosen), default=0.0)
    answers = [is_sustained(record) for record in chosen if float(record.config.get(STATE, 0)) == largest]
    known = [answer for answer in answers if answer is not None]
    if not largest or not known:
        return not_covered("no run without a fault at an interval of 1 s with a state")
    text = f"{sum(known)} of {len(known)} runs with {largest:g} MB kept an interval of {TOO_FREQUENT_S:g} s"
    return ClaimResult(verdict_of(None if (sustained := unanimous(known)) is None else not sustained), text)


def aligning_costs(records: Sequence[Record], *, much: bool) -> ClaimResult:
    """Compare CP+A with CP+NA, at the largest skew (`much`) or at the smallest."""
    chosen = single_aligned(records)
    loose = [record for record in chosen if record.config.get(MODE) in LOOSE]
    real_time = [record for record in loose if record.config[MODE] == "unaligned"]
    if not loose or not all(record.metrics.realtime for record in real_time):
        return not_testable(NO_BARRIERS)
    skews = sorted({float(record.config[SKEW]) for record in loose if record.config.get(SKEW) is not None})
    if len(skews) < 2:
        return not_covered(f"requires two skews in commit mode {' or '.join(LOOSE)} (CP+NA)")
    at = [record for record in chosen if record.config.get(SKEW) == (skews[-1] if much else skews[0])]
    return Stays(LATENCY, MODE, among=(*LOOSE, *ALIGNED), rises=much)(at)


def checkpoints_cost_more_with_skew(records: Sequence[Record]) -> ClaimResult:
    """Compare CP+A less NCP, by repetition, along the skew."""
    chosen = single_aligned(records)
    mode = next((mode for mode in ALIGNED if any(one.config.get(MODE) == mode for one in chosen)), ALIGNED[0])
    series = differences_of(chosen, SKEW, MODE, ("none", mode), LATENCY.read)
    return direction(series, replace(LATENCY, name=f"{LATENCY.name} with checkpoints less that without,"), rises=True)


def disturbed_more_when_heavy(records: Sequence[Record]) -> ClaimResult:
    """Compare the shortest with the longest interval, by repetition, along the iterations."""
    chosen = without_fault(records)
    intervals = sorted({float(record.config[INTERVAL]) for record in chosen})
    if len(intervals) < 2:
        return not_covered("requires two intervals without a fault")
    series = differences_of(chosen, ITERATIONS, INTERVAL, (intervals[-1], intervals[0]), LATENCY.read)
    name = f"{LATENCY.name} at {intervals[0]:g} s less that at {intervals[-1]:g} s"
    return direction(series, replace(LATENCY, name=name), rises=True)


def single_aligned(records: Sequence[Record]) -> list[Record]:
    """Return the runs without a fault; of the commit modes with alignment only the first that was measured."""
    chosen = without_fault(records)
    present = [mode for mode in ALIGNED if any(record.config.get(MODE) == mode for record in chosen)]
    return [record for record in chosen if record.config.get(MODE) not in present[1:]]


def aligned(records: Sequence[Record]) -> list[Record]:
    """Return the runs without a fault and with alignment."""
    return [record for record in single_aligned(records) if record.config.get(MODE) in ALIGNED]


def _r_squared(one: Series) -> float:
    """Return r² of a straight line through the medians; 1 if they are equal."""
    medians = [level.median for level in one.levels]
    if all(first == second for first, second in pairwise(medians)):
        return 1.0
    return float(linregress([float(level.at) for level in one.levels], medians).rvalue ** 2)


def shares_of_reload(records: Sequence[Record]) -> tuple[list[float], str]:
    """Return the share of reload in reload + replay, per run with a killed process, and a text about it."""
    shares = [
        part.reload_s / (part.reload_s + part.replay_s)
        for part in _parts(records)
        if part.reload_s is not None and part.replay_s is not None and part.reload_s + part.replay_s > 0
    ]
    return shares, f"reload is {min(shares):.0%} to {max(shares):.0%} of reload + replay" if shares else NO_SUCH_KILL


def restarts(records: Sequence[Record]) -> tuple[list[float], str]:
    """Return the times from the kill until the replacement of an executor has registered, and a text about them."""
    ups = [one.metrics.recovery.replacement_up_s for one in watched_kills(records) if one.config["fault"] == "executor"]
    known = [up for up in ups if up is not None]
    return known, f"the replacement is up after {min(known):.1f} to {max(known):.1f} s" if known else NO_SUCH_KILL


def reload_waits_for_heartbeats(records: Sequence[Record]) -> ClaimResult:
    """Test whether reload is as long as in the paper, and whether detection is at least half of it."""
    parts = [part for part in _parts(records) if part.reload_s is not None and part.detection_s is not None]
    if not parts:
        return not_covered(NO_SUCH_KILL)
    reloads = [float(part.reload_s or 0) for part in parts]
    detections = [float(part.detection_s or 0) for part in parts]
    detection_s = statistics.median(detections)
    how = ": by a broken connection, without waiting for a heartbeat" if detection_s < 1 else ""
    reload_s = statistics.median(reloads)
    text = f"median reload {reload_s:.1f} s, of which detection {detection_s:.2f} s{how} (n = {len(parts)})"
    waited = [part / whole if whole else 0.0 for part, whole in zip(detections, reloads, strict=True)]
    tests = (
        between(contrast([reloads], (1.0,)), *FLINK_RELOAD_S),
        between(contrast([waited], (1.0,)), 0.5, math.inf),
    )
    failed = [one.p for one in tests if one.holds is False]
    if failed:
        return ClaimResult(ClaimVerdict.DISAGREES, text, min(failed))
    return ClaimResult(verdict_of(all(one.holds for one in tests) or None), text, max(one.p for one in tests))


def total_within_a_minute(records: Sequence[Record]) -> ClaimResult:
    """Test whether every recovery ended within a minute; a recovery observed for less proves nothing.

    A run with several recoveries counts once, with its longest.
    """
    runs = [_recoveries(record) for record in process_kills(records)]
    if not runs:
        return not_covered(NO_SUCH_KILL)
    known = [max(part.censored_at_s or 0.0 if part.macro_s is None else part.macro_s for part in run) for run in runs]
    ended = [part.macro_s for run in runs for part in run if part.macro_s is not None]
    open_ended = sum(part.macro_s is None for run in runs for part in run)
    text = f"longest macro recovery {max(ended, default=0.0):.1f} s, {open_ended} censored (n = {len(runs)})"
    if any(time > FLINK_TOTAL_S for time in known):
        return ClaimResult(ClaimVerdict.DISAGREES, text)
    if open_ended:
        return ClaimResult(ClaimVerdict.INCONCLUSIVE, text)
    within, p = between(contrast([known], (1.0,)), -math.inf, FLINK_TOTAL_S)
    return ClaimResult(verdict_of(within), text, p)


def exactly_once(records: Sequence[Record]) -> ClaimResult:
    """Test whether the state counted every record exactly once after a kill; one miscount disproves it.

    Counts alone cannot prove it, because a lost and a duplicate record cancel out.
    """
    with_checkpoints = [record for record in watched_kills(records) if record.config.get("commit_mode") != "none"]
    audited = [record for record in with_checkpoints if record.metrics.audit.lost is not None]
    if not audited:
        return not_covered("no audited kill with checkpoints")
    faults, known = miscounts(audited), sum(identifies_tuples(record) for record in audited)
    counts = ", ".join(f"{number:,} {name}" for name, number in faults.items())
    text = f"{counts} (n = {len(audited)}, of which {known} identify the counted tuples)"
    if undrained := sum(record.metrics.audit.undrained or 0 for record in audited):
        text += f"; {undrained:,} offsets unprocessed, which are not lost"
    if any(faults.values()):
        return ClaimResult(ClaimVerdict.DISAGREES, text)
    return ClaimResult(verdict_of(True if len(audited) == known > 1 else None), text)


def watched_kills(records: Sequence[Record]) -> list[Record]:
    """Return the usable records with a kill and an observed recovery."""
    return [
        record
        for record in valid_records(records)
        if record.config.get("fault") != "none"
        and record.config.get("fault_action") == "kill"
        and record.metrics.recovery.recovered is not None
    ]


def process_kills(records: Sequence[Record]) -> list[Record]:
    """Return the usable records in which one process of the engine was killed."""
    return [record for record in watched_kills(records) if record.config["fault"] in PROCESSES]


def _parts(records: Sequence[Record]) -> list[RecoveryPart]:
    """Return the recoveries from a killed process: one per run, if it has several their median."""
    return [record.metrics.recovery for record in process_kills(records)]


def _recoveries(record: Record) -> list[RecoveryPart]:
    """Return the recoveries of a run with one repeated fault; of any other run, that from its first fault."""
    several = [part for part in record.metrics.recoveries if part.recovered is not None]
    return several if is_repeated(record.config) and several else [record.metrics.recovery]


STATE_AND_INTERVAL = (
    PaperClaim("Flink: the shorter the checkpoint interval, the larger the latency", "5.2, figure 5(a)",
               Moves(LATENCY, INTERVAL, rises=False)),
    PaperClaim("Flink: the shorter the checkpoint interval, the more CPU", "5.2, figure 5(b)",
               Moves(CPU, INTERVAL, rises=False)),
    PaperClaim("Flink: the larger the state, the larger the latency", "5.2, figure 5(a)", Moves(LATENCY, STATE)),
    PaperClaim("Flink: the larger the state, the more CPU", "5.2, figure 5(b)", Moves(CPU, STATE)),
    PaperClaim("Storm: checkpoints every 1 s with a larger state keep it from working", "5.2, figure 5(c)",
               fails_at_one_second),
    PaperClaim("Storm: up to 5 MB the interval moves the latency more than the state does", "5.2, figure 5(c)",
               partial(moves_more, measure=LATENCY, low=0, high=5, interval=True)),
    PaperClaim("Storm: from 5 to 15 MB the state moves the latency more than the interval does", "5.2, figure 5(c)",
               partial(moves_more, measure=LATENCY, low=5, high=15, interval=False)),
    PaperClaim("Storm: up to 10 MB the interval moves the CPU more than the state does", "5.2, figure 5(d)",
               partial(moves_more, measure=CPU, low=0, high=10, interval=True)),
    PaperClaim("Storm: from 10 MB on the state moves the CPU more than the interval does", "5.2, figure 5(d)",
               partial(moves_more, measure=CPU, low=10, high=15, interval=False)),
    PaperClaim("Storm: latency is linear in the state", "5.2, figure 5(c)", partial(linear_in_state, measure=LATENCY)),
    PaperClaim("Storm: CPU is linear in the state", "5.2, figure 5(d)", partial(linear_in_state, measure=CPU)),
)  # fmt: skip
SKEW_AND_ALIGNMENT = (
    PaperClaim("Flink: with much skew, aligning (CP+A against CP+NA) raises the latency much", "5.2, figure 6",
               partial(aligning_costs, much=True)),
    PaperClaim("Flink: with even data, aligning (CP+A against CP+NA) does not noticeably raise the latency",
               "5.2, figure 6", partial(aligning_costs, much=False)),
    PaperClaim("Flink: with alignment (CP+A), the more skew, the larger the latency", "5.2, figure 6",
               Moves(LATENCY, SKEW, aligned)),
    PaperClaim("Flink: what checkpoints with alignment add to the latency (CP+A against NCP) grows with the skew",
               "5.2, figure 6", checkpoints_cost_more_with_skew),
)  # fmt: skip
COMPUTE_AND_INTERVAL = (
    PaperClaim("Flink: the shorter the checkpoint interval, the larger the latency of computing", "5.2, figure 7",
               Moves(LATENCY, INTERVAL, rises=False)),
    PaperClaim("Flink: the heavier the computing, the more frequent checkpoints add to its latency", "5.2, figure 7",
               disturbed_more_when_heavy),
)  # fmt: skip
RECOVERY = (
    PaperClaim("Flink: reload takes the larger part of a recovery", "5.3, figure 8", Lies(shares_of_reload, low=0.5)),
    PaperClaim("Flink: reload takes about 45 s, because the loss is noticed by a heartbeat's timeout", "5.3, figure 8",
               reload_waits_for_heartbeats),
    PaperClaim("Flink: a recovery takes less than 60 s", "5.3, figure 8", total_within_a_minute),
    PaperClaim("Flink: replay grows with the state", "5.3, figure 8(b)", Moves(REPLAY, STATE, process_kills)),
    PaperClaim("Flink: every record is counted exactly once in spite of the failure", "3.1", exactly_once),
    PaperClaim("Storm: starting the dead process again takes about 10 s", "5.3", Lies(restarts, *STORM_RESTART_S)),
    PaperClaim("Storm: recovery grows with the checkpoint interval", "5.3, figure 9(b)",
               Moves(MACRO, INTERVAL, watched_kills)),
)  # fmt: skip


def with_default_heartbeats(record: Record) -> bool:
    """Return whether Flink ran with its default heartbeats, as in the paper."""
    settings = record.config.get("flink_conf") or {}
    return record.config.get("engine") == "flink" and settings.get(HEARTBEAT, DEFAULT_HEARTBEAT) == DEFAULT_HEARTBEAT


FLINK_RECOVERY = restricted([claim for claim in RECOVERY if claim.text.startswith("Flink")], with_default_heartbeats)
