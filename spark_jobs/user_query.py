"""A query of the user's own, which a Python file defines.

spark-submit user_query.py --config FILE
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from types import ModuleType

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from running import NEWEST, Config, run
from user_job import load, results, with_numbers


@cache
def _job(path: str) -> ModuleType:
    return load(Path(path))


def user_query(records: DataFrame, config: Config) -> DataFrame:
    """Input: Kafka records. Output: key, value, and the newest record's number where the job has it."""
    found = results(_job(config["job"]).query(with_numbers(records), config["arguments"]), ("key", "value"), "query")
    newest = [F.col(NEWEST)] if NEWEST in found.columns else []
    return found.select(F.col("key").cast("string"), F.col("value").cast("string"), *newest)


if __name__ == "__main__":
    run(user_query, __doc__)
