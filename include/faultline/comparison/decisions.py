"""What a sweep has decided so far: of each comparison by how much its sides differ, or what it would take to tell."""

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

# More than so many times the pairs at hand is a guess that helps nobody.
_MAX_FACTOR = 1000


@dataclass(frozen=True)
class Decision:
    """One comparison of neighbours along an axis.

    `change`: the figure after as a share of that before, less 1, with an interval that holds at all looks and for all
    comparisons of the sweep together; infinite where nobody knows. None of no pairs. `margin`: up to which share a
    difference is none that matters; at least what the figure is known to. `pairs`: that both sides have measured;
    `looked`: how many of them decided it. `more`: further pairs that would decide it if they scatter as before, None
    when it is decided or nobody can tell. `where`: the values on the other axes.
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
        """Whether no more is measured for it."""
        return self.outcome in (SequentialDecision.DIFFERS, SequentialDecision.WITHIN)

    @property
    def at_least(self) -> float | None:
        """The bound of the change that lies nearer to none, where it differs: −0.31 is 31 % less at least."""
        if self.outcome is not SequentialDecision.DIFFERS or self.change is None:
            return None
        return self.change.low if self.change.low > 0 else self.change.high

    @property
    def text(self) -> str:
        """In a line: `checkpoint interval (s) 5 instead of 2: CPU, all roles −38 % (−44 … −31), n = 12 pairs, differs
        by at least 31 %, decided after 6`."""
        where = f"{self.where}, " if self.where else ""
        said = f"{where}{self.step.axis.name} {self.step.label}: {self.metric.name}"
        if self.change is None:
            return f"{said}: no pairs yet"
        ends = f"{percent(self.change.low)} … {percent(self.change.high)}"
        said = f"{said} {percent(self.change.value)} % ({ends}), n = {self.pairs} pairs"
        if self.outcome is SequentialDecision.WITHIN:
            return f"{said}, {self.outcome} {_share(self.margin)} %, decided after {self.decided_at}"
        if self.at_least is not None:
            # Down, or it would promise more than is known.
            least = "∞" if math.isinf(self.at_least) else f"{math.floor(1000 * abs(self.at_least)) / 10:g}"
            return f"{said}, {self.outcome} {least} %, decided after {self.decided_at}"
        return f"{said}, {self.outcome}: {self.requirement}"

    @property
    def requirement(self) -> str:
        """What it would take, where it is not decided."""
        if self.more_pairs is None:
            return "nobody can tell yet how many more pairs it takes"
        return f"about {self.more_pairs} more pairs would tell, if they scatter as these do"


def decisions_of(plan: SweepPlan, entries: Iterable[IndexEntry]) -> list[Decision]:
    """One decision for each comparison of a sweep's plan, in the order of its axes; none where it asks nothing.

    `entries`: records of its configurations. Those of its series and build count, of each cell the newest that is
    sound, whatever sweep measured it, unless the question is to be answered afresh.
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
    """Ids of the configurations of which all comparisons are decided; a cell of them is not measured any more."""
    open_ones = compared_configurations(one.step for one in decisions if not one.is_decided)
    return frozenset(compared_configurations(one.step for one in decisions) - open_ones)


def decided_in_plan(plan: SweepPlan, entries: Iterable[IndexEntry]) -> frozenset[str]:
    """The same of a sweep's plan, and all of its configurations when its experiments are spent; nothing where it is to
    measure all of its cells."""
    entries = list(entries)
    if _is_budget_spent(plan, counted_entries(plan, entries)):
        return frozenset(cell.config_id for cell in plan.cells)
    return decided_configurations(decisions_of(plan, entries))


def counted_entries(plan: SweepPlan, entries: Iterable[IndexEntry]) -> dict[str, dict[int, IndexEntry]]:
    """What counts of a plan's cells, by configuration and repetition."""
    found: dict[str, dict[int, IndexEntry]] = {cell.config_id: {} for cell in plan.cells}
    for entry in sorted(entries, key=lambda entry: entry.attempt):
        same = (entry.series, entry.build) == (plan.series, plan.build)
        if same and plan.counts(entry) and entry.sound and entry.config_id in found:
            found[entry.config_id][entry.repetition] = entry
    return found


def _is_budget_spent(plan: SweepPlan, found: Mapping[str, Mapping[int, IndexEntry]]) -> bool:
    """Whether as many experiments count as the budget has."""
    if plan.decide is None or plan.decide.experiments is None:
        return False
    planned = {(cell.config_id, cell.repetition) for cell in plan.cells}
    done = sum((config_id, one) in planned for config_id, blocks in found.items() for one in blocks)
    return done >= plan.decide.experiments


