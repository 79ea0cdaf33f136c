"""Harvest of a user's query: what it declares tells which output reflects a tuple, and the same function over the same
input, in one batch, what should have come.

What cannot be told is left out, with the reason in `harvest/notes.json`: figure -> why. Nothing of the job's may keep
the rest of a run from being judged.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import ModuleType

from harvest_nexmark import prepare_state
from output_matching import batch_counts, group_tuples, number_alike, reflected
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from query_counts import count_in, counts_of, last_rows_of, rows_of, without_closing
from user_job import JobError, load, number, passed_values, results
from workload_runner import NEWEST, Config

LATENCY, AUDIT = "latency_ms", "audit"
NO_TUPLES = "lineage int, batch int, produced_ms bigint, emitted_ms bigint, primer boolean, n bigint"
NO_COUNTS = (
    "key string, expected bigint, undrained bigint, final bigint, outputs bigint, reemitted bigint, unreadable bigint"
)
# Pieces that the input falls into the second time: another number than before, so that other records come together.
OTHER_PIECES = 7
SHOWN_CHARACTERS = 300
# Of a plan: state that expires, or calls back, by the time of processing.
_BY_THE_CLOCK = re.compile(r"\b(TransformWithState|FlatMapGroups)\w*\b.*\bProcessingTime(Timeout)?\b")
_PYTHONS = re.compile(r"[\w.]+(Error|Exception)\b")


class MissingFigures:
    """Why figures are missing, by figure; written at once."""

    def __init__(self, target: Path) -> None:
        self._file = target / "notes.json"
        self._file.unlink(missing_ok=True)
        self._said: dict[str, str] = {}

    def say(self, figure: str, why: str) -> None:
        self._said[figure] = why
        self._file.write_text(json.dumps(self._said))


def harvest_query(records: DataFrame, outputs: DataFrame, config: Config) -> tuple[DataFrame, DataFrame]:
    """tuples.parquet and counts.parquet. `records`: with the columns key and raw, as they came from Kafka, and with
    those that only close windows."""
    notes, spark, every = MissingFigures(Path(config["target"])), records.sparkSession, records
    records = every.where("NOT closing")
    prepare_state(spark)
    # Records without a key go to any partition, so their offsets have no order: then the instant of emission has.
    order = F.when(F.coalesce("key", F.lit("")) == "", F.col("emitted_ms")).otherwise(F.col("offset"))
    # Under a null key as under an empty one: what is joined by key must find itself again.
    outputs = outputs.withColumns({"offset": order, "key": F.coalesce("key", F.lit(""))})
    job = _loaded(config, notes)
    if config["sink"] and job is not None:
        outputs = _from_sink(job, spark, config, notes)
    again = None if job is None else _again(job, records.where("lineage IS NOT NULL"), config, notes)
    tuples = _tuples(job, records, outputs, again, config, notes)
    counts = (
        None if job is None or again is None or outputs is None else _audit(job, every, outputs, again, config, notes)
    )
    return (
        spark.createDataFrame([], NO_TUPLES) if tuples is None else tuples,
        spark.createDataFrame([], NO_COUNTS) if counts is None else counts,
    )


def _loaded(config: Config, notes: MissingFigures) -> ModuleType | None:
    """The job's module; None, with a note, where there is none, or it cannot be loaded here."""
    if not config["job"]:
        notes.say(AUDIT, "no reference was given, whose query over the same input says what should have come")
        return None
    try:
        return load(Path(config["job"]))
    except (Exception, SystemExit) as error:
        notes.say(AUDIT, f"the job could not be loaded where its outputs are judged: {first_line(error)}")
        return None


def as_kafka(records: DataFrame) -> DataFrame:
    """The records as the job got them while it ran."""
    return records.select(
        "key",
        F.col("raw").alias("value"),
        "topic",
        "partition",
        "offset",
        F.timestamp_millis("timestamp_ms").alias("timestamp"),
        "timestampType",
        number(F.col("timestamp_ms"), F.col("partition")).alias("number"),
    )


def _from_sink(job: ModuleType, spark: SparkSession, config: Config, notes: MissingFigures) -> DataFrame | None:
    """What lies where the job put it, as outputs without an instant; None where it cannot be read."""
    if not hasattr(job, "outputs"):
        notes.say(AUDIT, "the job has no function `outputs(spark, config)` that reads back what its sink wrote")
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
        notes.say(AUDIT, f"what the sink wrote could not be read back: {first_line(error)}")
        return None


