"""Clicks joined with a static table, written to PostgreSQL by `foreachBatch`: a sink other than Kafka.

    ./faultline job check examples/stream_static_join.py data=examples/clicks.jsonl data_key=user \
        arguments.database=postgresql://USER@127.0.0.1:5432/NAME

Put the password into ~/.pgpass, since arguments appear in records and on pages. A batch that is retried after a fault
writes its rows again. Each row has its record's partition and offset as key, so the second write changes nothing:
exactly once through an idempotent sink. The audit reads the table back.
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
    """Return key (partition and offset of the click) and value (user and price of the page)."""
    click = F.from_json(F.col("value").cast("string"), "user STRING, at DOUBLE, page STRING").alias("click")
    place = F.concat_ws(":", "partition", "offset").alias("key")
    clicks = records.select(place, click).select("key", "click.*").where("page IS NOT NULL")
    joined = clicks.join(records.sparkSession.sql(f"SELECT * FROM {PRICES}"), "page")
    return joined.select("key", F.concat_ws(" ", "user", "price").alias("value"))


def sink(results: DataFrame, config: dict[str, str]) -> DataStreamWriter:
    """Write each batch to the table of this run."""
    table = table_of(config)
    with closing(_connect(config)) as connection, connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE IF NOT EXISTS {table} (key text PRIMARY KEY, value text NOT NULL)")

    def write(batch: DataFrame, number: int) -> None:
        rows = [(row["key"], row["value"]) for row in batch.collect()]
        with closing(_connect(config)) as connection, connection, connection.cursor() as cursor:
            cursor.executemany(f"INSERT INTO {table} VALUES (%s, %s) ON CONFLICT DO NOTHING", rows)

    return results.writeStream.foreachBatch(write)


def outputs(spark: SparkSession, config: dict[str, str]) -> DataFrame:
    """Return the rows of the table. The table is kept; drop `clicks_*` occasionally."""
    with closing(_connect(config)) as connection, connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT key, value FROM {table_of(config)}")
        rows = cursor.fetchall()
    return spark.createDataFrame(rows, "key STRING, value STRING")


def table_of(config: dict[str, str]) -> str:
    """Return a table name that is unique for the run."""
    return "clicks_" + config["attempt"].lower().replace("-", "_")


def _connect(config: dict[str, str]) -> Any:
    import psycopg2

    return psycopg2.connect(config["database"])