def decision_counts(decisions: Sequence[Decision]) -> str:
    """How many are decided and how many are not, in words; empty where nothing was asked."""
    if not decisions:
        return ""
    done = sum(one.is_decided for one in decisions)
    left = f", {len(decisions) - done} open" if done < len(decisions) else ""
    return f"{done} of {len(decisions)} comparisons decided{left}"


def log_ratio(before: Pair, after: Pair) -> Pair:
    """From where to where the logarithm of after ÷ before may lie; 0 where neither is more than nothing."""
    return logarithm_of(after[0], before[1]), logarithm_of(after[1], before[0])


def change_of(judged: SequentialResult) -> Interval:
    """The change that logarithms of ratios stand for. What is judged lies within what the looks left."""
    value = min(max(judged.value, judged.low), judged.high)
    return Interval(*(share_of(one) for one in (value, judged.low, judged.high)))


def margin_of(smallest: float) -> Pair:
    """The logarithms of ratios between which a difference does not matter."""
    return (math.log(1 - smallest) if smallest < 1 else -math.inf), math.log1p(smallest)


def percent(share: float) -> str:
    """A change in percent with its sign: −38, +4.2."""
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
    """Logarithms of ratios in the order in which their pairs were completed, as looks saw them, and how exactly the
    figure is known in each, as a share of it."""
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
    """Pairs till the last look's half width is as small as what it has to fit in."""
    if judged.outcome is not SequentialDecision.INCONCLUSIVE or not math.isfinite(judged.half) or not judged.half:
        return None
    off = abs(judged.value)
    room = max(off, math.log1p(margin) - off)
    needed = pairs * (judged.half / room) ** 2 - pairs
    return max(1, math.ceil(needed)) if needed < _MAX_FACTOR * pairs else None


# A question of a sweep, made ready: which cells are compared, in how many blocks, and at which bounds.


# Times the blocks that the budget pays for if nothing is decided before its end.
EXTRA_BLOCKS = 2
# Of a figure that is mostly 0, or yes and no, a share says nothing.
FIGURES = {
    metric.key: metric
    for metric in COMPARABLE.values()
    if metric.group not in ("Audit", "Stages")
    and metric.key != "sustained"
    # Of a recovery only what is bounded from below when it is not seen, so that no pair is left out for being slow.
    and (metric.group != "Recovery" or metric.key == MACRO)
}
# What an experiment takes beside its window, in s: a cautious share of what starts and ends overlap.
OVERHEAD_S = 35.0
# Their repetitions may be censored, or intervals, and have the heaviest tails.
_RANK_GROUP = "Recovery"


def method_of(metric: Metric) -> Method:
    """How a figure is decided: fixed by what it is, not by what was measured."""
    return Method.RANKS if metric.group == _RANK_GROUP else Method.T


def steps_of(configurations: Mapping[str, Mapping[str, Any]], along: str) -> tuple[list[AxisStep], list[Axis]]:
    """What is compared along an axis, and all axes. `configurations`: by their ids. No steps where `along` is none of
    the axes in which they differ."""
    points = [Point(config_id, config, ()) for config_id, config in configurations.items()]
    axes = axes_of(points)
    axis = next((axis for axis in axes if axis.key == along), None)
    return (axis_steps(points, axis, axes) if axis else []), axes


def compared_configurations(steps: Iterable[AxisStep]) -> set[str]:
    """The configurations that take part in a comparison."""
    return {point.config_id for step in steps for point in (step.before, step.after)}


def planned_cells(
    matrix: Matrix, asked: Any, series: str, plans: Sequence[SweepPlan], *, fresh: bool = False
) -> tuple[list[PlannedCell], SequentialPlan]:
    """The cells of a sweep that is to decide what the form field `decide` asks, and the question. `plans`: those of
    the matrix. Raises ConfigError for what cannot be decided."""
    question = parse_decide(asked, figures=FIGURES, axes=matrix.axes)
    if question is None:
        raise ConfigError("decide: is empty; say what is to be decided, or leave it out")
    return plan_blocks(matrix, question, series, plans, fresh=fresh)


