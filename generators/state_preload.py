"""State keys: filler words that an experiment preloads as state and then updates.

`state_mb` of state is ceil(state_mb·10⁶ / 1024) words of 1,000 incompressible characters (letters and digits from the
seed; with its count and both sums of hashes a word takes 1,024 bytes). Each word is a function of its index, so none is
stored.
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
    """Return the number of words for `state_mb` megabytes (10⁶ bytes) of logical state."""
    return -(-(Fraction(str(state_mb)) * 1_000_000 / ROW_BYTES) // 1)


class StateKeys:
    """State keys of one configuration, and the records that carry one."""

    def __init__(self, state_mb: float, touch: float, seed: int, repetition: int) -> None:
        """Set the keys; `touch` is the share of records, in [0, 1], that carry one."""
        self.count = state_key_count(state_mb)
        self._touch = touch if self.count else 0.0
        self._word_key = stream_key("filler", seed, repetition)
        self._touch_key = stream_key("touch", seed, repetition)
        self._choice_key = stream_key("touched filler", seed, repetition)

    def words(self, indices: NDArray[np.uint64]) -> list[bytes]:
        """Return the words of the given indices (0 … count − 1, shape (n,)), 1,000 bytes each."""
        bits = (
            np.ascontiguousarray(draw_bits(self._word_key, counters(indices, _DRAWS))).view(np.uint16).astype(np.uint32)
        )
        block = _ALPHABET[(bits * np.uint32(len(_ALPHABET))) >> np.uint32(16)].tobytes()
        return [block[start : start + WORD_CHARACTERS] for start in range(0, len(block), WORD_CHARACTERS)]

    def touched(self, records: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Return whether each record carries a state key; shape (n,).

        Chosen by a hash of the record number, since a fixed period would correlate with the partitions.
        """
        return draw_uniform(self._touch_key, records) < self._touch

    def choices(self, records: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Return the index of each record's state key, uniform over all; shape (n,)."""
        return (draw_uniform(self._choice_key, records) * self.count).astype(np.uint64)

    def append_to(self, payloads: list[bytes], records: NDArray[np.uint64]) -> None:
        """Append a space and a state key to the payloads of touched records, in place."""
        if not self._touch:
            return
        indices = np.nonzero(self.touched(records))[0]
        words = self.words(self.choices(records[indices]))
        for index, word in zip(indices.tolist(), words, strict=True):
            payloads[index] += b" " + word
