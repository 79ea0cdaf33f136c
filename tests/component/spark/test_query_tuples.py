"""Harvest of user jobs on planted inputs and outputs, with Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from faultline.experiment.job_file import read_job
from faultline.system.settings import ROOT
from generators import producer
from tests.support.planted import T0_MS, Harvested
from tests.support.spark_session import PROGRAMS as PROGRAMS

from harvest import CLOSING, PHASE, harvest  # isort: skip  # a program's neighbour, like the next one
from user_job import COLUMNS, NUMBERS_PER_MS, JobError, load, load_job  # isort: skip
from user_query import to_own_sink, to_kafka  # isort: skip

pytestmark = pytest.mark.timeout(900)

INPUTS = (
    "value string, timestamp_ms bigint, primer boolean, lineage int, batch int, partition int, offset bigint, "
    "key binary, raw binary, topic string, timestampType int, faultline string, closing boolean, undrained boolean"
)
OUTPUTS = "key string, value string, emitted_ms bigint, lineage int, offset bigint, newest bigint, faultline string"
# Columns of a Kafka stream, without its timestamp.
OTHERS = [name for name in COLUMNS if name != "timestamp"]
HEAD = "from pyspark.sql import functions as F\n"
COUNT = (
    HEAD
    + """
JOB = {"reflects": "count"}
def words(records):
    return records.select("partition", "offset", F.explode(F.split(F.col("value").cast("string"), " ")).alias("key"))
def query(records, config):
    return words(records).groupBy("key").count().select("key", F.col("count").cast("string").alias("value"))
tuples = words
"""
).replace("tuples = words", "def tuples(records):\n    return words(records)")


class Job:
    """User job with its inputs and outputs. Times are milliseconds after T0."""

    def __init__(self, folder: Path, text: str, **declared: Any) -> None:
        self.folder = folder
        (folder / "job.py").write_text(text)
        self.config = {
            "tuples": "query", "job": str(folder / "job.py"), "target": str(folder), "arguments": {},
            "output_mode": "update", "reflects": "nothing", "event_time": None, "sink": False,
            "attempt": "a1", "folder": str(folder), **declared,
        }  # fmt: skip
        self.inputs: list[tuple[Any, ...]] = []
        self.outputs: list[tuple[Any, ...]] = []

    def take(
        self,
        value: str,
        at: int,
        batch: int | None,
        *,
        primer: bool = False,
        closing: bool = False,
        undrained: bool = False,
        key: str | None = None,
    ) -> int:
        """Add an input record and return its number."""
        if undrained:
            self.config["undrained"] = self.config.get("undrained", 0) + 1
        raw, lineage = bytearray(value.encode()), None if batch is None else 0
        place, named = len(self.inputs), None if key is None else bytearray(key.encode())
        self.inputs.append(
            (value, T0_MS + at, primer, lineage, batch, 0, place, named, raw, "in", 0, str(place), closing, undrained)
        )
        return (T0_MS + at) * NUMBERS_PER_MS

    def emit(
        self,
        key: str | None,
        value: str | None,
        at: int,
        newest: int | None = None,
        *,
        faultline: str | None = None,
        offset: int | None = None,
    ) -> None:
        place = len(self.outputs) if offset is None else offset
        self.outputs.append((key, value, T0_MS + at, 0, place, newest, faultline))

    def harvest(self, spark: SparkSession) -> Harvested:
        tables = harvest(
            spark.createDataFrame(self.inputs, INPUTS), spark.createDataFrame(self.outputs, OUTPUTS), self.config
        )
        return Harvested(tables)

    @property
    def notes(self) -> dict[str, str]:
        file = self.folder / "notes.json"
        return dict(json.loads(file.read_text())) if file.exists() else {}


def test_records_outside_the_schedule_are_identified_by_header() -> None:
    assert (PHASE, CLOSING) == (producer.PHASE, producer.CLOSING.encode())


def test_counts_reflect_the_declared_tuples(spark: SparkSession, tmp_path: Path) -> None:
    job = Job(tmp_path, COUNT, reflects="count")
    job.take("a", 0, 0, primer=True)
    job.take("a b", 10, 1)
    job.take("a a", 20, 2)
    job.take("b", 30, None)
    job.emit("a", "1", 5)
    job.emit("a", "2", 15)
    job.emit("b", "1", 15)
    job.emit("a", "2", 16)  # emitted again
    job.emit("a", "3", 25)  # one was lost
    job.emit("z", "1", 25)
    found = job.harvest(spark)
    assert found.counts == {"a": (4, 3, 4, 1, 0), "b": (1, 1, 1, 0, 0), "z": (None, 1, 1, 0, 0)}
    assert found.tuples == sorted(
        [(0, 0, 0, 5, True, 1), (0, 1, 10, 15, False, 2), (0, 2, 20, None, False, 2), (None, None, 30, None, False, 1)],
        key=str,
    )
    assert job.notes == {}


def test_input_beyond_the_last_commit_is_undrained_in_counts(spark: SparkSession, tmp_path: Path) -> None:
    job = Job(tmp_path, COUNT, reflects="count")
    job.take("a b", 10, 1)
    job.take("a a", 20, 1)
    job.take("a b c", 30, None, undrained=True)
    job.emit("a", "2", 25)  # one was lost
    job.emit("b", "2", 25)  # of a batch that was not committed
    found = job.harvest(spark)
    assert found.counts == {"a": (4, 2, 1, 0, 0), "b": (2, 2, 1, 0, 0), "c": (1, None, 0, 0, 0)}
    assert found.undrained == {"a": 1, "b": 1, "c": 1} and job.notes == {}


def test_rows_changed_by_undrained_input_are_not_judged(spark: SparkSession, tmp_path: Path) -> None:
    job = Job(tmp_path, COUNT, reflects="nothing")
    job.take("a b d", 10, 1)
    job.take("a c", 30, None, undrained=True)
    job.emit("a", "2", 25)
    job.emit("b", "7", 25)
    found = job.harvest(spark)
    assert found.counts == {
        "a": (1, 1, 1, 0, 0),
        "b": (1, 1, 1, 0, 1),
        "c": (1, None, 0, 0, 0),
        "d": (1, None, 0, 0, 0),
    }
    assert found.undrained == {"c": 1}, "d is lost"


PLAIN = (
    HEAD
    + """
