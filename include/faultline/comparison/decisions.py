"""Decisions of a sequential sweep: the effect size, or the number of pairs still required, per comparison.

A sequential sweep repeats its cells in blocks and stops when its comparisons are decided. A pair consists of two
neighbours along an axis, measured in one block.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from faultline.comparison.config_points import Axis, AxisStep, Point, axes_of, axis_steps
from faultline.comparison.statistics.estimate import Interval, logarithm_of, share_of
from faultline.comparison.statistics.sequential import (
    MAX_PAIRS,
    MIN_ERROR,
    Method,
    Pair,
    SequentialDecision,
    SequentialResult,
    bounds,
    judge,
    min_decidable_pairs,
)
from faultline.experiment.config import Configuration
from faultline.experiment.decide import Decide, parse_decide
from faultline.experiment.matrix import MAX_CONFIGURATIONS, Matrix, PlannedCell
from faultline.records.catalogue import COMPARABLE, MACRO, bounds_of
from faultline.records.columns import Metric
from faultline.records.index_entry import IndexEntry
from faultline.records.sweep_plan import SequentialPlan, SweepPlan
from faultline.system.errors import ConfigError

# An estimate of further pairs beyond this multiple of the measured ones counts as unknown.
_MAX_FACTOR = 1000


@dataclass(frozen=True)
class Decision:
    """Decision on one comparison of neighbours along an axis.

    `change`: relative change from before to after, with an interval that holds over all interim analyses and
    comparisons of the sweep; None without pairs; ends may be infinite. `margin`: equivalence margin as a share, at
    least the resolution of the metric. `pairs`: number of measured pairs; `decided_at`: that at the deciding analysis.
    `more_pairs`: number of further pairs that would decide at the present variation; None if decided or unknown.
    `where`: values on the other axes.
    """

    step: AxisStep
    metric: Metric
    outcome: SequentialDecision
    change: Interval | None
    margin: float
    pairs: int
    decided_at: int | None
    more_pairs: int | None
    where: str = ""

    @property
    def is_decided(self) -> bool:
        """Whether the comparison needs no further measurements."""
        return self.outcome in (SequentialDecision.DIFFERS, SequentialDecision.WITHIN)

    @property
    def at_least(self) -> float | None:
        """End of the change's interval that is nearer to 0; None unless the sides differ.

        −0.31 means a decrease by at least 31 %.
        """
        if self.outcome is not SequentialDecision.DIFFERS or self.change is None:
            return None
        return self.change.low if self.change.low > 0 else self.change.high

    @property
    def text(self) -> str:
        """The decision in one line.

        Example: `checkpoint interval (s) 5 instead of 2: CPU, all roles −38 % (−44 … −31), n = 12 pairs, differs by at
        least 31 %, decided after 6`.
        """
        where = f"{self.where}, " if self.where else ""
        text = f"{where}{self.step.axis.name} {self.step.label}: {self.metric.name}"
        if self.change is None:
            return f"{text}: no pairs yet"
        ends = f"{percent(self.change.low)} … {percent(self.change.high)}"
        text = f"{text} {percent(self.change.value)} % ({ends}), n = {self.pairs} pairs"
        if self.outcome is SequentialDecision.WITHIN:
            return f"{text}, {self.outcome} {_share(self.margin)} %, decided after {self.decided_at}"
        if self.at_least is not None:
            # Rounded down, so that the text claims no more than the bound.
            least = "∞" if math.isinf(self.at_least) else f"{math.floor(1000 * abs(self.at_least)) / 10:g}"
            return f"{text}, {self.outcome} {least} %, decided after {self.decided_at}"
        return f"{text}, {self.outcome}: {self.requirement}"

    @property
    def requirement(self) -> str:
        """Requirement of an undecided comparison."""
        if self.more_pairs is None:
            return "the number of further pairs is not known yet"
        return f"about {self.more_pairs} more pairs needed at this variation"


def decisions_of(plan: SweepPlan, entries: Iterable[IndexEntry]) -> list[Decision]:
    """Return one decision per comparison of a sweep's plan, in the order of its axes; empty without a sequential plan.

    `entries`: records of its configurations. Per cell, the newest usable record of the plan's series and build counts;
    another sweep may have measured it, unless the plan is `fresh`.
    """
    question = plan.decide
    if question is None:
        return []
    steps, axes = steps_of({cell.config_id: cell.config for cell in plan.cells}, question.along)
    found = counted_entries(plan, entries)
    spent = _is_budget_spent(plan, found)
    return [
        _decide(step, question, found[step.before.config_id], found[step.after.config_id], axes, spent)
        for step in steps
    ]


def decided_configurations(decisions: Sequence[Decision]) -> frozenset[str]:
    """Return the ids of the configurations whose comparisons are all decided; they need no further cells."""
    undecided = compared_configurations(one.step for one in decisions if not one.is_decided)
    return frozenset(compared_configurations(one.step for one in decisions) - undecided)


def decided_in_plan(plan: SweepPlan, entries: Iterable[IndexEntry]) -> frozenset[str]:
    """Return the ids of a plan's configurations that need no further cells.

    These are all configurations once the budget of experiments is spent, and none without a sequential plan.
    """
    entries = list(entries)
    if _is_budget_spent(plan, counted_entries(plan, entries)):
        return frozenset(cell.config_id for cell in plan.cells)
    return decided_configurations(decisions_of(plan, entries))


def counted_entries(plan: SweepPlan, entries: Iterable[IndexEntry]) -> dict[str, dict[int, IndexEntry]]:
    """Return the usable records of a plan's cells, by configuration and repetition."""
    found: dict[str, dict[int, IndexEntry]] = {cell.config_id: {} for cell in plan.cells}
    for entry in sorted(entries, key=lambda entry: entry.attempt):
        same = (entry.series, entry.build) == (plan.series, plan.build)
        if same and plan.counts(entry) and entry.is_usable and entry.config_id in found:
            found[entry.config_id][entry.repetition] = entry
    return found


