"""Prerequisites of a workload before T0: preload goal, companion processes, user program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from faultline.experiment.attempt import Attempt


@dataclass(frozen=True)
class PreloadGoal:
    """Input that must be committed before T0 if no generator sends a preload.

    `offsets`: end offsets to reach, by partition. `runs`: number of starts of the query until then. `what`: label in
    progress messages. `events`: number of events. `typical_s`, `longest_s`: duration in seconds.
    """

    offsets: Mapping[str, int]
    runs: int
    what: str
    events: int
    typical_s: float
    longest_s: float


@dataclass(frozen=True)
class Companion:
    """Further process of an attempt. `{port}` in `command` is replaced by a free loopback port."""

    role: str
    command: tuple[str, ...]


@dataclass(frozen=True)
class Prepared:
    """Resources of an attempt: its folder, topic names and companion ports by role, and its repetition."""

    attempt: Attempt
    topics: Mapping[str, str]
    ports: Mapping[str, int]
    repetition: int


@dataclass(frozen=True)
class Application:
    """User program that spark-submit runs unchanged.

    `path`: Python program or jar. `main_class`: main class of a jar whose manifest names none; else None.
    """

    path: Path
    main_class: str | None
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
