"""Cores that the recorder and other parts of Faultline use during the measured windows of a sweep."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import psutil

from benchmarks.figure import BenchmarkFigure, summarise
from benchmarks.speed.overhead import sweep
from faultline.cli.service_control import bring_up
from faultline.experiment.attempt import Attempt
from faultline.installation.supervisord import Supervisor
from faultline.records.judge.samples import processes_of
from faultline.records.record import Record
from faultline.records.store import Store
from faultline.system.errors import InfrastructureError
from faultline.system.journal import Line, read_journal
from faultline.system.process_tags import SERVICES
from faultline.system.settings import Settings
from faultline.system.text import Progress

REPETITIONS, QUICK_REPETITIONS = 5, 2
WARMUP_S, DURATION_S = 20.0, 55.0
QUICK_WARMUP_S, QUICK_DURATION_S = 5.0, 20.0
# Duration of the idle period, after the services have read the DAG files.
SETTLE_S, REST_S, QUICK_REST_S = 60.0, 30.0, 10.0
# Services that are part of the measured system.
MEASURED = ("kafka", "spark-worker-1", "spark-worker-2")


def run(progress: Progress, quick: bool) -> dict[str, BenchmarkFigure]:
    """Run a sweep of five word counts, or of two short ones if `quick`, after an idle period of the services.

    Figures in cores, during the measured windows: `recorder_cores`, `services_cores` (Airflow with its tasks, the
    persistent Spark session, the cluster's daemons), `given_way_cores` (the part of these with lowered priority),
    `lost_cores` (lost by the measured processes). `rest_cores`: cores of the idle services. `recorder_late`: number of
    late samples.
    """
    settings = bring_up(progress)
    time.sleep(SETTLE_S)
    rest = cores(lambda: _services(settings), QUICK_REST_S if quick else REST_S)
    repetitions = QUICK_REPETITIONS if quick else REPETITIONS
    window = (QUICK_WARMUP_S, QUICK_DURATION_S) if quick else (WARMUP_S, DURATION_S)
    attempts = sweep(settings, repetitions, *window, progress)
    records = {one.attempt: one for one in Store(settings.results).query()}
    found = figures([(one, records[one.id]) for one in attempts if one.id in records])
    for name, figure in found.items():
        progress(f"{name}: {figure.value:.4f} {figure.unit}")
    return {**found, "rest_cores": summarise([rest], "cores")}


def figures(measured: Sequence[tuple[Attempt, Record]]) -> dict[str, BenchmarkFigure]:
    """Return the figures of attempts with their records. Raises InfrastructureError if none was judged."""
    values: dict[str, list[float]] = {}
    for attempt, record in measured:
        for name, value in _of_attempt(attempt, record).items():
            if value is not None:
                values.setdefault(name, []).append(value)
    if "services_cores" not in values:
        raise InfrastructureError("services: no judged experiment in the sweep; see its records")
    return {name: summarise(known, "samples" if name == "recorder_late" else "cores") for name, known in values.items()}


def _of_attempt(attempt: Attempt, record: Record) -> Mapping[str, float | None]:
    background, waited = record.metrics.background_cpu, record.metrics.waited
    if background is None:
        return {}
    lines = read_journal(attempt.recorder_journal)
    return {
        "recorder_cores": background.recorder,
        "services_cores": background.services,
        "given_way_cores": _lowered_cores(record, lines),
        "lost_cores": None if waited is None else waited.others,
        "recorder_late": float(sum(line.get("kind") == "overrun" for line in lines)),
    }


def _lowered_cores(record: Record, lines: Sequence[Line]) -> float:
    """Return the cores of services between their first and last sample with lowered priority in the window."""
    instants = {event.name: event.wall_ns for event in record.timeline}
    samples = processes_of([line for line in lines if line.get("kind") == "proc"])
    inside = samples["wall_ns"].between(instants["measured_from"], instants["measured_until"])
    own = samples[inside & (samples["role"] == SERVICES) & samples["lowered"]]
    used = own.groupby(["pid", "create_time"])["cpu_s"].agg(lambda one: one.max() - one.min()).sum()
    return float(used) * 1e9 / (instants["measured_until"] - instants["measured_from"])


def cores(counter: Callable[[], float], seconds: float) -> float:
    """Return the growth of a counter of CPU seconds per second, over the next `seconds`."""
    before, began = counter(), time.monotonic()
    time.sleep(seconds)
    return (counter() - before) / (time.monotonic() - began)


def _services(settings: Settings) -> float:
    """Return the CPU seconds of all services since the start of each process."""
    pids = [pid for name, pid in Supervisor(settings).pids().items() if name not in MEASURED]
    if not pids:
        raise InfrastructureError("services: none running; fix: ./faultline up")
    found: dict[int, psutil.Process] = {}
    for pid in pids:
        try:
            process = psutil.Process(pid)
            found |= {one.pid: one for one in (process, *process.children(recursive=True))}
        except psutil.Error:
            continue  # it has ended
    total = 0.0
    for process in found.values():
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        total += times.user + times.system
    return total
