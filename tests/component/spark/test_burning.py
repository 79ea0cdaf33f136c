"""Work that is planted in a query: it is there, it burns what it is told to, and no result changes."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests.support.spark_session import PROGRAMS

from workload_runner import burning, bytes_hashed_a_us  # isort: skip  # a program's neighbour

pytestmark = pytest.mark.timeout(900)
assert PROGRAMS


def test_no_record_is_lost_and_no_optimiser_leaves_the_work_out(spark: SparkSession) -> None:
    records = spark.range(100).select(F.col("id").cast("string").cast("binary").alias("value"))
    records = records.union(spark.sql("SELECT CAST(NULL AS BINARY) AS value"))
    burnt = burning(records, 2.0, 100.0)
    assert sorted(map(str, burnt.collect())) == sorted(map(str, records.collect()))
    plan = burnt.groupBy().count()._jdf.queryExecution().executedPlan().toString()
    assert "sha2" in plan, "also where nobody asks for the value"


def test_how_fast_this_machine_hashes_is_measured_where_it_will_hash(spark: SparkSession) -> None:
    speed = bytes_hashed_a_us(spark)
    assert 10 < speed < 10_000
