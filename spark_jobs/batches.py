"""Which state lineage and batch took each input record: the first batch whose end offset exceeds the record's; and what
lies beyond all that was committed."""

from __future__ import annotations

import json
from collections.abc import Mapping
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


def reached_of(batches: list[dict[str, Any]], reached: Mapping[str, int]) -> dict[str, int]:
    """By partition: up to which offset the input was committed, or passed over by a lineage that began behind it.

    `reached`: what the query says that it committed at the end; empty where it does not.
    """
    ends = [item[name] or {} for item in batches for name in ("end_offsets", "start_offsets") if item.get(name)]
    if reached:
        ends = [reached, *(item["start_offsets"] for item in batches if item.get("start_offsets"))]
    furthest: dict[str, int] = {}
    for one in ends:
        furthest |= {partition: max(end, furthest.get(partition, 0)) for partition, end in one.items()}
    return furthest


def is_undrained(reached: Mapping[str, int]) -> Column:
    """Whether an input record lies beyond what was committed: then it was not processed, and is no loss."""
    ends = F.from_json(F.lit(json.dumps(reached)), "map<string, bigint>")
    return F.col("offset") >= F.coalesce(F.try_element_at(ends, F.col("partition").cast("string")), F.lit(0))


def with_batches(
    records: DataFrame, batches: list[dict[str, Any]], reached: Mapping[str, int] | None = None
) -> DataFrame:
    """Adds lineage and batch: the first batch whose end offset on the partition exceeds the offset; and `undrained`,
    as `is_undrained` says. `reached`: as in batches.json.

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
    known = records.join(F.broadcast(pieces), inside, "left").drop("taken", "low", "high", "last", "bucket")
    return known.withColumn("undrained", is_undrained(reached_of(batches, reached or {})))