def _again(job: ModuleType, taken: DataFrame, config: Config, notes: MissingFigures) -> DataFrame | None:
    """key, value and perhaps `newest` of a batch over the input that was taken; None where it cannot be run so."""
    try:
        found = results(job.query(as_kafka(taken), passed_values(config)), ("key", "value"), "query")
        if _BY_THE_CLOCK.search(found._jdf.queryExecution().analyzed().toString()):
            notes.say(AUDIT, "its timers go by the clock of the machine, and a batch over its input has no such times")
            return None
        newest = [F.col(NEWEST).cast("long").alias(NEWEST)] if NEWEST in found.columns else []
        key = F.coalesce(F.col("key").cast("string"), F.lit(""))
        kept = found.select(key.alias("key"), F.col("value").cast("string").alias("value"), *newest).persist()
        kept.count()
        return kept
    except Exception as error:
        notes.say(AUDIT, f"the query could not be run as one batch over its input: {first_line(error)}")
        return None


def _tuples(
    job: ModuleType | None,
    records: DataFrame,
    outputs: DataFrame | None,
    again: DataFrame | None,
    config: Config,
    notes: MissingFigures,
) -> DataFrame | None:
    """None, with a note, where outputs do not tell what they are of."""
    if config["sink"]:
        notes.say(LATENCY, "results go to a sink of the job's own, which does not tell when each of them came")
        return None
    if config["reflects"] == "nothing" or outputs is None:
        notes.say(LATENCY, "no output tells which input it is of, as the job declares, or nobody declared for it")
        return None
    try:
        found = _REFLECTED[config["reflects"]](job, records, outputs, again).persist(StorageLevel.DISK_ONLY)
        rows = found.agg(F.sum("n").alias("n"), F.count("emitted_ms").alias("seen")).collect()[0]
    except Exception as error:
        notes.say(LATENCY, f"which output reflects which input could not be told: {first_line(error)}")
        return None
    if not rows["n"]:
        notes.say(LATENCY, f"{_WHAT[config['reflects']]} names no record of the input")
        return None
    if not rows["seen"]:
        notes.say(LATENCY, f"none of {rows['n']:,} tuples was ever seen in an output ({_WHAT[config['reflects']]})")
    return found


def _produced(records: DataFrame) -> DataFrame:
    return records.select(
        "partition", "offset", "lineage", "batch", "primer", F.col("timestamp_ms").alias("produced_ms")
    )  # fmt: skip


def _named(job: ModuleType | None, records: DataFrame) -> DataFrame:
    """lineage, batch, key, produced_ms, primer: what the job says that each record leaves in its outputs."""
    if job is None:
        raise JobError("it could not be loaded")
    own = results(job.tuples(as_kafka(records)), ("partition", "offset", "key"), "tuples")
    own = own.select("partition", "offset", F.coalesce(F.col("key").cast("string"), F.lit("")).alias("key"))
    return own.join(_produced(records), ["partition", "offset"]).drop("partition", "offset")


def _by_count(job: ModuleType | None, records: DataFrame, outputs: DataFrame, again: DataFrame | None) -> DataFrame:
    counted = _named(job, records)
    return group_tuples(counted, reflected(batch_counts(counted), outputs.withColumn("count", count_in("value"))))


def _by_id(job: ModuleType | None, records: DataFrame, outputs: DataFrame, again: DataFrame | None) -> DataFrame:
    if hasattr(job, "tuples"):
        asked = _named(job, records)
    else:
        own = F.concat_ws(":", "partition", "offset").alias("key")
        asked = _produced(records).select("lineage", "batch", "primer", "produced_ms", own)
    first = outputs.groupBy("key").agg(F.min("emitted_ms").alias("emitted_ms"))
    return number_alike(asked.join(first, "key", "left"))


