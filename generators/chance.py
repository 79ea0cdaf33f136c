"""Randomness with random access: the draw of record k is a pure function of (key, k).

A generator that splits its schedule over processes, or prepares its data in chunks of any size,
must still send the same records. So draws come from a counter hashed with the finaliser of
SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014), not from a
sequential generator whose state depends on what was drawn before.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def stream_key(purpose: str, *numbers: int) -> int:
    """A 64-bit key for one purpose, for example `stream_key("zipf", seed, repetition)`."""
    text = ":".join([purpose, *map(str, numbers)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def blocks(n: int, size: int = 4096) -> Iterator[NDArray[np.uint64]]:
    """The record numbers 0 … n − 1 in blocks, so that what is made of them needs little memory."""
    for first in range(0, n, size):
        yield np.arange(first, min(n, first + size), dtype=np.uint64)


def counters(records: NDArray[np.uint64], each: int) -> NDArray[np.uint64]:
    """The counters of `each` draws for every record, which no other record uses; shape (n, each)."""
    first = records[:, None] * np.uint64(each)
    return (first + np.arange(each, dtype=np.uint64)).astype(np.uint64, copy=False)


def draw_bits(key: int, counters: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """64 random bits for each counter; same shape as `counters`."""
    # The key is hashed into the start of the sequence, so that near keys share no draws.
    z = counters * _GAMMA + np.uint64(key)
    z = (z ^ (z >> np.uint64(30))) * _MIX_1
    z = (z ^ (z >> np.uint64(27))) * _MIX_2
    return z ^ (z >> np.uint64(31))


def draw_uniform(key: int, counters: NDArray[np.uint64]) -> NDArray[np.float64]:
    """A float64 in [0, 1) with 53 random bits for each counter; same shape as `counters`."""
    return (draw_bits(key, counters) >> np.uint64(11)).astype(np.float64) * 2.0**-53