def plan_blocks(
    matrix: Matrix, asked: Decide, series: str, earlier: Sequence[SweepPlan] = (), *, fresh: bool = False
) -> tuple[list[PlannedCell], SequentialPlan]:
    """All cells that the budget may pay for, and the question as the plan of the sweep holds it.

    Cells that nothing is compared with, such as controls, are measured as often as the matrix says. `earlier`: plans of
    the matrix; where one of them asked the same in this series, its number of blocks stays the one by which the error
    is spent, so that a budget may be raised. `fresh`: only what this sweep measures is to count. Raises ConfigError
    naming the key, and the number that is needed.
    """
    usual = matrix.cells(series)
    configurations = {cell.config.config_id: cell.config for cell in usual}
    steps, _ = steps_of({name: config.model_dump(mode="json") for name, config in configurations.items()}, asked.along)
    if not steps:
        raise ConfigError(f"decide.along: no two cells differ in {asked.along} alone; choose another axis")
    ours = [configurations[name] for name in configurations if name in compared_configurations(steps)]
    others = [cell for cell in usual if cell.config not in ours]
    method, alpha = method_of(FIGURES[asked.figure]), asked.error / len(steps)
    if alpha < MIN_ERROR:
        raise ConfigError(
            f"decide.error: {asked.error:g} over {len(steps)} comparisons is less than can be told; give "
            f"{MIN_ERROR * len(steps):.1g} or more"
        )
    need = min_decidable_pairs(method, alpha)
    paid = _payable_blocks(asked, ours, [cell.config for cell in others], len(steps), need)
    horizon = (
        paid if fresh else next((one.horizon for one in _same_questions(earlier, series, asked, len(steps))), paid)
    )
    # What is decided at the first look leaves its experiments to the last two cells that are not.
    most = ((asked.experiments or MAX_CONFIGURATIONS) - len(others) - need * (len(ours) - 2)) // 2
    room = (MAX_CONFIGURATIONS - len(others)) // len(ours)
    blocks = max(paid, min(most, EXTRA_BLOCKS * paid, room, MAX_PAIRS))
    question = SequentialPlan(
        figure=asked.figure, along=asked.along, smallest=asked.smallest, error=asked.error,
        experiments=asked.experiments, hours=asked.hours, comparisons=len(steps), blocks=blocks, horizon=horizon,
        method=method.value, bounds=bounds(method, blocks, horizon, alpha), fresh=fresh,
    )  # fmt: skip
    return [*(PlannedCell(config, block, series) for block in range(blocks) for config in ours), *others], question


def _payable_blocks(
    asked: Decide, ours: Sequence[Configuration], others: Sequence[Configuration], steps: int, min_blocks: int
) -> int:
    """How many blocks the budget pays for if no cell is left out; `need`: the fewest that can decide anything."""
    block_s, others_s = (
        sum(one.warmup_s + one.duration_s + OVERHEAD_S for one in configs) for configs in (ours, others)
    )
    least = min_blocks * len(ours) + len(others)
    requirement = f"{steps} comparison{'s' if steps > 1 else ''} of {len(ours)} cells take {min_blocks} blocks at least"
    if least > MAX_CONFIGURATIONS:
        raise ConfigError(
            f"decide: {requirement}, more than {MAX_CONFIGURATIONS} experiments; split an axis over sweeps"
        )
    if asked.experiments is not None and asked.experiments < least:
        raise ConfigError(f"decide.experiments: got {asked.experiments}; expected {least} or more, since {requirement}")
    if asked.experiments is not None and asked.experiments > MAX_CONFIGURATIONS:
        raise ConfigError(
            f"decide.experiments: {asked.experiments} are more than {MAX_CONFIGURATIONS}; give fewer, and trigger the "
            "same again where they leave something open"
        )
    payable = ((asked.experiments or MAX_CONFIGURATIONS) - len(others)) // len(ours)
    if asked.hours is not None:
        fitting = int((asked.hours * 3600 - others_s) // block_s)
        if fitting < min_blocks:
            hours = math.ceil((min_blocks * block_s + others_s) / 36) / 100
            raise ConfigError(f"decide.hours: got {asked.hours:g}; expected {hours:g} or more, since {requirement}")
        payable = min(payable, fitting)
    return min(payable, MAX_PAIRS)


def _same_questions(plans: Sequence[SweepPlan], series: str, asked: Decide, steps: int) -> Iterator[SequentialPlan]:
    """The same question, asked before in the series, the oldest first."""
    same = (asked.figure, asked.along, asked.error, steps)
    for one in (plan.decide for plan in plans if plan.series == series):
        if one and (one.figure, one.along, one.error, one.comparisons) == same:
            yield one
