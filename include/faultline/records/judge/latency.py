"""Latency of tuples: emission of the first output that reflects a tuple − its intended production.

The harvest groups tuples by batch and both instants; here the groups are folded chunk by chunk into
(value, count) tables, so memory is bounded by distinct milliseconds, not by tuples. Percentiles are
exact: nearest rank over the weighted values, no interpolation, nothing clipped.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
from hdrh.histogram import HdrHistogram
from hdrh.log import HistogramLogWriter

from faultline.records.judge.production import MS, NEVER, ProducedFold, fold_produced, is_sparse
from faultline.system.errors import InfrastructureError
from faultline.system.files import write_whole
from faultline.system.window import NS, Window

Ints = npt.NDArray[np.int64]
TUPLE_COLUMNS = ["lineage", "batch", "produced_ms", "emitted_ms", "primer", "n"]
CHUNK_ROWS = 262_144
# Quantiles of the record, in thousandths, so that ranks are computed in whole numbers.
PERMILLES = {"p50": 500, "p90": 900, "p99": 990, "p999": 999}


@dataclass(frozen=True)
class Tuples:
    """Folded tuples without the primer. Frames hold int64 columns and the count `n`.

    `window`: latency_ms of tuples produced in the measured window, reflected, not negative.
    `by_batch`: lineage, batch, latency_ms. `by_second`: second after T0 of the emission, latency_ms.
    `produced`: second after T0 of the production. `emitted`: emitted_ms, the instant of output, sorted.
    `production`: all tuples, those that were never reflected too, by cell of production (see `production`).
    """

    window: pd.DataFrame
    negative: int
    unreflected: int
    by_batch: pd.DataFrame
    by_second: pd.DataFrame
    produced: pd.DataFrame
    emitted: pd.DataFrame
    production: pd.DataFrame

    @property
    def emissions_ms(self) -> Ints:
        """Distinct instants of output, sorted."""
        return self.emitted["emitted_ms"].to_numpy(dtype=np.int64)


@dataclass(frozen=True)
class Latency:
    """Summary in milliseconds; percentiles and mean are None when nothing was counted.

    `negative`, `unreflected`: tuples of the whole measured window. `batches`: that the tuples came from, None where
    there are none: of a batch all tuples share their fate, so a p99 has as many independent values as that.
    """

    mean: float | None
    p50: float | None
    p90: float | None
    p99: float | None
    p999: float | None
    max: float | None
    count: int | None
    negative: int | None
    unreflected: int | None
    method: str
    batches: int | None

    @classmethod
    def unknown(cls, method: str) -> Latency:
        """Every figure None: of a run in which outputs cannot be told to be of one tuple or of another."""
        return cls(None, None, None, None, None, None, None, None, None, method, None)


def fold_tuples(path: Path, window: Window) -> Tuples:
    """Folds `tuples.parquet` (a file or a directory of parts); InfrastructureError when unreadable."""
    try:
        tuples = fold(_chunks(path), window)
        if is_sparse(tuples.production, window):
            return replace(tuples, production=fold_produced(_chunks(path), window, MS))
        return tuples
    except (OSError, pa.ArrowInvalid, KeyError) as error:
        raise InfrastructureError(f"{path}: cannot be read ({error}); clear the task harvest") from error


def fold(chunks: Iterable[pd.DataFrame], window: Window) -> Tuples:
    """Folds chunks with TUPLE_COLUMNS; null `batch` and `emitted_ms` mean never reflected."""
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
        by_second.total,
        produced.total,
        emitted.total,
        production.total,
    )


def summarise(tuples: Tuples, method: str, batches: int | None) -> Latency:
    """The latency over the measured window."""
    return _summary(tuples.window, tuples, method, batches)


def summarise_within(tuples: Tuples, method: str, batches: int | None, spans: Iterable[tuple[int, int]]) -> Latency:
    """The latency of the tuples produced in the cells of production that begin in one of the spans [start, until)."""
    begins = tuples.production["cell_ns"]
    chosen = pd.Series(False, index=begins.index)
    for start_ns, until_ns in spans:
        chosen |= (begins >= start_ns) & (begins < until_ns)
    return _summary(tuples.production[chosen & (tuples.production["latency_ms"] != NEVER)], tuples, method, batches)


def _summary(frame: pd.DataFrame, tuples: Tuples, method: str, batches: int | None) -> Latency:
    """Of a frame with latency_ms and the count n."""
    values = frame["latency_ms"].to_numpy(dtype=np.int64)
    weights = frame["n"].to_numpy(dtype=np.int64)
    count = int(weights.sum())
    quantiles = {name: nearest_rank(values, weights, permille) for name, permille in PERMILLES.items()}
    return Latency(
        mean=float((values * weights).sum() / count) if count else None,
        max=float(values.max()) if count else None,
        count=count,
        negative=tuples.negative,
        unreflected=tuples.unreflected,
        method=method,
        batches=batches,
        **quantiles,
    )


def nearest_rank(values: Ints, weights: Ints, permille: int) -> float | None:
    """Smallest value whose cumulated weight reaches ceil(permille/1000 · total); None without weight."""
    total = int(weights.sum())
    if total == 0:
        return None
    order = np.argsort(values, kind="stable")
    rank = max(1, -(-total * permille // 1000))
    return float(values[order][np.searchsorted(np.cumsum(weights[order]), rank)])


def grouped_rank(frame: pd.DataFrame, by: list[str], permille: int) -> pd.Series:
    """Nearest rank of `latency_ms` weighted by `n` in each group of `by`; indexed by the group."""
    ordered = frame.sort_values([*by, "latency_ms"], kind="stable")
    groups = ordered.groupby(by)["n"]
    rank = -(-groups.transform("sum") * permille // 1000)
    reached = ordered[groups.cumsum() >= rank]
    return reached.groupby(by)["latency_ms"].first()


def write_histogram(path: Path, tuples: Tuples, window: Window) -> None:
    """Writes the window's latencies as one interval of an HdrHistogram V2 log, in milliseconds."""
    values = tuples.window["latency_ms"].to_numpy(dtype=np.int64)
    highest = max(2, int(values.max())) if len(values) else 2
    histogram = HdrHistogram(1, highest, 3)
    for value, count in zip(values.tolist(), tuples.window["n"].tolist(), strict=True):
        histogram.record_value(value, count)
    log = io.StringIO()
    writer = HistogramLogWriter(log)
    writer.output_comment("latency of tuples in ms, measured window")
    writer.output_log_format_version()
    writer.output_legend()
    writer.output_interval_histogram(histogram, window.start_ns / NS, window.end_ns / NS, 1.0)
    write_whole(path, log.getvalue())


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
