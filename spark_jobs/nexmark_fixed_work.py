"""One Nexmark query over a filled topic, at full speed, up to the topic's end.

    spark-submit nexmark_fixed_work.py --config FILE

The configuration: query, topic, bootstrap, kafka_options, checkpoint, ends (offset by partition), executors,
watermark_s, trigger_s, report, and optionally batch_events and most_s, after which the query ends. Without
`batch_events`, large batches make half of a state, then a trial determines the events of a batch that takes
`trigger_s`, and batches of this size follow. The report is JSON: `batch_events`, which the last batches would have
needed to take `trigger_s`, `settled` (when these began, seconds since 1970), `plan`, and `batches`, Spark's progress of
each and its `events`. Results are counted and discarded.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nexmark.catalogue import load, parse_timed_events, result_columns
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from workload_runner import Config, await_executors, milliseconds, read_config

POLL_S = 0.1
# Batches that determine the rate, and bounds of a batch.
LAST_BATCHES = 10
LEAST_EVENTS, MOST_EVENTS = 10_000, 4_000_000
# A state's parts: where each ends and its batches, as shares of all events. The last parts warm up the driver, whose
# code runs once per batch.
FILL_SHARE, FILL_BATCH = 0.5, 0.1
TRIAL_SHARE, TRIAL_BATCH = 0.75, 0.01
OFFSETS = ("startOffset", "endOffset")


def start(spark: SparkSession, config: Config, batch_events: int) -> StreamingQuery:
    """Start the query, from its checkpoint if there is one."""
    query = load(config["query"], updating=True)
    records = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", config["bootstrap"])
        .options(**config["kafka_options"])
        .option("subscribe", config["topic"])
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", batch_events)
        .load()
    )
    streams = query.timed(parse_timed_events(records), milliseconds(config["watermark_s"]))
    results = result_columns(query.build(spark, streams), query).observe("results", F.count(F.lit(1)).alias("rows"))
    writer = results.writeStream.format("noop").outputMode(query.mode).queryName(query.name)
    writer = writer.option("checkpointLocation", config["checkpoint"])
    return writer.trigger(processingTime=milliseconds(config["trigger_s"])).start()


def run_until(running: StreamingQuery, ends: Mapping[str, int], most_s: float = math.inf) -> str:
    """Stop the query when it has committed these offsets, or after `most_s`; return its plan. Raises its errors."""
    last = time.monotonic() + most_s
    while not running.awaitTermination(POLL_S):
        progress = running.lastProgress
        if progress is not None and (reached(progress, ends) or time.monotonic() > last):
            break
    # A query stopped while it plans a batch plans it again here, with operator numbers that have no watermark.
    plan: str = running._jsq.explainInternal(False)  # type: ignore[attr-defined]  # `explain` prints it
    running.stop()
    return plan


def reached(progress: Any, ends: Mapping[str, int]) -> bool:
    """Return whether a batch ended at or beyond these offsets."""
    (found,) = offsets(progress, "endOffset").values()
    return all(found.get(partition, 0) >= end for partition, end in ends.items())


def offsets(progress: Any, name: str) -> dict[str, dict[str, int]]:
    """Return the offsets `startOffset` or `endOffset` of a batch by topic and partition."""
    value = progress["sources"][0][name]
    found = json.loads(value) if isinstance(value, str) else value
    return dict(found or {"": {}})


def events_of(progress: Any) -> int:
    """Return the events of a batch; Spark's `numInputRows` counts those of each branch of a join."""
    begin, end = (sum(sum(one.values()) for one in offsets(progress, name).values()) for name in OFFSETS)
    return end - begin


def batch_size(running: StreamingQuery, seconds: float) -> int:
    """Return the events of a batch that takes this long, at the rate of the last full batches."""
    full = [one for one in running.recentProgress if one["numInputRows"]]
    rate = statistics.median(
        events_of(one) / (one["durationMs"]["triggerExecution"] / 1000) for one in full[-LAST_BATCHES:]
    )
    return round(min(max(rate * seconds, LEAST_EVENTS), MOST_EVENTS))


def fill(spark: SparkSession, config: Config) -> int:
    """Process the first parts of a state; return the events of a batch of `trigger_s`."""
    total = sum(config["ends"].values())
    for share, batch in ((FILL_SHARE, FILL_BATCH), (TRIAL_SHARE, TRIAL_BATCH)):
        running = start(spark, config, round(total * batch))
        run_until(running, {partition: round(end * share) for partition, end in config["ends"].items()})
    return batch_size(running, config["trigger_s"])


def main() -> None:
    config = read_config(__doc__)
    spark = SparkSession.builder.getOrCreate()
    await_executors(spark, config["executors"])
    batch_events = config.get("batch_events") or fill(spark, config)
    settled = time.time()
    running = start(spark, config, batch_events)
    plan = run_until(running, config["ends"], config.get("most_s", math.inf))
    report = {
        "batch_events": batch_size(running, config["trigger_s"]),
        "settled": settled,
        "plan": plan,
        "batches": [{**json.loads(one.json), "events": events_of(one)} for one in running.recentProgress],
    }
    Path(config["report"]).write_text(json.dumps(report))
    spark.stop()


if __name__ == "__main__":
    main()
