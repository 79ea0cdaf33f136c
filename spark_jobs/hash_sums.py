"""Sums of hashes, which tell what was counted where a count tells only how much: for queries and for the harvest.

Each tuple has a hash of 64 bits, of the place that it comes from. A key's sum of them, modulo 2^64, is another one when
one of its tuples was lost and another counted twice, though its count is the same. It is kept as two sums of half a
hash each, high and low, as signed numbers (a lower half below 0 makes the hash that both stand for 2^32 less, which is
as good a one). A sum of whole hashes overflows with the second one, which is an error in Spark; one of halves takes
2^32 tuples of a key to do so at the very worst, and halves of both signs do not add up so far.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

# The columns of a key's sum, in the order in which outputs carry them.
SUMS = ("high", "low")
HALF = 32


def tuple_hash(partition: Column | str, offset: Column | str, position: Column | str) -> Column:
    """The hash of the tuple at `position` (from 0) of the record at (partition, offset) of the input topic.

    Numbers of another width have another hash, so their types are made sure of.
    """
    places = ((partition, "int"), (offset, "bigint"), (position, "int"))
    return F.xxhash64(*((F.col(one) if isinstance(one, str) else one).cast(kind) for one, kind in places))


def halves(hashed: Column) -> list[Column]:
    """The columns SUMS of one hash: its upper and its lower half, each a signed number of 32 bits."""
    low = F.shiftright(F.shiftleft(hashed, HALF), HALF)
    return [F.shiftright(hashed, HALF).alias("high"), low.alias("low")]


def summed() -> list[Column]:
    """What adds up the columns SUMS of a group, under their names."""
    return [F.sum(name).alias(name) for name in SUMS]
