"""Events that an engine makes and numbers itself: their harvest, from `batches.json` alone.

No topic holds them, and no generator sent them by a schedule. An event is there as soon as its batch is planned, and
done when the batch is committed. A batch takes all of its events in at once, so its length is their latency.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from faultline.engines.base import ROW
from faultline.engines.tables import COUNTS, RECORDS, TUPLES, write_tables
from faultline.system.errors import InfrastructureError

MS = 1_000_000


def harvest(config: Path) -> None:
    """Writes the three tables of a harvest, as the configuration of `faultline.lifecycle.collect.gather` says.

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
    before = int(ordered[0]["end_offsets"][ROW]) if ordered and ordered[0]["batch"] else 0
    for batch in ordered:
        end = int(batch["end_offsets"][ROW])
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
