"""One figure of a benchmark: a value that carries its unit, its range and its repetitions."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


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
