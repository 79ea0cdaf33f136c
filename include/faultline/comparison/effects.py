"""Effects of the steps along an axis on CPU, latency, recovery time and throughput.

A step leads from one value of an axis to the next. If other axes vary too, the step is measured in several *rows*, one
per combination of their values. Its effect is the average over these rows; the interval holds for these rows only (see
`estimate`).

CPU, latency and throughput are compared as ratios on a log scale, recovery times as differences in seconds, where each
time is an interval. Recoveries from different faults are different quantities, so each fault has an effect of its own.
An effect "differs" or is "equivalent" if the p of the respective test is at most 0.05 after the correction for all
lines of the table (Holm 1979).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from faultline.comparison.config_points import FAULT, Axis, AxisStep, Point, axis_steps, interval_of
from faultline.comparison.statistics.estimate import (
    ALPHA,
    MIN_FREEDOM,
    MIN_REPETITIONS,
    NEGLIGIBLE,
    EffectEstimate,
    PairedRow,
    ValueRange,
    equivalence_p,
    estimate,
    holm,
    required_pairs,
)
from faultline.experiment.workloads.registry import has_schedule
from faultline.records.catalogue import CPU_TOTAL, KNOWN, MACRO
from faultline.records.columns import Metric
from faultline.records.format import fault_of
from faultline.system.text import sort_key

P50, P99, THROUGHPUT = "latency_ms.p50", "latency_ms.p99", "throughput_rps"
# In display order.
FIGURES = (CPU_TOTAL, P50, P99, MACRO, THROUGHPUT)
BY_KEY: Mapping[str, Metric] = {metric.key: metric for metric in KNOWN if metric.key in FIGURES}
# Smallest equivalence margin of recovery times, in s.
NEGLIGIBLE_S = 1.0


class EffectVerdict(StrEnum):
    """Verdict on one effect."""

    DIFFERS = "differs"
    EQUIVALENT = "equivalent"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True)
class Effect:
    """Effect of one step on one metric.

    `before`, `after`: the axis' values as text. `found`: estimate, of logarithms if `ratio`, else in the metric's unit.
    `p`: corrected p of no difference. `margin`: equivalence margin in the unit of `found`. `more_repetitions`: number
    of further repetitions per configuration that would decide; None if decided or unknown. `why`: what other than noise
    prevents a verdict. `fault`: the fault of the recoveries; empty if all rows have the same one.
    """

    axis: Axis
    before: str
    after: str
    metric: Metric
    ratio: bool
    found: EffectEstimate
    repetitions: int
    margin: float
    p: float
    verdict: EffectVerdict
    more_repetitions: int | None = None
    why: str = ""
    fault: str = ""

    @property
    def has_opposite_rows(self) -> bool:
        """Whether rows differ in both directions by more than the margin."""
        return min(self.found.rows) < -self.margin and max(self.found.rows) > self.margin


def repetitions_of(point: Point, key: str) -> dict[int, ValueRange]:
    """Return a metric by repetition, from the newest usable record that has it."""
    known = {entry.repetition: interval_of(entry, key) for entry in point.valid}
    return {repetition: value for repetition, value in known.items() if value is not None}


def axis_effects(points: Sequence[Point], axes: Sequence[Axis], wanted: Sequence[Axis]) -> list[Effect]:
    """Return the effects of all steps along each of `wanted`, corrected together.

    `points`: points of one group; `axes`: all axes in which they differ. Effects are sorted by axis, value and FIGURES.
    """
    drafts = [
        (replace(effect, fault=fault), rows)
        for axis in wanted
        for steps in _group_by_values(axis_steps(points, axis, axes))
        for key in FIGURES
        for fault, alike in (_group_by_fault(steps) if key == MACRO else {"": steps}).items()
        for effect, rows in [_draft_effect(alike, BY_KEY[key])]
        if effect is not None
    ]
    judged = {n: effect for n, (effect, _) in enumerate(drafts) if effect.found.freedom >= MIN_FREEDOM}
    differ = holm({n: effect.found.p for n, effect in judged.items()})
    same = holm({n: equivalence_p(drafts[n][1], effect.margin) for n, effect in judged.items()})
    return [
        _judge_effect(effect, differ.get(n, 1.0), same.get(n, 1.0), max(1, len(judged)))
        for n, (effect, _) in enumerate(drafts)
    ]


def _group_by_values(steps: Sequence[AxisStep]) -> list[list[AxisStep]]:
    """Return the steps grouped by their two values, in the order of the values."""
    found: dict[str, list[AxisStep]] = {}
    for step in steps:
        found.setdefault(step.label, []).append(step)
    order = {label: max(sort_key(step.axis.of(step.after)) for step in same) for label, same in found.items()}
    return sorted(found.values(), key=lambda same: order[same[0].label])


def _group_by_fault(steps: Sequence[AxisStep]) -> dict[str, list[AxisStep]]:
    """Return the steps by the fault of both sides; by an empty text if the steps have one fault, or change it."""
    found: dict[str, list[AxisStep]] = {}
    for step in steps:
        found.setdefault(fault_of(step.before.config), []).append(step)
    return found if len(found) > 1 and steps[0].axis.key != FAULT else {"": list(steps)}


def _draft_effect(steps: Sequence[AxisStep], metric: Metric) -> tuple[Effect | None, list[PairedRow]]:
    """Return an effect without verdict, and its rows; None if no row has the metric on both sides."""
    axis, ratio = steps[0].axis, metric.key != MACRO
    if metric.key == THROUGHPUT and (axis.key == "rate" or any(_is_offered_load(step) for step in steps)):
        return None, []
    values: list[ValueRange] = []
    rows = []
    for step in steps:
        sides = [repetitions_of(point, metric.key) for point in (step.before, step.after)]
        if ratio:
            sides = [_logarithms(side) for side in sides]
        if all(sides):
            rows.append(PairedRow(sides[0], sides[1]))
            values += [value for side in sides for value in side.values()]
    if not rows:
        return None, []
    first = steps[0]
    found = estimate(rows)
    effect = Effect(
        axis=axis,
        before=axis.value_text(first.before),
        after=axis.value_text(first.after),
        metric=metric,
        ratio=ratio,
        found=found,
        repetitions=min(min(len(row.before), len(row.after)) for row in rows),
        margin=math.log1p(NEGLIGIBLE) if ratio else _negligible_s(values),
        p=1.0,
        verdict=EffectVerdict.INCONCLUSIVE,
    )
    return effect, rows


def _is_offered_load(step: AxisStep) -> bool:
    """Return whether the throughput equals the offered load and is therefore not a result."""
    points = (step.before, step.after)
    kept = all(entry.metrics.get("sustained") is not False for point in points for entry in point.valid)
    return kept and any(has_schedule(point.config) for point in points)


def _logarithms(side: Mapping[int, ValueRange]) -> dict[int, ValueRange]:
    """Return the values on a log scale; empty if one of them is not positive."""
    if any(value.low <= 0 for value in side.values()):
        return {}
    return {repetition: ValueRange(math.log(one.low), math.log(one.high)) for repetition, one in side.items()}


def _negligible_s(values: Sequence[ValueRange]) -> float:
    """Return the equivalence margin of recovery times in s, at least their resolution."""
    known = [value for value in values if math.isfinite(value.high)]
    widths = [value.high - value.low for value in known]
    usual = statistics.median([value.high for value in known] or [0.0])
    return max(NEGLIGIBLE_S, NEGLIGIBLE * usual, statistics.median(widths or [0.0]))


def _judge_effect(effect: Effect, p: float, p_same: float, lines: int) -> Effect:
    found, margin = effect.found, effect.margin
    is_row_beyond = any(abs(row) > margin for row in found.rows)
    if p_same <= ALPHA and not is_row_beyond:
        return replace(effect, p=p, verdict=EffectVerdict.EQUIVALENT)
    if p <= ALPHA:
        return replace(effect, p=p, verdict=EffectVerdict.DIFFERS)
    if effect.has_opposite_rows:
        return replace(effect, p=p, why="its direction depends on the other parameters")
    if found.spread is None and effect.repetitions < 2:
        more = MIN_REPETITIONS - effect.repetitions
        return replace(effect, p=p, more_repetitions=more, why="a single run shows no variation")
    needed = required_pairs(found, margin, ALPHA / lines)
    if needed is None:
        why = "the effect is close to the equivalence margin"
        if found.blur:
            why = "the resolution of the recovery times is too low"
        if math.isinf(found.blur):
            why = "some recoveries are censored; increase duration_s"
        return replace(effect, p=p, why=why)
    each = math.ceil(needed / len(found.rows))
    least = math.ceil((MIN_FREEDOM + len(found.rows)) / len(found.rows))
    return replace(effect, p=p, more_repetitions=max(1, max(each, least) - effect.repetitions))
