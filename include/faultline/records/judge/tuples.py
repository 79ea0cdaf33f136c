"""Tuples of an attempt, counted by latency: per batch, per second of output, and per production cell.

The harvest groups tuples by batch, instant of production and instant of output. This module sums the groups chunk by
chunk into (value, count) tables, so memory grows with distinct milliseconds, not with tuples. Percentiles are exact:
nearest rank of the weighted values.

A production cell holds the tuples produced in one second. If fewer than ten tuples per second are due (windows, joins),
each instant of production is a cell. The end of a recovery is determined on these cells.

In the columns, `lineage` is the state epoch and `primer` marks the preload.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds

from faultline.system.errors import InfrastructureError
from faultline.system.measured_window import NS, Window

Ints = npt.NDArray[np.int64]
TUPLE_COLUMNS = ["lineage", "batch", "produced_ms", "emitted_ms", "primer", "n"]
CHUNK_ROWS = 262_144
# Quantiles of the record in thousandths, so that ranks are computed with integers.
PERMILLES = {"p50": 500, "p90": 900, "p99": 990, "p999": 999}
CELL_NS = NS
MS = 1_000_000
# Below this number of tuples per second, each instant of production is a cell.
SPARSE_BELOW = 10
# Latency of a tuple that no output reflects.
NEVER_REFLECTED = -1
PRODUCED_COLUMNS = ["cell_ns", "latency_ms", "n", "first_ms", "last_ms"]


@dataclass(frozen=True)
class Tuples:
    """Tuple counts without the preload. Frames have int64 columns; column `n` is the number of tuples.

    `window`: by latency_ms; tuples produced in the measured window, with an output and without negative latency.
    `negative`, `unreflected`: number of the other tuples of the window. `by_batch`: by lineage, batch and latency_ms;
    `batch_p99`: p99 of each batch. `by_second`: by second of output after T0 and latency_ms; `second_p50`,
    `second_p99`: quantiles of each second. `produced`: by second of production after T0. `emitted`: by instant of
    output, sorted. `production`: all tuples, with or without output, with columns PRODUCED_COLUMNS.
    """

    window: pd.DataFrame
    negative: int
    unreflected: int
    by_batch: pd.DataFrame
    batch_p99: pd.Series
    by_second: pd.DataFrame
    second_p50: pd.Series
    second_p99: pd.Series
    produced: pd.DataFrame
    emitted: pd.DataFrame
    production: pd.DataFrame

    @property
    def emissions_ms(self) -> Ints:
        """Distinct instants of output in ms, sorted."""
        return self.emitted["emitted_ms"].to_numpy(dtype=np.int64)


@dataclass(frozen=True)
class FirstOutputs:
    """First outputs of some tuples: instant of the last one, 0 without any, and the number of tuples without one."""

    last_ns: int
    missing: int


def fold_tuples(path: Path, window: Window) -> Tuples:
    """Count the tuples of `tuples.parquet`, a file or a folder of parts.

    Raises InfrastructureError if it is unreadable.
    """
    try:
        tuples = fold(_chunks(path), window)
        if is_sparse(tuples.production, window):
            return replace(tuples, production=fold_produced(_chunks(path), window, MS))
        return tuples
    except (OSError, pa.ArrowInvalid, KeyError) as error:
        raise InfrastructureError(f"{path}: reading failed: {error}; fix: clear the task `harvest`") from error


def first_outputs_until(path: Path, due_ms: int) -> FirstOutputs:
    """Return the first outputs of the tuples due up to `due_ms`, without the preload."""
    last_ms, missing = 0, 0
    for chunk in _chunks(path):
        tuples = chunk[~chunk["primer"].astype(bool) & (chunk["produced_ms"] <= due_ms)]
        missing += int(tuples.loc[tuples["emitted_ms"].isna(), "n"].sum())
        last_ms = max(last_ms, int(tuples["emitted_ms"].fillna(0).max()) if len(tuples) else 0)
    return FirstOutputs(last_ms * MS, missing)


def fold(chunks: Iterable[pd.DataFrame], window: Window) -> Tuples:
    """Count the tuples of chunks with TUPLE_COLUMNS; null `batch` and `emitted_ms` mean tuples without output."""
    in_window, by_batch, by_second, produced = (
        _RunningCount(["latency_ms"]),
        _RunningCount(_BATCH_COLUMNS),
        _RunningCount(_SECOND_COLUMNS),
        _RunningCount(["second"]),
    )
    emitted = _RunningCount(["emitted_ms"])
    production = ProducedFold(window)
    negative = unreflected = 0
    for chunk in chunks:
        tuples = chunk[~chunk["primer"].astype(bool)]
        production.add(tuples["produced_ms"], tuples["emitted_ms"], tuples["n"])
        produced_ns = tuples["produced_ms"].astype("int64") * 1_000_000
        produced.add(pd.DataFrame({"second": (produced_ns - window.t0_ns) // NS, "n": tuples["n"]}))
        is_measured = (produced_ns >= window.start_ns) & (produced_ns < window.end_ns)
        has_no_output = tuples["emitted_ms"].isna()
        unreflected += int(tuples.loc[is_measured & has_no_output, "n"].sum())
        reflected = _latency_frame(tuples[~has_no_output], window)
        is_measured = is_measured[~has_no_output]
        is_negative = reflected["latency_ms"] < 0
        negative += int(reflected.loc[is_measured & is_negative, "n"].sum())
        in_window.add(reflected[is_measured & ~is_negative])
        by_batch.add(reflected[reflected["batch"] >= 0])
        by_second.add(reflected)
        emitted.add(reflected)
    return Tuples(
        in_window.total,
        negative,
        unreflected,
        by_batch.total,
        grouped_rank(by_batch.total, ["lineage", "batch"], 990),
        by_second.total,
        grouped_rank(by_second.total, ["second"], 500),
        grouped_rank(by_second.total, ["second"], 990),
        produced.total,
        emitted.total,
        production.total,
    )


def nearest_rank(values: Ints, weights: Ints, permille: int) -> float | None:
    """Return the smallest value whose cumulative weight reaches ceil(permille/1000 · total); None without weight."""
    total = int(weights.sum())
    if total == 0:
        return None
    order = np.argsort(values, kind="stable")
    rank = max(1, -(-total * permille // 1000))
    return float(values[order][np.searchsorted(np.cumsum(weights[order]), rank)])


def grouped_rank(frame: pd.DataFrame, by: list[str], permille: int) -> pd.Series:
    """Return the quantile `permille` of `latency_ms`, weighted by `n`, of each group of `by`, indexed by group."""
    ordered = frame.sort_values([*by, "latency_ms"], kind="stable")
    groups = ordered.groupby(by)["n"]
    rank = -(-groups.transform("sum") * permille // 1000)
    reached = ordered[groups.cumsum() >= rank]
    return reached.groupby(by)["latency_ms"].first()


_BATCH_COLUMNS = ["lineage", "batch", "latency_ms"]
_SECOND_COLUMNS = ["second", "latency_ms"]


class _RunningCount:
    """Running sum of column `n`, grouped by the columns `by`."""

    def __init__(self, by: list[str]) -> None:
        self.by = by
        self.total = pd.DataFrame({name: pd.Series(dtype="int64") for name in [*by, "n"]})

    def add(self, chunk: pd.DataFrame) -> None:
        both = pd.concat([self.total, chunk[[*self.by, "n"]]])
        self.total = both.groupby(self.by, sort=True)["n"].sum().reset_index()


def _latency_frame(tuples: pd.DataFrame, window: Window) -> pd.DataFrame:
    emitted = tuples["emitted_ms"].astype("int64")
    return pd.DataFrame(
        {
            "lineage": tuples["lineage"].fillna(-1).astype("int64"),
            "batch": tuples["batch"].fillna(-1).astype("int64"),
            "latency_ms": emitted - tuples["produced_ms"].astype("int64"),
            "second": (emitted * 1_000_000 - window.t0_ns) // NS,
            "emitted_ms": emitted,
            "n": tuples["n"].astype("int64"),
        }
    )


def _chunks(path: Path) -> Iterator[pd.DataFrame]:
    for batch in ds.dataset(path, format="parquet").to_batches(columns=TUPLE_COLUMNS, batch_size=CHUNK_ROWS):
        yield batch.to_pandas()


class ProducedFold:
    """Tuple counts by production cell and latency; memory grows with distinct pairs, not with tuples."""

    def __init__(self, window: Window, cell_length_ns: int = CELL_NS) -> None:
        self._t0_ns, self._cell_length_ns = window.t0_ns, cell_length_ns
        self.total = pd.DataFrame({name: pd.Series(dtype="int64") for name in PRODUCED_COLUMNS})

    def add(self, produced_ms: pd.Series, emitted_ms: pd.Series, n: pd.Series) -> None:
        """Add tuples; a null `emitted_ms` means no output, and a negative latency counts as 0."""
        produced = produced_ms.to_numpy(dtype=np.int64)
        emitted = emitted_ms.fillna(NEVER_REFLECTED).to_numpy(dtype=np.int64)
        cell = (produced * MS - self._t0_ns) // self._cell_length_ns * self._cell_length_ns + self._t0_ns
        latency = np.where(emitted == NEVER_REFLECTED, NEVER_REFLECTED, np.maximum(emitted - produced, 0))
        # A tuple without output is overdue from its production on.
        instant = np.where(emitted == NEVER_REFLECTED, produced, emitted)
        chunk = pd.DataFrame(dict(zip(PRODUCED_COLUMNS, (cell, latency, n.to_numpy(), instant, instant), strict=True)))
        both = pd.concat([self.total, chunk])
        self.total = (
            both.groupby(["cell_ns", "latency_ms"], sort=True)
            .agg(n=("n", "sum"), first_ms=("first_ms", "min"), last_ms=("last_ms", "max"))
            .reset_index()
        )


def is_sparse(produced: pd.DataFrame, window: Window) -> bool:
    """Return whether fewer than SPARSE_BELOW tuples per second are due in the measured window."""
    return due_spacing_s(produced, window.start_ns, window.end_ns) * SPARSE_BELOW > 1


def due_spacing_s(produced: pd.DataFrame, start_ns: int, end_ns: int) -> float:
    """Return the mean time in s between tuples due in [start, end); infinite without tuples."""
    inside = produced[(produced["cell_ns"] >= start_ns) & (produced["cell_ns"] < end_ns)]
    n = int(inside["n"].sum())
    return (end_ns - start_ns) / NS / n if n else float("inf")


def first_affected_ns(produced: pd.DataFrame, window: Window, t0_ns: int) -> int:
    """Return the start of the first production cell that a fault at t0 affects.

    That is the first cell of the measured window with a tuple emitted after t0, and at the latest the cell of t0.
    Tuples without output do not count.
    """
    t0_cell_ns = window.t0_ns + (t0_ns - window.t0_ns) // CELL_NS * CELL_NS
    is_earlier = (produced["cell_ns"] >= window.start_ns) & (produced["cell_ns"] < t0_cell_ns)
    waiting = produced[is_earlier & ((produced["latency_ms"] != NEVER_REFLECTED) & (produced["last_ms"] * MS > t0_ns))]
    return int(waiting["cell_ns"].min()) if len(waiting) else t0_cell_ns


def fold_produced(chunks: Iterable[pd.DataFrame], window: Window, cell_length_ns: int = CELL_NS) -> pd.DataFrame:
    """Return the PRODUCED_COLUMNS of chunks with TUPLE_COLUMNS, without the preload."""
    fold = ProducedFold(window, cell_length_ns)
    for chunk in chunks:
        tuples = chunk[~chunk["primer"].astype(bool)]
        fold.add(tuples["produced_ms"], tuples["emitted_ms"], tuples["n"])
    return fold.total
