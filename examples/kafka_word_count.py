"""A word count with nothing of Faultline in it: any application for spark-submit, told by its arguments.

    ./faultline job check examples/kafka_word_count.py reference=examples/word_count.py \
        application_arguments='{bootstrap} {input} {output} {checkpoint} {interval_ms}'

What should have come is told by another job's `query`, over all of the input in one batch; that job also says how the
first output of each word is told, so there is a latency, too.
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
