"""Random numbers with random access: the draw of record k is a pure function of (key, k).

A generator that splits its schedule over processes, or prepares chunks of any size, must send the same records. So
draws come from a hashed counter, not from a sequential generator. The hash is the finaliser of SplitMix64 (Steele, Lea,
Flood: "Fast splittable pseudorandom number generators", 2014).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_BLOCK = 4096


def stream_key(purpose: str, *numbers: int) -> int:
    """Return a 64-bit key for one purpose, for example `stream_key("zipf", seed, repetition)`."""
    text = ":".join([purpose, *map(str, numbers)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def blocks(n: int) -> Iterator[NDArray[np.uint64]]:
    """Yield the record numbers 0 … n − 1 in blocks, to bound memory."""
    for first in range(0, n, _BLOCK):
        yield np.arange(first, min(n, first + _BLOCK), dtype=np.uint64)


def counters(records: NDArray[np.uint64], each: int) -> NDArray[np.uint64]:
    """Return the counters of `each` draws for every record, unique over all records; shape (n, each)."""
    first = records[:, None] * np.uint64(each)
    return (first + np.arange(each, dtype=np.uint64)).astype(np.uint64, copy=False)


def draw_bits(key: int, counters: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return 64 random bits for each counter; same shape as `counters`."""
    # Hash the key into the start of the sequence, so that similar keys share no draws.
    z = counters * _GAMMA + np.uint64(key)
    z = (z ^ (z >> np.uint64(30))) * _MIX_1
    z = (z ^ (z >> np.uint64(27))) * _MIX_2
    return z ^ (z >> np.uint64(31))


def draw_uniform(key: int, counters: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Return a float64 in [0, 1) with 53 random bits for each counter; same shape as `counters`."""
    return (draw_bits(key, counters) >> np.uint64(11)).astype(np.float64) * 2.0**-53


# Spark's `xxhash64` of several columns.
#
# The hash of a column is the seed of the next one's. A long and an int of equal value differ.


Words = npt.NDArray[np.uint64]
SEED = 42
_P1, _P2, _P3, _P4, _P5 = (
    np.uint64(prime)
    for prime in (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)
)


def initial_hashes(n: int) -> Words:
    """Return the initial hash values of n rows."""
    return np.full(n, SEED, dtype=np.uint64)


def hash_long(value: Words, seed: Words) -> Words:
    """Return the hashes of longs as 64 unsigned bits; shapes (n,)."""
    h = seed + _P5 + np.uint64(8)
    h = h ^ (_rotate(value * _P2, 31) * _P1)
    return _avalanche(_rotate(h, 27) * _P1 + _P4)


def hash_int(value: Words, seed: Words) -> Words:
    """Return the hashes of ints, given as 32 unsigned bits; shapes (n,)."""
    h = seed + _P5 + np.uint64(4)
    h = h ^ (value * _P1)
    return _avalanche(_rotate(h, 23) * _P2 + _P3)


def _rotate(value: Words, by: int) -> Words:
    return (value << np.uint64(by)) | (value >> np.uint64(64 - by))


def _avalanche(h: Words) -> Words:
    h = (h ^ (h >> np.uint64(33))) * _P2
    h = (h ^ (h >> np.uint64(29))) * _P3
    return h ^ (h >> np.uint64(32))


# Kafka's hash of keys (MurmurHash2), so that keyed records go to the same partitions as with its Java client.


_SEED, _M, _R = 0x9747B28C, 0x5BD1E995, 24
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Return the hash of some bytes, 0 … 2³² − 1."""
    h = _SEED ^ len(data)
    tail_start = len(data) // 4 * 4
    for i in range(0, tail_start, 4):
        k = int.from_bytes(data[i : i + 4], "little") * _M & _MASK
        k = (k ^ k >> _R) * _M & _MASK
        h = (h * _M & _MASK) ^ k
    if tail := data[tail_start:]:
        h = (h ^ int.from_bytes(tail, "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    return h ^ h >> 15


def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition of a key in Kafka's default partitioner."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions
