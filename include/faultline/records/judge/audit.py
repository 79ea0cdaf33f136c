"""The audit of counts, and the size of the state, from what the harvest recomputed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from faultline.system.errors import InfrastructureError
from faultline.system.journal import Line, events

# A counter is a 64-bit integer, and so is each of the two sums that a row of the state may have beside it.
VALUE_BYTES = 8
SUMS = ("high", "low")
# The first keys of each kind are enough to start looking; all of them stand in counts.parquet.
OFFENDERS_PER_KIND = 10


@dataclass(frozen=True)
class Audit:
    """Totals over all keys; `unknown` counts sends without acknowledgement.

    `undrained`: offsets of the input that were not committed. What they hold is in no other total: not processed is not
    lost. `lost`: None where a harvest from before cannot tell the two apart. `sums_differ`: None where no sums were
    kept.
    """

    expected: int
    lost: int | None
    overcounted: int
    wrong: int
    reemitted: int
    unknown: int | None
    undrained: int
    sums_differ: int | None = None


def audit(counts_path: Path, generator: Sequence[Line], undrained: int) -> tuple[Audit, list[Line]]:
    """Totals over the harvest's table of counts, and the first offending keys of each kind.

    `lost` and `overcounted` are sums of differences of keys that the batch recomputation knows; what an output reflects
    of undrained input is neither. `wrong` counts keys that it does not know, and outputs whose value is not a count;
    `sums_differ` keys that were counted as often as expected, but not the same tuples: as many were lost as were
    counted twice. `undrained`: offsets of the input that were not committed.
    """
    totals: dict[str, int] = dict.fromkeys(("expected", "lost", "overcounted", "wrong", "reemitted"), 0)
    offenders: dict[str, list[Line]] = {"lost": [], "overcounted": [], "wrong": []}
    sums = _sums(counts_path)
    if sums:
        totals["sums_differ"], offenders["sums_differ"] = 0, []
    beyond = [name for name in ("undrained",) if name in _dataset(counts_path).schema.names]
    # Harvests from before it was counted took all input to be committed.
    told = bool(beyond) or not undrained
    for frame in _frames(counts_path, ["key", "expected", "final", "reemitted", "unreadable", *beyond, *sums]):
        final, most = frame["final"].fillna(0), frame["expected"].fillna(0)
        drained = most - frame["undrained"].fillna(0) if beyond else most
        known = most > 0
        kinds = {
            # Of what nobody expected none can be lost.
            "lost": (drained - final).clip(lower=0) * told,
            "overcounted": (final - most).clip(lower=0).where(known, 0),
            "wrong": frame["unreadable"] + (~known).astype("int64"),
        }
        if sums:
            kinds["sums_differ"] = ((drained > 0) & (final == drained) & _differ(frame)).astype("int64")
        totals["expected"] += int(drained.sum())
        totals["reemitted"] += int(frame["reemitted"].sum())
        for kind, amount in kinds.items():
            totals[kind] += int(amount.sum())
            offenders[kind] += _offenders(kind, frame[amount > 0])
    first = [line for lines in offenders.values() for line in sorted(lines, key=_key)[:OFFENDERS_PER_KIND]]
    done = events(generator, "done")
    unknown = int(done[-1]["unknown"]) if done else None
    found = Audit(**totals, unknown=unknown, undrained=undrained)
    return found if told else replace(found, lost=None), first


def mean_row_bytes(counts_path: Path) -> float | None:
    """Mean over the keys of key length in UTF-8 plus the counter, and both sums where they are kept; None without
    keys."""
    keys = size = 0
    for batch in _batches(counts_path, ["key"]):
        lengths = pc.binary_length(batch.column("key").cast(pa.binary()))
        keys += len(lengths) - lengths.null_count
        size += pc.sum(lengths).as_py() or 0
    values = 1 + len(SUMS) if _sums(counts_path) else 1
    return size / keys + values * VALUE_BYTES if keys else None


def logical_state_bytes(rows: int | None, counts_path: Path) -> int | None:
    """Live rows × mean row size; None when either is unknown."""
    row_bytes = None if rows is None else mean_row_bytes(counts_path)
    return None if rows is None or row_bytes is None else round(rows * row_bytes)


def _sums(counts_path: Path) -> list[str]:
    """The columns of sums of hashes, expected and final; none where the workload keeps no sums, or did not yet."""
    names = [f"{side}_{name}" for side in ("expected", "final") for name in SUMS]
    return names if set(names) <= set(_dataset(counts_path).schema.names) else []


def _differ(frame: pd.DataFrame) -> pd.Series[bool]:
    """Where either sum is not the expected one; an output without a sum has none to agree."""
    agree = [frame[f"expected_{name}"].eq(frame[f"final_{name}"]).fillna(False) for name in SUMS]
    return ~(agree[0] & agree[1]).astype(bool)


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
    # Sums are larger than what a float keeps apart, which pandas would make of whole numbers with gaps.
    nullable = {pa.int64(): pd.Int64Dtype()}
    for batch in _batches(path, columns):
        yield batch.to_pandas(types_mapper=nullable.get)


def _batches(path: Path, columns: list[str]) -> Iterator[pa.RecordBatch]:
    dataset = _dataset(path)
    try:
        yield from dataset.to_batches(columns=columns)
    except (OSError, pa.ArrowInvalid) as error:
        raise _unreadable(path, error) from error


def _dataset(path: Path) -> ds.Dataset:
    try:
        return ds.dataset(path, format="parquet")
    except (OSError, pa.ArrowInvalid) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> InfrastructureError:
    return InfrastructureError(f"{path}: cannot be read ({error}); clear the task harvest")
