"""Raw files of one attempt as typed values, without judgement.

A required file that is missing or broken raises InfrastructureError with its name. A journal that may be missing
because its process died early reads as empty, and later stages judge that. An incomplete last line, cut by a kill, is
dropped; any other broken line is an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, ValidationError

from fault.plan import PlannedFault
from faultline.engines.protocol import Engine, Traces
from faultline.engines.registry import engine_of_plan
from faultline.experiment.attempt import Attempt
from faultline.experiment.attempt_plan import AttemptPlan, read_plan
from faultline.experiment.cell import SweepId
from faultline.experiment.config import Configuration
from faultline.records.judge.journals import GeneratorLog, SchedulerLog, read_generator_log, read_scheduler_log
from faultline.records.judge.samples import (
    HostClock,
    OtherHost,
    all_processes,
    clocks_of,
    machine_of,
    read_hosts,
    recorder_death,
)
from faultline.system.errors import InfrastructureError
from faultline.system.files import read_document
from faultline.system.journal import Events, Line, read_files
from faultline.system.measured_window import clock_step_ms

DOCUMENTS = ("gate.json", "attempt.json")
OPTIONAL = ("harvest/notes.json", "harvest_config.json", "stored.json")
SAMPLES = ("recorder.jsonl", "hosts/*.jsonl")
JOURNALS = ("services.jsonl", "generator.jsonl", "conductor.jsonl", "topology.jsonl")
TABLES = tuple(f"harvest/{name}.parquet" for name in ("records", "tuples", "counts"))
LATE_ROWS_TEXT = "{:,} rows came later than the watermark allows and were left out, which a batch does not do"
RECORD_COLUMNS = ["partition", "offset", "timestamp_ms", "primer"]
# Latency method if outputs do not identify tuples.
NO_METHOD = "none"


class AttemptFile(BaseModel):
    """Content of `attempt.json` and of the order in the attempt's plan."""

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
class BarrierOpening:
    """Opening of the start barrier (gate.json): T0 on both clocks of the host, in ns."""

    t0_wall_ns: int
    t0_mono_ns: int

    def mono_ns(self, wall_ns: int) -> int:
        """Convert a wall-clock instant to the monotonic clock of the same host and boot."""
        return wall_ns - self.t0_wall_ns + self.t0_mono_ns


@dataclass(frozen=True)
class Evidence:
    """All inputs of the judge, except tuples and counts, which are streamed from disk.

    `services`: journal lines on started services. `stages`: events of a topology's stages. `stored`: content of their
    result store, None without one. `recorder_death`: why samples are missing, or None. `processes`: samples of all
    hosts; this host is named "". `broker_ahead_ms`: lead of the broker's clock, which times the outputs; None if the
    engine's clock does. `clock_jump_ms`: see `system.measured_window`. `not_measured`: by figure, why it cannot be
    measured.
    """

    folder: Path
    attempt: AttemptFile
    planned: tuple[PlannedFault, ...]
    barrier: BarrierOpening
    engine: Engine
    traces: Traces
    generator: GeneratorLog
    scheduler: SchedulerLog
    services: Sequence[Line]
    stages: Events
    stored: Mapping[str, int] | None
    recorder_death: str | None
    processes: pd.DataFrame
    machine: pd.DataFrame
    hosts: tuple[OtherHost, ...]
    clocks: Mapping[str, HostClock]
    records: pd.DataFrame
    broker_ahead_ms: int | None
    clock_jump_ms: float | None
    not_measured: Mapping[str, str] = field(default_factory=dict)

    @property
    def config(self) -> Configuration:
        """Configuration of the attempt."""
        return self.attempt.config

    @property
    def identifies_tuples(self) -> bool:
        """True if outputs identify their input."""
        return self.traces.method != NO_METHOD and "latency_ms" not in self.not_measured

    @property
    def emits_per_record(self) -> bool:
        """True if outputs identify their input and do not come in batches: bins are then seconds."""
        return self.traces.per_record and self.identifies_tuples

    @property
    def emits_at_once(self) -> bool:
        """True if no output waits for a batch, as those of a topology's stages do."""
        return self.emits_per_record and not self.stages

    @property
    def is_repeated(self) -> bool:
        """True if the run injects one fault repeatedly, each time after the engine is steady again."""
        return self.config.injections > 1

    @property
    def tuples_path(self) -> Path:
        """Path of the tuples, grouped by instants of production and emission (a file, or a folder of parts)."""
        return self.folder / "harvest" / "tuples.parquet"

    @property
    def counts_path(self) -> Path:
        """Path of the expected and final values of each key."""
        return self.folder / "harvest" / "counts.parquet"


