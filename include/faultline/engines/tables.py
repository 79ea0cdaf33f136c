"""Tables that every harvest writes, with the schemas of `spark_jobs/harvest.py`.

This module also harvests events that an engine generates and numbers itself. They are in no topic, so `batches.json` is
the only source. All events of a batch become available when it is planned, and are done when it is committed, so the
duration of the batch is their latency.
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
    """Write each table atomically as `NAME.parquet` into the folder, in this order.

    Raises InfrastructureError that names the table that cannot be written.
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

    Records and counts stay empty, because single events are not kept. Batches that filled the state are purged, except
    for the last one. Raises InfrastructureError if batches after T0 are purged, because the size of the next one is
    then unknown.
    """
    request = json.loads(config.read_text())
    batches = json.loads(Path(request["batches"]).read_text())["batches"]
    first = min(batches, key=lambda batch: int(batch["batch"]))
    if first["batch"] and first["committed_wall_ns"] > _t0_ns(config.parent):
        raise InfrastructureError(
            f"{config.parent.name}: measured batches before {first['batch']} are purged; fix: raise batch_events"
        )
    made = {"records": RECORDS.empty_table(), "tuples": tuples(batches), "counts": COUNTS.empty_table()}
    write_tables(Path(request["target"]), made)


def tuples(batches: Iterable[Mapping[str, Any]]) -> pa.Table:
    """Return one row for each batch with events: start, commit and number of events.

    The first known batch has no row unless it is batch 0, because its size is unknown.
    """
    rows, ordered = [], sorted(batches, key=lambda one: int(one["batch"]))
    previous_end = int(ordered[0]["end_offsets"][NUMBERED_PARTITION]) if ordered and ordered[0]["batch"] else 0
    for batch in ordered:
        end = int(batch["end_offsets"][NUMBERED_PARTITION])
        if end > previous_end:
            planned, committed = int(batch["planned_wall_ns"]) // MS, int(batch["committed_wall_ns"]) // MS
            rows.append((0, int(batch["batch"]), planned, committed, False, end - previous_end))
            previous_end = end
    columns = zip(*rows, strict=True) if rows else [[] for _ in TUPLES]
    return pa.table(
        [pa.array(list(values), field.type) for values, field in zip(columns, TUPLES, strict=True)], schema=TUPLES
    )


def _t0_ns(attempt: Path) -> int:
    return int(json.loads((attempt / "gate.json").read_text())["t0_wall_ns"])