JOB = {"reflects": "nothing", "output_mode": "append"}
def query(records, config):
    return records.select(F.col("value").cast("string").alias("key"), F.lit("x").alias("value"))
"""
)


@pytest.mark.parametrize(
    ("event_time", "undrained"), [(None, {"b x": 1, "c x": 1}), ("timestamp", {"b x": 1, "c x": 1, "d x": 1})]
)
def test_open_windows_are_undrained(
    spark: SparkSession, tmp_path: Path, event_time: str | None, undrained: dict[str, int]
) -> None:
    job = Job(tmp_path, PLAIN, output_mode="append", event_time=event_time)
    job.take("a", 10, 1)
    job.take("d", 15, 1)
    job.take("b", 20, None, undrained=True)
    job.take("c", 30, None, undrained=True)
    job.emit("a", "x", 15)
    job.emit("b", "x", 25)
    found = job.harvest(spark)
    assert found.counts == {
        "a x": (1, 1, 1, 0, 0), "b x": (1, 1, 1, 0, 0), "c x": (1, None, 0, 0, 0), "d x": (1, None, 0, 0, 0),
    }  # fmt: skip
    assert found.undrained == undrained


def test_equal_counts_with_different_values_are_wrong(spark: SparkSession, tmp_path: Path) -> None:
    text = COUNT.replace('F.col("count").cast("string")', 'F.concat_ws(" ", F.col("count").cast("string"), "key")')
    job = Job(tmp_path, text, reflects="count")
    job.take("a b", 0, 0)
    job.emit("a", "1 a", 5)
    job.emit("b", "1 c", 5)
    assert job.harvest(spark).counts == {"a": (1, 1, 1, 0, 0), "b": (1, 1, 1, 0, 1)}


def test_outputs_are_identified_by_input_position_by_default(spark: SparkSession, tmp_path: Path) -> None:
    plain = HEAD + (
        "def query(records, config):\n"
        "    return records.select(F.concat_ws(':', 'partition', 'offset').alias('key'), 'value')\n"
    )
    job = Job(tmp_path, plain, reflects="id", output_mode="append")
    job.take("x", 0, 0)
    job.take("y", 10, 0)
    job.take("z", 20, 1)
    job.emit("0:0", "x", 3)
    job.emit("0:0", "x", 30)  # a batch that was tried again
    job.emit("0:1", "q", 3)  # no such result
    found = job.harvest(spark)
    assert found.tuples == sorted(
        [(0, 0, 0, 3, False, 1), (0, 0, 10, 3, False, 1), (0, 1, 20, None, False, 1)], key=str
    )
    assert found.counts == {
        "0:0 x": (1, 1, 2, 1, 0), "0:1 y": (1, None, 0, 0, 0), "0:1 q": (None, 1, 1, 0, 0),
        "0:2 z": (1, None, 0, 0, 0),
    }  # fmt: skip


def test_latency_counts_from_the_newest_record(spark: SparkSession, tmp_path: Path) -> None:
    text = HEAD + (
        "def query(records, config):\n"
        "    by = records.groupBy(F.col('value').cast('string').alias('key'))\n"
        "    return by.agg(F.count('*').cast('string').alias('value'), F.max('number').alias('newest'))\n"
    )
    job = Job(tmp_path, text, reflects="newest")
    first = job.take("a", 0, 0)
    second = job.take("a", 10, 1)
    job.take("b", 20, 1)
    job.emit("a", "1", 5, first)
    job.emit("a", "2", 15, second)
    found = job.harvest(spark)
    assert found.tuples == sorted(
        [(0, 0, 0, 5, False, 1), (0, 1, 10, 15, False, 1), (0, 1, 20, None, False, 1)], key=str
    ), "b never came, and was due"
    assert found.counts == {"a": (1, 1, 2, 0, 0), "b": (1, None, 0, 0, 0)}


def test_without_references_only_latency_is_unknown(spark: SparkSession, tmp_path: Path) -> None:
    job = Job(tmp_path, COUNT)
    job.take("a b", 0, 0)
    job.emit("a", "1", 5)
    job.emit("b", "2", 5)
    found = job.harvest(spark)
    assert found.tuples == [] and found.counts == {"a": (1, 1, 1, 0, 0), "b": (1, 1, 1, 0, 1)}
    assert list(job.notes) == ["latency_ms"] and "do not identify" in job.notes["latency_ms"]


@pytest.mark.parametrize("picked", ["first", "last"])
def test_nondeterministic_jobs_are_not_audited(spark: SparkSession, tmp_path: Path, picked: str) -> None:
    text = HEAD + (
        "def query(records, config):\n"
        "    text = F.col('value').cast('string')\n"
        f"    return records.groupBy(F.lit('k').alias('key')).agg(F.{picked}(text).alias('value'))\n"
    )
    job = Job(tmp_path, text)
    for number in range(200):
        job.take(f"v{number}", number, number // 10)
    job.emit("k", "v150", 300)
    found = job.harvest(spark)
    assert found.counts == {}
    assert "not deterministic" in job.notes["audit"] and "'k'" in job.notes["audit"]


def test_wrong_results_of_deterministic_jobs_are_reported(spark: SparkSession, tmp_path: Path) -> None:
    """The second batch distinguishes this case from a nondeterministic job."""
    job = Job(tmp_path, COUNT)
    for number in range(50):
        job.take("a", number, number // 10)
    job.emit("a", "49", 300)
    assert job.harvest(spark).counts == {"a": (1, 1, 1, 0, 1)} and "audit" not in job.notes


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("    raise ValueError('no such thing')\n", "ValueError: no such thing"),
        ("    return 3\n", "query: returned int"),
        ("    return records.select('value')\n", "expected also key"),
        ("    return records.select('key', 'valeu')\n", "valeu"),
        (
            "    broken = F.udf(lambda text: {}['gone'])\n"
            "    return records.select('key', broken('value').alias('value'))\n",
            "KeyError: 'gone'",
        ),
        (
            "    once = records.withWatermark('timestamp', '1 second').dropDuplicatesWithinWatermark(['value'])\n"
            "    return once.select('key', 'value')\n",
            "atermark",
        ),
    ],
)
def test_queries_without_batch_mode_are_noted(spark: SparkSession, tmp_path: Path, body: str, message: str) -> None:
    job = Job(tmp_path, f"{HEAD}def query(records, config):\n{body}")
    job.take("a", 0, 0)
    job.emit("a", "1", 5)
    found = job.harvest(spark)
    assert found.counts == {} and "one batch" in job.notes["audit"] and message in job.notes["audit"]


def test_a_job_without_outputs_is_noted(spark: SparkSession, tmp_path: Path) -> None:
    job = Job(tmp_path, COUNT, reflects="count")
    job.take("a b", 0, 0)
    found = job.harvest(spark)
    assert "none of 2 tuples" in job.notes["latency_ms"]
    assert found.counts == {"a": (1, None, 0, 0, 0), "b": (1, None, 0, 0, 0)}, "both are lost"


def test_forwarded_headers_identify_the_record_of_an_output(spark: SparkSession, tmp_path: Path) -> None:
    job = Job(tmp_path, "", job=None, reflects="header")
    job.take("a", 0, 0)
    job.take("b", 10, 0)
    job.emit("x", "1", 5, faultline="0")
    job.emit("x", "1", 50, faultline="0")
    job.emit("x", "1", 50)
    found = job.harvest(spark)
    assert found.tuples == sorted([(0, 0, 0, 5, False, 1), (0, 0, 10, None, False, 1)], key=str)
    assert found.counts == {} and "no reference" in job.notes["audit"]


SINK = (
    "def query(records, config):\n"
    "    return records.select(F.col('value').cast('string').alias('key'), F.lit(config['word']).alias('value'))\n"
    "def sink(results, config):\n"
    "    return results.writeStream.format('parquet').option('path', config['folder'] + '/rows')\n"
)


def test_sinks_are_read_for_the_audit(spark: SparkSession, tmp_path: Path) -> None:
    outputs = "def outputs(spark, config):\n    return spark.read.parquet(config['folder'] + '/rows')\n"
    job = Job(tmp_path, HEAD + SINK + outputs, sink=True, output_mode="append", arguments={"word": "w"})
    for number, value in enumerate("aab"):
        job.take(value, number, 0)
    spark.createDataFrame([("a", "w"), ("c", "w")], "key string, value string").write.parquet(str(tmp_path / "rows"))
    found = job.harvest(spark)
    assert found.counts == {"a w": (2, 1, 1, 0, 0), "b w": (1, None, 0, 0, 0), "c w": (None, 1, 1, 0, 0)}
    assert found.tuples == [] and "sink" in job.notes["latency_ms"]


@pytest.mark.parametrize(
    ("reader", "message"),
    [
        ("", "no function `outputs(spark, config)`"),
        ("def outputs(spark, config):\n    return spark.read.parquet('/nowhere')\n", "reading the sink failed"),
    ],
)
def test_unreadable_sinks_are_not_audited(spark: SparkSession, tmp_path: Path, reader: str, message: str) -> None:
    job = Job(tmp_path, HEAD + SINK + reader, sink=True, output_mode="append", arguments={"word": "w"})
    job.take("a", 0, 0)
    assert job.harvest(spark).counts == {} and message in job.notes["audit"]


def test_windows_by_times_in_values_are_not_audited_in_append_mode(spark: SparkSession, tmp_path: Path) -> None:
    job = Job(tmp_path, COUNT, output_mode="append", event_time="value")
    job.take("a", 0, 0)
    assert job.harvest(spark).counts == {} and "open at the end" in job.notes["audit"]


def test_results_with_equal_keys_are_not_audited(spark: SparkSession, tmp_path: Path) -> None:
    """A query without keys in the default mode."""
    job = Job(tmp_path, HEAD + "def query(records, config):\n    return records.select('key', 'value')\n")
    for number in range(3):
        job.take(f"v{number}", number, 0)
        job.emit(None, f"v{number}", 5)
    assert job.harvest(spark).counts == {}
    assert "3 results with the key ''" in job.notes["audit"] and "append" in job.notes["audit"]


def test_null_keys_match(spark: SparkSession, tmp_path: Path) -> None:
    text = HEAD + (
        "def query(records, config):\n"
        "    all = records.agg(F.count('*').cast('string').alias('value'), F.max('number').alias('newest'))\n"
        "    return all.withColumn('key', F.lit(None).cast('string'))\n"
    )
    job = Job(tmp_path, text, reflects="newest", output_mode="complete")
    job.take("a", 0, 0)
    newest = job.take("b", 10, 1)
    job.emit(None, "2", 15, newest)
    found = job.harvest(spark)
    assert found.tuples == [(0, 1, 10, 15, False, 1)] and found.counts == {"": (1, 1, 1, 0, 0)}


def test_outputs_without_a_key_are_ordered_by_emission_time(spark: SparkSession, tmp_path: Path) -> None:
    """They are on any partition, so the last one may have a smaller offset."""
    job = Job(tmp_path, "def query(records, config):\n    return records.groupBy().count().selectExpr("
              "'CAST(NULL AS STRING) AS key', 'CAST(count AS STRING) AS value')\n")  # fmt: skip
    for number in range(3):
        job.take("a", number, number)
        job.emit(None, str(number + 1), 10 * number, offset=5 - number)
    assert job.harvest(spark).counts == {"": (1, 1, 3, 0, 0)} and not job.notes.get("audit")


def test_sinks_with_all_updates_are_not_audited(spark: SparkSession, tmp_path: Path) -> None:
    """The last of several rows of a key is unknown."""
    (tmp_path / "updates").mkdir()
    (tmp_path / "updates" / "a.json").write_text('{"key": "a", "value": "1"}\n{"key": "a", "value": "2"}\n')
    text = (
        COUNT
        + """
