"""`./faultline export-topic`: copy a topic to a Parquet file for replay, with keys, headers and times."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from faultline.system.errors import ConfigError, InfrastructureError
from faultline.system.kafka import kafka_client
from faultline.system.text import Progress, pluralize
from generators.data_files import PARQUET
from generators.producer import NUMBER, PHASE

SCHEMA = pa.schema(
    [
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp_ms", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))),
    ]
)
REQUEST_TIMEOUT_S = 15.0
# The export fails after this time without a record.
SILENCE_TIMEOUT_S = 30.0
BATCH_SIZE = 20_000


def export_topic(bootstrap: str, topic: str, target: Path, progress: Progress) -> int:
    """Copy the current records of a topic; return their number.

    Records that Faultline sends outside the schedule, to warm up or to close windows, are left out. The file is
    written completely or not at all. Raises ConfigError for an invalid target or an unknown topic, InfrastructureError
    if the broker does not respond.
    """
    if target.suffix != PARQUET:
        raise ConfigError(f"--to: got {target}; expected a name that ends in {PARQUET}")
    if target.exists():
        raise ConfigError(f"--to: {target} exists; fix: choose another file")
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    copied = 0
    try:
        with pq.ParquetWriter(temporary, SCHEMA) as writer:
            for rows in _batches(bootstrap, topic):
                writer.write_table(pa.Table.from_pylist(rows, SCHEMA))
                copied += len(rows)
        if not copied:
            raise ConfigError(f"{topic}: no records to export")
        temporary.rename(target)
    except OSError as error:
        raise ConfigError(f"--to: writing {target} failed: {error.strerror}") from None
    finally:
        temporary.unlink(missing_ok=True)
    progress(f"exported {pluralize(copied, 'record')} of {topic} to {target}; replay: data={target}")
    return copied


def _batches(bootstrap: str, topic: str) -> Iterator[list[dict[str, Any]]]:
    """Yield the records present at the start, up to BATCH_SIZE at a time."""
    consumer = Consumer(
        {
            **kafka_client(bootstrap),
            "group.id": f"faultline-record-{os.getpid()}",
            "enable.auto.commit": False,
            # Needed because a partition may end with a transaction marker, which is not delivered as a record.
            "enable.partition.eof": True,
            "log_level": 2,
        }
    )
    try:
        left = _ends(consumer, bootstrap, topic)
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in left])
        silent_s = 0.0
        while left:
            messages = consumer.consume(BATCH_SIZE, timeout=1.0)
            silent_s = 0.0 if messages else silent_s + 1.0
            if silent_s >= SILENCE_TIMEOUT_S:
                raise InfrastructureError(
                    f"{topic}: read failed: no record for {SILENCE_TIMEOUT_S:g} s; fix: check the broker"
                )
            rows = [row for message in messages if (row := _row_to_copy(message, topic, left)) is not None]
            if rows:
                yield rows
    except KafkaException as error:
        raise InfrastructureError(f"broker {bootstrap}: read failed: {error.args[0]}; fix: check the broker") from None
    finally:
        consumer.close()


def _row_to_copy(message: Any, topic: str, left: dict[int, int]) -> dict[str, Any] | None:
    """Return the row of a message, or None to skip it. Removes finished partitions from `left`."""
    partition, offset = message.partition(), message.offset()
    if (error := message.error()) is not None:
        if error.code() != KafkaError._PARTITION_EOF:
            raise InfrastructureError(f"{topic}: {error}")
        left.pop(partition, None)
        return None
    if offset >= left.get(partition, 0):
        return None
    if offset + 1 == left[partition]:
        del left[partition]
    return _row(message)


def _ends(consumer: Consumer, bootstrap: str, topic: str) -> dict[int, int]:
    """Return the end offset of each non-empty partition."""
    found = consumer.list_topics(topic, timeout=REQUEST_TIMEOUT_S).topics[topic]
    if found.error is not None:
        raise ConfigError(f"{topic}: no such topic at {bootstrap} ({found.error})")
    ends = {}
    for partition in found.partitions:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=REQUEST_TIMEOUT_S)
        if high > low:
            ends[partition] = high
    return ends


def _row(message: Any) -> dict[str, Any] | None:
    """Return the row of a record, or None if Faultline sent it outside the schedule."""
    headers = message.headers() or []
    if any(name == PHASE for name, _ in headers):
        return None
    return {
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp_ms": message.timestamp()[1],
        "key": message.key(),
        "value": message.value(),
        "headers": [{"name": name, "value": value} for name, value in headers if name != NUMBER],
    }
