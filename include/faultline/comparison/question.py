"""A question of a sweep, made ready: which cells are compared, in how many blocks, and at which bounds.

A block holds each compared cell once. All blocks that the budget may pay for are planned beforehand, also those that it
pays for only because others were decided early; what is decided, or beyond the budget, is left out when its turn comes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from faultline.comparison.cells import Axis, Point, Step, axes_of, steps_along
from faultline.comparison.statistics.sequential import LEAST_ERROR, MOST_PAIRS, Method, bounds, fewest
from faultline.experiment.config import Configuration
from faultline.experiment.decide import Decide, parse_decide
from faultline.experiment.matrix import MAX_CONFIGURATIONS, Matrix, PlannedCell
from faultline.records.catalogue import COMPARABLE, MACRO
from faultline.records.columns import Metric
from faultline.records.manifest import Manifest, Question
from faultline.system.errors import ConfigError

# Times the blocks that the budget pays for if nothing is decided before its end.
FURTHER = 2
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
BESIDES_S = 35.0
# Their repetitions may be censored, or intervals, and have the heaviest tails.
_BY_RANKS = "Recovery"


def method_of(metric: Metric) -> Method:
    """How a figure is decided: fixed by what it is, not by what was measured."""
    return Method.RANKS if metric.group == _BY_RANKS else Method.T


def steps_of(configurations: Mapping[str, Mapping[str, Any]], along: str) -> tuple[list[Step], list[Axis]]:
    """What is compared along an axis, and all axes. `configurations`: by their ids. No steps where `along` is none of
    the axes in which they differ."""
    points = [Point(config_id, config, ()) for config_id, config in configurations.items()]
    axes = axes_of(points)
    axis = next((axis for axis in axes if axis.key == along), None)
    return (steps_along(points, axis, axes) if axis else []), axes


def compared(steps: Iterable[Step]) -> set[str]:
    """The configurations that take part in a comparison."""
    return {point.config_id for step in steps for point in (step.before, step.after)}


def planned_cells(
    matrix: Matrix, asked: Any, series: str, plans: Sequence[Manifest], *, fresh: bool = False
) -> tuple[list[PlannedCell], Question]:
    """The cells of a sweep that is to decide what the form field `decide` asks, and the question. `plans`: those of
    the matrix. Raises ConfigError for what cannot be decided."""
    question = parse_decide(asked, figures=FIGURES, axes=matrix.axes)
    if question is None:
        raise ConfigError("decide: is empty; say what is to be decided, or leave it out")
    return pose(matrix, question, series, plans, fresh=fresh)


def pose(
    matrix: Matrix, asked: Decide, series: str, earlier: Sequence[Manifest] = (), *, fresh: bool = False
) -> tuple[list[PlannedCell], Question]:
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
    ours = [configurations[name] for name in configurations if name in compared(steps)]
    others = [cell for cell in usual if cell.config not in ours]
    method, alpha = method_of(FIGURES[asked.figure]), asked.error / len(steps)
    if alpha < LEAST_ERROR:
        raise ConfigError(
            f"decide.error: {asked.error:g} over {len(steps)} comparisons is less than can be told; give "
            f"{LEAST_ERROR * len(steps):.1g} or more"
        )
    need = fewest(method, alpha)
    paid = _blocks(asked, ours, [cell.config for cell in others], len(steps), need)
    horizon = paid if fresh else next((one.horizon for one in _same(earlier, series, asked, len(steps))), paid)
    # What is decided at the first look leaves its experiments to the last two cells that are not.
    most = ((asked.experiments or MAX_CONFIGURATIONS) - len(others) - need * (len(ours) - 2)) // 2
    room = (MAX_CONFIGURATIONS - len(others)) // len(ours)
    blocks = max(paid, min(most, FURTHER * paid, room, MOST_PAIRS))
    question = Question(
        figure=asked.figure, along=asked.along, smallest=asked.smallest, error=asked.error,
        experiments=asked.experiments, hours=asked.hours, comparisons=len(steps), blocks=blocks, horizon=horizon,
        method=method.value, bounds=bounds(method, blocks, horizon, alpha), fresh=fresh,
    )  # fmt: skip
    return [*(PlannedCell(config, block, series) for block in range(blocks) for config in ours), *others], question


def _blocks(
    asked: Decide, ours: Sequence[Configuration], others: Sequence[Configuration], steps: int, need: int
) -> int:
    """How many blocks the budget pays for if no cell is left out; `need`: the fewest that can decide anything."""
    block_s, others_s = (
        sum(one.warmup_s + one.duration_s + BESIDES_S for one in configs) for configs in (ours, others)
    )
    least = need * len(ours) + len(others)
    counted = f"{steps} comparison{'s' if steps > 1 else ''} of {len(ours)} cells take {need} blocks at least"
    if least > MAX_CONFIGURATIONS:
        raise ConfigError(f"decide: {counted}, more than {MAX_CONFIGURATIONS} experiments; split an axis over sweeps")
    if asked.experiments is not None and asked.experiments < least:
        raise ConfigError(
            f"decide.experiments: {asked.experiments} are too few to decide anything: {counted}; give {least} or more"
        )
    if asked.experiments is not None and asked.experiments > MAX_CONFIGURATIONS:
        raise ConfigError(
            f"decide.experiments: {asked.experiments} are more than {MAX_CONFIGURATIONS}; give fewer, and trigger the "
            "same again where they leave something open"
        )
    payable = ((asked.experiments or MAX_CONFIGURATIONS) - len(others)) // len(ours)
    if asked.hours is not None:
        fitting = int((asked.hours * 3600 - others_s) // block_s)
        if fitting < need:
            hours = math.ceil((need * block_s + others_s) / 36) / 100
            raise ConfigError(
                f"decide.hours: {asked.hours:g} are too few to decide anything: {counted}; give {hours:g} or more"
            )
        payable = min(payable, fitting)
    return min(payable, MOST_PAIRS)


def _same(plans: Sequence[Manifest], series: str, asked: Decide, steps: int) -> Iterator[Question]:
    """The same question, asked before in the series, the oldest first."""
    same = (asked.figure, asked.along, asked.error, steps)
    for one in (plan.decide for plan in plans if plan.series == series):
        if one and (one.figure, one.along, one.error, one.comparisons) == same:
            yield one
