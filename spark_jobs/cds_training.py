"""CDS training run: execute typical work of workloads, harvest and aggregate, so that the JVM loads its classes.

    spark-submit cds_training.py FOLDER

With `-XX:ArchiveClassesAtExit` the JVM writes the archive for later JVMs (`faultline.installation.cds_archive`). No
service is needed: synthetic records replace Kafka, whose classes are loaded by name. Results are discarded. Classes
that are not covered load later, more slowly.
"""

from __future__ import annotations

import contextlib
import os
import sys
import zipfile
from pathlib import Path
from typing import Any

from pi import pi
from py4j.protocol import Py4JError
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import Window as Over
from pyspark.sql import functions as F
from stock import POSITION, STOCK, TRANSACTION, stock_group_by, stock_join
from word_count import word_count
from workload_runner import Config, ProgressLog, Query

CONFIG: Config = {"python": False, "window_s": 10, "slide_s": 5, "watermark_s": 5}
ROWS_PER_BATCH = 500
LAST_BATCH = 1


def event(stream: Column) -> Column:
    """Return a record of a stock stream as JSON text."""
    number = F.col("value")
    fields = {
        "stream": stream,
        "szcode": (number % 7).cast("string"),
        "userID": number % 11,
        "eventTime": F.timestamp_seconds(number / 100),
        "lastPrice": F.lit("12.50"),
        "Price": F.lit("12.50"),
        "Turnover": F.lit(3),
        "openInterest": F.lit(4),
    }
    return F.to_json(F.struct(*(column.alias(name) for name, column in fields.items())))


def train_queries(spark: SparkSession, folder: Path) -> None:
    """Run each workload over synthetic records for some batches, with RocksDB and a listener."""
    spark.streams.addListener(ProgressLog(folder / "listener.jsonl"))
    numbers = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS_PER_BATCH).load()
    words = F.concat_ws(" ", *((F.col("value") % n).cast("string") for n in range(2, 12)))
    sides = F.when(F.col("value") % 2 == 0, STOCK).otherwise(POSITION)
    made: dict[str, tuple[Query, Column]] = {
        "words": (word_count, words),
        "pi": (pi, F.concat_ws(" ", F.col("value").cast("string"), F.lit("100"))),
        "group": (stock_group_by, event(F.lit(TRANSACTION))),
        "join": (stock_join, event(sides)),
    }
    for name, (query, value) in made.items():
        place = (F.lit(0).alias("partition"), F.col("value").alias("offset"))
        records = numbers.select(value.cast("binary").alias("value"), *place)
        writer = query(records, CONFIG).writeStream.format("noop").outputMode("update")
        running = writer.option("checkpointLocation", str(folder / name)).trigger(processingTime="0 seconds").start()
        while running.isActive and (running.lastProgress or {"batchId": -1})["batchId"] < LAST_BATCH:
            running.awaitTermination(0.05)
        running.stop()


def train_batches(spark: SparkSession, folder: Path) -> None:
    """Read, join, rank, sum and write tables like harvest and aggregate."""
    keys = [F.col("id").alias("offset"), (F.col("id") % 10).cast("string").alias("key"), F.lit(1.5).alias("n")]
    table = spark.range(1000).select(*keys, F.timestamp_seconds("id").alias("timestamp"))
    path = str(folder / "table.parquet")
    table.coalesce(1).write.parquet(path)
    ranked = spark.read.parquet(path).withColumn("rank", F.row_number().over(Over.partitionBy("key").orderBy("offset")))
    sums: DataFrame = ranked.groupBy("key").agg(F.sum("n").alias("sum"), F.max("rank"), F.percentile("n", 0.5))
    joined = table.join(sums, "key", "full_outer").orderBy("offset")
    joined.write.option("header", True).csv(str(folder / "table.csv"))
    spark.read.option("header", True).csv(str(folder / "table.csv")).count()


def load_connector(spark: SparkSession) -> None:
    """Load every class of the Kafka connector and client, because using them would require a broker."""
    jvm: Any = spark._jvm
    loader = jvm.java.lang.ClassLoader.getSystemClassLoader()
    for jar in spark.conf.get("spark.driver.extraClassPath", "").split(os.pathsep):
        with zipfile.ZipFile(jar) as classes:
            names = [name.removesuffix(".class") for name in classes.namelist() if name.endswith(".class")]
        for name in names:
            # Many depend on optional libraries, such as compression codecs.
            with contextlib.suppress(Py4JError):
                jvm.java.lang.Class.forName(name.replace("/", "."), False, loader)


def main(folder: Path) -> None:
    spark = SparkSession.builder.getOrCreate()
    load_connector(spark)
    train_queries(spark, folder)
    train_batches(spark, folder)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
