"""The raw files of one attempt, read into typed values; nothing is interpreted here.

Required files raise InfrastructureError by name when they are missing or broken. Files whose absence
is itself evidence (a process that never came to write) read as empty; `judge` decides what that means.
A last line that was cut by a kill is dropped; a broken line anywhere else is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, ValidationError

from fault.plan import PlannedFault
from faultline.engines.base import Engine, Traces
from faultline.engines.registry import engine_at
from faultline.experiment.attempt import Attempt
from faultline.experiment.config import Configuration
from faultline.experiment.plan import AttemptPlan, read_plan
from faultline.experiment.sweep_id import SweepId
from faultline.records.judge.hosts import Clock, OtherHost, all_processes, clocks_of, machine_of, read_hosts
from faultline.system.errors import InfrastructureError
from faultline.system.files import read_document, require
from faultline.system.journal import Line, read_ended
from faultline.system.window import jump_ms

RECORD_COLUMNS = ["partition", "offset", "timestamp_ms", "primer"]


class AttemptFile(BaseModel):
    """`attempt.json`, and what its plan says was ordered."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    attempt: str
    config: Configuration
    config_id: str
    repetition: int
    series: str
    build: str
    matrix: str | None = None
    sweep_id: SweepId | None = None
    logical_date: str | None = None
    prepared_wall_ns: int
    environment: dict[str, Any] = {}
    not_measured: dict[str, str] = {}


@dataclass(frozen=True)
class Gate:
    """T0 on both clocks of the host, in nanoseconds."""

    t0_wall_ns: int
    t0_mono_ns: int

    def mono_ns(self, wall_ns: int) -> int:
        """The monotonic instant of a wall-clock instant of the same host and boot."""
        return wall_ns - self.t0_wall_ns + self.t0_mono_ns


@dataclass(frozen=True)
class Raw:
    """Everything `judge` needs of one attempt. Tuples and counts stay on disk and are streamed."""

    directory: Path
    attempt: AttemptFile
    planned: tuple[PlannedFault, ...]
    gate: Gate
    engine: Engine
    traces: Traces
    generator: tuple[Line, ...]
    conductor: tuple[Line, ...]
    services: tuple[Line, ...]
    # Of a topology's stages; none of other workloads.
    stages: tuple[Line, ...]
    recorder_ended: bool
    # Of all hosts; this one's own are those of the host "".
    processes: pd.DataFrame
    machine: pd.DataFrame
    hosts: tuple[OtherHost, ...]
    clocks: Mapping[str, Clock]
    records: pd.DataFrame
    # By how many ms the broker's clock was ahead, which latencies end by; None where the engine's own ends them.
    broker_ahead_ms: int | None
    # See `faultline.system.window`.
    clock_jump_ms: float | None
    # Figures that could not be told of a job, or where it ran, and why.
    not_measured: Mapping[str, str] = field(default_factory=dict)

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
    gate, plan = read_document(directory / "gate.json"), read_plan(Attempt(directory))
    attempt = attempt_file(directory, plan)
    recorder, services = read_ended(directory / "recorder.jsonl"), read_ended(directory / "services.jsonl")
    engine = engine_at(plan)
    hosts = read_hosts(directory, recorder)
    raw = Raw(
        directory=directory,
        attempt=attempt,
        planned=plan.faults,
        gate=Gate(int(gate["t0_wall_ns"]), int(gate["t0_mono_ns"])),
        engine=engine,
        traces=engine.traces(directory),
        generator=read_ended(directory / "generator.jsonl"),
        conductor=read_ended(directory / "conductor.jsonl"),
        services=services,
        stages=read_ended(directory / "topology.jsonl"),
        recorder_ended=bool(recorder) and recorder[-1].get("kind") == "stop",
        processes=all_processes(recorder, services, hosts),
        machine=machine_of(recorder),
        hosts=hosts,
        clocks=clocks_of(recorder),
        records=_records(directory / "harvest" / "records.parquet"),
        broker_ahead_ms=_ahead(directory / "harvest_config.json"),
        clock_jump_ms=jump_ms(recorder),
        not_measured={**attempt.not_measured, **_notes(directory / "harvest" / "notes.json")},
    )
    for path in (raw.tuples_path, raw.counts_path):
        require(path)
    return raw if raw.not_measured.get("audit") is not None else _without_late_audit(raw)


def _without_late_audit(raw: Raw) -> Raw:
    """What a job left out as too late a batch over the same input takes in; built-in workloads know which that is."""
    dropped = raw.traces.late_rows
    if not dropped or not raw.attempt.config.kind.of_the_user:
        return raw
    why = f"{dropped:,} rows came later than the watermark allows and were left out, which a batch does not do"
    return replace(raw, not_measured={**raw.not_measured, "audit": why})


def read_attempt(directory: Path) -> AttemptFile:
    """Reads `attempt.json` and the plan; InfrastructureError when one is missing or not what `prepare` writes."""
    return attempt_file(directory, read_plan(Attempt(directory)))


def attempt_file(directory: Path, plan: AttemptPlan) -> AttemptFile:
    """The same, of a plan that was read."""
    path = directory / "attempt.json"
    try:
        return AttemptFile.model_validate(
            {**read_document(path), **asdict(plan.order), "not_measured": plan.not_measured}
        )
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in problem["loc"])
        raise InfrastructureError(f"{path}: {key}: {problem['msg']}; run the experiment again") from None


def _notes(path: Path) -> dict[str, str]:
    return {str(name): str(why) for name, why in read_document(path).items()} if path.exists() else {}


def _ahead(path: Path) -> int | None:
    found = read_document(path).get("emitted_ahead_ms") if path.exists() else None
    return None if found is None else int(found)


def _records(path: Path) -> pd.DataFrame:
    require(path)
    try:
        table = pq.read_table(path)
        frame: pd.DataFrame = table.select(RECORD_COLUMNS).to_pandas()
        # Harvests from before there was event time know no late records.
        frame["late"] = table["late"].to_pandas() if "late" in table.column_names else False
    except (OSError, ValueError, KeyError) as error:
        raise InfrastructureError(f"{path}: cannot be read ({error}); clear the task harvest") from error
    return frame
