"""Benchmark figures: a value with unit, range and number of repetitions."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.stats import binomtest


@dataclass(frozen=True)
class BenchmarkFigure:
    """Measured value with its unit, its range over `n` repetitions, and the values of the repetitions."""

    value: float
    unit: str
    low: float
    high: float
    n: int
    values: tuple[float, ...] = ()


def summarise(values: Sequence[float], unit: str) -> BenchmarkFigure:
    """Return median, minimum and maximum of at least one value."""
    return BenchmarkFigure(statistics.median(values), unit, min(values), max(values), len(values), tuple(values))


def exact_figure(value: float, unit: str, n: int = 1) -> BenchmarkFigure:
    """Return a figure without a range."""
    return BenchmarkFigure(value, unit, value, value, n)


def total(values: Sequence[float], unit: str = "1") -> BenchmarkFigure:
    """Return the sum; `low` and `high` are the minimum and maximum of the values."""
    return BenchmarkFigure(sum(values), unit, min(values, default=0), max(values, default=0), len(values))


def share(hits: npt.ArrayLike) -> BenchmarkFigure:
    """Return the share of hits with its 95 % interval (Wilson 1927)."""
    each = np.asarray(hits)
    found = binomtest(int(each.sum()), len(each))
    low, high = found.proportion_ci(0.95, "wilson")
    return BenchmarkFigure(found.statistic, "share", float(low), float(high), len(each))
