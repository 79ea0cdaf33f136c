"""Lines of a synthetic vocabulary whose word frequencies follow Zipf's law, and the exponent seen from such counts.

The word of rank r (1 … n) has probability r^-s / sum over i of i^-s: exponent s = 0 is uniform, 1 is near to
natural language.
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

# Nine letters and a space: a line of ten words has 99 bytes, the size that Kafka benchmarks use.
WORD_LENGTH = 9
_SPREAD = np.int64(611_953_012_337)
# Two-sided 95 % of a normal distribution.
_NORMAL_975 = 1.959963984540054
_LETTERS = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz", dtype=np.uint8)


def words_of(ranks: NDArray[np.int64]) -> NDArray[np.uint8]:
    """The words of ranks 0 … 10^7 − 1 as letters; shape (…, 9). Distinct ranks give distinct words."""
    # A multiplier coprime to 26^9 permutes the words, so that neighbours do not all begin alike; the
    # product stays below 2^63 for the 10^7 ranks that a specification allows.
    rest = (ranks * _SPREAD + _SPREAD) % np.int64(26**WORD_LENGTH)
    letters = np.empty((*ranks.shape, WORD_LENGTH), dtype=np.uint8)
    for place in range(WORD_LENGTH - 1, -1, -1):
        rest, digit = np.divmod(rest, 26)
        letters[..., place] = _LETTERS[digit]
    return letters


class ZipfLines:
    """A source whose record k holds `words_per_line` independent draws, the same for equal seeds."""

    def __init__(
        self,
        exponent: float,
        size: int,
        words_per_line: int,
        seed: int,
        repetition: int,
        moving: MovingExponent | None = None,
    ) -> None:
        """`exponent` ≥ 0, `size` ≥ 1 distinct words; `moving` takes the place of `exponent`."""
        self._fixed = InverseCdf(cumulative(exponent, size if moving is None else 1))
        self._moving, self._tables = moving, RankTables(size)
        self._words = words_of(np.arange(size, dtype=np.int64))
        self._per_line = words_per_line
        self._key = stream_key("zipf", seed, repetition)

    def ranks(self, records: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Ranks (from 0) of the words of the given records; shape (n, words_per_line)."""
        return self._ranks(records, None if self._moving is None else self._moving.hundredths(records))

    def _ranks(self, records: NDArray[np.uint64], hundredths: NDArray[np.int64] | None) -> NDArray[np.int64]:
        draws = draw_uniform(self._key, counters(records, self._per_line))
        if hundredths is not None:
            return self._tables.ranks(draws, hundredths)
        return self._fixed.ranks(draws)

    def payloads(self, records: NDArray[np.uint64]) -> list[bytes]:
        """The lines of the given records (numbers in the schedule, shape (n,))."""
        return self._lines(self.ranks(records))

    def primer(self, n: int) -> Iterator[bytes]:
        """The lines of the first n records, at the exponent of T0."""
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
    """An estimated exponent with its interval."""

    estimate: float
    low: float
    high: float


def estimate_exponent(counts: Sequence[int] | NDArray[np.int64]) -> ExponentEstimate:
    """The exponent of Zipf's law by maximum likelihood, with its 95 % interval from the Fisher information.

    `counts`: draws by rank, the first that of rank 1, with a zero for each word of the vocabulary that was not drawn;
    shape (n,), where n is the size of the vocabulary. Rank is the place in the law, not in the order of these counts:
    counts sorted by size look steeper than their law. The estimate is not held above 0, since an interval around an
    exponent of 0 must reach to both sides of it.

    Raises ValueError when the counts hold no maximum: fewer than two ranks, no draw, or all of the first or last rank.
    """
    from scipy.optimize import brentq  # half a second to import, and a generator never estimates

    numbers = np.asarray(counts, dtype=np.float64)
    if numbers.ndim != 1 or len(numbers) < 2 or (numbers < 0).any() or numbers.sum() == 0:
        raise ValueError("counts: an exponent needs the draws of at least two ranks; give one count for each rank")
    if numbers[0] == numbers.sum() or numbers[-1] == numbers.sum():
        raise ValueError("counts: all draws are of one end of the ranks, and no exponent is the likeliest; draw more")
    logs = np.log(np.arange(1, len(numbers) + 1, dtype=np.float64))
    total = float(numbers.sum())
    mean = float(numbers @ logs) / total

    def moments(exponent: float) -> tuple[float, float]:
        # Shifted by the largest, so that no power overflows.
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
    # The information of one draw is the variance of its log rank.
    half = _NORMAL_975 / (total * moments(estimate)[1]) ** 0.5
    return ExponentEstimate(estimate, estimate - half, estimate + half)


# Inverting a cumulative distribution by a guide: where in the table a draw's rank is, without searching for it.


# A step looks at the next rank of all draws that are not there yet; a draw that takes more of them is searched for.
STEPS = 3
# The guide has some more entries than the table, so that most draws begin at their rank, but stays in the cache.
LARGEST_GUIDE = 1 << 16


class InverseCdf:
    """The ranks of uniform draws, as `table.searchsorted(draws, side="right")` gives them, several times faster.

    Chen and Asau, "On generating random variates from an empirical distribution" (1974): a guide knows the first rank
    of each of its equal parts of [0, 1).
    """

    def __init__(self, table: NDArray[np.float64]) -> None:
        """`table`: P(rank ≤ i) for i = 0, 1, …, ascending."""
        # So that a step behind the last rank ends, too.
        self._bounds = np.append(table, np.inf)
        # A power of two: a draw's part is then exact.
        self._parts = min(LARGEST_GUIDE, 1 << (4 * len(table) - 1).bit_length())
        self._guide = table.searchsorted(np.arange(self._parts) / self._parts, side="right")

    def ranks(self, draws: NDArray[np.float64]) -> NDArray[np.int64]:
        """For each draw in [0, 1) how many entries of the table are ≤ it; same shape as `draws`."""
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


# Ranks drawn from Zipf's law, by the inverse of its exact cumulative distribution, with an exponent that may move.
#
# The rank r (1 … n) has probability r^-s / sum over i of i^-s. A fixed exponent has one table of n entries. Where the
# exponent moves it is taken in hundredths, and each has a table of its own; so that a table costs the same whatever
# n, it ends at HEAD ranks. Behind them the sum is the midpoint formula of Euler and Maclaurin, which from there on is
# as exact as a float64 holds the sum, and is inverted.


# Half a megabyte of float64, which takes a millisecond or two to fill: no burst waits longer for a new exponent.
TABLE_RANKS = 65_536
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
    schedule: SendSchedule

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
        """The ranks, from 0, of uniform draws in [0, 1): the number of ranks whose cumulative share is ≤ the draw."""
        ranks: NDArray[np.int64] = self._table.searchsorted(draws, side="right")
        if self._long:
            behind = ranks == TABLE_RANKS
            if behind.any():
                ranks[behind] = self._far(draws[behind])
        return ranks

    def _far(self, draws: NDArray[np.float64]) -> NDArray[np.int64]:
        """Ranks beyond the table: the inverse of the tail's leading term, then steps to where the full formula is."""
        left = (1.0 - draws) * self._total
        guess = self._begin_of(left) - 0.5
        count = np.clip(np.floor(guess), TABLE_RANKS, self._size - 1)  # ranks whose cumulative share is ≤ the draw
        while True:
            # Ranks 1 … count are passed as long as what lies behind them is still at least what is left.
            too_far = (self._tail(count) < left) & (count > TABLE_RANKS)
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
