"""What a workload needs before its gate opens, beside its topics: a state that is filled, processes of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from faultline.experiment.attempt import Attempt


@dataclass(frozen=True)
class PreloadGoal:
    """What must be committed before the gate opens, where no generator sends a primer.

    `offsets`: ends by partition that a batch must reach. `runs`: how often the query has been started by then. `what`:
    in words, for whoever waits. `events`: how many are made; `typical_s`, `longest_s`: how long that takes.
    """

    offsets: Mapping[str, int]
    runs: int
    what: str
    events: int
    typical_s: float
    longest_s: float


@dataclass(frozen=True)
class Companion:
    """A process of the attempt's own beside workload and generator. `{port}` in `command` is a free one of loopback."""

    role: str
    command: tuple[str, ...]


@dataclass(frozen=True)
class Prepared:
    """What an attempt has for itself: its folder, its topics' names by role, its companions' ports by role, and which
    repetition it is."""

    attempt: Attempt
    topics: Mapping[str, str]
    ports: Mapping[str, int]
    repetition: int


@dataclass(frozen=True)
class Application:
    """A program of the user's for Spark, as it is: nothing of Faultline is in it.

    `path`: a Python program or a jar. `main_class`: of a jar whose manifest names none; else None.
    """

    path: Path
    main_class: str | None
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
