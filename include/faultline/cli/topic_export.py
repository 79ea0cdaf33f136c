"""`./faultline export-topic`: a topic copied once into a Parquet file, with keys, headers and times, to be replayed."""

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
ANSWER_S = 15.0
# Without a record for so long a broker is taken to have none that it can give.
SILENT_S = 30.0
AT_ONCE = 20_000


def export_topic(bootstrap: str, topic: str, target: Path, say: Progress) -> int:
    """Copies what the topic holds now; returns how many records that were.

    What Faultline sent beside a schedule, to get an engine warm or to close windows, is left out. The file is there
    whole or not at all. Raises ConfigError for a target that is there or elsewhere than in a Parquet file, and for a
    topic that does not exist, InfrastructureError when the broker does not answer.
    """
    if target.suffix != PARQUET:
        raise ConfigError(f"--to: {target} does not end in {PARQUET}; name such a file")
    if target.exists():
        raise ConfigError(f"--to: {target} is there already; name another file")
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    copied = 0
    try:
        with pq.ParquetWriter(temporary, SCHEMA) as writer:
            for rows in _batches(bootstrap, topic):
                writer.write_table(pa.Table.from_pylist(rows, SCHEMA))
                copied += len(rows)
        if not copied:
            raise ConfigError(f"{topic}: holds no record to be replayed; name another topic")
        temporary.rename(target)
    except OSError as error:
        raise ConfigError(f"--to: {target} cannot be written: {error.strerror}") from None
    finally:
        temporary.unlink(missing_ok=True)
    say(f"{pluralize(copied, 'record')} of {topic} in {target}; replay it with data={target}")
    return copied


def _batches(bootstrap: str, topic: str) -> Iterator[list[dict[str, Any]]]:
    """All records that were there when this began, some thousands at a time."""
    consumer = Consumer(
        {
            **kafka_client(bootstrap),
            "group.id": f"faultline-record-{os.getpid()}",
            "enable.auto.commit": False,
            # The end of a partition may be a transaction's mark, which no record stands for.
            "enable.partition.eof": True,
            "log_level": 2,
        }
    )
    try:
        left = _ends(consumer, bootstrap, topic)
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in left])
        silent_s = 0.0
        while left:
            messages = consumer.consume(AT_ONCE, timeout=1.0)
            silent_s = 0.0 if messages else silent_s + 1.0
            if silent_s >= SILENT_S:
                raise InfrastructureError(f"{topic}: the broker gave no record for {SILENT_S:g} s; is Kafka up?")
            rows = [row for message in messages if (row := _taken(message, topic, left)) is not None]
            if rows:
                yield rows
    except KafkaException as error:
        raise InfrastructureError(f"broker {bootstrap}: {error.args[0]}; is Kafka up?") from None
    finally:
        consumer.close()


def _taken(message: Any, topic: str, left: dict[int, int]) -> dict[str, Any] | None:
    """The row of a message, None for one that is not to be copied; partitions that are through go from `left`."""
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
    """The end of each partition that holds anything."""
    found = consumer.list_topics(topic, timeout=ANSWER_S).topics[topic]
    if found.error is not None:
        raise ConfigError(f"{topic}: there is no such topic at {bootstrap} ({found.error}); name one that is there")
    ends = {}
    for partition in found.partitions:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=ANSWER_S)
        if high > low:
            ends[partition] = high
    return ends


def _row(message: Any) -> dict[str, Any] | None:
    """A record as the file holds it; None for one that Faultline sent beside a schedule."""
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
