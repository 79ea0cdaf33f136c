"""What every Spark workload shares: how it is told what to do, reads Kafka, writes Kafka, warms up, and stops.

A workload is a query: Kafka's records in, the columns `key` and `value` out (text). Output records carry the header
`lineage`, in update mode unless the program has another; the Kafka sink is at-least-once, so a batch that is tried
again emits its results again.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

POLL_S = 0.2
# Between two looks at whether the warm-up has taken all of its input.
WARM_UP_LOOK_S = 0.5
# A consumer that has read a batch asks the broker for more, which waits for records as long as this. A query with two
# branches reads each batch twice, and its second reading would stand behind that request: by default half a second a
# partition.
FETCH_WAIT_MS = 20

Config = dict[str, Any]
# The number of the newest record that a result is made of, where a query knows it: a column of its results.
NEWEST = "newest"
# Headers of output records. No user's record has one whose name begins so: others have a `lineage` of their own.
LINEAGE_HEADER, NEWEST_HEADER = "faultline-lineage", "faultline-newest"
# Records of the input topic (`value` is binary) and the program's configuration -> key, value, and perhaps NEWEST.
Query = Callable[[DataFrame, Config], DataFrame]
# Results and the program's configuration -> a writer that has its own target, and no checkpoint, mode or trigger yet.
Sink = Callable[[DataFrame, Config], DataStreamWriter]


# Microseconds of a core to burn for each record: a slowdown of known size, which a gate is tried on.
BUSY = "spark.faultline.busy_us_per_record"
_HASHED_BYTES, _HASHED_TIMES = 16_000_000, 5


class StreamingWorkload:
    """One query between the input topic and an output topic, or a sink of its own."""

    def __init__(self, spark: SparkSession, query: Query, config: Config, sink: Sink | None = None) -> None:
        self._spark, self._query, self._config, self._sink = spark, query, config, sink
        # Once, so that warm-up and measured query burn the same.
        self._hashed_a_us = bytes_hashed_a_us(spark) if float(spark.conf.get(BUSY, "0") or 0) > 0 else 0.0

    def start(self, lineage: int) -> StreamingQuery:
        """The measured query on its trigger: micro-batches, or a real-time batch of `real_time_s`."""
        config = self._config
        checkpoint = f"{config['checkpoint']}/lineage-{lineage}" if config["lineages"] else config["checkpoint"]
        writer = self._writer(config["output_topic"], checkpoint, {}, lineage)
        if config.get("real_time_s"):
            return writer.trigger(realTime=milliseconds(config["real_time_s"])).start()
        return writer.trigger(processingTime=milliseconds(config["checkpoint_interval_s"])).start()

    def warm_up(self) -> None:
        """Works through the primer in small batches, with a throw-away topic and checkpoint.

        The same plan on the same executors, so that the measured query starts with compiled code. Only
        the first incarnation does it: a restarted driver is measured as cold as it is.
        """
        plan = self._config["warm_up"]
        options = {"maxOffsetsPerTrigger": str(plan["records_per_batch"])}
        writer = self._writer(plan["topic"], plan["checkpoint"], options).trigger(availableNow=True)
        # Planning took as long as the executors' start; now all of them are to be warmed.
        self.await_executors()
        query = writer.start()
        while not query.awaitTermination(WARM_UP_LOOK_S):
            # Timers of processing time make Spark plan one more batch each time, also when all input is taken.
            progress = query.lastProgress
            if progress is not None and progress["numInputRows"] == 0:
                query.stop()

    def await_executors(self) -> None:
        """Returns when all executors have registered."""
        await_executors(self._spark, self._config["executors"])

    def _writer(
        self, topic: str, checkpoint: str, source_options: dict[str, str], lineage: int = 0
    ) -> DataStreamWriter:
        """The whole query, from the input topic to `topic`; the caller sets the trigger.

        Only lineage 0 begins at the start of the topic: a later one stands for a job that lost everything.
        """
        config, busy_us = self._config, float(self._spark.conf.get(BUSY, "0") or 0)
        records = (
            self._spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", config["bootstrap"])
            .options(**config.get("kafka_options", {}))
            .option("subscribe", config["input_topic"])
            .option("startingOffsets", "latest" if lineage else "earliest")
            .option("kafka.fetch.max.wait.ms", str(FETCH_WAIT_MS))
            .options(**source_options)
            .load()
        )
        if busy_us > 0:
            records = burning(records, busy_us, self._hashed_a_us)
        results = self._query(records, config)
        if self._sink is not None:
            writer = self._sink(results, config)
        else:
            headers = [header(LINEAGE_HEADER, F.lit(str(lineage)))]
            headers += [header(NEWEST_HEADER, F.col(NEWEST))] if NEWEST in results.columns else []
            writer = (
                results.select("key", "value", F.array(*headers).alias("headers"))
                .writeStream.format("kafka")
                .option("kafka.bootstrap.servers", config["bootstrap"])
                .options(**config.get("kafka_options", {}))
                .option("topic", topic)
            )
        return writer.option("checkpointLocation", checkpoint).outputMode(config["output_mode"])


def bytes_hashed_a_us(spark: SparkSession) -> float:
    """How many bytes SHA-512 takes in a microsecond in the driver's own JVM, once it is compiled: the best of five."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    # Made once: what is handed over to the JVM again would be timed as well.
    content = jvm.java.io.ByteArrayInputStream(b"x" * _HASHED_BYTES)
    took = []
    for _ in range(_HASHED_TIMES):
        content.reset()
        began = jvm.System.nanoTime()
        jvm.org.apache.commons.codec.digest.DigestUtils.sha512Hex(content)
        took.append(int(jvm.System.nanoTime()) - int(began))
    return _HASHED_BYTES / (min(took) / 1000)


