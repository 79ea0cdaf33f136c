"""The tables that every harvest leaves, whoever reads the topics: as `spark_jobs/harvest.py` writes them.

Events that an engine makes and numbers itself are harvested here, from `batches.json` alone: no topic holds them, and
no generator sent them by a schedule. An event is there as soon as its batch is planned, and done when the batch is
committed. A batch takes all of its events in at once, so its length is their latency.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from faultline.engines.protocol import NUMBERED_PARTITION
from faultline.system.errors import InfrastructureError
from faultline.system.files import write_error

RECORDS = pa.schema(
    [("partition", pa.int32()), ("offset", pa.int64()), ("timestamp_ms", pa.int64()), ("primer", pa.bool_()),
     ("lineage", pa.int32()), ("batch", pa.int32()), ("late", pa.bool_())]
)  # fmt: skip
TUPLES = pa.schema(
    [("lineage", pa.int32()), ("batch", pa.int32()), ("produced_ms", pa.int64()), ("emitted_ms", pa.int64()),
     ("primer", pa.bool_()), ("n", pa.int64())]
)  # fmt: skip
COUNTS = pa.schema(
    [("key", pa.string()), ("expected", pa.int64()), ("undrained", pa.int64()), ("drawn", pa.int64()),
     ("final", pa.int64()), ("outputs", pa.int64()), ("reemitted", pa.int64()), ("unreadable", pa.int64())]
)  # fmt: skip


def write_tables(target: Path, tables: Mapping[str, pa.Table]) -> None:
    """Writes `NAME.parquet` of each into the folder, in this order; none is seen before it is whole.

    Raises InfrastructureError naming the one that cannot be written.
    """
    for name, table in tables.items():
        part, path = target / f".{name}.part", target / f"{name}.parquet"
        try:
            target.mkdir(parents=True, exist_ok=True)
            try:
                pq.write_table(table, part)
                part.rename(path)
            except OSError:
                part.unlink(missing_ok=True)
                raise
        except OSError as error:
            raise write_error(path, error) from None


MS = 1_000_000


def harvest(config: Path) -> None:
    """Write the three tables of a harvest; see `faultline.lifecycle.collect.collect_raw_data`.

    Records and counts stay empty: nothing is kept of single events. Batches that filled the state are gone, but for the
    last of them. Raises InfrastructureError when batches after the gate are gone, too: nobody could say how large the
    next one was.
    """
    wanted = json.loads(config.read_text())
    batches = json.loads(Path(wanted["batches"]).read_text())["batches"]
    first = min(batches, key=lambda batch: int(batch["batch"]))
    if first["batch"] and first["committed_wall_ns"] > _gate_ns(config.parent):
        raise InfrastructureError(
            f"{config.parent.name}: batches before {first['batch']} are gone, some of them measured; raise batch_events"
        )
    made = {"records": RECORDS.empty_table(), "tuples": tuples(batches), "counts": COUNTS.empty_table()}
    write_tables(Path(wanted["target"]), made)


def tuples(batches: Iterable[Mapping[str, Any]]) -> pa.Table:
    """One row for each batch with events: when they were taken in, when their batch was committed, and how many.

    Of the first batch that is known nobody knows how large it was, unless it is batch 0: it has no row.
    """
    rows, ordered = [], sorted(batches, key=lambda one: int(one["batch"]))
    before = int(ordered[0]["end_offsets"][NUMBERED_PARTITION]) if ordered and ordered[0]["batch"] else 0
    for batch in ordered:
        end = int(batch["end_offsets"][NUMBERED_PARTITION])
        if end > before:
            planned, committed = int(batch["planned_wall_ns"]) // MS, int(batch["committed_wall_ns"]) // MS
            rows.append((0, int(batch["batch"]), planned, committed, False, end - before))
            before = end
    columns = zip(*rows, strict=True) if rows else [[] for _ in TUPLES]
    return pa.table(
        [pa.array(list(values), field.type) for values, field in zip(columns, TUPLES, strict=True)], schema=TUPLES
    )


def _gate_ns(attempt: Path) -> int:
    return int(json.loads((attempt / "gate.json").read_text())["t0_wall_ns"])
