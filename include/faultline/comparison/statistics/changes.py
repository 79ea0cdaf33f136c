"""Where a series of nights changed its level."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from faultline.comparison.statistics.ranks import p_value
from faultline.comparison.statistics.sample import Sample
from faultline.records.judge.levels import level_begins

# Nights that a level must last, before a change and after it.
LEAST = 3
# Of the two levels beside a change, so that a single wild night makes none.
ALPHA = 0.01


def change_points(values: Sequence[float]) -> list[int]:
    """Indices of the values with which a new level begins, ascending.

    Those of `level_begins`, then only those whose levels differ by a rank test.
    """
    edges = level_begins(np.asarray(values, dtype=np.float64), LEAST)
    return _believed(values, [0, *edges, len(values)])


def _believed(series: Sequence[float], edges: list[int]) -> list[int]:
    """The inner edges whose neighbouring levels differ; the least believed goes first, and its levels become one."""
    edges = list(edges)
    while len(edges) > 2:
        doubts = {
            edge: p_value(Sample.of(series[before:edge]), Sample.of(series[edge:after]))
            for before, edge, after in zip(edges, edges[1:], edges[2:], strict=False)
        }
        worst = max(doubts, key=lambda edge: doubts[edge])
        if doubts[worst] <= ALPHA:
            break
        edges.remove(worst)
    return edges[1:-1]
