"""Stateless workload: sum the Gregory-Leibniz series 4 - 4/3 + 4/5 - 4/7 + ... for each record.

A record is `<id> <terms>`, so nothing can be computed in advance. Output records: key = id, value = the sum. There is
no shuffle.

    spark-submit pi.py --config FILE

Spark interprets the lambda functions of array functions, and a term's sign costs as much as its division. Therefore the
array holds the start of each BLOCK of terms, and a block is written out, with terms added in pairs: 4/d - 4/(d+2) =
8/(d(d+2)). This takes a seventh of the time and a BLOCK-th of the memory: 10^6 terms need an array of 31,250 numbers.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from workload_runner import Config, run

# Terms per block, an even number; longer blocks are not faster.
BLOCK = 32


def parse_request(value: Column) -> tuple[Column, Column]:
    """Return id (text) and number of terms (null if invalid) of a record's text."""
    return F.split_part(value, F.lit(" "), F.lit(1)), F.split_part(value, F.lit(" "), F.lit(2)).try_cast("int")


def series(terms: Column) -> Column:
    """Return the sum of the first `terms` (int, at least 1) terms, as a double."""
    whole = terms - terms % BLOCK

    def block(total: Column, denominator: Column) -> Column:
        for ahead in range(0, 2 * BLOCK, 4):
            one = denominator + float(ahead) if ahead else denominator
            total = total + 8.0 / (one * (denominator + float(ahead + 2)))
        return total

    def term(total: Column, number: Column) -> Column:
        return total + (4.0 - (number % 2) * 8.0) / (number * 2.0 + 1.0)

    # Cast as an array, because a cast in the function would be evaluated for every term.
    denominators = F.sequence(F.lit(1), whole * 2 - (2 * BLOCK - 1), F.lit(2 * BLOCK)).cast("array<double>")
    blocks = F.when(whole > 0, F.aggregate(denominators, F.lit(0.0), block)).otherwise(0.0)
    return F.when(whole < terms, F.aggregate(F.sequence(whole, terms - 1), blocks, term)).otherwise(blocks)


def pi(records: DataFrame, config: Config) -> DataFrame:
    """Return key and value for Kafka records with the `value` `<id> <terms>`; others are skipped."""
    identity, terms = parse_request(F.col("value").cast("string"))
    asked = records.select(identity.alias("key"), terms.alias("terms")).where("terms > 0")
    return asked.select("key", series(F.col("terms")).cast("string").alias("value"))


if __name__ == "__main__":
    run(pi, __doc__)
