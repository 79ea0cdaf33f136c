"""The raw files of one attempt, read into typed values; nothing is interpreted here.

Required files raise InfrastructureError by name when they are missing or broken. Files whose absence
is itself evidence (a process that never came to write) read as empty; `judge` decides what that means.
A last line that was cut by a kill is dropped; a broken line anywhere else is an error.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, ValidationError

from faultline.base.clock import jump_ms
from faultline.base.errors import InfrastructureError
from faultline.base.journal import Line, read_ended
from faultline.engines.spark.instants import spark_instant_ns
from faultline.experiment.config import Configuration

PROCESS_COLUMNS = ["wall_ns", "role", "pid", "create_time", "cpu_s", "rss_bytes", "final"]
EXECUTOR_COLUMNS = ["wall_ns", "app_id", "id", "gc_ms", "tasks", "task_ms", "added_ns", "removed_ns", "reason"]
MACHINE_COLUMNS = ["wall_ns", "busy_s", "stolen_s"]
RECORD_COLUMNS = ["partition", "offset", "timestamp_ms", "primer"]


class AttemptFile(BaseModel):
    """`attempt.json`: what `prepare` decided about the attempt."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    attempt: str
    config: Configuration
    config_id: str
    repetition: int
    series: str
    build: str
    matrix: str | None = None
    sweep_id: str | None = None
    logical_date: str | None = None
    prepared_wall_ns: int
    environment: dict[str, Any] = {}


@dataclass(frozen=True)
class Gate:
    """T0 on both clocks of the host, in nanoseconds."""

    t0_wall_ns: int
    t0_mono_ns: int

    def mono_ns(self, wall_ns: int) -> int:
        """The monotonic instant of a wall-clock instant of the same host and boot."""
        return wall_ns - self.t0_wall_ns + self.t0_mono_ns


@dataclass(frozen=True)
class Commit:
    """One committed batch. `end_offsets` maps a partition to the first offset not in the batch.

    `start_offsets`: where a later state lineage began; only on its first batch.
    """

    lineage: int
    batch: int
    planned_wall_ns: int | None
    committed_wall_ns: int
    end_offsets: Mapping[str, int]
    start_offsets: Mapping[str, int] | None = None

    def covers(self, offsets: Mapping[str, int]) -> bool:
        """Whether every partition of `offsets` was committed at least that far."""
        return all(self.end_offsets.get(partition, 0) >= offset for partition, offset in offsets.items())


@dataclass(frozen=True)
class Raw:
    """Everything `judge` needs of one attempt. Tuples and counts stay on disk and are streamed."""

    directory: Path
    attempt: AttemptFile
    gate: Gate
    generator: tuple[Line, ...]
    conductor: tuple[Line, ...]
    supervisor: tuple[Line, ...]
    services: tuple[Line, ...]
    listener: tuple[Line, ...]
    # Of a topology's stages; none of other workloads.
    stages: tuple[Line, ...]
    recorder_ended: bool
    processes: pd.DataFrame
    executors: pd.DataFrame
    machine: pd.DataFrame
    method: str
    commits: tuple[Commit, ...]
    reached: Mapping[str, int]
    records: pd.DataFrame
    checkpoint: Line | None
    # See `faultline.base.clock`.
    clock_jump_ms: float | None

    @property
    def tuples_path(self) -> Path:
        """Tuples grouped by instants of production and emission (a file or a directory of parts)."""
        return self.directory / "harvest" / "tuples.parquet"

    @property
    def counts_path(self) -> Path:
        """Expected and final value of each key."""
        return self.directory / "harvest" / "counts.parquet"


def read_raw(directory: Path) -> Raw:
    """Reads the attempt in `directory`.

    Raises InfrastructureError naming the first file that is missing or broken.
    """
    gate = _json(directory / "gate.json")
    recorder = read_ended(directory / "recorder.jsonl")
    processes, executors, ended = _recorder(recorder)
    method, commits, reached = _commits(directory / "batches.json")
    checkpoint = directory / "checkpoint.json"
    raw = Raw(
        directory=directory,
        attempt=read_attempt(directory),
        gate=Gate(int(gate["t0_wall_ns"]), int(gate["t0_mono_ns"])),
        generator=read_ended(directory / "generator.jsonl"),
        conductor=read_ended(directory / "conductor.jsonl"),
        supervisor=read_ended(directory / "supervisor.jsonl"),
        services=read_ended(directory / "services.jsonl"),
        listener=read_ended(directory / "listener.jsonl"),
        stages=read_ended(directory / "topology.jsonl"),
        recorder_ended=ended,
        processes=processes,
        executors=executors,
        machine=_machine(recorder),
        method=method,
        commits=commits,
        reached=reached,
        records=_records(directory / "harvest" / "records.parquet"),
        checkpoint=_json(checkpoint) if checkpoint.exists() else None,
        clock_jump_ms=jump_ms(recorder),
    )
    for path in (raw.tuples_path, raw.counts_path):
        _require(path)
    return raw


