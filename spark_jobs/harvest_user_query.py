"""Harvest of a user query: its declarations match outputs with input, and the same query gives expected results.

Figures that cannot be determined are omitted, with the reason in `harvest/notes.json` (figure -> reason). A faulty job
must not prevent the other figures.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import ModuleType

from harvest_nexmark import prepare_state
from output_matching import batch_counts, count_equal_tuples, first_emissions, group_tuples, with_first_emissions
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from query_counts import count_in, counts_of, last_rows_of, rows_of, without_closing, without_deleted
from user_job import JobError, load_job, passed_values, record_number, results
from workload_runner import NEWEST, Config

LATENCY, AUDIT = "latency_ms", "audit"
NO_TUPLES = "lineage int, batch int, produced_ms bigint, emitted_ms bigint, primer boolean, n bigint"
NO_COUNTS = (
    "key string, expected bigint, undrained bigint, final bigint, outputs bigint, reemitted bigint, unreadable bigint"
)
# Partitions of the second batch; the different number groups other records together.
REORDERED_PARTITIONS = 7
MAX_MESSAGE_LENGTH = 300
# Matches plans with processing-time timers or timeouts.
_PROCESSING_TIME = re.compile(r"\b(TransformWithState|FlatMapGroups)\w*\b.*\bProcessingTime(Timeout)?\b")
_PYTHON_ERROR = re.compile(r"[\w.]+(Error|Exception)\b")


class MissingFigures:
    """Reasons for missing figures, by figure; the file is written on each change."""

    def __init__(self, target: Path) -> None:
        self._file = target / "notes.json"
        self._file.unlink(missing_ok=True)
        self._reasons: dict[str, str] = {}

    def add(self, figure: str, why: str) -> None:
        self._reasons[figure] = why
        self._file.write_text(json.dumps(self._reasons))


def harvest_query(records: DataFrame, outputs: DataFrame, config: Config) -> tuple[DataFrame, DataFrame]:
    """Return the tables tuples and counts.

    `records`: with the columns key, raw and closing, and with the closing records.
    """
    notes, spark, every = MissingFigures(Path(config["target"])), records.sparkSession, records
    records = every.where("NOT closing")
    prepare_state(spark)
    # Records without a key go to any partition, so they are ordered by emission time instead of offset.
    order = F.when(F.coalesce("key", F.lit("")) == "", F.col("emitted_ms")).otherwise(F.col("offset"))
    # Null keys become empty ones, because nulls do not match in joins.
    outputs = outputs.withColumns({"offset": order, "key": F.coalesce("key", F.lit(""))})
    job = _load_job(config, notes)
    if config["sink"] and job is not None:
        outputs = _sink_outputs(job, spark, config, notes)
    again = None if job is None else _recompute(job, records.where("lineage IS NOT NULL"), config, notes)
    tuples = _tuples(job, records, outputs, again, config, notes)
    counts = (
        None if job is None or again is None or outputs is None else _audit(job, every, outputs, again, config, notes)
    )
    return (
        spark.createDataFrame([], NO_TUPLES) if tuples is None else tuples,
        spark.createDataFrame([], NO_COUNTS) if counts is None else counts,
    )


def _load_job(config: Config, notes: MissingFigures) -> ModuleType | None:
    """Return the job's module; None, with a note, if there is none or it cannot be loaded."""
    if not config["job"]:
        notes.add(AUDIT, "no reference query given to compute the expected results")
        return None
    try:
        return load_job(config)
    except (Exception, SystemExit) as error:
        notes.add(AUDIT, f"loading the job in the harvest failed: {first_line(error)}")
        return None


def as_kafka(records: DataFrame) -> DataFrame:
    """Return the records in the form that the job received."""
    return records.select(
        "key",
        F.col("raw").alias("value"),
        "topic",
        "partition",
        "offset",
        F.timestamp_millis("timestamp_ms").alias("timestamp"),
        "timestampType",
        record_number(F.col("timestamp_ms"), F.col("partition")).alias("number"),
    )


def _sink_outputs(job: ModuleType, spark: SparkSession, config: Config, notes: MissingFigures) -> DataFrame | None:
    """Return the content of the job's sink as outputs without time; None, with a note, if unreadable."""
    if not hasattr(job, "outputs"):
        notes.add(AUDIT, "the job has no function `outputs(spark, config)` that reads its sink")
        return None
    try:
        found = results(job.outputs(spark, passed_values(config)), ("key", "value"), "outputs")
        rows = found.select(F.col("key").cast("string").alias("key"), F.col("value").cast("string").alias("value"))
        kept = rows.select(
            "*",
            F.lit(None).cast("long").alias("emitted_ms"),
            F.monotonically_increasing_id().alias("offset"),
            F.lit(0).alias("lineage"),
        ).persist()
        kept.count()
        return kept
    except Exception as error:
        notes.add(AUDIT, f"reading the sink failed: {first_line(error)}")
        return None


