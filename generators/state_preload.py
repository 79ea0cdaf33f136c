"""Filler words: the keyed state that an experiment preloads and then touches.

`state_mb` of state is ceil(state_mb·10⁶ / 1024) words of 1,000 incompressible characters (letters
and digits from the seed; with its count and both sums of hashes a word takes 1,024 bytes).
Each word is a function of its index, so none is kept.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from generators.counter_rng import counters, draw_bits, draw_uniform, stream_key

WORD_CHARACTERS = 1000
ROW_BYTES = 1024
_ALPHABET = np.frombuffer(b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz", dtype=np.uint8)
_DRAWS = WORD_CHARACTERS // 4  # four characters from each 64 random bits


def state_key_count(state_mb: float) -> int:
    """Words that make up `state_mb` megabytes (10⁶ bytes) of logical state."""
    return -(-(Fraction(str(state_mb)) * 1_000_000 / ROW_BYTES) // 1)


class StateKeys:
    """The filler words of one configuration, and which records carry one."""

    def __init__(self, state_mb: float, touch: float, seed: int, repetition: int) -> None:
        """`touch`: the share of records, in [0, 1], to which one filler word is appended."""
        self.count = state_key_count(state_mb)
        self._touch = touch if self.count else 0.0
        self._word_key = stream_key("filler", seed, repetition)
        self._touch_key = stream_key("touch", seed, repetition)
        self._choice_key = stream_key("touched filler", seed, repetition)

    def words(self, indices: NDArray[np.uint64]) -> list[bytes]:
        """The filler words of the given indices (0 … count − 1, shape (n,)), 1,000 bytes each."""
        bits = (
            np.ascontiguousarray(draw_bits(self._word_key, counters(indices, _DRAWS))).view(np.uint16).astype(np.uint32)
        )
        block = _ALPHABET[(bits * np.uint32(len(_ALPHABET))) >> np.uint32(16)].tobytes()
        return [block[start : start + WORD_CHARACTERS] for start in range(0, len(block), WORD_CHARACTERS)]

    def touched(self, records: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Whether each record carries a filler word; shape (n,).

        By a hash of the record's number, not every m-th: a period would beat with the partitions.
        """
        return draw_uniform(self._touch_key, records) < self._touch

    def choices(self, records: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """The filler index that each record carries if it is touched, uniform over all; shape (n,)."""
        return (draw_uniform(self._choice_key, records) * self.count).astype(np.uint64)

    def append_to(self, payloads: list[bytes], records: NDArray[np.uint64]) -> None:
        """Appends a space and a filler word to the payloads of the touched records, in place."""
        if not self._touch:
            return
        places = np.nonzero(self.touched(records))[0]
        words = self.words(self.choices(records[places]))
        for place, word in zip(places.tolist(), words, strict=True):
            payloads[place] += b" " + word
