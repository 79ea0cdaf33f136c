"""One figure of a benchmark: a value that carries its unit, its range and its repetitions."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from faultline.comparison.statistics.estimate import Interval


@dataclass(frozen=True)
class Figure:
    """A measured value with its unit, its range over `n` repetitions, `n`, and what each of them gave."""

    value: float
    unit: str
    low: float
    high: float
    n: int
    values: tuple[float, ...] = ()


def summarise(values: Sequence[float], unit: str) -> Figure:
    """Median, smallest and largest of at least one value."""
    return Figure(statistics.median(values), unit, min(values), max(values), len(values), tuple(values))


def share(seen: int, count: int) -> Figure:
    """`seen` of `count` with the interval of Wilson (1927)."""
    interval = wilson(seen, count)
    return Figure(interval.value, "share", interval.low, interval.high, count)


def wilson(seen: int, count: int) -> Interval:
    """A share with its 95 % interval."""
    z, part = 1.959964, seen / count
    middle = (part + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * (part * (1 - part) / count + z * z / (4 * count * count)) ** 0.5
    # Rounding may put an end beside a share of nothing or of all.
    return Interval(part, min(part, max(0.0, middle - half)), max(part, min(1.0, middle + half)))
