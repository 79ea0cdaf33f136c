"""The tuples of an attempt, folded: how many there are of each latency, by batch, by second, and by time of production.

The harvest groups tuples by batch and both instants; here the groups are folded chunk by chunk into
(value, count) tables, so memory is bounded by distinct milliseconds, not by tuples. Percentiles are
exact: nearest rank over the weighted values, no interpolation, nothing clipped.

The end of a recovery is read off cells of production, one second each; where fewer than ten tuples a second are due
(windows, joins), each instant of production is a cell.
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
# Quantiles of the record, in thousandths, so that ranks are computed in whole numbers.
PERMILLES = {"p50": 500, "p90": 900, "p99": 990, "p999": 999}
CELL_NS = NS
MS = 1_000_000
# Fewer tuples than this come due in a typical second: each instant of production is a cell of its own.
SPARSE_BELOW = 10
# The latency of a tuple that no output ever reflected.
NEVER = -1
PRODUCED_COLUMNS = ["cell_ns", "latency_ms", "n", "first_ms", "last_ms"]


@dataclass(frozen=True)
class Tuples:
    """Folded tuples without the primer. Frames hold int64 columns and the count `n`.

    `window`: latency_ms of tuples produced in the measured window, reflected, not negative.
    `by_batch`: lineage, batch, latency_ms, and `batch_p99` of each. `by_second`: second after T0 of the emission,
    latency_ms, and `second_p50` and `second_p99` of each.
    `produced`: second after T0 of the production. `emitted`: emitted_ms, the instant of output, sorted.
    `production`: all tuples, those that were never reflected too, by cell of production (see `production`).
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
        """Distinct instants of output, sorted."""
        return self.emitted["emitted_ms"].to_numpy(dtype=np.int64)


def fold_tuples(path: Path, window: Window) -> Tuples:
    """Fold `tuples.parquet`, a file or a folder of parts. Raises InfrastructureError if it is unreadable."""
    try:
        tuples = fold(_chunks(path), window)
        if is_sparse(tuples.production, window):
            return replace(tuples, production=fold_produced(_chunks(path), window, MS))
        return tuples
    except (OSError, pa.ArrowInvalid, KeyError) as error:
        raise InfrastructureError(f"{path}: cannot be read ({error}); clear the task harvest") from error


