"""Claims of the fault-tolerance paper on runs without a fault: checkpoints, state, skew and computation.

Source: Jiang, Wang and Zhang, *Benchmarking for fault-tolerant performance in distributed stream processing systems*
(2019), section 5.2. Five nodes, Flink 1.7 and Storm 1.2.2, 5,000 records/s. Its latency is the mean over all tuples
(section 4.1), its CPU that of the computing nodes.

What it says. Figures 5(a) and 5(b), Flink: at equal state a shorter checkpoint interval means more latency and more
CPU, since computing pauses more often; at equal intervals so does a larger state. Figures 5(c) and 5(d), Storm: an
interval of 1 s with a larger state keeps it from working at all, so its intervals begin at 30 s; up to 5 MB the
interval (through the tuples that are buffered meanwhile) moves the latency more than the state does, from 5 to 15 MB
less; the CPU likewise, with 10 MB in between; at equal intervals both are linear in the state. Figure 6, Flink:
30 s intervals without checkpoints (NCP), with checkpoints but no alignment (CP+NA), and with both (CP+A). With even
data aligning costs next to nothing; with much skew it costs much, the more the further apart the barriers arrive.
Figure 7, Flink: the heavier the computing, the more frequent checkpoints disturb it. That Flink had less latency and
CPU than Storm cannot be asked of one engine, and is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise

from scipy.stats import linregress

from faultline.comparison.capacity import holds
from faultline.comparison.findings.finding import CPU, LATENCY, Claim, Measure, Outcome, Verdict, faultless
from faultline.comparison.findings.predicates import (
    Series,
    constant,
    contrast,
    differences_of,
    direction,
    every,
    not_testable,
    nothing,
    noticeable,
    series_of,
    told,
    trend,
    verdict,
)
from faultline.comparison.statistics.estimate import ALPHA, p_text
from faultline.records.record import Record

STATE, INTERVAL, SKEW, MODE, ITERATIONS = "state_mb", "checkpoint_interval_s", "skew", "commit_mode", "iterations"
# What the paper calls CP+A; both wait for the same commits, the first is compared where both were measured.
ALIGNED = ("aligned", "aligned-changelog")
# Storm could not keep this interval with a larger state.
TOO_FREQUENT_S = 1.0
# A line through medians explains at least this share of their variance.
LINEAR = 0.95
BROKEN = "every run here has a fault, the paper's had none; measure the matrix with fault=none as well"


def along(records: Sequence[Record], by: str, measure: Measure, *, rises: bool) -> Outcome:
    """The direction of a figure along one axis, over runs without a fault."""
    there = faultless(records)
    return direction(series_of(there, by, measure.read), measure, rises=rises) if there else _nothing(records)


def linear_in_state(records: Sequence[Record], measure: Measure) -> Outcome:
    """Rises with the state, and a straight line explains the medians at three states or more."""
    series = [one for one in series_of(faultless(records), STATE, measure.read) if len(one.levels) > 2]
    if not series:
        return nothing("a straight line takes three states at one interval without a fault")
    fits = [_r_squared(one) for one in series]
    found = trend(series)
    said = f"{told(series, measure)}; r² {min(fits):.2f} to {max(fits):.2f} (n = {found.runs}, p {p_text(found.p)})"
    if found.falls or (found.rises and max(fits) < LINEAR):
        return Outcome(Verdict.DISAGREES, said, found.p)
    return Outcome(verdict(True if found.rises and min(fits) >= LINEAR else None), said, found.p)


def moves_more(records: Sequence[Record], measure: Measure, low: float, high: float, *, interval: bool) -> Outcome:
    """Whether the interval (or else the state) moves a figure more, at states from `low` to `high` MB.

    An effect is the distance between the means at the ends of an axis. One axis moves the figure more when each of its
    effects is shown to exceed each of the other's.
    """
    there = [record for record in faultless(records) if low <= float(record.config.get(STATE, 0)) <= high]
    along = {by: series_of(there, by, measure.read) for by in (INTERVAL, STATE)}
    if not (along[INTERVAL] and along[STATE]):
        return nothing(f"takes two intervals at two states from {low:g} to {high:g} MB without a fault")
    effects = {by: [abs(one.change) for one in series] for by, series in along.items()}
    said = "; ".join(
        f"{by} moves the {measure.name} by {measure.text(min(sizes))} to {measure.text(max(sizes))}"
        for by, sizes in effects.items()
    )
    more, less = (INTERVAL, STATE) if interval else (STATE, INTERVAL)
    ways = ((more, less, Verdict.AGREES), (less, more, Verdict.DISAGREES))
    chances = [
        (min(1.0, 2 * max(_p_of_less(a, b) for a in along[first] for b in along[second])), found)
        for first, second, found in ways
    ]
    p, found = min(chances, key=lambda one: one[0])
    return Outcome(found if p <= ALPHA else Verdict.CANNOT_TELL, f"{said} (p {p_text(p)})", p)


def _p_of_less(one: Series, other: Series) -> float:
    """One-sided, of the first effect being no larger than the second; runs that both have count in both."""
    weights: dict[tuple[float, ...], float] = {}
    for series, sign in ((one, 1.0), (other, -1.0)):
        for level, end in ((series.levels[-1], 1.0), (series.levels[0], -1.0)):
            up = 1.0 if series.change >= 0 else -1.0
            weights[level.values] = weights.get(level.values, 0.0) + sign * end * up
    if not any(weights.values()):
        return 1.0
    return contrast(list(weights), list(weights.values())).tail(0.0, below=True)


def fails_at_one_second(records: Sequence[Record]) -> Outcome:
    """Whether runs at an interval of 1 s with the largest state failed to keep up; runs that were invalid for just that
    count, others that are invalid do not."""
    there = [
        record
        for record in records
        if record.config.get("fault") == "none" and float(record.config.get(INTERVAL, 0)) <= TOO_FREQUENT_S
    ]
    largest = max((float(record.config.get(STATE, 0)) for record in there), default=0.0)
    answers = [holds(record) for record in there if float(record.config.get(STATE, 0)) == largest]
    known = [answer for answer in answers if answer is not None]
    if not largest or not known:
        return nothing("no run without a fault at an interval of 1 s with a state")
    said = f"{sum(known)} of {len(known)} runs with {largest:g} MB kept an interval of {TOO_FREQUENT_S:g} s"
    return Outcome(verdict(None if (held := every(known)) is None else not held), said)


# Word count in real-time mode waits for its shuffle, so its records wait as well (`realtime: false`).
NO_BARRIERS = "takes an engine whose barriers flow through its channels: Spark's real-time mode waits for each shuffle"


def aligning_costs(records: Sequence[Record], *, much: bool) -> Outcome:
    """CP+A against CP+NA, at the largest skew (`much`) or at the least."""
    there = faultless(records)
    aligned, loose = _aligned(there), [record for record in there if record.config.get(MODE) == "unaligned"]
    if not loose or not all(record.metrics.realtime for record in loose):
        return not_testable(NO_BARRIERS)
    skews = sorted({float(record.config[SKEW]) for record in loose if record.config.get(SKEW) is not None})
    if len(skews) < 2:
        return nothing("takes two skews in commit mode unaligned (CP+NA)")
    at = [record for record in there if record.config.get(SKEW) == (skews[-1] if much else skews[0])]
    series = series_of(at, MODE, LATENCY.read, ("unaligned", aligned))
    return noticeable(series, LATENCY) if much else constant(series, LATENCY)


def latency_rises_with_skew(records: Sequence[Record]) -> Outcome:
    """Mean latency along the skew, in the mode with alignment."""
    there = faultless(records)
    mode = _aligned(there)
    return along([record for record in there if record.config.get(MODE) == mode], SKEW, LATENCY, rises=True)


def checkpoints_cost_more_with_skew(records: Sequence[Record]) -> Outcome:
    """CP+A less NCP, repetition by repetition, along the skew."""
    there = faultless(records)
    series = differences_of(there, SKEW, MODE, ("none", _aligned(there)), LATENCY.read)
    name = f"{LATENCY.name} with checkpoints less that without,"
    return direction(series, replace(LATENCY, name=name), rises=True)


def disturbed_more_when_heavy(records: Sequence[Record]) -> Outcome:
    """What the shortest interval adds over the longest, repetition by repetition, along the number of iterations."""
    there = faultless(records)
    intervals = sorted({float(record.config[INTERVAL]) for record in there})
    if len(intervals) < 2:
        return nothing("takes two intervals without a fault")
    series = differences_of(there, ITERATIONS, INTERVAL, (intervals[-1], intervals[0]), LATENCY.read)
    added = Measure(
        f"{LATENCY.name} at {intervals[0]:g} s less that at {intervals[-1]:g} s", LATENCY.read, LATENCY.text
    )
    return direction(series, added, rises=True)


def _aligned(records: Sequence[Record]) -> str:
    present = {record.config.get(MODE) for record in records}
    return next((mode for mode in ALIGNED if mode in present), ALIGNED[0])


def _nothing(records: Sequence[Record]) -> Outcome:
    return nothing(BROKEN) if any(record.sound for record in records) else nothing()


def _r_squared(one: Series) -> float:
    """Of a straight line through the medians; 1 when they are all equal."""
    medians = [level.median for level in one.levels]
    if all(first == second for first, second in pairwise(medians)):
        return 1.0
    return float(linregress([float(level.at) for level in one.levels], medians).rvalue ** 2)


STATE_AND_INTERVAL = (
    Claim(
        "Flink: the shorter the checkpoint interval, the larger the latency",
        "5.2, figure 5(a)",
        partial(along, by=INTERVAL, measure=LATENCY, rises=False),
    ),
    Claim(
        "Flink: the shorter the checkpoint interval, the more CPU",
        "5.2, figure 5(b)",
        partial(along, by=INTERVAL, measure=CPU, rises=False),
    ),
    Claim(
        "Flink: the larger the state, the larger the latency",
        "5.2, figure 5(a)",
        partial(along, by=STATE, measure=LATENCY, rises=True),
    ),
    Claim(
        "Flink: the larger the state, the more CPU",
        "5.2, figure 5(b)",
        partial(along, by=STATE, measure=CPU, rises=True),
    ),
    Claim(
        "Storm: checkpoints every 1 s with a larger state keep it from working",
        "5.2, figure 5(c)",
        fails_at_one_second,
    ),
    Claim(
        "Storm: up to 5 MB the interval moves the latency more than the state does",
        "5.2, figure 5(c)",
        partial(moves_more, measure=LATENCY, low=0, high=5, interval=True),
    ),
    Claim(
        "Storm: from 5 to 15 MB the state moves the latency more than the interval does",
        "5.2, figure 5(c)",
        partial(moves_more, measure=LATENCY, low=5, high=15, interval=False),
    ),
    Claim(
        "Storm: up to 10 MB the interval moves the CPU more than the state does",
        "5.2, figure 5(d)",
        partial(moves_more, measure=CPU, low=0, high=10, interval=True),
    ),
    Claim(
        "Storm: from 10 MB on the state moves the CPU more than the interval does",
        "5.2, figure 5(d)",
        partial(moves_more, measure=CPU, low=10, high=15, interval=False),
    ),
    Claim("Storm: latency is linear in the state", "5.2, figure 5(c)", partial(linear_in_state, measure=LATENCY)),
    Claim("Storm: CPU is linear in the state", "5.2, figure 5(d)", partial(linear_in_state, measure=CPU)),
)
SKEW_AND_ALIGNMENT = (
    Claim(
        "Flink: with much skew, aligning (CP+A against CP+NA) raises the latency much",
        "5.2, figure 6",
        partial(aligning_costs, much=True),
    ),
    Claim(
        "Flink: with even data, aligning (CP+A against CP+NA) does not noticeably raise the latency",
        "5.2, figure 6",
        partial(aligning_costs, much=False),
    ),
    Claim(
        "Flink: with alignment (CP+A), the more skew, the larger the latency", "5.2, figure 6", latency_rises_with_skew
    ),
    Claim(
        "Flink: what checkpoints with alignment add to the latency (CP+A against NCP) grows with the skew",
        "5.2, figure 6",
        checkpoints_cost_more_with_skew,
    ),
)
COMPUTE_AND_INTERVAL = (
    Claim(
        "Flink: the shorter the checkpoint interval, the larger the latency of computing",
        "5.2, figure 7",
        partial(along, by=INTERVAL, measure=LATENCY, rises=False),
    ),
    Claim(
        "Flink: the heavier the computing, the more frequent checkpoints add to its latency",
        "5.2, figure 7",
        disturbed_more_when_heavy,
    ),
)