def _by_newest(job: ModuleType | None, records: DataFrame, outputs: DataFrame, again: DataFrame | None) -> DataFrame:
    """Each result that is due: produced when its newest record was. What never came is known from the batch."""
    numbered = (
        records.withColumn(NEWEST, number(F.col("timestamp_ms"), F.col("partition")))
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
    return number_alike(due.join(numbered, NEWEST).drop("key", "value", NEWEST))


def _by_header(job: ModuleType | None, records: DataFrame, outputs: DataFrame, again: DataFrame | None) -> DataFrame:
    """Outputs that carry their record's header on: the first of each."""
    first = outputs.groupBy("faultline").agg(F.min("emitted_ms").alias("emitted_ms"))
    asked = records.select("lineage", "batch", "primer", F.col("timestamp_ms").alias("produced_ms"), "faultline")
    return number_alike(asked.where("faultline IS NOT NULL").join(first, "faultline", "left"))


_REFLECTED = {"count": _by_count, "id": _by_id, "newest": _by_newest, "header": _by_header}
_WHAT = {
    "count": "the key that `tuples` gives",
    "id": "the id that each output has for a key",
    "newest": "the column `newest`",
    "header": "the header `faultline`",
}


def _audit(
    job: ModuleType, every: DataFrame, outputs: DataFrame, again: DataFrame, config: Config, notes: MissingFigures
) -> DataFrame | None:
    """None, with a note, for a job that two batches over the same input do not agree on. `every`: all records, those
    that only close windows, too."""
    if config["output_mode"] != "append" and (twice := again.groupBy("key").count().where("count > 1").first()):
        notes.say(
            AUDIT,
            f"{twice['count']:,} results have the key {twice['key']!r}, so that none can be told to take the place of "
            'another; give each result a key of its own, or declare "output_mode": "append"',
        )
        return None
    if config["sink"] and config["output_mode"] != "append":
        if kept := outputs.groupBy("key").count().where("count > 1").first():
            notes.say(
                AUDIT,
                f"`outputs` gives back {kept['count']:,} rows of the key {kept['key']!r}, and not which is the last; "
                "give back the last row of each key",
            )
            return None
    if config["output_mode"] == "append" and config["event_time"] == "value":
        notes.say(AUDIT, "windows that were open at the end, by times in the values, cannot be told from lost ones")
        return None
    counts = _compared(job, every, outputs, again, config, notes)
    if counts is None:
        return None
    counts = counts.persist()
    off = counts.where("unreadable > 0 OR NOT (expected <=> final)")
    if off.isEmpty():
        return counts
    taken = every.where("lineage IS NOT NULL AND NOT closing")
    # The other way round in each piece: by chance alone the first record would often stay the first.
    turned = taken.repartition(OTHER_PIECES, F.rand()).sortWithinPartitions(F.desc("timestamp_ms"), F.desc("offset"))
    other = _again(job, turned, config, notes)
    if other is None:
        return None
    one, another = again.select("key", "value"), other.select("key", "value")
    gone, new = one.exceptAll(another).persist(), another.exceptAll(one).persist()
    example = gone.first() or new.first()
    if example is not None:
        notes.say(
            AUDIT,
            f"the job is not deterministic: of {again.count():,} results of a batch, {gone.count():,} were gone, and "
            f"{new.count():,} others there, "
            f"when the same input was read in another order, such as {example['key']!r}: "
            f"{str(example['value'])[:60]!r}",
        )
        return None
    return counts


def _compared(
    job: ModuleType, every: DataFrame, outputs: DataFrame, again: DataFrame, config: Config, notes: MissingFigures
) -> DataFrame | None:
    """The counts; None, with a note, where another batch that they take cannot be run."""
    undrained, every_batch = bool(config.get("undrained")), config["output_mode"] == "complete"
    input_of_all = every.where("(lineage IS NOT NULL OR undrained) AND NOT closing") if undrained else None
    whole = again if input_of_all is None else _again(job, input_of_all, config, notes)
    if whole is None:
        return None
    if config["output_mode"] != "append":
        compare = counts_of if config["reflects"] == "count" else last_rows_of
        return compare(again, whole, outputs, every_batch=every_batch)
    counts = rows_of(again, whole, outputs)
    more = counts.where("outputs > coalesce(expected, 0)")
    if not every.where("closing").isEmpty() and not more.isEmpty():
        closed = _again(job, every.where("lineage IS NOT NULL OR closing"), config, notes)
        if closed is None:
            return None
        counts = without_closing(counts, closed)
    if undrained and config["event_time"]:
        # A window whose closing records were not processed was still open, and nothing was lost of it.
        open_yet = F.when(F.col("final").isNull(), F.col("expected"))
        counts = counts.withColumn("undrained", F.coalesce(open_yet, "undrained"))
    return counts


def first_line(error: BaseException) -> str:
    """What an error says, on one line: its own class and message, not those of what carried it."""
    text = error.getMessage() or str(error) if isinstance(error, PySparkException) else str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = lines[0] if lines else ""
    # A function of Python's on an executor: its own error is the last line of the traceback.
    own = [line for line in lines if _PYTHONS.match(line)]
    return f"{type(error).__name__}: {own[-1] if own else said}"[:SHOWN_CHARACTERS]