def outputs(spark, config):
    return spark.read.schema("key STRING, value STRING").json(config["folder"] + "/updates")
"""
    )
    job = Job(tmp_path, text, sink=True)
    job.take("a", 0, 0)
    job.take("a", 1, 1)
    job.harvest(spark)
    assert "2 rows with the key 'a'" in job.notes["audit"]


def test_processing_time_timers_are_not_audited(spark: SparkSession, tmp_path: Path) -> None:
    job = Job(tmp_path, HEAD + """
import pandas as pd
from pyspark.sql.streaming.state import GroupStateTimeout
def count(key, frames, state):
    yield pd.DataFrame({"key": [key[0]], "value": [str(sum(map(len, frames)))]})
def query(records, config):
    words = records.selectExpr("CAST(value AS STRING) AS word").groupBy("word")
    schema = "key STRING, value STRING"
    return words.applyInPandasWithState(count, schema, "n LONG", "append", GroupStateTimeout.ProcessingTimeTimeout)
""", output_mode="append")  # fmt: skip
    job.take("a", 0, 0)
    job.emit("a", "1", 5)
    job.harvest(spark)
    assert "processing-time" in job.notes["audit"]


def test_functions_registered_at_load_time_work_on_executors(spark: SparkSession, tmp_path: Path) -> None:
    """Functions of the file, of a package next to it, and one that reads a file there."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "__init__.py").write_text("")
    (tmp_path / "lib" / "short.py").write_text("def initial(word):\n    return word[:1]\n")
    (tmp_path / "mark.txt").write_text("!")
    job = Job(tmp_path, HEAD + """
from pathlib import Path
from pyspark.sql import SparkSession
from lib.short import initial
MARK = Path(__file__).with_name("mark.txt").read_text()
spark = SparkSession.builder.getOrCreate()
def marked(word):
    return word + MARK
spark.udf.register("marked", marked, "string")
spark.udf.register("initial", initial, "string")
def query(records, config):
    words = records.selectExpr("marked(initial(CAST(value AS STRING))) AS key")
    return words.groupBy("key").agg(F.count("*").cast("string").alias("value"))
""")  # fmt: skip
    job.take("abc", 0, 0)
    job.emit("a!", "1", 5)
    assert job.harvest(spark).counts == {"a!": (1, 1, 1, 0, 0)} and not job.notes.get("audit")