def burning(records: DataFrame, busy_us: float, hashed_a_us: float) -> DataFrame:
    """The same records, for each of which about `busy_us` of a core are spent on hashes that nobody needs.

    The hash is of the record, too, and a filter asks for it that drops nothing: no optimiser can leave it out.
    """
    padding = "x" * max(1, round(busy_us * hashed_a_us))
    value = F.coalesce(F.col("value"), F.lit(b""))
    hashed = F.sha2(F.concat(value, F.lit(padding.encode())), 512)
    return records.where(F.length(hashed) > 0)


def await_executors(spark: SparkSession, executors: int) -> None:
    """Returns when so many executors have registered: a state that settled on fewer would move later."""
    context = spark.sparkContext._jsc.sc()  # type: ignore[attr-defined]  # PySpark has no public count
    while context.getExecutorMemoryStatus().size() <= executors:  # the driver is counted too
        time.sleep(0.05)


def newest_commit(checkpoint: Path) -> int:
    """Number of the newest batch that a checkpoint has seen committed; -1 before the first."""
    return newest_batch(checkpoint / "commits")


def newest_batch(log: Path) -> int:
    """Number of the newest batch in one of a checkpoint's logs, `offsets` or `commits`; -1 in an empty one."""
    return max((int(path.name) for path in log.glob("*") if path.name.isdigit()), default=-1)


def header(name: str, value: Column) -> Column:
    """One header of an output record."""
    return F.struct(F.lit(name).alias("key"), value.cast("string").cast("binary").alias("value"))


class StateEpochs:
    """The state lineage that the workload supervisor asks for (commit mode `none`); otherwise always 0.

    The supervisor writes {"lineage": n, "stop": bool} to `control`; this program answers that lineage n
    has stopped by writing n to `stopped`, and starts the next one once it is told its number.
    """

    def __init__(self, paths: dict[str, str] | None) -> None:
        """`paths`: {"control", "stopped"}, or None for the other commit modes."""
        self._control = Path(paths["control"]) if paths else None
        self._stopped = Path(paths["stopped"]) if paths else None

    def wanted(self) -> tuple[int, bool]:
        """Number of the lineage, and whether it is to stop."""
        if self._control is None:
            return 0, False
        word = json.loads(self._control.read_text())
        return int(word["lineage"]), bool(word["stop"])

    def confirm(self, lineage: int) -> None:
        """Says that `lineage` has stopped."""
        if self._stopped is not None:
            self._stopped.write_text(str(lineage))


def milliseconds(seconds: float) -> str:
    """An interval in the words that Spark takes for triggers, watermarks and windows."""
    return f"{round(seconds * 1000)} milliseconds"


