"""Accuracy of fault times: |actual − planned| over 200 kills, idle and under load.

The real fault scheduler executes a plan of recurring kills on a synthetic attempt, with a real broker whose end offsets
it reads before each kill. The victims are shells of this benchmark that carry an executor's tags and sleep on a pipe;
each is replaced after its death. Every second run has a busy process on each core, like an experiment in which the
engine uses the whole machine. If a fault is not delivered, the benchmark fails, because omitting it would bias the
figures.

`error_*_ms` cover all faults of all runs; `low` and `high` are the minimum and maximum of single runs, `n` is the
number of runs. `loaded_error_p99_ms` covers the faults of the loaded runs only.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from benchmarks.figure import BenchmarkFigure
from benchmarks.neighbours.neighbour import neighbour
from benchmarks.synthetic_topics import fresh_topics
from fault.identity import EXECUTOR
from faultline.cli.service_control import bring_up
from faultline.engines.registry import engine_of
from faultline.experiment.attempt import Attempt, new_attempt_id, write_json
from faultline.experiment.attempt_plan import Ordered, Places, PlannedEngine, resolve
from faultline.experiment.common_parameters import SECONDS_AFTER_FAULT
from faultline.experiment.config import parse_configuration
from faultline.system.endpoints import Endpoints
from faultline.system.errors import InfrastructureError
from faultline.system.journal import JournalReader, events, find_last
from faultline.system.process_ledger import LedgerEntry, end_processes, process_of, spawn_detached, victim_of
from faultline.system.settings import Settings
from faultline.system.text import Progress
from faultline.system.waiting import wait_until

EVERY_S = 1.5
FIRST_S = 7.0
# Number of victims: while one is replaced, the other one is available.
VICTIMS = 2
PARTITIONS = 2
_START_S = 30.0
# Longest duration of a run.
LONGEST_S = 600.0
_STOP_S = 10.0


# Number of runs, and of kills per run.
FULL, QUICK = (4, 50), (2, 20)


def run(progress: Progress, quick: bool) -> dict[str, BenchmarkFigure]:
    """Measure all figures of the benchmark `fault_timing`.

    It starts a broker, and creates and deletes a topic. The journals stay under `bench` of the installation. Raises
    InfrastructureError if a part fails or a fault was not delivered.
    """
    settings, (count, faults) = bring_up(progress, airflow=False), QUICK if quick else FULL
    runs: list[list[float]] = []
    for number in range(count):
        loaded = number % 2 == 1
        runs.append(measure(settings, faults, loaded=loaded))
        what = "loaded" if loaded else "idle"
        progress(f"run {number + 1} of {count}, {what}: {faults} faults, p99 {percentile(runs[-1], 99):.3f} ms")
    return figures(runs)


def figures(runs: Sequence[Sequence[float]]) -> dict[str, BenchmarkFigure]:
    """Return the figures from the errors of each run in ms; every second run was loaded."""
    every = [error for errors in runs for error in errors]
    loaded = runs[1::2]

    def figure(percent: float, chosen: Sequence[Sequence[float]]) -> BenchmarkFigure:
        each = [percentile(errors, percent) for errors in chosen]
        value = percentile([error for errors in chosen for error in errors], percent)
        return BenchmarkFigure(value, "ms", min(each), max(each), len(each))

    return {
        "error_p99_ms": figure(99, runs),
        "error_p50_ms": figure(50, runs),
        "error_max_ms": figure(100, runs),
        "loaded_error_p99_ms": figure(99, loaded),
        "faults": BenchmarkFigure(len(every), "1", min(map(len, runs)), max(map(len, runs)), len(runs)),
    }


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that at least `percent` % of the values do not exceed, without interpolation."""
    return float(np.percentile(values, percent, method="inverted_cdf"))


def measure(settings: Settings, faults: int, *, loaded: bool) -> list[float]:
    """Return |actual − planned| in ms of each kill of one run, with busy cores if `loaded`."""
    attempt = Attempt(settings.home / "bench" / new_attempt_id(settings.home / "bench"))
    attempt.logs.mkdir(parents=True)
    with fresh_topics(settings.endpoints.kafka, PARTITIONS, 1) as (topic,):
        prepare(attempt, settings.endpoints, topic, faults)
        with _Victims(attempt.id) as victims, ExitStack() as busy:
            for _ in range((os.cpu_count() or 1) * loaded):
                busy.enter_context(neighbour("steady", 1.0, LONGEST_S))
            lines = _conduct(attempt, settings, victims, faults)
    return errors_ms(lines, faults)


