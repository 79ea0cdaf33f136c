"""Lines of a synthetic vocabulary whose word frequencies follow Zipf's law.

The word of rank r (1 … n) has probability r^-s / sum over i of i^-s: exponent s = 0 is uniform, 1 is near to
natural language. Draws invert the exact cumulative distribution, a float64 table of n entries.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from generators.chance import counters, draw_uniform, stream_key

# Nine letters and a space: a line of ten words has 99 bytes, the size that Kafka benchmarks use.
WORD_LENGTH = 9
_SPREAD = np.int64(611_953_012_337)
_LETTERS = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz", dtype=np.uint8)


def cumulative(exponent: float, size: int) -> NDArray[np.float64]:
    """P(rank ≤ i + 1) for i = 0 … size − 1; the last entry is exactly 1."""
    # Small terms first: summing from the tail keeps the rounding error of the total least.
    weights = np.arange(1, size + 1, dtype=np.float64) ** -exponent
    tail = np.cumsum(weights[::-1])[::-1]
    table = np.empty(size)
    table[:-1] = 1.0 - tail[1:] / tail[0]
    table[-1] = 1.0
    return table


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

    def __init__(self, exponent: float, size: int, words_per_line: int, seed: int, repetition: int) -> None:
        """`exponent` ≥ 0, `size` ≥ 1 distinct words."""
        self._table = cumulative(exponent, size)
        self._words = words_of(np.arange(size, dtype=np.int64))
        self._per_line = words_per_line
        self._key = stream_key("zipf", seed, repetition)

    def ranks(self, records: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Ranks (from 0) of the words of the given records; shape (n, words_per_line)."""
        draws = draw_uniform(self._key, counters(records, self._per_line))
        ranks: NDArray[np.int64] = self._table.searchsorted(draws, side="right")
        return ranks

    def payloads(self, records: NDArray[np.uint64]) -> list[bytes]:
        """The lines of the given records (numbers in the schedule, shape (n,))."""
        lines = np.full((len(records), self._per_line, WORD_LENGTH + 1), ord(" "), dtype=np.uint8)
        lines[:, :, :WORD_LENGTH] = self._words[self.ranks(records)]
        width = self._per_line * (WORD_LENGTH + 1)
        block = lines.tobytes()
        return [block[start : start + width - 1] for start in range(0, len(block), width)]