def test_rows_of_complete_mode_are_not_repetitions(spark: SparkSession, tmp_path: Path) -> None:
    job = Job(tmp_path, COUNT, reflects="count", output_mode="complete")
    job.take("a", 0, 0)
    job.take("b", 10, 1)
    for key, at in (("a", 5), ("a", 15), ("b", 15)):
        job.emit(key, "1", at)
    assert job.harvest(spark).counts == {"a": (1, 1, 2, 0, 0), "b": (1, 1, 1, 0, 0)}


def test_only_consecutive_equal_values_are_repetitions(spark: SparkSession, tmp_path: Path) -> None:
    text = HEAD + (
        "def query(records, config):\n"
        "    by = records.groupBy(F.lit('k').alias('key'))\n"
        "    return by.agg(F.max_by(F.col('value').cast('string'), 'offset').alias('value'))\n"
    )
    job = Job(tmp_path, text)
    for number, value in enumerate("aba"):
        job.take(value, number, number)
    for at, value in enumerate(["a", "b", "b", "a"]):  # the second batch was tried again
        job.emit("k", value, at)
    assert job.harvest(spark).counts == {"k": (1, 1, 4, 1, 0)}


def test_equal_rows_with_newer_records_are_not_repetitions(spark: SparkSession, tmp_path: Path) -> None:
    text = HEAD + (
        "def query(records, config):\n"
        "    by = records.groupBy(F.lit('k').alias('key'))\n"
        "    return by.agg(F.max(F.col('value').cast('string')).alias('value'), F.max('number').alias('newest'))\n"
    )
    job = Job(tmp_path, text, reflects="newest")
    first, second = job.take("b", 0, 0), job.take("a", 10, 1)
    for newest, at in ((first, 5), (second, 15), (second, 20)):
        job.emit("k", "b", at, newest)
    assert job.harvest(spark).counts == {"k": (1, 1, 3, 1, 0)}


