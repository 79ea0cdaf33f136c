"""Which state lineage and batch took each input record: the first batch whose end offset exceeds the record's."""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F


def ranges_of(batches: list[dict[str, Any]]) -> list[tuple[int, int, int, int, int]]:
    """(lineage, batch, partition, low, high): the offsets [low, high) that each committed batch took.

    A lineage begins where its first batch says it started, on every partition, whatever that batch took.
    """
    rows: list[tuple[int, int, int, int, int]] = []
    reached: dict[tuple[int, str], int] = {}
    for item in sorted(batches, key=lambda item: (item["lineage"], item["batch"])):
        lineage = item["lineage"]
        for partition, start in (item.get("start_offsets") or {}).items():
            reached[lineage, partition] = start
        for partition, end in item["end_offsets"].items():
            low = reached.get((lineage, partition), 0)
            if end > low:
                rows.append((lineage, item["batch"], int(partition), low, end))
                reached[lineage, partition] = end
    return rows


def bucket_width(ranges: list[tuple[int, int, int, int, int]]) -> int:
    """Offsets in a bucket: the mean length of a range, so that there are at most twice as many pieces as ranges."""
    return max(1, -(-sum(high - low for *_, low, high in ranges) // max(1, len(ranges))))


def with_batches(records: DataFrame, batches: list[dict[str, Any]]) -> DataFrame:
    """Adds lineage and batch: the first batch whose end offset on the partition exceeds the offset.

    Records that were never committed keep nulls. Each range is cut at the borders of buckets of offsets, and a record
    meets only the ranges of its bucket: to compare it with all of its partition would take time that grows with the
    square of a run's length.
    """
    ranges = ranges_of(batches)
    width = bucket_width(ranges)

    def bucket(offset: str) -> Column:
        return F.floor(F.col(offset) / F.lit(width))

    # As JSON text rather than as Python rows, which would cost the start of a Python worker.
    names = ("lineage", "batch", "taken", "low", "high")
    text = json.dumps([dict(zip(names, row, strict=True)) for row in ranges])
    schema = "array<struct<lineage: int, batch: int, taken: int, low: bigint, high: bigint>>"
    whole = records.sparkSession.range(1).select(F.inline(F.from_json(F.lit(text), schema)))
    pieces = whole.withColumn("last", F.col("high") - 1).withColumn(
        "bucket", F.explode(F.sequence(bucket("low"), bucket("last")))
    )
    inside = (
        (F.col("partition") == F.col("taken"))
        & (bucket("offset") == F.col("bucket"))
        & (F.col("offset") >= F.col("low"))
        & (F.col("offset") < F.col("high"))
    )
    # The ranges are few beside the records, so they are broadcast.
    return records.join(F.broadcast(pieces), inside, "left").drop("taken", "low", "high", "last", "bucket")
