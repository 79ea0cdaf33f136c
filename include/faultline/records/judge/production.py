"""Tuples summed by when they were produced and how late they came: what decides on the end of a recovery.

Tuples fall into cells of one second of production; where fewer than ten a second are due (windows, joins), each instant
of production is a cell.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pandas as pd

from faultline.system.window import NS, Window

CELL_NS = NS
MS = 1_000_000
# Fewer tuples than this come due in a typical second: each instant of production is a cell of its own.
SPARSE_BELOW = 10
# The latency of a tuple that no output ever reflected.
NEVER = -1
PRODUCED_COLUMNS = ["cell_ns", "latency_ms", "n", "first_ms", "last_ms"]


class ProducedFold:
    """Tuples summed by cell of production and latency; memory grows with their distinct pairs, not with tuples."""

    def __init__(self, window: Window, grain_ns: int = CELL_NS) -> None:
        self._t0_ns, self._grain_ns = window.t0_ns, grain_ns
        self.total = pd.DataFrame({name: pd.Series(dtype="int64") for name in PRODUCED_COLUMNS})

    def add(self, produced_ms: pd.Series, emitted_ms: pd.Series, n: pd.Series) -> None:
        """Adds tuples; a null `emitted_ms` is one that was never reflected, a negative latency counts as none."""
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
    """Whether fewer than ten tuples a second come due in the measured window."""
    return due_spacing_s(produced, window.start_ns, window.end_ns) * SPARSE_BELOW > 1


def due_spacing_s(produced: pd.DataFrame, start_ns: int, end_ns: int) -> float:
    """Mean seconds between two tuples that come due in [start, end); infinite without any."""
    inside = produced[(produced["cell_ns"] >= start_ns) & (produced["cell_ns"] < end_ns)]
    n = int(inside["n"].sum())
    return (end_ns - start_ns) / NS / n if n else float("inf")


def hit_from_ns(produced: pd.DataFrame, window: Window, t0_ns: int) -> int:
    """From which cell on a fault at t0 reaches what is produced: the first of the measured window with a tuple that was
    put out later, and the fault's own at the latest. What never came says nothing of when it was reached."""
    own_ns = window.t0_ns + (t0_ns - window.t0_ns) // CELL_NS * CELL_NS
    chosen = (produced["cell_ns"] >= window.start_ns) & (produced["cell_ns"] < own_ns)
    waiting = produced[chosen & ((produced["latency_ms"] != NEVER) & (produced["last_ms"] * MS > t0_ns))]
    return int(waiting["cell_ns"].min()) if len(waiting) else own_ns


def fold_produced(chunks: Iterable[pd.DataFrame], window: Window, grain_ns: int = CELL_NS) -> pd.DataFrame:
    """PRODUCED_COLUMNS of chunks with `latency.TUPLE_COLUMNS`, without the primer, in cells of `grain_ns`."""
    fold = ProducedFold(window, grain_ns)
    for chunk in chunks:
        tuples = chunk[~chunk["primer"].astype(bool)]
        fold.add(tuples["produced_ms"], tuples["emitted_ms"], tuples["n"])
    return fold.total
