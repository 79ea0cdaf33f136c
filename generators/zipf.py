"""Lines of a synthetic vocabulary with Zipf-distributed words, and the estimate of the exponent from counts.

The word of rank r (1 … n) has probability r^-s / sum over i of i^-s: exponent s = 0 is uniform, 1 is close to natural
language.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from generators.counter_rng import blocks, counters, draw_uniform, stream_key
from generators.curve import Curve
from generators.pacing import SendSchedule

# Nine letters and a space: ten words are 99 bytes, the usual size in Kafka benchmarks.
WORD_LENGTH = 9
_SPREAD = np.int64(611_953_012_337)
# 97.5 % quantile of the normal distribution.
_NORMAL_975 = 1.959963984540054
_LETTERS = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz", dtype=np.uint8)


def words_of(ranks: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Return the words of ranks 0 … 10^7 − 1 as letters; shape (…, 9). Distinct ranks give distinct words."""
    # A multiplier coprime to 26^9 permutes the words, so that neighbours start differently; the product stays below
    # 2^63 for the 10^7 allowed ranks.
    rest = (ranks * _SPREAD + _SPREAD) % np.int64(26**WORD_LENGTH)
    letters = np.empty((*ranks.shape, WORD_LENGTH), dtype=np.uint8)
    for place in range(WORD_LENGTH - 1, -1, -1):
        rest, digit = np.divmod(rest, 26)
        letters[..., place] = _LETTERS[digit]
    return letters


