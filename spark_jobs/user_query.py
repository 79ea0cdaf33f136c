"""User query, defined in a Python or SQL file.

spark-submit user_query.py --config FILE
"""

from __future__ import annotations

from types import ModuleType

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter
from user_job import JobError, load_job, passed_values, require_declared, results, with_numbers
from workload_runner import NEWEST, Config, Query, Sink, read_config, run


def to_kafka(job: ModuleType) -> Query:
    """Return the query from Kafka records to key, value and, if available, the newest record's number."""

    def query(records: DataFrame, config: Config) -> DataFrame:
        found = results(job.query(with_numbers(records), passed_values(config)), ("key", "value"), "query")
        require_declared(records.sparkSession, config)
        newest = [F.col(NEWEST)] if NEWEST in found.columns else []
        return found.select(F.col("key").cast("string"), F.col("value").cast("string"), *newest)

    return query


def to_own_sink(job: ModuleType) -> tuple[Query, Sink]:
    """Return the job's query and its sink."""

    def query(records: DataFrame, config: Config) -> DataFrame:
        found = results(job.query(with_numbers(records), passed_values(config)), (), "query")
        require_declared(records.sparkSession, config)
        return found

    def sink(found: DataFrame, config: Config) -> DataStreamWriter:
        writer = job.sink(found, passed_values(config))
        if not isinstance(writer, DataStreamWriter):
            raise JobError(f"sink: returned {type(writer).__name__}; expected an unstarted results.writeStream…")
        return writer

    return query, sink


def main() -> None:
    config = read_config(__doc__)
    job = load_job(config)
    if config["sink"]:
        query, sink = to_own_sink(job)
        run(query, __doc__, sink=sink)
    else:
        run(to_kafka(job), __doc__)


if __name__ == "__main__":
    main()
