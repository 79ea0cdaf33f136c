"""Tuples by their time of production: which of them were on time, and when that was seen.

A tuple is on time when its latency is at most L*; one that came later, or never, is late. Definition 2 of the end of a
recovery: docs/explanation/recovery.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from faultline.records.judge.latency import nearest_rank
from faultline.records.judge.production import MS, NEVER

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Cells:
    """Cells of production in order of time, arrays of one length.

    `start_ns`: when the production of each begins. `due`, `on_time`: tuples. `first_ns`: emission of its first tuple
    on time, 0 without any. `late_ns`: the last instant at which one of its tuples was known to be late, 0 without any.
    """

    start_ns: Ints
    due: Ints
    on_time: Ints
    first_ns: Ints
    late_ns: Ints

    def __len__(self) -> int:
        return len(self.start_ns)


def cells_of(produced: pd.DataFrame, limit_ms: float | None) -> Cells:
    """The cells, with tuples up to `limit_ms` (L*) on time; `produced` has PRODUCED_COLUMNS. None without a limit."""
    if limit_ms is None:
        none = np.zeros(0, dtype=np.int64)
        return Cells(none, none, none, none, none)
    latency = produced["latency_ms"].to_numpy(dtype=np.int64)
    good = (latency != NEVER) & (latency <= limit_ms)
    # A tuple that came is known to be late by its output; one that never came, once its time had run out.
    known_ns = produced["last_ms"].to_numpy(dtype=np.int64) * MS
    known_ns = np.where(latency == NEVER, known_ns + round(limit_ms * MS), known_ns)
    first_ns = produced["first_ms"].to_numpy(dtype=np.int64) * MS
    n = produced["n"].to_numpy(dtype=np.int64)
    rows = pd.DataFrame(
        {
            "cell_ns": produced["cell_ns"].to_numpy(dtype=np.int64),
            "due": n,
            "on_time": np.where(good, n, 0),
            "first_ns": np.where(good, first_ns, np.iinfo(np.int64).max),
            "late_ns": np.where(good, 0, known_ns),
        }
    )
    found = (
        rows.groupby("cell_ns", sort=True)
        .agg(due=("due", "sum"), on_time=("on_time", "sum"), first_ns=("first_ns", "min"), late_ns=("late_ns", "max"))
        .reset_index()
    )
    first = found["first_ns"].to_numpy(dtype=np.int64)
    return Cells(
        found["cell_ns"].to_numpy(dtype=np.int64),
        found["due"].to_numpy(dtype=np.int64),
        found["on_time"].to_numpy(dtype=np.int64),
        np.where(first == np.iinfo(np.int64).max, 0, first),
        found["late_ns"].to_numpy(dtype=np.int64),
    )


def p99_ms(produced: pd.DataFrame, start_ns: int, until_ns: int, seen_by_ns: int | None = None) -> float | None:
    """p99 of the latency of the tuples produced in the cells of [start, until), reflected by `seen_by_ns`.

    None without any. A tuple that no output reflected has no latency: it is left out here, and late in `cells_of`.
    """
    chosen = (produced["cell_ns"] >= start_ns) & (produced["cell_ns"] < until_ns) & (produced["latency_ms"] != NEVER)
    if seen_by_ns is not None:
        chosen &= produced["last_ms"] * MS <= seen_by_ns
    inside = produced[chosen]
    return nearest_rank(
        inside["latency_ms"].to_numpy(dtype=np.int64), inside["n"].to_numpy(dtype=np.int64), permille=990
    )
