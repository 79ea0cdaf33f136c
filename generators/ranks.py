"""Ranks drawn from Zipf's law, by the inverse of its exact cumulative distribution, with an exponent that may move.

The rank r (1 … n) has probability r^-s / sum over i of i^-s. A fixed exponent has one table of n entries. Where the
exponent moves it is taken in hundredths, and each has a table of its own; so that a table costs the same whatever n, it
ends at HEAD ranks. Behind them the sum is the midpoint formula of Euler and Maclaurin, which from there on is as exact
as a float64 holds the sum, and is inverted.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from generators.curve import Curve
from generators.pacing import Schedule

# Half a megabyte of float64, which takes a millisecond or two to fill: no burst waits longer for a new exponent.
HEAD = 65_536
TABLES_KEPT = 64
HUNDREDTHS = 100


def cumulative(exponent: float, size: int) -> NDArray[np.float64]:
    """P(rank ≤ i + 1) for i = 0 … size − 1; the last entry is exactly 1."""
    # Small terms first: summing from the tail keeps the rounding error of the total least.
    weights = np.arange(1, size + 1, dtype=np.float64) ** -exponent
    tail = np.cumsum(weights[::-1])[::-1]
    table = np.empty(size)
    table[:-1] = 1.0 - tail[1:] / tail[0]
    table[-1] = 1.0
    return table


@dataclass(frozen=True)
class MovingExponent:
    """The exponent of each record: what the curve says when the record is due."""

    curve: Curve
    schedule: Schedule

    def hundredths(self, records: NDArray[np.uint64]) -> NDArray[np.int64]:
        """The exponents of the given records (numbers in the schedule, shape (n,)), in hundredths."""
        return np.rint(self.curve.values(self.schedule.due_of(records)) * HUNDREDTHS).astype(np.int64)

    def at_start(self, n: int) -> NDArray[np.int64]:
        """The exponent at T0 in hundredths, for n records that are sent before; shape (n,)."""
        return np.full(n, round(self.curve.value(0) * HUNDREDTHS), dtype=np.int64)


class RankTable:
    """The law of one exponent over the ranks 0 … size − 1, in memory that `size` does not raise above HEAD entries."""

    def __init__(self, exponent: float, size: int) -> None:
        """`exponent` ≥ 0, `size` ≥ 1."""
        self._exponent, self._size = exponent, size
        self._long = size > HEAD
        if not self._long:
            self._table = cumulative(exponent, size)
            return
        weights = np.arange(1, HEAD + 1, dtype=np.float64) ** -exponent
        sums = np.cumsum(weights[::-1])[::-1]
        tail = self._tail(np.array([float(HEAD)]))[0]
        self._total = sums[0] + tail
        self._table = np.empty(HEAD)
        self._table[:-1] = 1.0 - (sums[1:] + tail) / self._total
        self._table[-1] = 1.0 - tail / self._total

    def ranks(self, draws: NDArray[np.float64]) -> NDArray[np.int64]:
        """The ranks, from 0, of uniform draws in [0, 1): the number of ranks whose cumulative share is ≤ the draw."""
        ranks: NDArray[np.int64] = self._table.searchsorted(draws, side="right")
        if self._long:
            behind = ranks == HEAD
            if behind.any():
                ranks[behind] = self._far(draws[behind])
        return ranks

    def _far(self, draws: NDArray[np.float64]) -> NDArray[np.int64]:
        """Ranks beyond the table: the inverse of the tail's leading term, then steps to where the full formula is."""
        left = (1.0 - draws) * self._total
        guess = self._begin_of(left) - 0.5
        count = np.clip(np.floor(guess), HEAD, self._size - 1)  # ranks whose cumulative share is ≤ the draw
        while True:
            # Ranks 1 … count are passed as long as what lies behind them is still at least what is left.
            too_far = (self._tail(count) < left) & (count > HEAD)
            too_near = (self._tail(count + 1) >= left) & (count < self._size - 1)
            if not (too_far | too_near).any():
                return count.astype(np.int64)
            count += np.where(too_far, -1.0, np.where(too_near, 1.0, 0.0))

    def _tail(self, after: NDArray[np.float64]) -> NDArray[np.float64]:
        """Sum of i^-s over after < i ≤ size: the integral and one correction; the next is below 10⁻¹⁶ of it."""
        begin, end, power = after + 0.5, self._size + 0.5, 1.0 - self._exponent
        span = np.log(end / begin)
        # As a product, since the difference of two antiderivatives would lose the digits of a small tail.
        integral = span if power == 0 else begin**power * np.expm1(power * span) / power
        slopes = self._exponent * (begin ** (power - 2) - end ** (power - 2))
        result: NDArray[np.float64] = integral - slopes / 24
        return result

    def _begin_of(self, area: NDArray[np.float64]) -> NDArray[np.float64]:
        """Where the integral up to size + ½ has to begin to be `area`."""
        end, power = self._size + 0.5, 1.0 - self._exponent
        logs = -area if power == 0 else np.log1p(-power * area * end**-power) / power
        result: NDArray[np.float64] = end * np.exp(logs)
        return result


class RankTables:
    """Draws for exponents that differ from record to record; keeps the tables of the exponents used last."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._kept: OrderedDict[int, RankTable] = OrderedDict()

    def table(self, hundredths: int) -> RankTable:
        """The law of one exponent, given in hundredths."""
        table = self._kept.pop(hundredths, None) or RankTable(hundredths / HUNDREDTHS, self._size)
        self._kept[hundredths] = table
        if len(self._kept) > TABLES_KEPT:
            self._kept.popitem(last=False)
        return table

    def ranks(self, draws: NDArray[np.float64], hundredths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Ranks, from 0, of the draws of each record (shape (n,) or (n, each)) at its exponent (shape (n,))."""
        ranks = np.empty(draws.shape, dtype=np.int64)
        for exponent in np.unique(hundredths).tolist():
            there = hundredths == exponent
            ranks[there] = self.table(exponent).ranks(draws[there])
        return ranks
