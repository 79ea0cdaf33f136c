"""Counts of an attempt: audit, key skew, late records, state size, and work of the stages of a topology.

The audit compares the output of each key with a batch recomputation. It, the key skew and the state size read
harvest/counts.parquet, which holds the expected and the final value of each key.
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
from faultline.records.record import AuditPart, StateBytes
from faultline.records.work_parts import KeySkewPart, LateRecordsPart, StagesPart
from faultline.system.errors import InfrastructureError
from faultline.system.journal import Events, Line
from faultline.system.measured_window import Window
from generators.state_preload import WORD_CHARACTERS
from generators.zipf import estimate_exponent, words_of

# Bytes of the counter and of each checksum in a state row: 64-bit integers.
VALUE_BYTES = 8
CHECKSUMS = ("high", "low")
# Keys listed per kind of error; counts.parquet holds all of them.
OFFENDERS_PER_KIND = 10
# Largest vocabulary for which ranks are computed; a larger table would take longer than the harvest.
LARGEST_VOCABULARY = 1_000_000
# Decimals of an exponent; logarithms of different processors differ in the last digits.
DECIMALS = 6


@dataclass(frozen=True)
class Counts:
    """Fields of `Metrics`, and inputs of other stages.

    `totals`: the audit, even if the record omits it; `offenders`: its first offending keys. `is_mapping_known`: whether
    the tuples of each output are known. After a double count, later outputs of the key count more tuples than arrived,
    so a mapping by rank fails, but one by id does not. `store_not_read`: whether a topology that persists its result
    ended before its store was read back.
    """

    audit: AuditPart
    key_skew: KeySkewPart | None
    late_records: LateRecordsPart | None
    state_bytes: StateBytes
    stages: StagesPart | None
    totals: AuditPart
    offenders: list[Line]
    is_mapping_known: bool
    store_not_read: bool


def counts_of(evidence: Evidence, signals: Signals) -> Counts:
    """Return the counts of an attempt. Raises InfrastructureError if counts.parquet cannot be read."""
    config, traces, path = evidence.config, evidence.traces, evidence.counts_path
    totals, offenders = audit(path, evidence.generator.unknown, signals.undrained)
    sent, dropped = int(evidence.records["late"].sum()), traces.late_rows
    # The row size is known exactly only for workloads that count words.
    logical = logical_state_bytes(traces.state_rows, path) if config.kind.can("preloaded_state") else None
    return Counts(
        audit=totals if config.paced and "audit" not in evidence.not_measured else AuditPart.empty(),
        late_records=LateRecordsPart(sent=sent, dropped_rows=dropped) if sent or dropped else None,
        state_bytes=StateBytes(logical=logical, checkpoint=traces.state_bytes),
        stages=stage_work(evidence.stages, evidence.stored, path, signals.window),
        totals=totals,
        offenders=offenders,
        store_not_read=is_store_unread(evidence.stages, evidence.stored),
        is_mapping_known=traces.method != "rank" or config.kind.carries_ids or not totals.overcounted,
        key_skew=key_skew_of(path, config),
    )


def audit(counts_path: Path, unknown: int | None, undrained: int) -> tuple[AuditPart, list[Line]]:
    """Return the totals over counts.parquet, and the first offending keys of each kind.

    `lost` and `overcounted` are sums of differences over the keys in the batch recomputation; outputs that reflect
    uncommitted input are neither. `unexpected` counts other keys, and outputs whose value is not a count.
    `checksum_mismatches` counts keys with the expected count but other tuples: as many were lost as were counted twice.
    `unknown`: sends without acknowledgement. `undrained`: uncommitted offsets of the input.
    """
    totals: dict[str, int] = dict.fromkeys(("expected", "lost", "overcounted", "unexpected", "reemitted"), 0)
    offenders: dict[str, list[Line]] = {"lost": [], "overcounted": [], "unexpected": []}
    checksum_columns = _checksum_columns(counts_path)
    if checksum_columns:
        totals["checksum_mismatches"], offenders["checksum_mismatches"] = 0, []
    # Older harvests lack the column and assume that all input was committed.
    has_undrained = "undrained" in _dataset(counts_path).schema.names
    is_complete = has_undrained or not undrained
    columns = ["key", "expected", "final", "reemitted", "unreadable"]
    columns += [*(["undrained"] if has_undrained else []), *checksum_columns]
    for frame in _frames(counts_path, columns):
        final, expected = frame["final"].fillna(0), frame["expected"].fillna(0)
        drained = expected - frame["undrained"].fillna(0) if has_undrained else expected
        is_expected = expected > 0
        amounts = {
            # An unexpected key cannot be lost.
            "lost": (drained - final).clip(lower=0) * is_complete,
            "overcounted": (final - expected).clip(lower=0).where(is_expected, 0),
            "unexpected": frame["unreadable"] + (~is_expected).astype("int64"),
        }
        if checksum_columns:
            is_mismatch = (drained > 0) & (final == drained) & _differing_checksums(frame)
            amounts["checksum_mismatches"] = is_mismatch.astype("int64")
        totals["expected"] += int(drained.sum())
        totals["reemitted"] += int(frame["reemitted"].sum())
        for kind, amount in amounts.items():
            totals[kind] += int(amount.sum())
            offenders[kind] += _offenders(kind, frame[amount > 0])
    first = [line for lines in offenders.values() for line in sorted(lines, key=_key)[:OFFENDERS_PER_KIND]]
    counted: dict[str, int | None] = {**totals, "unknown": unknown, "undrained": undrained}
    return AuditPart(**(counted if is_complete else {**counted, "lost": None})), first


def mean_row_bytes(counts_path: Path) -> float | None:
    """Return the mean size of a state row over all keys in bytes, or None without keys.

    A row holds the key in UTF-8, the counter, and both checksums if the workload keeps them.
    """
    keys = size = 0
    for batch in _batches(counts_path, ["key"]):
        lengths = pc.binary_length(batch.column("key").cast(pa.binary()))
        keys += len(lengths) - lengths.null_count
        size += pc.sum(lengths).as_py() or 0
    values = 1 + len(CHECKSUMS) if _checksum_columns(counts_path) else 1
    return size / keys + values * VALUE_BYTES if keys else None


def logical_state_bytes(rows: int | None, counts_path: Path) -> int | None:
    """Return the number of state rows times their mean size in bytes; None if either is unknown."""
    row_bytes = None if rows is None else mean_row_bytes(counts_path)
    return None if rows is None or row_bytes is None else round(rows * row_bytes)


def _checksum_columns(counts_path: Path) -> list[str]:
    """Return the names of the checksum columns, expected and final; empty if the workload kept no checksums."""
    names = [f"{side}_{name}" for side in ("expected", "final") for name in CHECKSUMS]
    return names if set(names) <= set(_dataset(counts_path).schema.names) else []


def _differing_checksums(frame: pd.DataFrame) -> pd.Series[bool]:
    """Return a mask of the rows with unexpected or missing checksums."""
    agree = [frame[f"expected_{name}"].eq(frame[f"final_{name}"]).fillna(False) for name in CHECKSUMS]
    return ~(agree[0] & agree[1]).astype(bool)


def _offenders(kind: str, frame: pd.DataFrame) -> list[Line]:
    """Return lines of audit.json on the first keys of `frame`."""
    rows = frame.sort_values("key")
    return [
        {"kind": kind, "key": row.key, "expected": _int_or_none(row.expected), "final": _int_or_none(row.final)}
        for row in rows.head(OFFENDERS_PER_KIND).itertuples()
    ]


def _key(line: Line) -> str:
    return str(line["key"])


def _int_or_none(value: Any) -> int | None:
    return None if pd.isna(value) else int(value)


def _frames(path: Path, columns: list[str]) -> Iterator[pd.DataFrame]:
    # pandas would convert integers with nulls to float64, which is too coarse for checksums.
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
    return InfrastructureError(f"{path}: reading failed: {error}; fix: clear the task `harvest`")


def key_skew_of(counts_path: Path, config: Configuration) -> KeySkewPart | None:
    """Return the key skew by column `drawn` of counts.parquet; None for workloads whose keys are ids or windows.

    Words are ranked as in the generator's vocabulary, or by their counts if the input is a real text.
    Raises InfrastructureError if the table cannot be read.
    """
    if not config.kind.can("words"):
        return None
    counts = dict(_drawn_words(counts_path))
    if not counts:
        return None
    total, hottest = sum(counts.values()), max(counts.values())
    ranked = _counts_by_rank(counts, config)
    measured, low, high = (None, None, None) if ranked is None else _estimate(ranked)
    requested = config.skew if config.skew_curve is None else None
    return KeySkewPart(
        requested=requested, measured=measured, low=low, high=high, hottest_share=hottest / total, distinct=len(counts)
    )


def _counts_by_rank(counts: dict[str, int], config: Configuration) -> npt.NDArray[np.int64] | None:
    """Return the counts in the order of the ranks, 0 for absent words.

    None if the exponent changed during the run, with fewer than two words, and beyond LARGEST_VOCABULARY.
    """
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
    """Return the estimated exponent and its interval (low, high); None for all three if it cannot be estimated."""
    try:
        estimate, low, high = estimate_exponent(ranked)
    except ValueError:
        return None, None, None
    return round(estimate, DECIMALS), round(low, DECIMALS), round(high, DECIMALS)


def _drawn_words(path: Path) -> Iterator[tuple[str, int]]:
    """Yield (word, count) for the words of the input, without those of the preload."""
    # Older harvests count the preload, too.
    name = "drawn" if "drawn" in _dataset(path).schema.names else "expected"
    for batch in _batches(path, ["key", name]):
        for key, drawn in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True):
            if drawn and len(key) != WORD_CHARACTERS:
                yield key, drawn


def stage_work(
    stages: Events, stored: Mapping[str, int] | None, counts_path: Path, window: Window
) -> StagesPart | None:
    """Return the work of a topology's stages after T0, from their journal (topology.jsonl); None without stages.

    `stored`: content of their result store, by key; None without a store.
    """
    if not stages:
        return None

    def after_t0(event: str) -> list[Line]:
        return [line for line in stages[event] if int(line["wall_ns"]) >= window.t0_ns]

    replaced = after_t0("replaced")
    replaced_stages = {str(line["stage"]) for line in replaced}
    return StagesPart(
        signals=sum(line["act"] == "slow" for line in after_t0("signal")),
        failed=sum(int(line["count"]) for line in after_t0("failed")),
        set_aside=sum(int(line["count"]) for line in after_t0("set_aside")),
        replacements=len(replaced),
        gap_s=max((float(line["gap_s"]) for line in replaced), default=None),
        batch_s=max(
            (float(line["seconds"]) for line in after_t0("batch") if line["stage"] in replaced_stages), default=None
        ),
        most_queued=max((int(line["most"]) for line in after_t0("queued")), default=None),
        unstored=None if stored is None else count_unstored(stored, counts_path),
    )


def is_store_unread(stages: Events, stored: Mapping[str, int] | None) -> bool:
    """Return whether a topology that persists its result ended before it had flushed and read back its store."""
    return stored is None and any("persist" in line["parallelism"] for line in stages["started"])


def count_unstored(stored: Mapping[str, int], counts_path: Path) -> int:
    """Return the number of keys whose values in the result store and in the output topic differ."""
    final: dict[str, int] = {}
    for batch in _batches(counts_path, ["key", "final"]):
        pairs = zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)
        final |= {key: value for key, value in pairs if key is not None and value is not None}
    return sum(stored.get(key) != final.get(key) for key in {*stored, *final})
