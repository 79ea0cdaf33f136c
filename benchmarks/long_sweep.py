"""Growth of time, memory and descriptors over 200 experiments in one sweep.

The sweep uses its own Airflow with SQLite. An interrupted call is resumed by the next one.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

import psutil

from benchmarks.broken_sweeps import BenchmarkLog, new_series
from benchmarks.figure import BenchmarkFigure, summarise
from benchmarks.installation import MATRIX, form, own_services
from benchmarks.leak_check import attempts_of, count_series
from faultline.experiment.cell import sweep_id_of
from faultline.installation.supervisord import Supervisor
from faultline.orchestration.airflow_api import FINISHED, AirflowApi
from faultline.system.errors import InfrastructureError
from faultline.system.settings import Settings
from faultline.system.text import Progress
from faultline.system.waiting import wait_until

RATES = [100.0, 150.0]
REPETITIONS, QUICK_REPETITIONS = 100, 5
SAMPLE_S = 10.0
# Text of the error that Airflow's database driver raises if a writer waits too long.
LOCKED = "database is locked"
_TIMEOUT_S = 12 * 3600.0

# By service: resident memory in MB (10⁶ bytes) and open file descriptors, including children.
Sample = dict[str, tuple[float, int]]


def run(progress: Progress, quick: bool) -> dict[str, BenchmarkFigure]:
    """Run 200 cells, or 10 if `quick`.

    Figures: cells, attempts, `fixed_s` per experiment, lock errors, and for each service the memory and descriptors in
    the first and last quarter of the sweep. Raises InfrastructureError if a cell has no usable record or several, or if
    the database was locked.
    """
    repetitions = QUICK_REPETITIONS if quick else REPETITIONS
    with own_services("sweep", progress) as settings:
        diary = BenchmarkLog(settings.home / f"sweep-{repetitions}.jsonl", "run")
        series, runs = next(iter(diary.unfinished.items()), (new_series("long"), list[str]()))
        api = AirflowApi(settings)
        # If a run is still active, follow it; a second one would measure the same cells.
        if not (runs and runs[-1] in [run["dag_run_id"] for run in api.runs(MATRIX, "queued", "running")]):
            runs.append(f"{series}-{len(runs)}")
            diary.note("run", series=series, run_id=runs[-1])
            api.trigger(MATRIX, form(series, RATES, repetitions), run_id=runs[-1])
        began = time.monotonic()
        samples = _sample_services(settings, runs[-1], progress)
        seconds = time.monotonic() - began
        sweeps = [sweep_id_of(run_id) for run_id in runs]
        outcome = count_series(settings, series, sweeps)
        starts = sorted(attempt.begun_at_ns() / 1e9 for attempt in attempts_of(settings, sweeps[-1]))
        locked = lines_with(LOCKED, [settings.logs, settings.airflow_home / "logs"])
    progress(f"{series}: {outcome}")
    if outcome.once == outcome.planned:
        diary.move_aside()  # the next call measures again
    found = {name: summarise([value], "1") for name, value in asdict(outcome).items()}
    found |= {"lock_errors": summarise([locked], "1"), "seconds": summarise([seconds], "s")}
    found |= fixed_cost(starts, measured_s=10.0) | growth(samples)
    if outcome.once != outcome.planned or locked:
        raise InfrastructureError(f"{series}: {outcome.once} of {outcome.planned} cells, {locked} lock errors")
    return found


def fixed_cost(starts: Sequence[float], *, measured_s: float) -> dict[str, BenchmarkFigure]:
    """Return `fixed_s`: time between starts of experiments less `measured_s`; `starts` in order, in seconds."""
    gaps = [later - earlier - measured_s for earlier, later in zip(starts, starts[1:], strict=False)]
    return {"fixed_s": summarise(gaps, "s")} if gaps else {}


def growth(samples: Sequence[Sample]) -> dict[str, BenchmarkFigure]:
    """Return memory and descriptors of each service.

    `value` is the median of the last quarter, `low` that of the first. Empty with too few samples for quarters.
    """
    quarter = len(samples) // 4
    if not quarter:
        return {}
    found = {}
    for service in sorted(set(samples[0]) & set(samples[-1])):
        for index, (name, unit) in enumerate((("memory", "MB"), ("descriptors", "1"))):
            values = [float(sample[service][index]) for sample in samples if service in sample]
            first, last = statistics.median(values[:quarter]), statistics.median(values[-quarter:])
            found[f"{name}_{service}"] = BenchmarkFigure(last, unit, first, max(values), len(values))
    return found


def lines_with(text: str, folders: Iterable[Path]) -> int:
    """Return the number of log lines under the folders that contain `text`."""
    count = 0
    for folder in folders:
        for log in folder.rglob("*.log"):
            with contextlib.suppress(OSError), log.open(errors="replace") as lines:
                count += sum(text in line for line in lines)
    return count


def sample(settings: Settings) -> Sample:
    """Return memory and descriptors of every service."""
    found: Sample = {}
    for name, pid in Supervisor(settings).pids().items():
        memory, descriptors = 0.0, 0
        with contextlib.suppress(psutil.Error):
            service = psutil.Process(pid)
            for process in (service, *service.children(recursive=True)):
                with contextlib.suppress(psutil.Error):
                    memory += process.memory_info().rss / 1e6
                    descriptors += process.num_fds()
            found[name] = (memory, descriptors)
    return found


def _sample_services(settings: Settings, run_id: str, progress: Progress) -> list[Sample]:
    """Sample the services until the run ends."""
    api = AirflowApi(settings)
    samples: list[Sample] = []

    def ended() -> bool:
        samples.append(sample(settings))
        if len(samples) % 30 == 0:
            progress(f"{run_id}: {len(list(settings.records.glob('*/*.json')))} records")
        return api.run_state(MATRIX, run_id) in FINISHED

    wait_until(ended, timeout_s=_TIMEOUT_S, every_s=SAMPLE_S, what=f"{MATRIX}: the end of the run {run_id}")
    return samples