EACH = HEAD + "def query(records, config):\n    return records.select(F.lit('k').alias('key'), 'value')\n"


def test_results_of_closing_records_are_excluded(spark: SparkSession, tmp_path: Path) -> None:
    """Also if they equal expected results; other unexpected results stay wrong."""
    job = Job(tmp_path, EACH, output_mode="append", event_time="timestamp")
    for number, value in enumerate("aab"):
        job.take(value, number, 0)
    for value in "ac":
        job.take(value, 3_300_000, 1, closing=True)
    for value in "aabacbd":
        job.emit("k", value, 5)
    found = job.harvest(spark)
    assert found.counts == {"k a": (2, 2, 2, 0, 0), "k b": (1, 1, 2, 1, 0), "k d": (None, 1, 1, 0, 0)}
    assert found.tables["records"].count() == 3 and job.notes.keys() == {"latency_ms"}


def test_additional_rows_of_the_second_batch_are_detected(spark: SparkSession, tmp_path: Path) -> None:
    """The job emits fewer rows the first time than the second."""
    text = HEAD + (
        "asked = []\n"
        "def query(records, config):\n"
        "    asked.append(1)\n"
        "    rows = records.select(F.lit('k').alias('key'), 'value')\n"
        "    return rows.where(F.lit(len(asked) > 1) | (F.col('value').cast('string') == 'a'))\n"
    )
    job = Job(tmp_path, text, output_mode="append")
    for value in "abc":
        job.take(value, 0, 0)
        job.emit("k", value, 5)
    assert job.harvest(spark).counts == {}
    assert "not deterministic: of 1 results, 0 disappeared and 2 new" in job.notes["audit"]


