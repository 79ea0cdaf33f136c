"""The harvest of an experiment with the engine of known truth, without Spark.

The engine has one state lineage, and each record is a tuple under the key `<partition>:<offset>`. What it handles is
small, so that a plain consumer and pandas are done before a Spark session would have started. The tables are those of
`spark_jobs/harvest.py`, which a test holds them against.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from faultline.engines.known_truth.kafka import read_topic
from faultline.engines.tables import COUNTS, RECORDS, TUPLES, write_tables
from generators.producer import PHASE

# partition, offset, timestamp_ms, primer; key, value, emitted_ms, offset.
Input = tuple[int, int, int, bool]
Output = tuple[str, str, int, int]


def harvest(config: Path) -> None:
    """Reads both topics as the configuration of `faultline.lifecycle.collect.gather` says, and writes the three tables.

    Raises InfrastructureError when a topic cannot be read.
    """
    wanted = json.loads(config.read_text())
    known = json.loads(Path(wanted["batches"]).read_text())
    inputs = [
        (one.partition(), one.offset(), one.timestamp()[1], _is_primer(one))
        for one in read_topic(wanted["bootstrap"], wanted["input_topic"])
    ]
    ahead_ms = int(wanted.get("emitted_ahead_ms", 0))
    outputs = [
        (_text(one.key()), _text(one.value()), one.timestamp()[1] - ahead_ms, one.offset())
        for one in read_topic(wanted["bootstrap"], wanted["output_topic"])
    ]
    write_tables(Path(wanted["target"]), tables(inputs, outputs, known["batches"], known.get("reached")))


def tables(
    inputs: Iterable[Input],
    outputs: Iterable[Output],
    batches: Sequence[Mapping[str, Any]],
    reached: Mapping[str, int] | None = None,
) -> dict[str, pa.Table]:
    """The tables by name, from what the topics hold, from the committed batches, and from the offsets that were
    committed at the end."""
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
    """The first batch whose end offset on the record's partition exceeds the record's; none for what no batch took."""
    found = pd.Series(pd.NA, index=records.index, dtype="Int64")
    ordered = sorted(batches, key=lambda one: int(one["batch"]))
    for partition, own in records.groupby("partition"):
        ends = np.array([int(one["end_offsets"].get(str(partition), 0)) for one in ordered], dtype=np.int64)
        # A batch that says nothing of the partition ends where the one before it did.
        place = np.searchsorted(np.maximum.accumulate(ends), own["offset"].to_numpy(), side="right")
        numbers = pd.array([int(one["batch"]) for one in ordered] + [pd.NA], dtype="Int64")
        found.loc[own.index] = numbers[place]
    return found


def _tuples(records: pd.DataFrame, sent: pd.DataFrame) -> pd.DataFrame:
    """Tuples that share batch, production and emission time, with their number."""
    # A record counts once, so that any output of at least 1 reflects it; but only of one that a batch took.
    first = sent[sent["count"] >= 1].groupby("key")["emitted_ms"].min()
    emitted = records["key"].map(first).astype("Int64").where(records["batch"].notna())
    alike = records.assign(produced_ms=records["timestamp_ms"], emitted_ms=emitted)
    columns = ["lineage", "batch", "produced_ms", "emitted_ms", "primer"]
    return alike.groupby(columns, dropna=False).size().reset_index(name="n")


def _counts(records: pd.DataFrame, sent: pd.DataFrame) -> pd.DataFrame:
    """By key: what is expected, what came last, and what kinds of outputs there were."""
    undrained = records["undrained"].astype("int64")
    drawn = (~records["primer"].astype(bool)).astype("int64")
    expected = pd.DataFrame({"key": records["key"], "expected": 1, "undrained": undrained, "drawn": drawn})
    by_key = sent.groupby("key")["count"]
    # All outputs of a key stand in one partition, so the highest offset is the last output, readable or not.
    last = sent.sort_values("offset").drop_duplicates("key", keep="last").set_index("key")
    final = pd.DataFrame(
        {
            "final": last["count"],
            "outputs": by_key.size(),
            "reemitted": by_key.count() - by_key.nunique(),
            "unreadable": by_key.size() - by_key.count(),
        }
    ).rename_axis("key")
    whole = expected.merge(final.reset_index(), on="key", how="outer")
    return whole.fillna({"undrained": 0, "outputs": 0, "reemitted": 0, "unreadable": 0})


def _table(frame: pd.DataFrame, schema: pa.Schema) -> pa.Table:
    known = frame[schema.names].convert_dtypes()
    return pa.Table.from_pandas(known, schema=schema, preserve_index=False).replace_schema_metadata()


def _is_primer(message: Any) -> bool:
    return any(name == PHASE for name, _ in message.headers() or ())


def _text(value: bytes | None) -> str:
    return "" if value is None else value.decode("utf-8", "replace")
