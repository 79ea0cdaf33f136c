"""Hand-written inputs and outputs, and their harvest."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from tests.support.spark_session import PROGRAMS as PROGRAMS

from harvest import harvest  # isort: skip  # needs the path of the Spark programs

OPEN = datetime(2013, 3, 1, 14, 30, tzinfo=UTC)
OPEN_MS = round(OPEN.timestamp() * 1000)
T0_MS = 1_700_000_000_000
TIMES = {"window_s": 10, "slide_s": 5, "watermark_s": 5, "late_ms": 3_600_000}
# First record that the generator sends to each partition.
OPENER = "__faultline_primer__"
INPUTS = (
    "value string, timestamp_ms bigint, primer boolean, lineage int, batch int, partition int, offset bigint, "
    "undrained boolean"
)
OUTPUTS = "key string, value string, emitted_ms bigint, lineage int, offset bigint"
SUM_COLUMNS = ("expected_high", "expected_low", "final_high", "final_low")
Tuple = tuple[int | None, int | None, int, int | None, bool, int]


class Planted:
    """Hand-written inputs and outputs. Times are milliseconds after T0."""

    def __init__(self) -> None:
        self.inputs: list[tuple[Any, ...]] = []
        self.outputs: list[tuple[Any, ...]] = []

    def take(
        self,
        value: str,
        at: int,
        batch: int | None,
        *,
        lineage: int | None = 0,
        primer: bool = False,
        undrained: bool = False,
    ) -> None:
        """Add an input record; `batch` is None if no batch processed it."""
        lineage = None if batch is None else lineage
        self.inputs.append((value, T0_MS + at, primer, lineage, batch, 0, len(self.inputs), undrained))

    def emit(self, key: str, value: str, at: int, *, lineage: int = 0) -> None:
        """Add an output record."""
        self.outputs.append((key, value, T0_MS + at, lineage, len(self.outputs)))

    def harvest(self, spark: SparkSession, kind: str) -> Harvested:
        tables = harvest(
            spark.createDataFrame(self.inputs, INPUTS),
            spark.createDataFrame(self.outputs, OUTPUTS),
            {"tuples": kind, **TIMES},
        )
        return Harvested(tables)


class Harvested:
    """The harvested tables as Python values: tuples, counts by key, and offsets of late records.

    `sums`: whether the checksums of a key match, for keys that have them.
    """

    def __init__(self, tables: dict[str, DataFrame]) -> None:
        self.tables = tables
        assert tables["records"].columns == [
            *("timestamp_ms", "primer", "lineage", "batch", "partition", "offset", "late"),
        ]
        self.late = [row["offset"] for row in tables["records"].where("late").collect()]
        assert tables["tuples"].columns == ["lineage", "batch", "produced_ms", "emitted_ms", "primer", "n"]
        self.tuples: list[Tuple] = sorted(
            (
                (row[0], row[1], row[2] - T0_MS, None if row[3] is None else row[3] - T0_MS, row[4], row[5])
                for row in tables["tuples"].collect()
            ),
            key=str,
        )
        names = ["expected", "final", "outputs", "reemitted", "unreadable"]
        rows = tables["counts"].collect()
        self.sums = {
            row["key"]: (row["expected_high"], row["expected_low"]) == (row["final_high"], row["final_low"])
            for row in rows
            if set(SUM_COLUMNS) <= set(tables["counts"].columns)
        }
        assert set(tables["counts"].columns) - {"drawn", *SUM_COLUMNS} == {"key", "undrained", *names}
        self.undrained = {row["key"]: row["undrained"] for row in rows if row["undrained"]}
        self.counts = {row["key"]: tuple(row[name] for name in names) for row in rows}
        self.drawn = {row["key"]: row["drawn"] for row in rows} if "drawn" in tables["counts"].columns else None


def leibniz(terms: int) -> float:
    """Return the exact sum of the first terms of the Leibniz series."""
    return math.fsum((4.0 if k % 2 == 0 else -4.0) / (2 * k + 1) for k in range(terms))