@pytest.mark.parametrize("text", ["import no_such_module_anywhere\n", "raise SystemExit(3)\n"])
def test_a_job_that_cannot_be_loaded_is_only_not_audited(spark: SparkSession, tmp_path: Path, text: str) -> None:
    job = Job(tmp_path, text, reflects="id")
    job.take("a", 0, 0)
    job.emit("0:0", "x", 5)
    found = job.harvest(spark)
    assert found.tuples == [(0, 0, 0, 5, False, 1)] and found.counts == {}
    assert "loading the job" in job.notes["audit"]


@pytest.mark.parametrize("query_of", [to_kafka, lambda job: to_own_sink(job)[0]], ids=["kafka", "sink"])
def test_a_query_that_starts_another_one_is_rejected(spark: SparkSession, tmp_path: Path, query_of: Any) -> None:
    start = "records.writeStream.format('noop').option('checkpointLocation', config['folder'] + '/own').start()"
    job = Job(tmp_path, f"{HEAD}def query(records, config):\n    {start}\n    return records.select('key', 'value')\n")
    stream = spark.readStream.format("rate").load().select("timestamp", *(F.lit("1").alias(name) for name in OTHERS))
    with pytest.raises(JobError, match=r"^query: "):
        query_of(load(tmp_path / "job.py"))(stream, job.config)
    assert spark.streams.active == []


