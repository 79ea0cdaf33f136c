"""Common parts of Spark workloads: configuration, Kafka input and output, warm-up and shutdown.

A workload is a query from Kafka records to the text columns `key` and `value`. Output records have the header
`lineage`. The default output mode is update. The Kafka sink is at-least-once, so a retried batch emits its results
again.
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
# Interval of checks whether the warm-up has read all input.
WARM_UP_POLL_S = 0.5
# Time that the broker waits for records when a consumer prefetches after a batch. A query with two branches reads each
# batch twice, and the second read would wait for that request, by default 500 ms per partition.
FETCH_WAIT_MS = 20

Config = dict[str, Any]
# Optional result column: the number of the newest record that a result depends on.
NEWEST = "newest"
# Headers of output records; the prefix prevents collisions with headers of user records.
LINEAGE_HEADER, NEWEST_HEADER = "faultline-lineage", "faultline-newest"
# (input records with binary `value`, configuration) -> key, value, and perhaps NEWEST.
Query = Callable[[DataFrame, Config], DataFrame]
# (results, configuration) -> a writer with a target, without checkpoint, mode and trigger.
Sink = Callable[[DataFrame, Config], DataStreamWriter]


# CPU time in microseconds to spend per record: a known slowdown that tests the regression gate.
BUSY = "spark.faultline.busy_us_per_record"
_HASHED_BYTES, _HASHED_TIMES = 16_000_000, 5


class StreamingWorkload:
    """Query from the input topic to an output topic or its own sink."""

    def __init__(self, spark: SparkSession, query: Query, config: Config, sink: Sink | None = None) -> None:
        self._spark, self._query, self._config, self._sink = spark, query, config, sink
        # Measured once, so that warm-up and measured query spend the same time.
        self._hashed_a_us = sha512_bytes_per_us(spark) if float(spark.conf.get(BUSY, "0") or 0) > 0 else 0.0

    def start(self, lineage: int) -> StreamingQuery:
        """Start the measured query: micro-batches, or real-time batches of `real_time_s`."""
        config = self._config
        checkpoint = f"{config['checkpoint']}/lineage-{lineage}" if config["lineages"] else config["checkpoint"]
        writer = self._writer(config["output_topic"], checkpoint, {}, lineage)
        if config.get("real_time_s"):
            return writer.trigger(realTime=milliseconds(config["real_time_s"])).start()
        return writer.trigger(processingTime=milliseconds(config["checkpoint_interval_s"])).start()

    def warm_up(self) -> None:
        """Process the preload in small batches, with a temporary topic and checkpoint.

        The same plan runs on the same executors, so that the measured query starts with compiled code. Only the first
        incarnation warms up, so that a restarted driver is measured cold.
        """
        plan = self._config["warm_up"]
        options = {"maxOffsetsPerTrigger": str(plan["records_per_batch"])}
        writer = self._writer(plan["topic"], plan["checkpoint"], options).trigger(availableNow=True)
        # Planning overlaps with the start of the executors; the warm-up needs all of them.
        self.await_executors()
        query = writer.start()
        while not query.awaitTermination(WARM_UP_POLL_S):
            # Processing-time timers make Spark plan further batches, even if all input is read.
            progress = query.lastProgress
            if progress is not None and progress["numInputRows"] == 0:
                query.stop()

    def await_executors(self) -> None:
        """Wait until all executors have registered."""
        await_executors(self._spark, self._config["executors"])

    def _writer(
        self, topic: str, checkpoint: str, source_options: dict[str, str], lineage: int = 0
    ) -> DataStreamWriter:
        """Return the query from the input topic to `topic`; the caller sets the trigger.

        Only epoch 0 starts at the beginning of the topic; a later one represents a job that lost all state.
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
            records = with_busy_work(records, busy_us, self._hashed_a_us)
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


def sha512_bytes_per_us(spark: SparkSession) -> float:
    """Return the SHA-512 throughput of the driver's JVM in bytes per microsecond: the best of five runs."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    # Created once, so that the transfer to the JVM is not timed.
    content = jvm.java.io.ByteArrayInputStream(b"x" * _HASHED_BYTES)
    took = []
    for _ in range(_HASHED_TIMES):
        content.reset()
        began = jvm.System.nanoTime()
        jvm.org.apache.commons.codec.digest.DigestUtils.sha512Hex(content)
        took.append(int(jvm.System.nanoTime()) - int(began))
    return _HASHED_BYTES / (min(took) / 1000)


def with_busy_work(records: DataFrame, busy_us: float, hashed_a_us: float) -> DataFrame:
    """Return the same records, with about `busy_us` of CPU time spent on hashes per record.

    The hash includes the record, and a filter that drops nothing uses it, so the optimiser cannot remove it.
    """
    padding = "x" * max(1, round(busy_us * hashed_a_us))
    value = F.coalesce(F.col("value"), F.lit(b""))
    hashed = F.sha2(F.concat(value, F.lit(padding.encode())), 512)
    return records.where(F.length(hashed) > 0)


def await_executors(spark: SparkSession, executors: int) -> None:
    """Wait for this number of executors; state placed on fewer would move later."""
    context = spark.sparkContext._jsc.sc()  # type: ignore[attr-defined]  # PySpark has no public count
    while context.getExecutorMemoryStatus().size() <= executors:  # includes the driver
        time.sleep(0.05)


def newest_commit(checkpoint: Path) -> int:
    """Return the number of the newest committed batch of a checkpoint; -1 before the first."""
    return newest_batch(checkpoint / "commits")


def newest_batch(log: Path) -> int:
    """Return the newest batch in a checkpoint's log, `offsets` or `commits`; -1 if empty."""
    return max((int(path.name) for path in log.glob("*") if path.name.isdigit()), default=-1)