class ZipfLines:
    """A source whose record k has `words_per_line` independent draws, equal for equal seeds."""

    def __init__(
        self,
        exponent: float,
        size: int,
        words_per_line: int,
        seed: int,
        repetition: int,
        moving: MovingExponent | None = None,
    ) -> None:
        """Set `exponent` ≥ 0 and `size` ≥ 1 distinct words; `moving` replaces `exponent`."""
        self._fixed = InverseCdf(cumulative(exponent, size if moving is None else 1))
        self._moving, self._tables = moving, RankTables(size)
        self._words = words_of(np.arange(size, dtype=np.int64))
        self._per_line = words_per_line
        self._key = stream_key("zipf", seed, repetition)

    def ranks(self, records: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return the ranks (from 0) of the words of the given records; shape (n, words_per_line)."""
        return self._ranks(records, None if self._moving is None else self._moving.hundredths(records))

    def _ranks(self, records: NDArray[np.uint64], hundredths: NDArray[np.int64] | None) -> NDArray[np.int64]:
        draws = draw_uniform(self._key, counters(records, self._per_line))
        if hundredths is not None:
            return self._tables.ranks(draws, hundredths)
        return self._fixed.ranks(draws)

    def payloads(self, records: NDArray[np.uint64]) -> list[bytes]:
        """Return the lines of the given records (numbers in the schedule, shape (n,))."""
        return self._lines(self.ranks(records))

    def preload(self, n: int) -> Iterator[bytes]:
        """Yield the lines of the first n records, with the exponent at T0."""
        for records in blocks(n):
            hundredths = None if self._moving is None else self._moving.at_start(len(records))
            yield from self._lines(self._ranks(records, hundredths))

    def _lines(self, ranks: NDArray[np.int64]) -> list[bytes]:
        lines = np.full((len(ranks), self._per_line, WORD_LENGTH + 1), ord(" "), dtype=np.uint8)
        lines[:, :, :WORD_LENGTH] = self._words[ranks]
        width = self._per_line * (WORD_LENGTH + 1)
        block = lines.tobytes()
        return [block[start : start + width - 1] for start in range(0, len(block), width)]


class ExponentEstimate(NamedTuple):
    """An estimated exponent with its confidence interval."""

    estimate: float
    low: float
    high: float


def estimate_exponent(counts: Sequence[int] | NDArray[np.int64]) -> ExponentEstimate:
    """Return the maximum likelihood estimate of Zipf's exponent, with a 95 % interval (Fisher information).

    `counts`: draws by rank, from rank 1, with zeros for words that were not drawn; shape (n,), where n is the size of
    the vocabulary. Rank is the rank in the distribution, not in these counts: sorted counts look steeper. The estimate
    may be negative, since an interval around 0 needs both sides.

    Raises ValueError if there is no maximum: fewer than two ranks, no draw, or all draws of the first or last rank.
    """
    from scipy.optimize import brentq  # slow import that generators do not need

    numbers = np.asarray(counts, dtype=np.float64)
    if numbers.ndim != 1 or len(numbers) < 2 or (numbers < 0).any() or numbers.sum() == 0:
        raise ValueError("counts: expected one count per rank, for at least two ranks")
    if numbers[0] == numbers.sum() or numbers[-1] == numbers.sum():
        raise ValueError("counts: got draws of the first or last rank only; expected more ranks")
    logs = np.log(np.arange(1, len(numbers) + 1, dtype=np.float64))
    total = float(numbers.sum())
    mean = float(numbers @ logs) / total

    def moments(exponent: float) -> tuple[float, float]:
        # Shift by the maximum to avoid an overflow.
        powers = -exponent * logs
        weights = np.exp(powers - powers.max())
        weights /= weights.sum()
        expected = float(weights @ logs)
        return expected, float(weights @ (logs - expected) ** 2)

    low, high = -1.0, 2.0
    while moments(low)[0] < mean:
        low *= 2
    while moments(high)[0] > mean:
        high *= 2
    estimate = float(brentq(lambda exponent: moments(exponent)[0] - mean, low, high, xtol=1e-9))
    # Fisher information of one draw is the variance of its log rank.
    half_width = _NORMAL_975 / (total * moments(estimate)[1]) ** 0.5
    return ExponentEstimate(estimate, estimate - half_width, estimate + half_width)


# Inverse of a cumulative distribution by a guide table, without a search.


# Steps to the next rank before a binary search.
STEPS = 3
# The guide has more entries than the table, so most draws start at their rank, but still fits into the cache.
LARGEST_GUIDE = 1 << 16


class InverseCdf:
    """Ranks of uniform draws, equal to `table.searchsorted(draws, side="right")` but several times faster.

    Chen and Asau, "On generating random variates from an empirical distribution" (1974): a guide stores the first rank
    of each equal part of [0, 1).
    """

    def __init__(self, table: NDArray[np.float64]) -> None:
        """Build the guide for `table`: P(rank ≤ i) for i = 0, 1, …, ascending."""
        # Ends a step behind the last rank.
        self._bounds = np.append(table, np.inf)
        # A power of two makes a draw's part exact.
        self._parts = min(LARGEST_GUIDE, 1 << (4 * len(table) - 1).bit_length())
        self._guide = table.searchsorted(np.arange(self._parts) / self._parts, side="right")

    def ranks(self, draws: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return for each draw in [0, 1) the number of table entries ≤ it; same shape as `draws`."""
        flat = draws.ravel()
        ranks: NDArray[np.int64] = self._guide[(flat * self._parts).astype(np.int64)]
        behind = np.flatnonzero(self._bounds[ranks] <= flat)
        for _ in range(STEPS):
            if not len(behind):
                break
            ranks[behind] += 1
            behind = behind[self._bounds[ranks[behind]] <= flat[behind]]
        ranks[behind] = self._bounds.searchsorted(flat[behind], side="right")
        return ranks.reshape(draws.shape)


# Ranks from Zipf's law by its exact inverse distribution, with a constant or varying exponent.
#
# Rank r (1 … n) has probability r^-s / sum over i of i^-s. A constant exponent has one table of n entries. A varying
# one is rounded to hundredths, each with a table of TABLE_RANKS entries to bound its cost. Beyond, the sum is the
# midpoint formula of Euler and Maclaurin, exact to float64 there, and is inverted.


# Half a megabyte of float64, filled in 1 to 2 ms: a new exponent does not delay a burst.
TABLE_RANKS = 65_536
TABLES_KEPT = 64
HUNDREDTHS = 100


def cumulative(exponent: float, size: int) -> NDArray[np.float64]:
    """Return P(rank ≤ i + 1) for i = 0 … size − 1; the last entry is exactly 1."""
    # Sum small terms first to minimise the rounding error.
    weights = np.arange(1, size + 1, dtype=np.float64) ** -exponent
    tail = np.cumsum(weights[::-1])[::-1]
    table = np.empty(size)
    table[:-1] = 1.0 - tail[1:] / tail[0]
    table[-1] = 1.0
    return table


@dataclass(frozen=True)
class MovingExponent:
    """Exponent of each record: the curve's value at its due time."""

    curve: Curve
    schedule: SendSchedule

    def hundredths(self, records: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return the exponents of the given schedule records (shape (n,)), in hundredths."""
        return np.rint(self.curve.values(self.schedule.due_of(records)) * HUNDREDTHS).astype(np.int64)

    def at_start(self, n: int) -> NDArray[np.int64]:
        """Return the exponent at T0 in hundredths for n preload records; shape (n,)."""
        return np.full(n, round(self.curve.value(0) * HUNDREDTHS), dtype=np.int64)


class RankTable:
    """Distribution of one exponent over ranks 0 … size − 1, in memory of at most TABLE_RANKS entries."""

    def __init__(self, exponent: float, size: int) -> None:
        """Build the table for `exponent` ≥ 0 and `size` ≥ 1."""
        self._exponent, self._size = exponent, size
        self._long = size > TABLE_RANKS
        if not self._long:
            self._table = cumulative(exponent, size)
            return
        weights = np.arange(1, TABLE_RANKS + 1, dtype=np.float64) ** -exponent
        sums = np.cumsum(weights[::-1])[::-1]
        tail = self._tail(np.array([float(TABLE_RANKS)]))[0]
        self._total = sums[0] + tail
        self._table = np.empty(TABLE_RANKS)
        self._table[:-1] = 1.0 - (sums[1:] + tail) / self._total
        self._table[-1] = 1.0 - tail / self._total

    def ranks(self, draws: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the rank, from 0, of each uniform draw in [0, 1): the number of ranks with a cumulative share ≤ it."""
        ranks: NDArray[np.int64] = self._table.searchsorted(draws, side="right")
        if self._long:
            behind = ranks == TABLE_RANKS
            if behind.any():
                ranks[behind] = self._far(draws[behind])
        return ranks

    def _far(self, draws: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return ranks beyond the table: invert the tail's leading term, then correct by steps."""
        left = (1.0 - draws) * self._total
        guess = self._begin_of(left) - 0.5
        count = np.clip(np.floor(guess), TABLE_RANKS, self._size - 1)  # ranks with a cumulative share ≤ the draw
        while True:
            # `count` is right if the sum of the ranks after it is at least `left`, and that after `count` + 1 is not.
            too_far = (self._tail(count) < left) & (count > TABLE_RANKS)
            too_near = (self._tail(count + 1) >= left) & (count < self._size - 1)
            if not (too_far | too_near).any():
                return count.astype(np.int64)
            count += np.where(too_far, -1.0, np.where(too_near, 1.0, 0.0))

    def _tail(self, after: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the sum of i^-s over after < i ≤ size: the integral and one correction; relative error < 10⁻¹⁶."""
        begin, end, power = after + 0.5, self._size + 0.5, 1.0 - self._exponent
        span = np.log(end / begin)
        # Computed as a product, since the difference of two antiderivatives loses the digits of a small tail.
        integral = span if power == 0 else begin**power * np.expm1(power * span) / power
        slopes = self._exponent * (begin ** (power - 2) - end ** (power - 2))
        result: NDArray[np.float64] = integral - slopes / 24
        return result

    def _begin_of(self, area: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the start of the integral up to size + ½ that equals `area`."""
        end, power = self._size + 0.5, 1.0 - self._exponent
        logs = -area if power == 0 else np.log1p(-power * area * end**-power) / power
        result: NDArray[np.float64] = end * np.exp(logs)
        return result


class RankTables:
    """Rank tables for varying exponents, with a cache of the last used ones."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._kept: OrderedDict[int, RankTable] = OrderedDict()

    def table(self, hundredths: int) -> RankTable:
        """Return the distribution of one exponent, given in hundredths."""
        table = self._kept.pop(hundredths, None) or RankTable(hundredths / HUNDREDTHS, self._size)
        self._kept[hundredths] = table
        if len(self._kept) > TABLES_KEPT:
            self._kept.popitem(last=False)
        return table

    def ranks(self, draws: NDArray[np.float64], hundredths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return ranks, from 0, of each record's draws (shape (n,) or (n, each)) at its exponent (shape (n,))."""
        ranks = np.empty(draws.shape, dtype=np.int64)
        for exponent in np.unique(hundredths).tolist():
            has_exponent = hundredths == exponent
            ranks[has_exponent] = self.table(exponent).ranks(draws[has_exponent])
        return ranks