@pytest.fixture
def orders(tmp_path: Path) -> Job:
    """The example in SQL, and three orders of two customers."""
    declared = read_job(str(ROOT / "examples" / "orders.sql"))
    job = Job(tmp_path, "", reflects=declared.reflects, own_settings={}, **declared.statements(None))
    job.config["application"] = str(tmp_path / "application.json")
    job.take("ada,tea,5", 10, 1, key="ada")
    job.take("ada,tea,7", 20, 1, key="ada")
    job.take("ben,tea,1", 30, 2, key="ben")
    return job


def test_a_sql_file_is_audited_as_a_python_file_is(spark: SparkSession, orders: Job) -> None:
    orders.take("no order", 40, None, undrained=True)
    orders.emit("ada", "1 5", 15)
    orders.emit("ada", "2 12", 25)
    orders.emit("ben", "1 2", 35)  # another sum
    found, ben = orders.harvest(spark), (0, 2, 30, 35, False, 1)
    assert found.counts == {"ada": (2, 2, 2, 0, 0), "ben": (1, 1, 1, 0, 1), "": (1, None, 0, 0, 0)}
    left = (None, None, 40, None, False, 1)
    assert found.tuples == sorted([(0, 1, 10, 25, False, 1), (0, 1, 20, 25, False, 1), ben, left], key=str)
    orders.config["ranked"] = True  # an engine without batches emits each count
    found = orders.harvest(spark)
    assert found.tuples == sorted([(0, 1, 10, 15, False, 1), (0, 1, 20, 25, False, 1), ben, left], key=str)
    assert orders.notes == {}


def test_a_withdrawn_result_is_no_output(spark: SparkSession, orders: Job) -> None:
    orders.config["ranked"] = True
    for key, value, at in (("ada", "2 12", 25), ("ben", "1 1", 35), ("cleo", "1 1", 35), ("cleo", None, 36)):
        orders.emit(key, value, at)
    assert orders.harvest(spark).counts == {"ada": (2, 2, 1, 0, 0), "ben": (1, 1, 1, 0, 0)}
    orders.emit("ben", None, 37)
    assert orders.harvest(spark).counts["ben"] == (1, None, 2, 0, 1), "the batch has this result"


def test_a_sql_file_runs_as_a_stream(spark: SparkSession, orders: Job, tmp_path: Path) -> None:
    folder = tmp_path / "lines"
    folder.mkdir()
    (folder / "a.txt").write_text("ada,tea,5\nada,tea,7\n")
    stream = spark.readStream.text(str(folder)).select(
        F.lit("ada").cast("binary").alias("key"), F.col("value").cast("binary"), F.lit("in").alias("topic"),
        F.lit(0).alias("partition"), F.lit(3).cast("long").alias("offset"), F.lit(0).alias("timestampType"),
        F.timestamp_millis(F.lit(T0_MS)).alias("timestamp"),
    )  # fmt: skip
    query = to_kafka(load_job(orders.config))
    query(stream, orders.config)  # as for the warm-up
    run = query(stream, orders.config).writeStream.format("memory").queryName("sold").outputMode("update").start()
    try:
        run.processAllAvailable()
    finally:
        run.stop()
    assert [tuple(row) for row in spark.table("sold").collect()] == [("ada", "2 12")]
