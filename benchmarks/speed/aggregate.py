"""Growth of the time of `aggregate` with the number of tuples in the store.

The store grows by attempts, each with a record, a time series and its tuples, in which equal tuples share a row (four
rows for ten tuples of a line, as with word count). The output is compared with the planted data, so that no wrong
result is timed.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.figure import BenchmarkFigure
from benchmarks.speed.spark_job import QUICK_SIZES, SIZES, Cost, Size, growth, run_job, submit_command
from benchmarks.synthetic_records import made_record, write_record
from faultline.cli.service_control import require
from faultline.experiment.attempt import write_json
from faultline.installation.spark import prepare_spark
from faultline.records.record import Record, TimelineEvent
from faultline.system.errors import InfrastructureError
from faultline.system.measured_window import NS
from faultline.system.settings import Settings, load_settings
from faultline.system.text import Progress

# Tuples of one attempt: 200 s of 50 lines per second, each of ten words.
ATTEMPT_TUPLES = 10**5
RATE, INTERVAL_S = 50, 2
# Multiplicities of the rows of one line.
ROWS_OF_LINE = (1, 2, 3, 4)
WORDS = sum(ROWS_OF_LINE)
# The first lines are the preload, and the last ones were never emitted; neither are part of a percentile.
PRIMER_SHARE, UNREFLECTED_SHARE = 0.02, 0.001
T0_MS = 1_795_000_000_000
SCHEMA = pa.schema(
    [
        ("lineage", pa.int32()),
        ("batch", pa.int32()),
        ("produced_ms", pa.int64()),
        ("emitted_ms", pa.int64()),
        pa.field("primer", pa.bool_(), nullable=False),
        pa.field("n", pa.int64(), nullable=False),
    ]
)


def run(progress: Progress, quick: bool) -> dict[str, BenchmarkFigure]:
    """Return the figures of `growth_figures` for the program `aggregate`; services are not needed.

    Raises InfrastructureError if the program fails, or if its tables differ from the store.
    """
    settings = load_settings()
    require(settings)
    prepare_spark(settings)  # for its logging settings

    def measure(asked: int, times: int) -> Size:
        with tempfile.TemporaryDirectory(prefix="faultline-aggregate-") as folder:
            planted = plant(Path(folder), asked)
            costs = tuple(_measure(settings, Path(folder), planted) for _ in range(times))
        progress(f"{asked:,} tuples of {len(planted.cells):,} configurations: {', '.join(map(str, costs))}")
        return Size(asked, asked, costs)

    return growth(measure, QUICK_SIZES if quick else SIZES, huge=not quick)


@dataclass(frozen=True)
class PlantedRows:
    """Expected table contents: records, rows of `samples`, and tuples with a latency by configuration."""

    records: int
    samples: int
    cells: dict[str, int]


def attempts_of(tuples: int) -> list[int]:
    """Return the number of tuples of each attempt, at most ATTEMPT_TUPLES; multiples of WORDS."""
    complete, rest = divmod(tuples, ATTEMPT_TUPLES)
    return [ATTEMPT_TUPLES] * complete + ([rest // WORDS * WORDS] if rest >= WORDS else [])


def plant(results: Path, tuples: int) -> PlantedRows:
    """Create a store with this number of tuples under `results`; return the expected output of `aggregate`."""
    cells: Counter[str] = Counter()
    seconds = 0
    sizes = attempts_of(tuples)
    for number, size in enumerate(sizes):
        rows = tuple_rows(size, seed=number)
        lasted_s = size / WORDS / RATE
        record = _with_window(made_record(number), lasted_s)
        attempt = results / "attempts" / record.attempt
        (attempt / "harvest").mkdir(parents=True)
        pq.write_table(pa.Table.from_pandas(rows, SCHEMA, preserve_index=False), attempt / "harvest" / "tuples.parquet")
        write_json(attempt / "series.json", series_json(int(lasted_s)))
        write_record(results, record)
        seconds += int(lasted_s)
        if record.status == "valid":
            cells[record.config_id] += _count_measured(rows, lasted_s)
    return PlantedRows(len(sizes), seconds, cells)


def tuple_rows(tuples: int, seed: int) -> pd.DataFrame:
    """Return tuples.parquet of one attempt: columns of SCHEMA, four rows per line, each batch emitted at its end."""
    rng = np.random.default_rng(seed)
    lines = tuples // WORDS
    line = np.repeat(np.arange(lines), len(ROWS_OF_LINE))
    produced = line * 1000 // RATE
    batch = produced // (INTERVAL_S * 1000)
    emitted = (batch + 1) * INTERVAL_S * 1000 + 300 + rng.integers(0, 400, len(line))
    rows = pd.DataFrame(
        {
            "lineage": 0,
            "batch": batch,
            "produced_ms": T0_MS + produced,
            "emitted_ms": pd.array(T0_MS + emitted, dtype="Int64"),
            "primer": line < lines * PRIMER_SHARE,
            "n": np.tile(ROWS_OF_LINE, lines),
        }
    )
    rows.loc[line >= lines * (1 - UNREFLECTED_SHARE), "emitted_ms"] = None
    return rows


def series_json(seconds: int) -> dict[str, Any]:
    """Return a series.json; `aggregate` gives second s the CPU at s and the latency that began at s - 1."""
    latency = {"p50_ms": 1350.0, "p99_ms": 2200.0, "max_ms": 2400.0, "n": 500}
    cpu = {"driver": 0.1, "executors": 0.5, "python_workers": 0.0, "kafka": 0.1, "generator": 0.05}
    return {
        "latency": [{"t_s": float(second), **latency} for second in range(seconds)],
        "throughput": [{"t_s": second + 0.4, "rps": 50.1} for second in range(seconds)],
        "lag": [{"t_s": second + 0.4, "records": 70} for second in range(seconds)],
        "cpu": [{"t_s": second + 1.0, **cpu} for second in range(seconds)],
        "events": [{"name": "gate", "t_s": 0.0, "source": "gate.json: T0"}],
        "warmup_s": 5.0,
        "duration_s": float(seconds),
    }


def _window(lasted_s: float) -> tuple[int, int]:
    """Return the measured window in ms since the epoch: the last nine tenths."""
    return T0_MS + round(lasted_s * 100), T0_MS + round(lasted_s * 1000)


def _with_window(record: Record, lasted_s: float) -> Record:
    """Return the record with the window of its tuples."""
    events = [
        TimelineEvent(name=name, wall_ns=at * (NS // 1000), mono_ns=at * (NS // 1000), source="gate.json: T0")
        for name, at in zip(("measured_from", "measured_until"), _window(lasted_s), strict=True)
    ]
    return record.model_copy(update={"timeline": [*record.timeline, *events]})


def _count_measured(rows: pd.DataFrame, lasted_s: float) -> int:
    """Return the number of tuples with a latency in the measured window."""
    start, end = _window(lasted_s)
    measured = (
        rows["produced_ms"].ge(start) & rows["produced_ms"].lt(end) & ~rows["primer"] & rows["emitted_ms"].notna()
    )
    return int(rows["n"][measured].sum())


def _measure(settings: Settings, results: Path, planted: PlantedRows) -> Cost:
    arguments = ["--records", str(results / "records"), "--attempts", str(results / "attempts")]
    arguments += ["--target", str(results / "summary")]
    command = submit_command(settings, "aggregate", arguments)
    cost = run_job(settings, command, results)
    problems = differences(results / "summary", planted)
    if problems:
        raise InfrastructureError(f"aggregate: {problems[0]}; expected the planted data")
    return cost


def differences(summary: Path, planted: PlantedRows) -> list[str]:
    """Return how the summary tables differ from the planted data; empty if they do not."""
    problems = []
    for name, rows in (("experiments", planted.records), ("samples", planted.samples)):
        found = pq.read_metadata(summary / f"{name}.parquet").num_rows
        if found != rows:
            problems.append(f"{name}: {found} rows, not {rows}")
    latencies = pd.read_parquet(summary / "latencies.parquet").set_index("config_id")["tuples"].to_dict()
    if latencies != planted.cells:
        problems.append(f"latencies: of {sum(latencies.values())} tuples, not {sum(planted.cells.values())}")
    return problems
