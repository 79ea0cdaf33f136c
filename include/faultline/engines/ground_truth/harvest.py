"""Harvest of an experiment on the ground-truth engine, without Spark.

The engine has one state epoch, and each record is a tuple with the key `<partition>:<offset>`. The data is small, so a
consumer and pandas finish before a Spark session would start. The tables equal those of `spark_jobs/harvest.py`; a test
compares them.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition

from faultline.engines.ground_truth.process_run import Arrival
from faultline.engines.tables import COUNTS, RECORDS, TUPLES, write_tables
from faultline.system.errors import InfrastructureError
from faultline.system.kafka import kafka_client
from faultline.system.secrets import WORKLOAD
from generators.producer import PHASE

# partition, offset, timestamp_ms, primer; key, value, emitted_ms, offset.
Input = tuple[int, int, int, bool]
Output = tuple[str, str, int, int]


def harvest(config: Path) -> None:
    """Read both topics and write the three tables, as `faultline.lifecycle.collect.collect_raw_data` configured.

    Raises InfrastructureError if a topic cannot be read.
    """
    request = json.loads(config.read_text())
    known = json.loads(Path(request["batches"]).read_text())
    inputs = [
        (one.partition(), one.offset(), one.timestamp()[1], _is_primer(one))
        for one in read_topic(request["bootstrap"], request["input_topic"])
    ]
    ahead_ms = int(request.get("emitted_ahead_ms", 0))
    outputs = [
        (_text(one.key()), _text(one.value()), one.timestamp()[1] - ahead_ms, one.offset())
        for one in read_topic(request["bootstrap"], request["output_topic"])
    ]
    write_tables(Path(request["target"]), tables(inputs, outputs, known["batches"], known.get("reached")))


def tables(
    inputs: Iterable[Input],
    outputs: Iterable[Output],
    batches: Sequence[Mapping[str, Any]],
    reached: Mapping[str, int] | None = None,
) -> dict[str, pa.Table]:
    """Return the tables by name.

    `reached`: the offsets that were committed at the end; None: those of the last batch.
    """
    records = pd.DataFrame(list(inputs), columns=["partition", "offset", "timestamp_ms", "primer"])
    records["batch"] = _batch_of(records, batches)
    ends = reached or (max(batches, key=lambda one: int(one["batch"]))["end_offsets"] if batches else {})
    furthest = records["partition"].map(lambda partition: int(ends.get(str(partition), 0)))
    records["undrained"] = records["offset"] >= furthest
    records["lineage"] = records["batch"].where(records["batch"].isna(), 0)
    records["late"] = False
    records["key"] = records["partition"].astype(str) + ":" + records["offset"].astype(str)
    sent = pd.DataFrame(list(outputs), columns=["key", "value", "emitted_ms", "offset"])
    sent["count"] = pd.to_numeric(sent["value"].where(sent["value"].str.fullmatch(r"[+-]?\d{1,18}"))).astype("Int64")
    return {
        "records": _table(records, RECORDS),
        "tuples": _table(_tuples(records, sent), TUPLES),
        "counts": _table(_counts(records, sent), COUNTS),
    }


def _batch_of(records: pd.DataFrame, batches: Sequence[Mapping[str, Any]]) -> pd.Series[Any]:
    """Return, per record, the first batch whose end offset exceeds the record's offset; NA if no batch took it."""
    found = pd.Series(pd.NA, index=records.index, dtype="Int64")
    ordered = sorted(batches, key=lambda one: int(one["batch"]))
    for partition, own in records.groupby("partition"):
        ends = np.array([int(one["end_offsets"].get(str(partition), 0)) for one in ordered], dtype=np.int64)
        # A batch without this partition ends where the previous batch did.
        place = np.searchsorted(np.maximum.accumulate(ends), own["offset"].to_numpy(), side="right")
        numbers = pd.array([int(one["batch"]) for one in ordered] + [pd.NA], dtype="Int64")
        found.loc[own.index] = numbers[place]
    return found


def _tuples(records: pd.DataFrame, sent: pd.DataFrame) -> pd.DataFrame:
    """Return the number of tuples by batch, production time and emission time."""
    # A record counts once, so if a batch took it, the first output with a count of at least 1 reflects it.
    first = sent[sent["count"] >= 1].groupby("key")["emitted_ms"].min()
    emitted = records["key"].map(first).astype("Int64").where(records["batch"].notna())
    groups = records.assign(produced_ms=records["timestamp_ms"], emitted_ms=emitted)
    columns = ["lineage", "batch", "produced_ms", "emitted_ms", "primer"]
    return groups.groupby(columns, dropna=False).size().reset_index(name="n")


def _counts(records: pd.DataFrame, sent: pd.DataFrame) -> pd.DataFrame:
    """Return the expected count, last output and numbers of outputs by key."""
    undrained = records["undrained"].astype("int64")
    drawn = (~records["primer"].astype(bool)).astype("int64")
    expected = pd.DataFrame({"key": records["key"], "expected": 1, "undrained": undrained, "drawn": drawn})
    by_key = sent.groupby("key")["count"]
    # All outputs of a key are in one partition, so the highest offset is the last output.
    last = sent.sort_values("offset").drop_duplicates("key", keep="last").set_index("key")
    final = pd.DataFrame(
        {
            "final": last["count"],
            "outputs": by_key.size(),
            "reemitted": by_key.count() - by_key.nunique(),
            "unreadable": by_key.size() - by_key.count(),
        }
    ).rename_axis("key")
    merged = expected.merge(final.reset_index(), on="key", how="outer")
    return merged.fillna({"undrained": 0, "outputs": 0, "reemitted": 0, "unreadable": 0})


