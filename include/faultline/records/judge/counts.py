"""Counts of an attempt: the audit against a batch recomputation, key skew, late records, state, and stages.

All but the stages are read from the harvest's table of counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from faultline.experiment.config import Configuration
from faultline.records.judge.evidence import Evidence
from faultline.records.judge.signals import Signals
from faultline.records.record import AuditPart, KeySkewPart, LateRecordsPart, StagesPart, StateBytes
from faultline.system.errors import InfrastructureError
from faultline.system.journal import Events, Line
from faultline.system.measured_window import Window
from generators.state_preload import WORD_CHARACTERS
from generators.zipf import estimate_exponent, words_of

# Bytes of a counter and of each of the two sums in a state row: 64-bit integers.
VALUE_BYTES = 8
SUMS = ("high", "low")
# The first keys of each kind are enough to start looking; all of them stand in counts.parquet.
OFFENDERS_PER_KIND = 10
# Beyond this many words their ranks are not looked up: the table would take longer than the harvest.
LARGEST_VOCABULARY = 1_000_000
# Rounding hides the last digits of a logarithm, in which processors differ.
DECIMALS = 6


@dataclass(frozen=True)
class Counts:
    """Fields of `Metrics`; `totals`: the audit, also if the record shows none, with the first `offenders`.

    `in_step`: whether the mapping of outputs to tuples is known. After a double count, each output of the key counts
    one tuple more than arrived, so ranks fail; ids still work. `store_not_read`: whether a chain that persists ended
    before its store was read back.
    """

    audit: AuditPart
    key_skew: KeySkewPart | None
    late_records: LateRecordsPart | None
    state_bytes: StateBytes
    stages: StagesPart | None
    totals: AuditPart
    offenders: list[Line]
    in_step: bool
    store_not_read: bool


def counts_of(evidence: Evidence, signals: Signals) -> Counts:
    """Raise InfrastructureError when the table of counts cannot be read."""
    config, traces, path = evidence.config, evidence.traces, evidence.counts_path
    totals, offenders = audit(path, evidence.generator.unknown, signals.undrained)
    sent, dropped = int(evidence.records["late"].sum()), traces.late_rows
    # Only rows of words are known to the byte.
    logical = logical_state_bytes(traces.state_rows, path) if config.kind.can("preloaded_state") else None
    return Counts(
        audit=totals if config.paced and "audit" not in evidence.not_measured else AuditPart.empty(),
        late_records=LateRecordsPart(sent=sent, dropped_rows=dropped) if sent or dropped else None,
        state_bytes=StateBytes(logical=logical, checkpoint=traces.state_bytes),
        stages=chain_work(evidence.stages, evidence.stored, path, signals.window),
        totals=totals,
        offenders=offenders,
        store_not_read=store_was_not_read(evidence.stages, evidence.stored),
        in_step=traces.method != "rank" or config.kind.carries_ids or not totals.overcounted,
        key_skew=keys_of(path, config),
    )


def audit(counts_path: Path, unknown: int | None, undrained: int) -> tuple[AuditPart, list[Line]]:
    """Return totals over the harvest's table of counts, and the first offending keys of each kind.

    `lost` and `overcounted` are sums of differences of keys that the batch recomputation knows; what an output reflects
    of undrained input is neither. `unexpected` counts keys that it does not know, and
    outputs whose value is not a count. `checksum_mismatches` counts keys with the expected count but other tuples: as
    many were lost as were counted twice. `undrained`: offsets of the input that were not committed.
    """
    totals: dict[str, int] = dict.fromkeys(("expected", "lost", "overcounted", "unexpected", "reemitted"), 0)
    offenders: dict[str, list[Line]] = {"lost": [], "overcounted": [], "unexpected": []}
    sums = _sums(counts_path)
    if sums:
        totals["checksum_mismatches"], offenders["checksum_mismatches"] = 0, []
    beyond = [name for name in ("undrained",) if name in _dataset(counts_path).schema.names]
    # Harvests from before it was counted took all input to be committed.
    is_complete = bool(beyond) or not undrained
    for frame in _frames(counts_path, ["key", "expected", "final", "reemitted", "unreadable", *beyond, *sums]):
        final, most = frame["final"].fillna(0), frame["expected"].fillna(0)
        drained = most - frame["undrained"].fillna(0) if beyond else most
        known = most > 0
        kinds = {
            # An unexpected key cannot be lost.
            "lost": (drained - final).clip(lower=0) * is_complete,
            "overcounted": (final - most).clip(lower=0).where(known, 0),
            "unexpected": frame["unreadable"] + (~known).astype("int64"),
        }
        if sums:
            kinds["checksum_mismatches"] = ((drained > 0) & (final == drained) & _differ(frame)).astype("int64")
        totals["expected"] += int(drained.sum())
        totals["reemitted"] += int(frame["reemitted"].sum())
        for kind, amount in kinds.items():
            totals[kind] += int(amount.sum())
            offenders[kind] += _offenders(kind, frame[amount > 0])
    first = [line for lines in offenders.values() for line in sorted(lines, key=_key)[:OFFENDERS_PER_KIND]]
    counted: dict[str, int | None] = {**totals, "unknown": unknown, "undrained": undrained}
    return AuditPart(**(counted if is_complete else {**counted, "lost": None})), first


def mean_row_bytes(counts_path: Path) -> float | None:
    """Return the mean row size over all keys, or None without keys.

    A row is the key in UTF-8 plus the counter, and both checksums if the workload keeps them.
    """
    keys = size = 0
    for batch in _batches(counts_path, ["key"]):
        lengths = pc.binary_length(batch.column("key").cast(pa.binary()))
        keys += len(lengths) - lengths.null_count
        size += pc.sum(lengths).as_py() or 0
    values = 1 + len(SUMS) if _sums(counts_path) else 1
    return size / keys + values * VALUE_BYTES if keys else None


def logical_state_bytes(rows: int | None, counts_path: Path) -> int | None:
    """Return live rows × mean row size; None when either is unknown."""
    row_bytes = None if rows is None else mean_row_bytes(counts_path)
    return None if rows is None or row_bytes is None else round(rows * row_bytes)


def _sums(counts_path: Path) -> list[str]:
    """Return the columns of checksums, expected and final; empty if the workload kept none."""
    names = [f"{side}_{name}" for side in ("expected", "final") for name in SUMS]
    return names if set(names) <= set(_dataset(counts_path).schema.names) else []


def _differ(frame: pd.DataFrame) -> pd.Series[bool]:
    """Return a mask of rows with an unexpected sum; an output without a sum differs."""
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


def keys_of(counts_path: Path, config: Configuration) -> KeySkewPart | None:
    """Read `drawn` of counts.parquet; None for workloads whose keys are ids or windows.

    Ranks are those of the generator's vocabulary; a real text has none, so its words are ranked by their counts.
    Raises InfrastructureError when the table cannot be read.
    """
    if not config.kind.can("words"):
        return None
    counts = dict(_drawn(counts_path))
    if not counts:
        return None
    total, hottest = sum(counts.values()), max(counts.values())
    ranked = _by_rank(counts, config)
    measured, low, high = (None, None, None) if ranked is None else _estimate(ranked)
    requested = config.skew if config.skew_curve is None else None
    return KeySkewPart(
        requested=requested, measured=measured, low=low, high=high, hottest_share=hottest / total, distinct=len(counts)
    )


def _by_rank(counts: dict[str, int], config: Configuration) -> npt.NDArray[np.int64] | None:
    """Count in the order of the ranks, 0 for words that never came; None when the exponent moved or has no meaning."""
    if config.skew_curve is not None or len(counts) < 2:
        return None
    if config.skew is None:
        return np.array(sorted(counts.values(), reverse=True), dtype=np.int64)
    if config.vocabulary > LARGEST_VOCABULARY:
        return None
    letters = words_of(np.arange(config.vocabulary, dtype=np.int64))
    width = letters.shape[1]
    block = letters.tobytes().decode("ascii")
    words = (block[start : start + width] for start in range(0, len(block), width))
    return np.array([counts.get(word, 0) for word in words], dtype=np.int64)


def _estimate(ranked: npt.NDArray[np.int64]) -> tuple[float | None, float | None, float | None]:
    """Estimate and interval; nothing when all draws are of one word."""
    try:
        estimate, low, high = estimate_exponent(ranked)
    except ValueError:
        return None, None, None
    return round(estimate, DECIMALS), round(low, DECIMALS), round(high, DECIMALS)


def _drawn(path: Path) -> Iterator[tuple[str, int]]:
    """Return (key, drawn) of the words that the input holds outside the primer, without the filler words."""
    # Attempts that were harvested before the primer was counted apart.
    name = "drawn" if "drawn" in _dataset(path).schema.names else "expected"
    for batch in _batches(path, ["key", name]):
        for key, drawn in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True):
            if drawn and len(key) != WORD_CHARACTERS:
                yield key, drawn


def chain_work(
    stages: Events, stored: Mapping[str, int] | None, counts_path: Path, window: Window
) -> StagesPart | None:
    """Return the work of the stages after T0, from their journal, or None without stages.

    `stored`: content of their store.
    """
    if not stages:
        return None

    def later(event: str) -> list[Line]:
        return [line for line in stages[event] if int(line["wall_ns"]) >= window.t0_ns]

    replaced = later("replaced")
    names = {str(line["stage"]) for line in replaced}
    return StagesPart(
        signals=sum(line["act"] == "slow" for line in later("signal")),
        failed=sum(int(line["count"]) for line in later("failed")),
        set_aside=sum(int(line["count"]) for line in later("set_aside")),
        replacements=len(replaced),
        gap_s=max((float(line["gap_s"]) for line in replaced), default=None),
        batch_s=max((float(line["seconds"]) for line in later("batch") if line["stage"] in names), default=None),
        most_queued=max((int(line["most"]) for line in later("queued")), default=None),
        unstored=None if stored is None else count_unstored(stored, counts_path),
    )


def store_was_not_read(stages: Events, stored: Mapping[str, int] | None) -> bool:
    """Return whether a chain that persists ended before it had written what waited, and read its store back."""
    return stored is None and any("persist" in line["parallelism"] for line in stages["started"])


def count_unstored(stored: Mapping[str, int], counts_path: Path) -> int:
    """Return keys that the store and the output topic do not agree on."""
    final: dict[str, int] = {}
    for batch in _batches(counts_path, ["key", "final"]):
        pairs = zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)
        final |= {key: value for key, value in pairs if key is not None and value is not None}
    return sum(stored.get(key) != final.get(key) for key in {*stored, *final})