def fold(chunks: Iterable[pd.DataFrame], window: Window) -> Tuples:
    """Return folds chunks with TUPLE_COLUMNS; null `batch` and `emitted_ms` mean never reflected."""
    in_window, by_batch, by_second, produced = _Fold(["latency_ms"]), _Fold(_BATCH), _Fold(_SECOND), _Fold(["second"])
    emitted = _Fold(["emitted_ms"])
    production = ProducedFold(window)
    negative = unreflected = 0
    for chunk in chunks:
        tuples = chunk[~chunk["primer"].astype(bool)]
        production.add(tuples["produced_ms"], tuples["emitted_ms"], tuples["n"])
        produced_ns = tuples["produced_ms"].astype("int64") * 1_000_000
        produced.add(pd.DataFrame({"second": (produced_ns - window.t0_ns) // NS, "n": tuples["n"]}))
        measured = (produced_ns >= window.start_ns) & (produced_ns < window.end_ns)
        missing = tuples["emitted_ms"].isna()
        unreflected += int(tuples.loc[measured & missing, "n"].sum())
        seen = _reflected(tuples[~missing], window)
        measured = measured[~missing]
        below = seen["latency_ms"] < 0
        negative += int(seen.loc[measured & below, "n"].sum())
        in_window.add(seen[measured & ~below])
        by_batch.add(seen[seen["batch"] >= 0])
        by_second.add(seen)
        emitted.add(seen)
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
    """Return smallest value whose cumulated weight reaches ceil(permille/1000 · total); None without weight."""
    total = int(weights.sum())
    if total == 0:
        return None
    order = np.argsort(values, kind="stable")
    rank = max(1, -(-total * permille // 1000))
    return float(values[order][np.searchsorted(np.cumsum(weights[order]), rank)])


def grouped_rank(frame: pd.DataFrame, by: list[str], permille: int) -> pd.Series:
    """Return nearest rank of `latency_ms` weighted by `n` in each group of `by`; indexed by the group."""
    ordered = frame.sort_values([*by, "latency_ms"], kind="stable")
    groups = ordered.groupby(by)["n"]
    rank = -(-groups.transform("sum") * permille // 1000)
    reached = ordered[groups.cumsum() >= rank]
    return reached.groupby(by)["latency_ms"].first()


_BATCH = ["lineage", "batch", "latency_ms"]
_SECOND = ["second", "latency_ms"]


class _Fold:
    """A running sum of `n` by some columns."""

    def __init__(self, by: list[str]) -> None:
        self.by = by
        self.total = pd.DataFrame({name: pd.Series(dtype="int64") for name in [*by, "n"]})

    def add(self, chunk: pd.DataFrame) -> None:
        both = pd.concat([self.total, chunk[[*self.by, "n"]]])
        self.total = both.groupby(self.by, sort=True)["n"].sum().reset_index()


def _reflected(tuples: pd.DataFrame, window: Window) -> pd.DataFrame:
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
    """Tuples summed by cell of production and latency; memory grows with their distinct pairs, not with tuples."""

    def __init__(self, window: Window, grain_ns: int = CELL_NS) -> None:
        self._t0_ns, self._grain_ns = window.t0_ns, grain_ns
        self.total = pd.DataFrame({name: pd.Series(dtype="int64") for name in PRODUCED_COLUMNS})

    def add(self, produced_ms: pd.Series, emitted_ms: pd.Series, n: pd.Series) -> None:
        """Add tuples; a null `emitted_ms` is one that was never reflected, a negative latency counts as none."""
        produced = produced_ms.to_numpy(dtype=np.int64)
        emitted = emitted_ms.fillna(NEVER).to_numpy(dtype=np.int64)
        cell = (produced * MS - self._t0_ns) // self._grain_ns * self._grain_ns + self._t0_ns
        latency = np.where(emitted == NEVER, NEVER, np.maximum(emitted - produced, 0))
        # What never came is placed where it was produced: the instant from which it could be missed.
        seen = np.where(emitted == NEVER, produced, emitted)
        chunk = pd.DataFrame(dict(zip(PRODUCED_COLUMNS, (cell, latency, n.to_numpy(), seen, seen), strict=True)))
        both = pd.concat([self.total, chunk])
        self.total = (
            both.groupby(["cell_ns", "latency_ms"], sort=True)
            .agg(n=("n", "sum"), first_ms=("first_ms", "min"), last_ms=("last_ms", "max"))
            .reset_index()
        )


def is_sparse(produced: pd.DataFrame, window: Window) -> bool:
    """Return whether fewer than ten tuples a second come due in the measured window."""
    return due_spacing_s(produced, window.start_ns, window.end_ns) * SPARSE_BELOW > 1


def due_spacing_s(produced: pd.DataFrame, start_ns: int, end_ns: int) -> float:
    """Return mean seconds between two tuples that come due in [start, end); infinite without any."""
    inside = produced[(produced["cell_ns"] >= start_ns) & (produced["cell_ns"] < end_ns)]
    n = int(inside["n"].sum())
    return (end_ns - start_ns) / NS / n if n else float("inf")


def hit_from_ns(produced: pd.DataFrame, window: Window, t0_ns: int) -> int:
    """Return the start of the first cell that a fault at t0 reaches.

    That is the first cell of the measured window with a tuple emitted later, and at the latest the fault's own cell.
    Tuples that were never emitted do not count.
    """
    own_ns = window.t0_ns + (t0_ns - window.t0_ns) // CELL_NS * CELL_NS
    chosen = (produced["cell_ns"] >= window.start_ns) & (produced["cell_ns"] < own_ns)
    waiting = produced[chosen & ((produced["latency_ms"] != NEVER) & (produced["last_ms"] * MS > t0_ns))]
    return int(waiting["cell_ns"].min()) if len(waiting) else own_ns


def fold_produced(chunks: Iterable[pd.DataFrame], window: Window, grain_ns: int = CELL_NS) -> pd.DataFrame:
    """Return PRODUCED_COLUMNS of chunks with `latency.TUPLE_COLUMNS`, without the primer, in cells of `grain_ns`."""
    fold = ProducedFold(window, grain_ns)
    for chunk in chunks:
        tuples = chunk[~chunk["primer"].astype(bool)]
        fold.add(tuples["produced_ms"], tuples["emitted_ms"], tuples["n"])
    return fold.total