def _is_budget_spent(plan: SweepPlan, found: Mapping[str, Mapping[int, IndexEntry]]) -> bool:
    """Return whether the number of usable records has reached the budget of experiments."""
    if plan.decide is None or plan.decide.experiments is None:
        return False
    planned = {(cell.config_id, cell.repetition) for cell in plan.cells}
    done = sum((config_id, one) in planned for config_id, blocks in found.items() for one in blocks)
    return done >= plan.decide.experiments


def decision_counts(decisions: Sequence[Decision]) -> str:
    """Return the numbers of decided and open comparisons as text; empty without comparisons."""
    if not decisions:
        return ""
    done = sum(one.is_decided for one in decisions)
    left = f", {len(decisions) - done} open" if done < len(decisions) else ""
    return f"{done} of {len(decisions)} comparisons decided{left}"


def log_ratio(before: Pair, after: Pair) -> Pair:
    """Return the range of the logarithm of after ÷ before; 0 if both are zero."""
    return logarithm_of(after[0], before[1]), logarithm_of(after[1], before[0])


def change_of(judged: SequentialResult) -> Interval:
    """Return the relative change and its interval, from logarithms of ratios; the change is clipped to the interval."""
    value = min(max(judged.value, judged.low), judged.high)
    return Interval(*(share_of(one) for one in (value, judged.low, judged.high)))


def margin_of(smallest: float) -> Pair:
    """Return the equivalence margin as a range of logarithms of ratios."""
    return (math.log(1 - smallest) if smallest < 1 else -math.inf), math.log1p(smallest)


def percent(share: float) -> str:
    """Return a change in percent with its sign: −38, +4.2."""
    if math.isinf(share):
        return "∞"
    return f"{'−' if share < 0 else '+'}{_share(abs(share))}"


def _share(share: float) -> str:
    return f"{100 * share:.1f}" if share < 0.095 else f"{100 * share:.0f}"


def _decide(
    step: AxisStep,
    question: SequentialPlan,
    before: Mapping[int, IndexEntry],
    after: Mapping[int, IndexEntry],
    axes: Sequence[Axis],
    spent: bool,
) -> Decision:
    metric = FIGURES[question.figure]
    pairs, widths = _pairs(before, after, metric.key)
    margin = max(question.smallest, statistics.median(widths)) if widths else question.smallest
    judged = judge(pairs, question.bounds, Method(question.method), margin_of(min(margin, 1.0)))
    outcome = judged.outcome
    if outcome is SequentialDecision.INCONCLUSIVE and (spent or min(len(before), len(after)) >= question.blocks):
        outcome = SequentialDecision.SPENT
    others = [axis for axis in axes if axis.key != step.axis.key]
    where = ", ".join(f"{axis.name} {axis.label(step.before)}" for axis in others)
    return Decision(
        step, metric, outcome, change_of(judged) if pairs else None, min(margin, 1.0), len(pairs), judged.decided_at,
        _missing_pairs(judged, len(pairs), margin), where,
    )  # fmt: skip


