"""Which state lineage and batch took each input record: the first batch whose end offset exceeds the record's."""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql import DataFrame, SparkSession
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


def batch_ranges(spark: SparkSession, batches: list[dict[str, Any]]) -> DataFrame:
    """The rows of `ranges_of` as a table."""
    rows = ranges_of(batches)
    # As JSON text rather than as Python rows, which would cost the start of a Python worker.
    names = ("lineage", "batch", "partition", "low", "high")
    text = json.dumps([dict(zip(names, row, strict=True)) for row in rows])
    schema = "array<struct<lineage: int, batch: int, partition: int, low: bigint, high: bigint>>"
    return spark.range(1).select(F.inline(F.from_json(F.lit(text), schema)))


def with_batches(records: DataFrame, ranges: DataFrame) -> DataFrame:
    """Adds lineage and batch: the first batch whose end offset on the partition exceeds the offset.

    Records that were never committed keep nulls. The ranges are small, so they are broadcast.
    """
    taken = F.broadcast(ranges)
    inside = (
        (records["partition"] == taken["partition"])
        & (records["offset"] >= taken["low"])
        & (records["offset"] < taken["high"])
    )
    return records.join(taken, inside, "left").drop(taken["partition"]).drop("low", "high")
