"""What was traded of each stock: the sum of Price x Turnover over sliding windows of event time.

Records that are later than the watermark allows are left out by Spark, which counts them. State is one row a stock
and open window. Output records, at each change: key = `<szcode>|<window start in epoch ms>`, value = `<n> <sum>`.

    spark-submit stock_group_by.py --config FILE
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from running import Config, run
from stock_events import TRANSACTION, result_key, result_value, watermarked, windows


def stock_group_by(records: DataFrame, config: Config) -> DataFrame:
    """Input: Kafka records, of which those of the stream TRANSACTION count. Output: key, value."""
    trades = watermarked(records, config).where(F.col("stream") == TRANSACTION)
    sums = trades.groupBy(windows("eventTime", config), "szcode").agg(
        F.count("*").alias("n"), F.sum(F.col("Price") * F.col("Turnover")).alias("sum")
    )
    return sums.select(result_key("szcode").alias("key"), result_value().alias("value"))


if __name__ == "__main__":
    run(stock_group_by, __doc__)
