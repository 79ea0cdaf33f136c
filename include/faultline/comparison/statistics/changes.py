"""Where a series of nights changed its level, by `ruptures`."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import ruptures

from faultline.comparison.statistics.ranks import p_value
from faultline.comparison.statistics.sample import Sample

# Nights that a level must last, before a change and after it.
LEAST = 3
# Price of a change, in variances of a night times the logarithm of the number of nights.
PRICE = 4.0
# Of the two levels beside a change, so that a single wild night makes none.
ALPHA = 0.01


def change_points(values: Sequence[float]) -> list[int]:
    """Indices of the values with which a new level begins, ascending.

    Segments by least squares with a price for each (PELT, Killick and others 2012), then only those changes whose
    levels differ by a rank test. The variance is that of a night against the night before, so that a change of level
    does not count as noise.
    """
    series = np.asarray(values, dtype=np.float64)
    if len(series) < 2 * LEAST or not np.isfinite(series).all():
        return []
    steps = np.diff(series)
    deviation = 1.4826 * float(np.median(np.abs(steps - np.median(steps)))) / math.sqrt(2)
    price = PRICE * math.log(len(series)) * max(deviation, 1e-9 * float(np.abs(series).max())) ** 2
    ends = ruptures.Pelt(model="l2", min_size=LEAST, jump=1).fit(series).predict(pen=price)
    return _believed(series.tolist(), [0, *ends])


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
