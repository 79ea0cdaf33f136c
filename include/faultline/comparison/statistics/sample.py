"""The repetitions of one figure under one configuration, some of them perhaps censored."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy import stats

# Products of fractions that make a half miss it by less.
_EXACT = 1e-9

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Sample:
    """Values in one unit. Where `censored`, the true value is only known to be larger: a recovery that was still going
    on when the watch ended."""

    values: tuple[float, ...]
    censored: tuple[bool, ...] = field(default=())

    def __post_init__(self) -> None:
        if not self.censored:
            object.__setattr__(self, "censored", (False,) * len(self.values))
        if len(self.censored) != len(self.values):
            raise ValueError(f"{len(self.values)} values, but {len(self.censored)} marks of censoring")
        if not all(map(math.isfinite, self.values)):
            raise ValueError("values are finite; one that is not known is left out or censored")

    @classmethod
    def of(cls, values: Sequence[float]) -> Sample:
        """A sample without censoring."""
        return cls(tuple(float(value) for value in values))

    def __len__(self) -> int:
        return len(self.values)

    @property
    def known(self) -> tuple[float, ...]:
        """The values that are not censored."""
        return tuple(value for value, open_ended in zip(self.values, self.censored, strict=True) if not open_ended)

    @cached_property
    def median(self) -> float:
        """The median; with censored values that of Kaplan and Meier, infinite when less than half is known to have
        ended. NaN of no values."""
        return median_of(np.array(self.values), np.array(self.censored, dtype=np.bool_))

    @property
    def spread(self) -> float | None:
        """Coefficient of variation of the known values, as a share of their mean; None for fewer than two, or a mean
        of 0."""
        if len(self.known) < 2 or not (mean := statistics.fmean(self.known)):
            return None
        return statistics.stdev(self.known) / abs(mean)


def walsh_averages(values: Floats, unknown: float = 0.0) -> Floats:
    """The averages of each two of the values, and of each with itself, ascending; `unknown`: that of −∞ and ∞."""
    first, second = np.triu_indices(len(values))
    with np.errstate(invalid="ignore"):
        averages: Floats = (values[first] + values[second]) / 2
    averages[np.isnan(averages)] = unknown
    return np.sort(averages)


def median_of(values: Floats, censored: Bools) -> float:
    """The median of values of which some are censored, as in `Sample.median`."""
    if not len(values):
        return math.nan
    if not censored.any():
        return float(np.median(values))
    survival = stats.ecdf(stats.CensoredData.right_censored(values, censored)).sf
    left = survival.probabilities
    ended = survival.quantiles[left <= 0.5 + _EXACT]
    if not len(ended):
        return math.inf
    # As of an even number of values: where just half have ended, the middle lies between that end and the next.
    later = survival.quantiles[left < 0.5 - _EXACT]
    if len(later) and later[0] != ended[0]:
        return float((ended[0] + later[0]) / 2)
    return float(ended[0])