def parse_json(records: DataFrame, schema: str) -> DataFrame:
    """Return the JSON text `value` of the records as a struct `event`; invalid text is null or has null fields.

    Spark would move a filter on a field below the parser, and parse each record twice. It moves none below `observe`.
    """
    event = F.from_json(F.col("value").cast("string"), schema).alias("event")
    return records.select(event).observe("parsed", F.count(F.lit(1)).alias("rows"))


def header(name: str, value: Column) -> Column:
    """Return one header of an output record."""
    return F.struct(F.lit(name).alias("key"), value.cast("string").cast("binary").alias("value"))


class StateEpochs:
    """State epoch requested by the workload supervisor (commit mode `none`); otherwise always 0.

    The supervisor writes {"lineage": n, "stop": bool} to `control`. This program writes n to `stopped` once epoch n has
    stopped, and starts the next one when its number appears.
    """

    def __init__(self, paths: dict[str, str] | None) -> None:
        """Create it from {"control", "stopped"}, or None for other commit modes."""
        self._control = Path(paths["control"]) if paths else None
        self._stopped = Path(paths["stopped"]) if paths else None

    def requested(self) -> tuple[int, bool]:
        """Return the number of the epoch, and whether it must stop."""
        if self._control is None:
            return 0, False
        request = json.loads(self._control.read_text())
        return int(request["lineage"]), bool(request["stop"])

    def confirm(self, lineage: int) -> None:
        """Confirm that an epoch has stopped."""
        if self._stopped is not None:
            self._stopped.write_text(str(lineage))


def milliseconds(seconds: float) -> str:
    """Return an interval in Spark's syntax for triggers, watermarks and windows."""
    return f"{round(seconds * 1000)} milliseconds"


def read_config(description: str | None) -> Config:
    """Return the program's configuration."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--config", type=Path, required=True, help="JSON file, written by the step submit_workload")
    options, _ = parser.parse_known_args()
    config: Config = json.loads(options.config.read_text())
    return config


def run(query: Query, description: str | None, *, output_mode: str = "update", sink: Sink | None = None) -> None:
    """Run a workload: warm-up, measured query with its state epochs, stop file.

    With a `sink` there is no warm-up, because its output could not be discarded.
    """
    config: Config = {"output_mode": output_mode, **read_config(description)}
    spark = SparkSession.builder.getOrCreate()
    workload = StreamingWorkload(spark, query, config, sink)
    if sink is None and config["first"] and not Path(config["first"]).exists():
        Path(config["first"]).touch()
        workload.warm_up()
    workload.await_executors()
    spark.streams.addListener(ProgressLog(Path(config["listener_log"])))
    epochs = StateEpochs(config["lineages"])
    lineage, _ = epochs.requested()
    running = workload.start(lineage)
    end = Path(config["stop_file"])
    # awaitTermination raises the query's own error, which ends this program with status 1.
    while not running.awaitTermination(POLL_S):
        if end.exists():
            running.stop()
            continue
        wanted, stop = epochs.requested()
        if stop and wanted == lineage:
            running.stop()
            epochs.confirm(lineage)
            while (wanted := epochs.requested()[0]) == lineage and not end.exists():
                time.sleep(POLL_S / 10)
            lineage = wanted
            running = workload.start(lineage)
    spark.stop()


# Journal of streaming query events.


class JsonLinesWriter:
    """Writer of one flushed JSON line per event, with wall and monotonic time in ns."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8")
        self._lock = threading.Lock()

    def write(self, event: str, **fields: Any) -> None:
        """Append a line."""
        line = {"event": event, **fields, "wall_ns": time.time_ns(), "mono_ns": time.monotonic_ns()}
        with self._lock:
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()


class ProgressLog(StreamingQueryListener):
    """Listener that appends `started`, `progress` and `terminated` events to `path`; REST does not offer them."""

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
                # Rows, not records: a late record counts in each of its windows, and rows of a key are pre-aggregated.
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
    """Return the offsets by partition of the first source that has some; None before the first batch."""
    for value in values:
        if isinstance(value, str):
            value = json.loads(value)
        if isinstance(value, dict) and isinstance(value.get("offset"), int):
            return {"0": value["offset"]}  # events that the engine numbers itself
        if isinstance(value, dict) and value:
            ends = next(iter(value.values()))
            return ends if isinstance(ends, dict) else None
    return None
