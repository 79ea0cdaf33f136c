"""Reduction of an attempt's raw files for publication, such that its record can still be computed from them.

Journals stay unchanged. Logs keep only the lines that the engine's traces are read from. Tables lose data that no
figure needs: if there are too many rows, the instants of tuples are rounded to steps, and filler words, which the
preload adds to fill state, become numbers. The error of a latency is then at most half of both steps
(`largest_error_ms`); a test checks this bound.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from faultline.engines.registry import engine_of_plan
from faultline.experiment.attempt import Attempt
from faultline.experiment.attempt_plan import read_plan
from faultline.records.bundle import sha256
from faultline.records.judge.counts import CHECKSUMS
from faultline.system.errors import InfrastructureError
from faultline.system.files import read_document
from faultline.system.journal import by_event, read_journal
from generators.state_preload import WORD_CHARACTERS

JOURNALS = (
    "application.json", "attempt.json", "plan.json",
    "gate.json", "generator.jsonl", "conductor.jsonl", "services.jsonl", "topology.jsonl",
    "stored.json", "supervisor.jsonl", "listener.jsonl", "traces.jsonl", "batches.json", "checkpoint.json",
    "recorder.jsonl", "end.json", "closed.json", "failures.jsonl", "harvest/notes.json",
)  # fmt: skip
LOGS = "spark-logs"
TABLES = ("records", "tuples", "counts")
# Candidate steps in ms of production and output instants; the first pair with at most MAX_ROWS rows is used.
STEPS_MS = ((1, 1), (10, 5), (20, 10), (50, 10), (100, 10))
MAX_ROWS = 20_000
_STEPS = "produced in steps of {} ms, put out in steps of {} ms"
# Columns of the counts that no figure needs.
_UNUSED_COLUMNS = ("outputs",)
_CHUNK = 1 << 20


@dataclass(frozen=True)
class ReducedFile:
    """Reduced file. `path`: within the attempt's folder. `original`: SHA-256 of the original file.

    `how`: description of the reduction; empty if the content is unchanged.
    """

    path: str
    content: bytes
    original: str
    how: str = ""


def reduce_files(folder: Path) -> Iterator[ReducedFile]:
    """Yield the existing files of the attempt in `folder`, reduced. Raises InfrastructureError for a broken table."""
    for name in JOURNALS:
        if (folder / name).is_file():
            content = (folder / name).read_bytes()
            yield ReducedFile(name, content, sha256(content))
    is_evidence = engine_of_plan(read_plan(Attempt(folder))).is_evidence
    for path in sorted((folder / LOGS).rglob("*")):
        if path.is_file():
            name = str(path.relative_to(folder))
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
            kept = [line for line in lines if is_evidence(path.name, line)]
            how = "" if len(kept) == len(lines) else f"{len(kept)} of {len(lines)} lines"
            yield ReducedFile(name, "".join(kept).encode(), _hash(path), how)
    for name in TABLES:
        path = folder / "harvest" / f"{name}.parquet"
        if path.exists():
            table, how = _reduce_table(name, _read_table(path), folder)
            yield ReducedFile(
                f"harvest/{name}.parquet", _parquet_bytes(table, by_step=name != "counts"), _hash(path), how
            )


def _read_table(path: Path) -> pa.Table:
    try:
        return ds.dataset(path, format="parquet").to_table()
    except (OSError, pa.ArrowInvalid) as error:
        raise InfrastructureError(f"{path}: reading failed: {error}; fix: clear the task `harvest`") from error


def _reduce_table(name: str, table: pa.Table, folder: Path) -> tuple[pa.Table, str]:
    if name == "tuples":
        # T0 is rounded up, so that no step crosses the edge of a production cell.
        t0_ms = -(-read_document(folder / "gate.json")["t0_wall_ns"] // 1_000_000)
        delivered = by_event(read_journal(folder / "conductor.jsonl"))["delivered"]
        return round_to_steps(table, t0_ms, sorted({int(line["wall_ns"]) // 1_000_000 for line in delivered}))
    if name == "counts" and not (folder / "stored.json").exists():
        return reduce_counts(table)
    return table, ""


def round_to_steps(table: pa.Table, t0_ms: int, faults_ms: Sequence[int] = ()) -> tuple[pa.Table, str]:
    """Return the tuples summed over steps of production and output from T0 on, and a description of the steps.

    Sums are placed in the middle of their steps. Tuples without output keep a null instant. Tuples due up to a fault
    stay apart from later ones.
    """
    for produced, emitted in STEPS_MS:
        summed = table if (produced, emitted) == (1, 1) else _sum_by_step(table, t0_ms, produced, emitted, faults_ms)
        if summed.num_rows <= MAX_ROWS:
            break
    if summed is table:
        return table, ""
    return summed, _STEPS.format(produced, emitted)


def largest_error_ms(how: str) -> int:
    """Return the largest error in ms of a latency in a table reduced as `how` describes."""
    return next((-(-a // 2) + -(-b // 2) for a, b in STEPS_MS if how == _STEPS.format(a, b)), 0)


def reduce_counts(table: pa.Table) -> tuple[pa.Table, str]:
    """Return the counts without data that no figure needs, and a description of the reduction.

    Filler words become numbers of the same length, and equal checksums become 0. Rows with a difference stay unchanged.
    """
    is_correct = pc.and_kleene(
        pc.equal(pc.fill_null(table["expected"], 0), pc.fill_null(table["final"], 0)), pc.equal(table["unreadable"], 0)
    )
    checksums = [name for name in CHECKSUMS if f"expected_{name}" in table.column_names]
    for name in checksums:
        is_correct = pc.and_kleene(
            is_correct, pc.fill_null(pc.equal(table[f"expected_{name}"], table[f"final_{name}"]), False)
        )
    for name in checksums:
        for side in ("expected", "final"):
            column = pc.if_else(is_correct, pa.scalar(0, pa.int64()), table[f"{side}_{name}"])
            table = table.set_column(table.column_names.index(f"{side}_{name}"), f"{side}_{name}", column)
    is_filler = pc.and_(is_correct, pc.equal(pc.utf8_length(table["key"]), WORD_CHARACTERS))
    numbers = np.cumsum(is_filler.to_numpy()).tolist()
    renamed = pc.if_else(is_filler, pa.array([str(n).rjust(WORD_CHARACTERS, "_") for n in numbers]), table["key"])
    table = table.set_column(table.column_names.index("key"), "key", renamed)
    kept = table.select([name for name in table.column_names if name not in _UNUSED_COLUMNS])
    return kept.sort_by("key"), f"filler words numbered, sums that agree as 0, without {', '.join(_UNUSED_COLUMNS)}"


def _sum_by_step(table: pa.Table, t0_ms: int, produced: int, emitted: int, faults_ms: Sequence[int]) -> pa.Table:
    def middle(column: pa.ChunkedArray, step: int) -> pa.ChunkedArray:
        steps = pc.floor(pc.divide(pc.cast(pc.subtract(column, t0_ms), pa.float64()), float(step)))
        return pc.add(pc.multiply(pc.cast(steps, pa.int64()), step), t0_ms + step // 2)

    columns = {name: table[name] for name in table.column_names}
    is_emitted_after = pc.greater_equal(columns["emitted_ms"], columns["produced_ms"])
    produced_ms = middle(columns["produced_ms"], produced)
    for fault_ms in faults_ms:
        is_due = pc.less_equal(columns["produced_ms"], fault_ms)
        before, after = pc.min_element_wise(produced_ms, fault_ms), pc.max_element_wise(produced_ms, fault_ms + 1)
        produced_ms = pc.if_else(is_due, before, after)
    columns["produced_ms"] = produced_ms
    emitted_ms = middle(columns["emitted_ms"], emitted)
    # Rounding must not make a latency negative.
    columns["emitted_ms"] = pc.if_else(
        is_emitted_after, pc.max_element_wise(emitted_ms, columns["produced_ms"]), emitted_ms
    )
    by = [name for name in columns if name != "n"]
    summed = pa.table(columns).group_by(by).aggregate([("n", "sum")])
    return summed.rename_columns([*by, "n"]).select(table.column_names).sort_by([(name, "ascending") for name in by])


def _parquet_bytes(table: pa.Table, *, by_step: bool) -> bytes:
    """Return the table as Parquet without compression, because a bundle compresses several attempts together.

    Sorted texts are stored by common prefix. `by_step`: whether to store integers as differences.
    """
    encodings: Mapping[str, str] = {
        field.name: "DELTA_BYTE_ARRAY" if pa.types.is_string(field.type) else "DELTA_BINARY_PACKED"
        for field in table.schema
        if pa.types.is_string(field.type) or (by_step and pa.types.is_integer(field.type))
    }
    buffer = io.BytesIO()
    pq.write_table(
        table, buffer, compression="NONE", use_dictionary=False, column_encoding=dict(encodings),
        write_statistics=False, store_schema=False,
    )  # fmt: skip
    return buffer.getvalue()


def _hash(path: Path) -> str:
    """Return the SHA-256 of a file, or of the files in a folder of parts, in order of their names."""
    digest = hashlib.sha256()
    for part in sorted(one for one in path.rglob("*.parquet")) if path.is_dir() else [path]:
        with part.open("rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
    return digest.hexdigest()
