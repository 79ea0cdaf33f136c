"""Clicks joined with a static table, written into PostgreSQL by `foreachBatch`: a sink that is not Kafka.

    ./faultline job check examples/stream_static_join.py data=examples/clicks.jsonl data_key=user \
        arguments.database=postgresql://USER@127.0.0.1:5432/NAME

Its password lies in ~/.pgpass, where PostgreSQL's clients look for it: arguments stand in records and on pages.
A batch that is tried again after a fault writes its rows once more, so each row has the place of its record as a key,
and the second one changes nothing: exactly once, by an idempotent sink. The audit reads the table back.
"""

from __future__ import annotations

from contextlib import closing
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

JOB = {"output_mode": "append", "arguments": {"database": "postgresql://postgres@127.0.0.1:5432/postgres"}}
PRICES = "VALUES ('home', 0), ('search', 1), ('item', 3), ('basket', 5), ('pay', 9) AS prices(page, price)"


def query(records: DataFrame, config: dict[str, str]) -> DataFrame:
    """key: the click's place in the topic; value: its user and the price of its page."""
    click = F.from_json(F.col("value").cast("string"), "user STRING, at DOUBLE, page STRING").alias("click")
    place = F.concat_ws(":", "partition", "offset").alias("key")
    clicks = records.select(place, click).select("key", "click.*").where("page IS NOT NULL")
    joined = clicks.join(records.sparkSession.sql(f"SELECT * FROM {PRICES}"), "page")
    return joined.select("key", F.concat_ws(" ", "user", "price").alias("value"))


def sink(results: DataFrame, config: dict[str, str]) -> DataStreamWriter:
    """Each batch into a table of this run's own."""
    table = table_of(config)
    with closing(_connect(config)) as connection, connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE IF NOT EXISTS {table} (key text PRIMARY KEY, value text NOT NULL)")

    def write(batch: DataFrame, number: int) -> None:
        rows = [(row["key"], row["value"]) for row in batch.collect()]
        with closing(_connect(config)) as connection, connection, connection.cursor() as cursor:
            cursor.executemany(f"INSERT INTO {table} VALUES (%s, %s) ON CONFLICT DO NOTHING", rows)

    return results.writeStream.foreachBatch(write)


def outputs(spark: SparkSession, config: dict[str, str]) -> DataFrame:
    """What lies in the table, which stays: whoever measures much drops `clicks_*` now and then."""
    with closing(_connect(config)) as connection, connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT key, value FROM {table_of(config)}")
        rows = cursor.fetchall()
    return spark.createDataFrame(rows, "key STRING, value STRING")


def table_of(config: dict[str, str]) -> str:
    """A name that no other run has."""
    return "clicks_" + config["attempt"].lower().replace("-", "_")


def _connect(config: dict[str, str]) -> Any:
    import psycopg2

    return psycopg2.connect(config["database"])