def _pairs(
    before: Mapping[int, IndexEntry], after: Mapping[int, IndexEntry], key: str
) -> tuple[list[Pair], list[float]]:
    """Return the logarithms of ratios, in the order in which their pairs were completed.

    Also return the resolution of the metric in each record, as a share of its value.
    """
    found: list[tuple[str, Pair]] = []
    widths: list[float] = []
    for block in before.keys() & after.keys():
        one, other = before[block], after[block]
        values = bounds_of(one, key), bounds_of(other, key)
        if values[0] is not None and values[1] is not None:
            found.append((max(one.attempt, other.attempt), log_ratio(values[0], values[1])))
            widths += [1 - low / high for low, high in values if 0 < high < math.inf]  # type: ignore[misc]
    return [pair for _, pair in sorted(found)], widths


def _missing_pairs(judged: SequentialResult, pairs: int, margin: float) -> int | None:
    """Return how many further pairs would make the interval of the last analysis narrow enough; None if unknown."""
    if judged.outcome is not SequentialDecision.INCONCLUSIVE or not math.isfinite(judged.half) or not judged.half:
        return None
    distance = abs(judged.value)
    # The half width must fit between the value and either 0 or the margin.
    enough = max(distance, math.log1p(margin) - distance)
    needed = pairs * (judged.half / enough) ** 2 - pairs
    return max(1, math.ceil(needed)) if needed < _MAX_FACTOR * pairs else None


# Planning of a sequential sweep: compared cells, number of blocks, and bounds


# Multiple of the blocks that the budget pays for; further blocks are planned in case comparisons are decided early.
EXTRA_BLOCKS = 2
# Metrics for which a relative change is meaningful.
FIGURES = {
    metric.key: metric
    for metric in COMPARABLE.values()
    if metric.group not in ("Audit", "Stages")
    and metric.key != "sustained"
    # A censored macro recovery still has a lower bound, so no pair is omitted because it is slow.
    and (metric.group != "Recovery" or metric.key == MACRO)
}
# Conservative time of an experiment outside warm-up and window, in s.
OVERHEAD_S = 35.0
# Recovery times may be censored or known as intervals only, and have the heaviest tails, so they are ranked.
_RANK_GROUP = "Recovery"


def method_of(metric: Metric) -> Method:
    """Return the test statistic of a metric; it depends on the metric, not on the measurements."""
    return Method.RANKS if metric.group == _RANK_GROUP else Method.T


def steps_of(configurations: Mapping[str, Mapping[str, Any]], along: str) -> tuple[list[AxisStep], list[Axis]]:
    """Return the steps along an axis, and all axes. `configurations`: by id.

    There are no steps if the configurations do not differ along the axis.
    """
    points = [Point(config_id, config, ()) for config_id, config in configurations.items()]
    axes = axes_of(points)
    axis = next((axis for axis in axes if axis.key == along), None)
    return (axis_steps(points, axis, axes) if axis else []), axes


def compared_configurations(steps: Iterable[AxisStep]) -> set[str]:
    """Return the ids of the configurations that take part in a comparison."""
    return {point.config_id for step in steps for point in (step.before, step.after)}


def planned_cells(
    matrix: Matrix, asked: Any, series: str, plans: Sequence[SweepPlan], *, fresh: bool = False
) -> tuple[list[PlannedCell], SequentialPlan]:
    """Return the cells and the sequential plan for the value `asked` of the form field `decide`.

    `plans`: earlier plans of the matrix. Raises ConfigError if the field cannot be satisfied.
    """
    question = parse_decide(asked, figures=FIGURES, axes=matrix.axes)
    if question is None:
        raise ConfigError("decide: empty; expected what to decide; fix: fill it in or remove it")
    return plan_blocks(matrix, question, series, plans, fresh=fresh)


