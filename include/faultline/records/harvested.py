"""What all attempts have harvested, by its size: how much there is to aggregate."""

from __future__ import annotations

from pathlib import Path

# Above it, an aggregate gains more from Spark's optimisations than they cost, and takes longer than one may that the
# Spark that stays does.
LARGE_BYTES = 100_000_000


def is_large(attempts: Path) -> bool:
    """Whether aggregating the tuples of these attempts is no short job."""
    return tuples_bytes(attempts) > LARGE_BYTES


def tuples_bytes(attempts: Path) -> int:
    """Size of all harvested tuples, which is what aggregating them takes."""
    return sum(file.stat().st_size for file in attempts.glob("*/harvest/tuples.parquet"))
