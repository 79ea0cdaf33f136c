"""Spark's `xxhash64` in numpy: what a hash of columns comes to, a number after the other.

The hash of the first number is the seed of the second one's. A long and an int of one value differ.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]
SEED = 42
_P1, _P2, _P3, _P4, _P5 = (
    np.uint64(prime)
    for prime in (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)
)


def seeds(n: int) -> Words:
    """What the hashes of n rows begin with."""
    return np.full(n, SEED, dtype=np.uint64)


def hash_long(value: Words, seed: Words) -> Words:
    """The hashes of longs, as 64 unsigned bits; shapes (n,)."""
    h = seed + _P5 + np.uint64(8)
    h = h ^ (_rotated(value * _P2, 31) * _P1)
    return _finished(_rotated(h, 27) * _P1 + _P4)


def hash_int(value: Words, seed: Words) -> Words:
    """The hashes of ints, given as 32 unsigned bits; shapes (n,)."""
    h = seed + _P5 + np.uint64(4)
    h = h ^ (value * _P1)
    return _finished(_rotated(h, 23) * _P2 + _P3)


def _rotated(value: Words, by: int) -> Words:
    return (value << np.uint64(by)) | (value >> np.uint64(64 - by))


def _finished(h: Words) -> Words:
    h = (h ^ (h >> np.uint64(33))) * _P2
    h = (h ^ (h >> np.uint64(29))) * _P3
    return h ^ (h >> np.uint64(32))