def _recompute(job: ModuleType, taken: DataFrame, config: Config, notes: MissingFigures) -> DataFrame | None:
    """Return key, value and perhaps `newest` of a batch over the processed input; None, with a note, on failure."""
    try:
        found = results(job.query(as_kafka(taken), passed_values(config)), ("key", "value"), "query")
        if _PROCESSING_TIME.search(found._jdf.queryExecution().analyzed().toString()):
            notes.add(AUDIT, "the query uses processing-time timers, which a batch cannot reproduce")
            return None
        newest = [F.col(NEWEST).cast("long").alias(NEWEST)] if NEWEST in found.columns else []
        key = F.coalesce(F.col("key").cast("string"), F.lit(""))
        kept = found.select(key.alias("key"), F.col("value").cast("string").alias("value"), *newest).persist()
        kept.count()
        return kept
    except Exception as error:
        notes.add(AUDIT, f"running the query as one batch failed: {first_line(error)}")
        return None


def _tuples(
    job: ModuleType | None,
    records: DataFrame,
    outputs: DataFrame | None,
    again: DataFrame | None,
    config: Config,
    notes: MissingFigures,
) -> DataFrame | None:
    """Return the tuples; None, with a note, if outputs do not identify their input."""
    if config["sink"]:
        notes.add(LATENCY, "the job has its own sink, which does not record emission times")
        return None
    if config["reflects"] == "nothing" or outputs is None:
        notes.add(LATENCY, "the outputs do not identify their input (reflects = nothing)")
        return None
    try:
        by_rank = config["reflects"] == "count" and config.get("ranked")
        matcher = _by_rank if by_rank else _MATCHERS[config["reflects"]]
        found = matcher(job, records, outputs, again).persist(StorageLevel.DISK_ONLY)
        rows = found.agg(F.sum("n").alias("n"), F.count("emitted_ms").alias("seen")).collect()[0]
    except Exception as error:
        notes.add(LATENCY, f"matching outputs with input failed: {first_line(error)}")
        return None
    if not rows["n"]:
        notes.add(LATENCY, f"{_REFERENCES[config['reflects']]} matches no record of the input")
        return None
    if not rows["seen"]:
        notes.add(LATENCY, f"none of {rows['n']:,} tuples was found in an output ({_REFERENCES[config['reflects']]})")
    return found


def _input_tuples(records: DataFrame) -> DataFrame:
    return records.select(
        "partition", "offset", "lineage", "batch", "primer", F.col("timestamp_ms").alias("produced_ms")
    )  # fmt: skip


def _tuple_keys(job: ModuleType | None, records: DataFrame) -> DataFrame:
    """Return partition, offset, lineage, batch, key, produced_ms and primer of the job's tuples."""
    if job is None:
        raise JobError("job: loading failed")
    own = results(job.tuples(as_kafka(records)), ("partition", "offset", "key"), "tuples")
    own = own.select("partition", "offset", F.coalesce(F.col("key").cast("string"), F.lit("")).alias("key"))
    return own.join(_input_tuples(records), ["partition", "offset"])


def _by_count(job: ModuleType | None, records: DataFrame, outputs: DataFrame, again: DataFrame | None) -> DataFrame:
    counted = _tuple_keys(job, records)
    return group_tuples(counted, first_emissions(batch_counts(counted), outputs.withColumn("count", count_in("value"))))


def _by_rank(job: ModuleType | None, records: DataFrame, outputs: DataFrame, again: DataFrame | None) -> DataFrame:
    """Return the tuples of an engine without batches: the k-th of a key, in order of production, has the count k."""
    counted = outputs.withColumn("count", count_in("value"))
    return count_equal_tuples(with_first_emissions(_tuple_keys(job, records), counted))


def _by_id(job: ModuleType | None, records: DataFrame, outputs: DataFrame, again: DataFrame | None) -> DataFrame:
    if hasattr(job, "tuples"):
        asked = _tuple_keys(job, records)
    else:
        own = F.concat_ws(":", "partition", "offset").alias("key")
        asked = _input_tuples(records).select("lineage", "batch", "primer", "produced_ms", own)
    first = outputs.groupBy("key").agg(F.min("emitted_ms").alias("emitted_ms"))
    return count_equal_tuples(asked.join(first, "key", "left"))


def _by_newest(job: ModuleType | None, records: DataFrame, outputs: DataFrame, again: DataFrame | None) -> DataFrame:
    """Return each expected result, produced with its newest record; the batch gives the missing ones."""
    numbered = (
        records.withColumn(NEWEST, record_number(F.col("timestamp_ms"), F.col("partition")))
        .groupBy(NEWEST)
        .agg(
            F.min("lineage").alias("lineage"),
            F.min("batch").alias("batch"),
            F.bool_and("primer").alias("primer"),
            F.min("timestamp_ms").alias("produced_ms"),
        )
    )
    due = outputs.groupBy("key", "value", NEWEST).agg(F.min("emitted_ms").alias("emitted_ms"))
    if again is not None and NEWEST in again.columns:
        came = (again["key"] == due["key"]) & again["value"].eqNullSafe(due["value"])
        missing = again.join(due, came, "left_anti")
        due = due.unionByName(missing.select("key", "value", NEWEST, F.lit(None).cast("long").alias("emitted_ms")))
    return count_equal_tuples(due.join(numbered, NEWEST).drop("key", "value", NEWEST))