def read_evidence(folder: Path, within: float | None = None) -> Evidence:
    """Read the attempt in `folder`. `within`: replaces the configuration's `recovered_within`.

    Raises InfrastructureError that names the first missing or broken file.
    """
    files = read_files(folder, DOCUMENTS, optional=OPTIONAL, lines=SAMPLES, events=JOURNALS, present=TABLES)
    recorder, services = files["recorder.jsonl"], files["services.jsonl"]
    plan = read_plan(Attempt(folder))
    attempt = _attempt(folder / "attempt.json", files["attempt.json"], plan, within)
    records = _records(folder / "harvest" / "records.parquet")
    barrier = BarrierOpening(int(files["gate.json"]["t0_wall_ns"]), int(files["gate.json"]["t0_mono_ns"]))
    config, engine = attempt.config, engine_of_plan(plan)
    traces = engine.traces(folder)
    not_measured = _not_measured(attempt, traces, files["harvest/notes.json"])
    scheduler = read_scheduler_log(files["conductor.jsonl"], len(plan.faults), config.warmup_max_s)
    generator = read_generator_log(files["generator.jsonl"])
    hosts = read_hosts({Path(name).stem: lines for name, lines in files.items() if name.startswith("hosts/")}, recorder)
    return Evidence(
        folder=folder,
        attempt=attempt,
        planned=plan.faults,
        barrier=barrier,
        engine=engine,
        traces=traces,
        generator=generator,
        scheduler=scheduler,
        services=services["started"],
        stages=files["topology.jsonl"],
        stored=files["stored.json"],
        recorder_death=recorder_death(recorder, hosts),
        processes=all_processes(recorder, services["started"], hosts),
        machine=machine_of(recorder),
        hosts=hosts,
        clocks=clocks_of(recorder),
        records=records,
        broker_ahead_ms=(files["harvest_config.json"] or {}).get("emitted_ahead_ms"),
        clock_jump_ms=clock_step_ms(recorder),
        not_measured=not_measured,
    )


def read_attempt(folder: Path) -> AttemptFile:
    """Read `attempt.json` and the plan. Raises InfrastructureError if one is missing or invalid."""
    path = folder / "attempt.json"
    return _attempt(path, read_document(path), read_plan(Attempt(folder)))


def _attempt(path: Path, document: Mapping[str, Any], plan: AttemptPlan, within: float | None = None) -> AttemptFile:
    try:
        attempt = AttemptFile.model_validate({**document, **asdict(plan.order), "not_measured": plan.not_measured})
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in problem["loc"])
        raise InfrastructureError(f"{path}: {key}: {problem['msg']}; fix: rerun the experiment") from None
    if within is None:
        return attempt
    config = attempt.config.model_copy(update={"recovered_within": within})
    return attempt.model_copy(update={"config": config})


def _not_measured(attempt: AttemptFile, traces: Traces, notes: Mapping[str, str] | None) -> dict[str, str]:
    reasons = {**attempt.not_measured, **(notes or {})}
    if traces.late_rows and attempt.config.kind.of_the_user:
        # The batch recomputation of a user job includes dropped late rows; built-in workloads exclude them.
        reasons.setdefault("audit", LATE_ROWS_TEXT.format(traces.late_rows))
    return reasons


def _records(path: Path) -> pd.DataFrame:
    try:
        table = pq.read_table(path)
        frame: pd.DataFrame = table.select(RECORD_COLUMNS).to_pandas()
        # Harvests older than event time have no late records.
        frame["late"] = table["late"].to_pandas() if "late" in table.column_names else False
    except (OSError, ValueError, KeyError) as error:
        raise InfrastructureError(f"{path}: reading failed: {error}; fix: clear the task `harvest`") from error
    return frame
