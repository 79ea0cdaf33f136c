"""The audit of counts, and the size of the state, from what the harvest recomputed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from faultline.base.errors import InfrastructureError
from faultline.base.journal import Line, events

# A counter is a 64-bit integer.
VALUE_BYTES = 8
# The first keys of each kind are enough to start looking; all of them stand in counts.parquet.
OFFENDERS_PER_KIND = 10


@dataclass(frozen=True)
class Audit:
    """Totals over all keys; `unknown` counts sends without acknowledgement."""

    expected: int
    lost: int
    overcounted: int
    wrong: int
    reemitted: int
    unknown: int | None


def audit(counts_path: Path, generator: Sequence[Line]) -> tuple[Audit, list[Line]]:
    """Totals over the harvest's table of counts, and the first offending keys of each kind.

    `lost` and `overcounted` are sums of differences of keys that the batch recomputation knows;
    `wrong` counts keys that it does not know, and outputs whose value is not a count.
    """
    totals = dict.fromkeys(("expected", "lost", "overcounted", "wrong", "reemitted"), 0)
    offenders: dict[str, list[Line]] = {"lost": [], "overcounted": [], "wrong": []}
    for frame in _frames(counts_path, ["key", "expected", "final", "reemitted", "unreadable"]):
        known = frame["expected"].fillna(0) > 0
        difference = frame["final"].fillna(0) - frame["expected"].fillna(0)
        kinds = {
            # Of what nobody expected none can be lost.
            "lost": (-difference).clip(lower=0),
            "overcounted": difference.clip(lower=0).where(known, 0),
            "wrong": frame["unreadable"] + (~known).astype("int64"),
        }
        totals["expected"] += int(frame["expected"].fillna(0).sum())
        totals["reemitted"] += int(frame["reemitted"].sum())
        for kind, amount in kinds.items():
            totals[kind] += int(amount.sum())
            offenders[kind] += _offenders(kind, frame[amount > 0])
    first = [line for lines in offenders.values() for line in sorted(lines, key=_key)[:OFFENDERS_PER_KIND]]
    done = events(generator, "done")
    return Audit(**totals, unknown=int(done[-1]["unknown"]) if done else None), first


def mean_row_bytes(counts_path: Path) -> float | None:
    """Mean over the keys of key length in UTF-8 plus the counter; None without keys."""
    keys = size = 0
    for batch in _batches(counts_path, ["key"]):
        lengths = pc.binary_length(batch.column("key").cast(pa.binary()))
        keys += len(lengths) - lengths.null_count
        size += pc.sum(lengths).as_py() or 0
    return size / keys + VALUE_BYTES if keys else None


def logical_state_bytes(rows: int | None, counts_path: Path) -> int | None:
    """Live rows × mean row size; None when either is unknown."""
    row_bytes = None if rows is None else mean_row_bytes(counts_path)
    return None if rows is None or row_bytes is None else round(rows * row_bytes)


def _offenders(kind: str, frame: pd.DataFrame) -> list[Line]:
    rows = frame.sort_values("key")
    return [
        {"kind": kind, "key": row.key, "expected": _count(row.expected), "final": _count(row.final)}
        for row in rows.head(OFFENDERS_PER_KIND).itertuples()
    ]


def _key(line: Line) -> str:
    return str(line["key"])


def _count(value: Any) -> int | None:
    return None if pd.isna(value) else int(value)


def _frames(path: Path, columns: list[str]) -> Iterator[pd.DataFrame]:
    for batch in _batches(path, columns):
        yield batch.to_pandas()


def _batches(path: Path, columns: list[str]) -> Iterator[pa.RecordBatch]:
    try:
        yield from ds.dataset(path, format="parquet").to_batches(columns=columns)
    except (OSError, pa.ArrowInvalid) as error:
        raise InfrastructureError(f"{path}: cannot be read ({error}); clear the task harvest") from error
