"""Word count without any Faultline code: an application for spark-submit, configured by its arguments.

    ./faultline job check examples/kafka_word_count.py reference=examples/word_count.py \
        application_arguments='{bootstrap} {input} {output} {checkpoint} {interval_ms}'

The reference job's `query` computes the expected output over the whole input in one batch. It also identifies the first
output of each word, which gives latencies.
"""

import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

if len(sys.argv) != 6:
    sys.exit("usage: kafka_word_count.py BOOTSTRAP INPUT OUTPUT CHECKPOINT INTERVAL_MS")
bootstrap, source, target, checkpoint, interval_ms = sys.argv[1:]

spark = SparkSession.builder.appName("kafka_word_count").getOrCreate()
lines = (
    spark.readStream.format("kafka")
    .option("kafka.bootstrap.servers", bootstrap)
    .option("subscribe", source)
    .option("startingOffsets", "earliest")
    .load()
    .selectExpr("CAST(value AS STRING) AS line")
)
counts = lines.select(F.explode(F.split("line", " ")).alias("key")).groupBy("key").count()
query = (
    counts.select("key", F.col("count").cast("string").alias("value"))
    .writeStream.format("kafka")
    .option("kafka.bootstrap.servers", bootstrap)
    .option("topic", target)
    .option("checkpointLocation", checkpoint)
    .outputMode("update")
    .trigger(processingTime=f"{interval_ms} milliseconds")
    .start()
)
query.awaitTermination()