def prepare(attempt: Attempt, endpoints: Endpoints, topic: str, faults: int) -> None:
    """Write the parts of an attempt that the fault scheduler reads."""
    last_s = FIRST_S + (faults - 1) * EVERY_S
    plan = {"victim": "executor", "action": "kill", "at_s": FIRST_S, "every_s": EVERY_S, "times": faults}
    config = parse_configuration(
        {
            "warmup_s": 5,
            "duration_s": last_s - 5 + SECONDS_AFTER_FAULT,
            "checkpoint_interval_s": 0.1,  # the shortest baseline window
            "fault_plan": {"faults": [plan]},
        }
    )
    order = Ordered(config.model_dump(mode="json"), config.config_id, 0, "bench", "bench")
    engine = engine_of(config)
    made = resolve(
        config,
        order,
        engine=PlannedEngine(engine.name),
        endpoints=endpoints,
        topics={"input": topic},
        places=Places(),
        matching=engine.tuples(config),
    )
    write_json(attempt.folder / "attempt.json", {"attempt": attempt.id})
    write_json(attempt.plan, made.as_mapping())


def errors_ms(lines: Sequence[dict[str, Any]], faults: int) -> list[float]:
    """Return |actual − planned| in ms of each fault in the scheduler's journal.

    Raises InfrastructureError with the journal's detail if a fault was not delivered or not acknowledged.
    """
    found: dict[int, float] = {}
    for line in lines:
        if line.get("event") == "delivered" and line["acknowledged"]:
            found[line["fault"]] = abs(line["mono_ns"] - line["planned_mono_ns"]) / 1e6
    for fault in range(faults):
        if fault not in found:
            settled = [line for line in events(lines, "settled") if line["fault"] == fault]
            why = (
                f"{settled[-1]['outcome']}: {settled[-1]['detail']}"
                if settled
                else "the fault scheduler has no outcome"
            )
            raise InfrastructureError(f"fault {fault} of {faults} was not delivered: {why}")
    return [found[fault] for fault in range(faults)]


def _conduct(attempt: Attempt, settings: Settings, victims: _Victims, faults: int) -> list[dict[str, Any]]:
    """Run a fault scheduler until the last fault has an outcome, end it in any case, and return its journal."""
    entry = spawn_detached(
        [sys.executable, "-m", "faultline.lifecycle.fault_scheduler", "--attempt-dir", str(attempt.folder)],
        role="conductor",
        attempt=attempt.id,
        ledger=attempt.ledger,
        stdout=attempt.logs / "conductor.out",
        stderr=attempt.logs / "conductor.err",
        cwd=settings.root,
        high_priority=True,
    )
    reader = JournalReader(attempt.conductor_journal)
    lines: list[dict[str, Any]] = []

    def settled() -> bool:
        victims.replace_dead()
        lines.extend(reader.poll())
        return len(events(lines, "settled")) == faults

    def trouble() -> str | None:
        if failed := find_last(lines, event="failed"):
            return f"fault scheduler: {failed['message']}"
        return None if process_of(entry) else f"fault scheduler: ended early; see {attempt.logs / 'conductor.err'}"

    try:
        wait_until(
            settled,
            timeout_s=FIRST_S + faults * EVERY_S + _START_S,
            what=f"fault scheduler: outcome of {faults} faults",
            alive=trouble,
        )
    finally:
        _end(entry)  # otherwise the fault scheduler would wait for the end of the window
    return lines


def _end(entry: LedgerEntry) -> None:
    if (process := victim_of(entry)) is not None:
        end_processes([process], grace_s=_STOP_S)


class _Victims:
    """Shells with the command line of executors, asleep on a pipe that closes with this process."""

    def __init__(self, attempt: str) -> None:
        self._attempt = attempt
        self._number = 0
        self._living: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> _Victims:
        self.replace_dead()
        return self

    def __exit__(self, *exception: object) -> None:
        for process in self._living:
            process.kill()
            _close(process)

    def replace_dead(self) -> None:
        """Reap killed processes, and start as many new ones."""
        for process in [process for process in self._living if process.poll() is not None]:
            self._living.remove(process)
            _close(process)
        while len(self._living) < VICTIMS:
            marks = [f"-Dfaultline.run={self._attempt}", EXECUTOR.main, "--executor-id", str(self._number)]
            self._living.append(subprocess.Popen(["sh", "-c", "read x", *marks], stdin=subprocess.PIPE))
            self._number += 1


def _close(process: subprocess.Popen[bytes]) -> None:
    process.wait()
    if process.stdin is not None:
        process.stdin.close()
