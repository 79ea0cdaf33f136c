"""Planted work in a query: it takes the requested time and does not change results."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests.support.spark_session import PROGRAMS

from workload_runner import with_busy_work, sha512_bytes_per_us  # isort: skip  # a program's neighbour

pytestmark = pytest.mark.timeout(900)
assert PROGRAMS


def test_planted_work_keeps_all_records_and_is_not_optimised_away(spark: SparkSession) -> None:
    records = spark.range(100).select(F.col("id").cast("string").cast("binary").alias("value"))
    records = records.union(spark.sql("SELECT CAST(NULL AS BINARY) AS value"))
    burnt = with_busy_work(records, 2.0, 100.0)
    assert sorted(map(str, burnt.collect())) == sorted(map(str, records.collect()))
    plan = burnt.groupBy().count()._jdf.queryExecution().executedPlan().toString()
    assert "sha2" in plan, "also if the value is unused"


def test_the_hash_rate_is_measured_in_the_jvm(spark: SparkSession) -> None:
    speed = sha512_bytes_per_us(spark)
    assert 10 < speed < 10_000