def _table(frame: pd.DataFrame, schema: pa.Schema) -> pa.Table:
    known = frame[schema.names].convert_dtypes()
    return pa.Table.from_pandas(known, schema=schema, preserve_index=False).replace_schema_metadata()


def _is_primer(message: Any) -> bool:
    return any(name == PHASE for name, _ in message.headers() or ())


def _text(value: bytes | None) -> str:
    return "" if value is None else value.decode("utf-8", "replace")


_MAX_MESSAGES = 2000
_TIMEOUT_S = 10.0
_FLUSH_S = 60.0
# Time limit for reading a topic, which delays a restart.
_READ_LIMIT_S = 30.0


class KafkaTransport:
    """Transport over a Kafka broker: a consumer without a group and an idempotent producer.

    `starts`: the first offset to read from each partition of the input topic.
    """

    def __init__(self, bootstrap: str, source: str, sink: str, starts: Mapping[int, int]) -> None:
        self._bootstrap, self._source, self._sink = bootstrap, source, sink
        self._consumer = _consumer(bootstrap)
        self._consumer.assign([TopicPartition(source, partition, offset) for partition, offset in starts.items()])
        self._failed = ""
        self._producer = Producer(
            {
                **kafka_client(bootstrap, user=WORKLOAD),
                "enable.idempotence": True,
                "acks": "all",
                # Send at once: a record still queued at a kill would have a timestamp but never be emitted.
                "linger.ms": 0,
                "delivery.report.only.error": True,
                "log_level": 3,
            }
        )

    def poll(self) -> Iterator[Arrival]:
        """Yield the fetched records.

        Raises InfrastructureError on a permanent error.
        """
        while True:
            messages = self._consumer.consume(_MAX_MESSAGES, 0)
            for message in messages:
                if (error := message.error()) is not None:
                    _raise_if_permanent(error)
                    continue
                headers = message.headers() or []
                primer = any(name == PHASE for name, _ in headers)
                yield Arrival(message.partition(), message.offset(), message.timestamp()[1], primer)
            if len(messages) < _MAX_MESSAGES:
                return

    def emit(self, key: bytes, value: bytes) -> None:
        """Send one output record; librdkafka sets its timestamp."""
        while True:
            try:
                self._producer.produce(self._sink, value, key, on_delivery=self._on_failure)
                break
            except BufferError:
                self._producer.poll(0.01)
        self._producer.poll(0)

    def flush(self) -> None:
        """Wait until every output is acknowledged.

        Raises InfrastructureError after 60 s.
        """
        left = self._producer.flush(_FLUSH_S)
        if left or self._failed:
            raise InfrastructureError(
                f"topic {self._sink}: flush failed: {left} outputs not acknowledged {self._failed}".rstrip()
            )

    def emitted(self) -> Mapping[bytes, int]:
        """Return the number of output records by key, up to the current end of the topic."""
        return Counter(message.key() for message in read_topic(self._bootstrap, self._sink))

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()

    def _on_failure(self, error: Any, _message: Any) -> None:
        if error is not None:
            self._failed = str(error)


def read_topic(bootstrap: str, topic: str) -> Iterator[Any]:
    """Yield every record up to a topic's current end, in order within each partition.

    Raises InfrastructureError if the topic cannot be read within 30 s.
    """
    reader = _consumer(bootstrap)
    try:
        known = reader.list_topics(topic, timeout=_TIMEOUT_S).topics[topic]
        places = [TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in known.partitions]
        ends = {
            place.partition: reader.get_watermark_offsets(place, timeout=_TIMEOUT_S, cached=False)[1]
            for place in places
        }
        open_ends = {partition: end for partition, end in ends.items() if end > 0}
        reader.assign([place for place in places if place.partition in open_ends])
        deadline = time.monotonic() + _READ_LIMIT_S
        while open_ends:
            if time.monotonic() > deadline:
                raise InfrastructureError(f"topic {topic}: read failed: not complete within {_READ_LIMIT_S:g} s")
            for message in reader.consume(_MAX_MESSAGES, 0.01):
                if (error := message.error()) is not None:
                    _raise_if_permanent(error)
                    continue
                # Ignore records that arrived after the ends were read.
                end = open_ends.get(message.partition(), 0)
                if message.offset() < end:
                    yield message
                if message.offset() + 1 >= end:
                    open_ends.pop(message.partition(), None)
    except KafkaException as error:
        raise InfrastructureError(f"topic {topic}: read failed: {error.args[0]}") from None
    finally:
        reader.close()


def _consumer(bootstrap: str) -> Any:
    return Consumer(
        {
            **kafka_client(bootstrap, user=WORKLOAD),
            # Required by the client, although partitions are assigned and no offsets are committed.
            "group.id": "faultline-known-truth",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            # A fetch returns at the first byte; the wait only bounds an idle fetch.
            "fetch.min.bytes": 1,
            "fetch.wait.max.ms": 50,
            "fetch.error.backoff.ms": 20,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 500,
            "log_level": 3,
        }
    )


def _raise_if_permanent(error: Any) -> None:
    """Raise InfrastructureError for an error that is not transient."""
    transient = (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._PARTITION_EOF)
    if error.fatal() or error.code() not in transient and not error.retriable():
        raise InfrastructureError(f"kafka: read failed: {error}; fix: check that the broker runs and the topic exists")
