"""Work that an engine reports: batches, checkpoints, task totals, garbage collections and exits of workers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Batch:
    """Batch as reported by the engine at its end, with times in ms.

    `compute_ms`: the part of the duration spent on computation; None if not reported.
    """

    number: int
    wall_ns: int
    duration_ms: float
    compute_ms: float | None


@dataclass(frozen=True)
class CheckpointReport:
    """Completed checkpoint of an engine with barriers, with times in ms and sizes in bytes.

    `duration_ms`: from its trigger on. Largest value of any subtask: `start_delay_ms`, from the trigger to the first
    barrier; `alignment_ms`, from the first to the last barrier. `written_bytes`: uploaded by all tasks.
    `persisted_bytes`: records in flight stored with it, which only unaligned barriers have.
    """

    number: int
    wall_ns: int
    duration_ms: float
    start_delay_ms: float
    alignment_ms: float
    written_bytes: int
    persisted_bytes: int


@dataclass(frozen=True)
class ProcessExit:
    """Exit of a supervised process. `process`: its role; `pid`: None if its start was not recorded."""

    process: str
    pid: int | None
    wall_ns: int


@dataclass(frozen=True)
class Totals:
    """Cumulative counters of a worker process at one instant: finished tasks, GC time and task time in ms."""

    process: str
    wall_ns: int
    gc_ms: float
    tasks: float
    task_ms: float


@dataclass(frozen=True)
class Pause:
    """Stop-the-world pause of garbage collection."""

    start_ns: int
    end_ns: int


@dataclass(frozen=True)
class Collections:
    """Garbage collections of one process, from its own log. `process`: as in `Totals` and `EngineEvent`."""

    role: str
    process: str
    collector: str
    pauses: tuple[Pause, ...]