def _by_header(job: ModuleType | None, records: DataFrame, outputs: DataFrame, again: DataFrame | None) -> DataFrame:
    """Return the first output with the header of each record."""
    first = outputs.groupBy("faultline").agg(F.min("emitted_ms").alias("emitted_ms"))
    asked = records.select("lineage", "batch", "primer", F.col("timestamp_ms").alias("produced_ms"), "faultline")
    return count_equal_tuples(asked.where("faultline IS NOT NULL").join(first, "faultline", "left"))


_MATCHERS = {"count": _by_count, "id": _by_id, "newest": _by_newest, "header": _by_header}
_REFERENCES = {
    "count": "the key of `tuples`",
    "id": "the output key as id",
    "newest": "the column `newest`",
    "header": "the header `faultline`",
}


def _audit(
    job: ModuleType, every: DataFrame, outputs: DataFrame, again: DataFrame, config: Config, notes: MissingFigures
) -> DataFrame | None:
    """Return the counts; None, with a note, if two batches over the same input differ.

    `every`: all records, including closing ones.
    """
    if config["output_mode"] != "append" and (twice := again.groupBy("key").count().where("count > 1").first()):
        notes.add(
            AUDIT,
            f"got {twice['count']:,} results with the key {twice['key']!r}; expected unique keys, or "
            'output_mode = "append"',
        )
        return None
    if config["sink"] and config["output_mode"] != "append":
        if kept := outputs.groupBy("key").count().where("count > 1").first():
            notes.add(
                AUDIT,
                f"`outputs` returned {kept['count']:,} rows with the key {kept['key']!r}; expected only the "
                "last row of each key",
            )
            return None
    if config["output_mode"] == "append" and config["event_time"] == "value":
        notes.add(
            AUDIT, "windows by times in the values that were open at the end cannot be distinguished from lost ones"
        )
        return None
    counts = _compare(job, every, outputs, again, config, notes)
    if counts is None:
        return None
    counts = counts.persist()
    off = counts.where("unreadable > 0 OR NOT (expected <=> final)")
    if off.isEmpty():
        return counts
    taken = every.where("lineage IS NOT NULL AND NOT closing")
    # Reversed order in each partition, because random order often keeps the first record first.
    turned = taken.repartition(REORDERED_PARTITIONS, F.rand()).sortWithinPartitions(
        F.desc("timestamp_ms"), F.desc("offset")
    )
    other = _recompute(job, turned, config, notes)
    if other is None:
        return None
    one, another = again.select("key", "value"), other.select("key", "value")
    gone, new = one.exceptAll(another).persist(), another.exceptAll(one).persist()
    example = gone.first() or new.first()
    if example is not None:
        notes.add(
            AUDIT,
            f"the job is not deterministic: of {again.count():,} results, {gone.count():,} disappeared and "
            f"{new.count():,} new ones appeared with the input in another order, such as {example['key']!r}: "
            f"{str(example['value'])[:60]!r}",
        )
        return None
    return counts


def _compare(
    job: ModuleType, every: DataFrame, outputs: DataFrame, again: DataFrame, config: Config, notes: MissingFigures
) -> DataFrame | None:
    """Return the counts; None, with a note, if a further batch cannot be run."""
    undrained, every_batch = bool(config.get("undrained")), config["output_mode"] == "complete"
    input_of_all = every.where("(lineage IS NOT NULL OR undrained) AND NOT closing") if undrained else None
    whole = again if input_of_all is None else _recompute(job, input_of_all, config, notes)
    if whole is None:
        return None
    if config["output_mode"] != "append":
        compare = counts_of if config["reflects"] == "count" else last_rows_of
        if config.get("ranked"):
            outputs = without_deleted(outputs, again)  # an engine without batches may withdraw a result
        return compare(again, whole, outputs, every_batch=every_batch)
    counts = rows_of(again, whole, outputs)
    more = counts.where("outputs > coalesce(expected, 0)")
    if not every.where("closing").isEmpty() and not more.isEmpty():
        closed = _recompute(job, every.where("lineage IS NOT NULL OR closing"), config, notes)
        if closed is None:
            return None
        counts = without_closing(counts, closed)
    if undrained and config["event_time"]:
        # A window whose closing records were not processed was still open, so nothing of it is lost.
        open_yet = F.when(F.col("final").isNull(), F.col("expected"))
        counts = counts.withColumn("undrained", F.coalesce(open_yet, "undrained"))
    return counts


def first_line(error: BaseException) -> str:
    """Return class and message of an error on one line; the cause takes precedence over wrappers."""
    text = error.getMessage() or str(error) if isinstance(error, PySparkException) else str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    first = lines[0] if lines else ""
    # For Python functions on executors, the error is the last line of the traceback.
    own = [line for line in lines if _PYTHON_ERROR.match(line)]
    return f"{type(error).__name__}: {own[-1] if own else first}"[:MAX_MESSAGE_LENGTH]
