"""Kafka's own hash of keys (MurmurHash2 as its Java clients have it), so that keyed records lie where they would."""

from __future__ import annotations

_SEED, _M, _R = 0x9747B28C, 0x5BD1E995, 24
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """The hash of some bytes, 0 … 2³² − 1."""
    h = _SEED ^ len(data)
    whole = len(data) // 4 * 4
    for i in range(0, whole, 4):
        k = int.from_bytes(data[i : i + 4], "little") * _M & _MASK
        k = (k ^ k >> _R) * _M & _MASK
        h = (h * _M & _MASK) ^ k
    if rest := data[whole:]:
        h = (h ^ int.from_bytes(rest, "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    return h ^ h >> 15


def partition_of(key: bytes, partitions: int) -> int:
    """The partition that Kafka's default partitioner gives a key."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions
