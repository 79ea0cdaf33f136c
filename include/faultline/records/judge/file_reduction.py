"""Reduction of an attempt's raw files for publication; its record can still be computed from them.

Journals stay unchanged. Logs keep the lines that the engine's traces are read from. Tables lose what no figure depends
on: instants of tuples are rounded to steps if there are too many, and filler words get numbers as names. A latency is
then off by at most half of both steps (`off_ms`), which a test checks on saved attempts.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator, Mapping
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
from faultline.records.judge.counts import SUMS
from faultline.system.errors import InfrastructureError
from faultline.system.files import read_document
from generators.state_preload import WORD_CHARACTERS

JOURNALS = (
    "application.json", "attempt.json", "plan.json",
    "gate.json", "generator.jsonl", "conductor.jsonl", "services.jsonl", "topology.jsonl",
    "stored.json", "supervisor.jsonl", "listener.jsonl", "traces.jsonl", "batches.json", "checkpoint.json",
    "recorder.jsonl", "end.json", "closed.json", "failures.jsonl", "harvest/notes.json",
)  # fmt: skip
LOGS = "spark-logs"
TABLES = ("records", "tuples", "counts")
# Steps of a tuple's production and of its output, in ms: the first that leaves no more rows than this.
STEPS_MS = ((1, 1), (10, 5), (20, 10), (50, 10), (100, 10))
MOST_ROWS = 20_000
_STEPS = "produced in steps of {} ms, put out in steps of {} ms"
# Columns of the counts that no figure needs.
_UNREAD = ("outputs",)
_CHUNK = 1 << 20


@dataclass(frozen=True)
class ReducedFile:
    """One file: its path within the attempt's folder, what is kept of it, and SHA-256 of the file that it was made of.

    `how`: what was done to it, in words; empty for one that is kept as it is.
    """

    path: str
    content: bytes
    original: str
    how: str = ""


def reduce_files(folder: Path) -> Iterator[ReducedFile]:
    """Return the existing files of the attempt in `folder`. Raises InfrastructureError for a broken one."""
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
            table, how = _smaller(name, _read(path), folder)
            yield ReducedFile(f"harvest/{name}.parquet", _written(table, by_step=name != "counts"), _hash(path), how)


def _read(path: Path) -> pa.Table:
    try:
        return ds.dataset(path, format="parquet").to_table()
    except (OSError, pa.ArrowInvalid) as error:
        raise InfrastructureError(f"{path}: cannot be read ({error}); clear the task harvest") from error


def _smaller(name: str, table: pa.Table, folder: Path) -> tuple[pa.Table, str]:
    if name == "tuples":
        # Up: so that no step reaches over the edge of a cell of production.
        return round_to_steps(table, -(-read_document(folder / "gate.json")["t0_wall_ns"] // 1_000_000))
    if name == "counts" and not (folder / "stored.json").exists():
        return replace_names(table)
    return table, ""


def round_to_steps(table: pa.Table, t0_ms: int) -> tuple[pa.Table, str]:
    """Return tuples summed up over steps of production and output, which are counted from T0; and in what steps.

    A sum stands in the middle of its steps. What was never put out stays so.
    """
    for produced, emitted in STEPS_MS:
        summed = table if (produced, emitted) == (1, 1) else _summed(table, t0_ms, produced, emitted)
        if summed.num_rows <= MOST_ROWS:
            break
    if summed is table:
        return table, ""
    return summed, _STEPS.format(produced, emitted)


def off_ms(how: str) -> int:
    """Return the largest error of a latency in a reduced table, in ms."""
    return next((-(-a // 2) + -(-b // 2) for a, b in STEPS_MS if how == _STEPS.format(a, b)), 0)


def replace_names(table: pa.Table) -> tuple[pa.Table, str]:
    """Return the counts without columns that no figure needs: filler words become numbers, equal sums become 0.

    Lengths stay, and so does every row with a difference.
    """
    clean = pc.and_kleene(
        pc.equal(pc.fill_null(table["expected"], 0), pc.fill_null(table["final"], 0)), pc.equal(table["unreadable"], 0)
    )
    sums = [name for name in SUMS if f"expected_{name}" in table.column_names]
    for name in sums:
        clean = pc.and_kleene(clean, pc.fill_null(pc.equal(table[f"expected_{name}"], table[f"final_{name}"]), False))
    for name in sums:
        for side in ("expected", "final"):
            column = pc.if_else(clean, pa.scalar(0, pa.int64()), table[f"{side}_{name}"])
            table = table.set_column(table.column_names.index(f"{side}_{name}"), f"{side}_{name}", column)
    filler = pc.and_(clean, pc.equal(pc.utf8_length(table["key"]), WORD_CHARACTERS))
    numbers = np.cumsum(filler.to_numpy()).tolist()
    renamed = pc.if_else(filler, pa.array([str(n).rjust(WORD_CHARACTERS, "_") for n in numbers]), table["key"])
    table = table.set_column(table.column_names.index("key"), "key", renamed)
    kept = table.select([name for name in table.column_names if name not in _UNREAD])
    return kept.sort_by("key"), f"filler words numbered, sums that agree as 0, without {', '.join(_UNREAD)}"


def _summed(table: pa.Table, t0_ms: int, produced: int, emitted: int) -> pa.Table:
    def middle(column: pa.ChunkedArray, step: int) -> pa.ChunkedArray:
        steps = pc.floor(pc.divide(pc.cast(pc.subtract(column, t0_ms), pa.float64()), float(step)))
        return pc.add(pc.multiply(pc.cast(steps, pa.int64()), step), t0_ms + step // 2)

    columns = {name: table[name] for name in table.column_names}
    after = pc.greater_equal(columns["emitted_ms"], columns["produced_ms"])
    columns["produced_ms"] = middle(columns["produced_ms"], produced)
    put_out = middle(columns["emitted_ms"], emitted)
    # What came after it was produced still does.
    columns["emitted_ms"] = pc.if_else(after, pc.max_element_wise(put_out, columns["produced_ms"]), put_out)
    by = [name for name in columns if name != "n"]
    summed = pa.table(columns).group_by(by).aggregate([("n", "sum")])
    return summed.rename_columns([*by, "n"]).select(table.column_names).sort_by([(name, "ascending") for name in by])


def _written(table: pa.Table, *, by_step: bool) -> bytes:
    """Return Parquet for a compressor that packs several attempts: uncompressed, sorted texts by prefix.

    `by_step`: whether numbers are stored as differences.
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
    """Return SHA-256 of a file, or of the files in a folder of parts, in order of their names."""
    found = hashlib.sha256()
    for part in sorted(one for one in path.rglob("*.parquet")) if path.is_dir() else [path]:
        with part.open("rb") as file:
            while chunk := file.read(_CHUNK):
                found.update(chunk)
    return found.hexdigest()