def plan_blocks(
    matrix: Matrix, asked: Decide, series: str, earlier: Sequence[SweepPlan] = (), *, fresh: bool = False
) -> tuple[list[PlannedCell], SequentialPlan]:
    """Return all cells that the budget may allow, and the sequential plan.

    Cells without a comparison, such as controls, are repeated as the matrix specifies. `earlier`: plans of the matrix;
    if one of them has the same question in this series, the error is still spent over its number of blocks, so the
    budget may be raised. `fresh`: count only records of this sweep. Raises ConfigError with the key and the required
    number.
    """
    usual = matrix.cells(series)
    configurations = {cell.config.config_id: cell.config for cell in usual}
    steps, _ = steps_of({name: config.model_dump(mode="json") for name, config in configurations.items()}, asked.along)
    if not steps:
        raise ConfigError(f"decide.along: got {asked.along}; expected the only axis in which two cells differ")
    compared = [configurations[name] for name in configurations if name in compared_configurations(steps)]
    others = [cell for cell in usual if cell.config not in compared]
    method, alpha = method_of(FIGURES[asked.figure]), asked.error / len(steps)
    if alpha < MIN_ERROR:
        raise ConfigError(
            f"decide.error: got {asked.error:g} over {len(steps)} comparisons; expected "
            f"{MIN_ERROR * len(steps):.1g} or more"
        )
    need = min_decidable_pairs(method, alpha)
    paid = _payable_blocks(asked, compared, [cell.config for cell in others], len(steps), need)
    horizon = (
        paid if fresh else next((one.horizon for one in _same_questions(earlier, series, asked, len(steps))), paid)
    )
    # At best only one comparison, of two cells, remains after the first analysis and gets the rest of the budget.
    most = ((asked.experiments or MAX_CONFIGURATIONS) - len(others) - need * (len(compared) - 2)) // 2
    capacity = (MAX_CONFIGURATIONS - len(others)) // len(compared)
    blocks = max(paid, min(most, EXTRA_BLOCKS * paid, capacity, MAX_PAIRS))
    question = SequentialPlan(
        figure=asked.figure, along=asked.along, smallest=asked.smallest, error=asked.error,
        experiments=asked.experiments, hours=asked.hours, comparisons=len(steps), blocks=blocks, horizon=horizon,
        method=method.value, bounds=bounds(method, blocks, horizon, alpha), fresh=fresh,
    )  # fmt: skip
    return [*(PlannedCell(config, block, series) for block in range(blocks) for config in compared), *others], question


def _payable_blocks(
    asked: Decide, compared: Sequence[Configuration], others: Sequence[Configuration], steps: int, min_blocks: int
) -> int:
    """Return how many blocks of all cells the budget allows; `min_blocks`: fewest with which a decision is possible."""
    block_s, others_s = (
        sum(one.warmup_s + one.duration_s + OVERHEAD_S for one in configs) for configs in (compared, others)
    )
    least = min_blocks * len(compared) + len(others)
    requirement = (
        f"{steps} comparison{'s' if steps > 1 else ''} of {len(compared)} cells take at least {min_blocks} blocks"
    )
    if least > MAX_CONFIGURATIONS:
        raise ConfigError(
            f"decide: {requirement}, more than {MAX_CONFIGURATIONS} experiments; fix: split an axis over several sweeps"
        )
    if asked.experiments is not None and asked.experiments < least:
        raise ConfigError(
            f"decide.experiments: got {asked.experiments}; expected {least} or more, because {requirement}"
        )
    if asked.experiments is not None and asked.experiments > MAX_CONFIGURATIONS:
        raise ConfigError(
            f"decide.experiments: got {asked.experiments}; expected at most {MAX_CONFIGURATIONS}; fix: lower it, and "
            "trigger the sweep again for open comparisons"
        )
    payable = ((asked.experiments or MAX_CONFIGURATIONS) - len(others)) // len(compared)
    if asked.hours is not None:
        fitting = int((asked.hours * 3600 - others_s) // block_s)
        if fitting < min_blocks:
            hours = math.ceil((min_blocks * block_s + others_s) / 36) / 100
            raise ConfigError(f"decide.hours: got {asked.hours:g}; expected {hours:g} or more, since {requirement}")
        payable = min(payable, fitting)
    return min(payable, MAX_PAIRS)


def _same_questions(plans: Sequence[SweepPlan], series: str, asked: Decide, steps: int) -> Iterator[SequentialPlan]:
    """Yield the earlier plans of the series with the same question, the oldest first."""
    same = (asked.figure, asked.along, asked.error, steps)
    for one in (plan.decide for plan in plans if plan.series == series):
        if one and (one.figure, one.along, one.error, one.comparisons) == same:
            yield one