def read_attempt(directory: Path) -> AttemptFile:
    """Reads `attempt.json`; InfrastructureError when it is missing or not what `prepare` writes."""
    path = directory / "attempt.json"
    try:
        return AttemptFile.model_validate(_json(path))
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in problem["loc"])
        raise InfrastructureError(f"{path}: {key}: {problem['msg']}; run the experiment again") from None


def offsets_by_partition(value: Mapping[Any, Any]) -> dict[str, int]:
    """Offsets by partition as JSON gives them, with both types made sure of."""
    return {str(partition): int(offset) for partition, offset in value.items()}


def _require(path: Path) -> None:
    if not path.exists():
        raise InfrastructureError(f"{path}: missing; clear the task that writes it, or run the experiment again")


def _json(path: Path) -> Line:
    _require(path)
    try:
        value = json.loads(path.read_text())
    except ValueError:
        raise InfrastructureError(f"{path}: not JSON; clear the task that writes it") from None
    if not isinstance(value, dict):
        raise InfrastructureError(f"{path}: not a JSON object; clear the task that writes it")
    return value


def _records(path: Path) -> pd.DataFrame:
    _require(path)
    try:
        table = pq.read_table(path)
        frame: pd.DataFrame = table.select(RECORD_COLUMNS).to_pandas()
        # Harvests from before there was event time know no late records.
        frame["late"] = table["late"].to_pandas() if "late" in table.column_names else False
    except (OSError, ValueError, KeyError) as error:
        raise InfrastructureError(f"{path}: cannot be read ({error}); clear the task harvest") from error
    return frame


def _commits(path: Path) -> tuple[str, tuple[Commit, ...], dict[str, int]]:
    """Method, commits in order, and the offsets that the query reached."""
    content = _json(path)
    commits = [
        Commit(
            int(item["lineage"]),
            int(item["batch"]),
            None if item.get("planned_wall_ns") is None else int(item["planned_wall_ns"]),
            int(item["committed_wall_ns"]),
            offsets_by_partition(item["end_offsets"]),
            None if item.get("start_offsets") is None else offsets_by_partition(item["start_offsets"]),
        )
        for item in content["batches"]
    ]
    ordered = tuple(sorted(commits, key=lambda commit: (commit.lineage, commit.batch)))
    reached = content.get("reached") or (ordered[-1].end_offsets if ordered else {})
    return str(content["method"]), ordered, offsets_by_partition(reached)


def _recorder(lines: tuple[Line, ...]) -> tuple[pd.DataFrame, pd.DataFrame, bool]:
    """Process samples, executor samples (one row per executor and sample), and whether it ended well."""
    processes = [[line.get(name) for name in PROCESS_COLUMNS] for line in lines if line.get("kind") == "proc"]
    executors = [
        _executor_row(line, executor)
        for line in lines
        if line.get("kind") == "executors"
        for executor in line.get("executors") or ()
    ]
    ended = bool(lines) and lines[-1].get("kind") == "stop"
    frame = pd.DataFrame(processes, columns=PROCESS_COLUMNS)
    frame["final"] = frame["final"].eq(True)
    # From objects straight to Int64: a column with gaps would otherwise pass through float64 and lose nanoseconds.
    figures = dict.fromkeys(("gc_ms", "tasks", "task_ms"), "float64")
    kinds = {"wall_ns": "int64", **figures, "added_ns": "Int64", "removed_ns": "Int64"}
    samples = pd.DataFrame(executors, columns=EXECUTOR_COLUMNS, dtype=object).astype(kinds)
    return frame, samples, ended


def _machine(lines: tuple[Line, ...]) -> pd.DataFrame:
    """Samples of the whole machine; none in journals from before they were taken."""
    rows = [[line.get(name) for name in MACHINE_COLUMNS] for line in lines if line.get("kind") == "machine"]
    figures = dict.fromkeys(MACHINE_COLUMNS[1:], "float64")
    return pd.DataFrame(rows, columns=MACHINE_COLUMNS, dtype=object).astype({"wall_ns": "int64", **figures})


def _executor_row(line: Line, executor: Line) -> list[Any]:
    added, removed = executor.get("addTime"), executor.get("removeTime")
    return [
        line["wall_ns"],
        line.get("app_id"),
        str(executor["id"]),
        float(executor.get("totalGCTime") or 0),
        float(executor.get("completedTasks") or 0),
        float(executor.get("totalDuration") or 0),
        spark_instant_ns(added) if added else None,
        spark_instant_ns(removed) if removed else None,
        executor.get("removeReason"),
    ]