def configured(description: str | None) -> Config:
    """What the program is told."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--config", type=Path, required=True, help="JSON file, written by the step submit_workload")
    options, _ = parser.parse_known_args()
    config: Config = json.loads(options.config.read_text())
    return config


def run(query: Query, description: str | None, *, output_mode: str = "update", sink: Sink | None = None) -> None:
    """The life of a workload's program: warm-up, the measured query, its lineages, the stop file.

    One with a `sink` does not make itself warm: what it writes there cannot be thrown away.
    """
    config: Config = {"output_mode": output_mode, **configured(description)}
    spark = SparkSession.builder.getOrCreate()
    workload = StreamingWorkload(spark, query, config, sink)
    if sink is None and config["first"] and not Path(config["first"]).exists():
        Path(config["first"]).touch()
        workload.warm_up()
    workload.await_executors()
    spark.streams.addListener(ProgressLog(Path(config["listener_log"])))
    lineages = StateEpochs(config["lineages"])
    lineage, _ = lineages.wanted()
    running = workload.start(lineage)
    end = Path(config["stop_file"])
    # awaitTermination raises the query's own error, which ends this program with status 1.
    while not running.awaitTermination(POLL_S):
        if end.exists():
            running.stop()
            continue
        wanted, stop = lineages.wanted()
        if stop and wanted == lineage:
            running.stop()
            lineages.confirm(lineage)
            while (wanted := lineages.wanted()[0]) == lineage and not end.exists():
                time.sleep(POLL_S / 10)
            lineage = wanted
            running = workload.start(lineage)
    spark.stop()


# Writes what the streaming query reports, one flushed JSON line an event.
#
# Spark has no REST endpoint for streaming queries, so a listener is the only way to see each batch.


class JsonLinesWriter:
    """One flushed JSON line an event, with wall and monotonic time in ns."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8")
        self._lock = threading.Lock()

    def write(self, event: str, **fields: Any) -> None:
        """Appends a line."""
        line = {"event": event, **fields, "wall_ns": time.time_ns(), "mono_ns": time.monotonic_ns()}
        with self._lock:
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()


class ProgressLog(StreamingQueryListener):
    """Appends `started`, `progress` and `terminated` events to `path`."""

    def __init__(self, path: Path) -> None:
        self._journal = JsonLinesWriter(path)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        self._journal.write("started", query_id=str(event.id), run_id=str(event.runId))

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = json.loads(event.progress.json)
        sources = progress.get("sources") or []
        operators = progress.get("stateOperators") or []
        self._journal.write(
            "progress",
            run_id=progress["runId"],
            batch=progress["batchId"],
            trigger_wall_ms=_epoch_ms(progress["timestamp"]),
            duration_ms=progress.get("durationMs", {}),
            num_input_rows=progress.get("numInputRows", 0),
            start_offsets=_offsets([source.get("startOffset") for source in sources]),
            end_offsets=_offsets([source.get("endOffset") for source in sources]),
            state={
                "rows": sum(operator.get("numRowsTotal", 0) for operator in operators),
                "rows_updated": sum(operator.get("numRowsUpdated", 0) for operator in operators),
                # Rows, not records: a late record is one in each of its windows, and those of a key arrive as one.
                "rows_dropped": sum(operator.get("numRowsDroppedByWatermark", 0) for operator in operators),
                "memory_bytes": sum(operator.get("memoryUsedBytes", 0) for operator in operators),
                "custom": operators[0].get("customMetrics", {}) if operators else {},
            },
        )

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        self._journal.write("terminated", run_id=str(event.runId), exception=event.exception)


def _epoch_ms(timestamp: str) -> int:
    return int(datetime.fromisoformat(timestamp.replace("Z", "+00:00")).timestamp() * 1000)


def _offsets(values: Sequence[Any]) -> dict[str, int] | None:
    """Offsets by partition of the first source that has some; None for the start of the first batch."""
    for value in values:
        if isinstance(value, str):
            value = json.loads(value)
        if isinstance(value, dict) and isinstance(value.get("offset"), int):
            return {"0": value["offset"]}  # events that the engine numbers itself, in one row
        if isinstance(value, dict) and value:
            ends = next(iter(value.values()))
            return ends if isinstance(ends, dict) else None
    return None
