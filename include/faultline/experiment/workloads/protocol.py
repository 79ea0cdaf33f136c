"""What a workload says of itself. Each stands in a file of its own beside this one, and is found there.

A workload knows its own parameters and those that all share; it never sees the whole configuration, so that none
can come to lean on another's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from fault.plan import PlannedFault
from faultline.experiment.attempt import Attempt
from faultline.experiment.common_parameters import WITH_DATA, Common
from faultline.experiment.prerequisites import Application, Companion, PreloadGoal, Prepared

# `preloaded_state`: its state is keyed words, which a primer can make as large as wanted. `words`: it draws words, the
# frequencies of which can be estimated. `skewed`: its keys can be drawn unequally. `real_time`: it runs in Spark's
# real-time mode. `stateful`: it keeps state. `event_time`: records have an event time, and can be late.
# `data`: it takes whatever records there are, so the user's own.
CAPABILITIES = frozenset({"preloaded_state", "words", "skewed", "real_time", "stateful", "event_time", "data"})

# One generator process of this kind of machine reaches some 600,000 records/s; a single local
# broker takes no more, so a higher rate would measure the generator's lateness and nothing else.
MAX_RATE = 500_000.0
# Lines that the primer holds: a JVM plans its first micro-batches ten times slower than later ones.
PRIMER_LINES = 2000
# Throw-away batches in which the engine works through the primer before the gate.
WARM_UP_BATCHES = 10


class Parameters(BaseModel):
    """Base of the parameters that only some workloads have; they become fields of the configuration."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


P = TypeVar("P", bound=Parameters)


class Workload(Generic[P]):
    """One streaming program under test; the defaults here are those of a plain query over what a generator sends.

    `own` are its own parameters, `common` those of every workload, `config` the raw mapping of a configuration or of a
    record, in which parts may be missing or wrong.
    """

    name: str
    parameters: type[P]
    # Where its parameters stand in the form, and where it stands itself among the others.
    section = "Workload"
    order = 100
    capabilities: frozenset[str] = frozenset({"stateful"})
    # What its throughput is of, and how a tuple's batch and first output are found (docs/reference/metrics.md).
    counts = "records"
    latency_method = "batch"
    # Whether each output names the one tuple that it is of: then counts by key are exact by tuple.
    carries_ids = False
    # Its program in spark_jobs/, without suffix; None: it is no Spark program. Whether that makes itself warm.
    program: str | None = None
    warms_itself = False
    warm_up_batches = WARM_UP_BATCHES
    # Its parameters that name a file or a folder, each with the name of what Faultline brings along.
    built_in_paths: Mapping[str, str] = MappingProxyType({})
    # Whether it runs what a user wrote, of which a batch is all that is known.
    of_the_user = False
    # Whether its commits show, at any time, how far behind its input it is: then a run can wait until it is steady.
    shows_steadiness = True
    # Reaches the broker by a client of its own, which is not told how to log in.
    own_client = False
    # How long it may take to end once it is asked to.
    stop_s = 60.0
    # The matrix through which it runs as a whole, and that matrix's axis which asks for a part of it.
    whole: tuple[str, str] | None = None

    def can(self, capability: str) -> bool:
        """Return whether it has one of CAPABILITIES."""
        return capability in self.capabilities

    def defaults(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return defaults that differ from those of the fields."""
        return {}

    def take(self, values: dict[str, Any]) -> None:
        """Write its objects in `values` in canonical form. Raises ValueError naming key and remedy."""

    def check(self, own: P, common: Common) -> None:
        """Raise ValueError naming a parameter that contradicts another."""

    def check_faults(self, own: P, common: Common, planned: Sequence[PlannedFault]) -> None:
        """Raise ValueError for a planned fault that it cannot have."""

    def check_whole(self, own: P, common: Common) -> None:
        """Raise ValueError for what can only be asked of a configuration that is sound in all else."""

    def check_here(self, own: P, common: Common) -> None:
        """Raise ConfigError when this machine lacks what it needs; before anything is started."""

    def paced(self, config: Mapping[str, Any]) -> bool:
        """Return whether a generator sends the input by a schedule, through Kafka; else the engine makes it itself."""
        return True

    def highest_rate(self, config: Mapping[str, Any]) -> float:
        """Return records/s that a configuration may ask for."""
        return MAX_RATE

    def files(self, own: P) -> Mapping[str, Path]:
        """Return files of the user's that are under test, by name: each attempt runs a copy of its own, and keeps
        it."""
        return {}

    def jars(self, own: P) -> tuple[Path, ...]:
        """Return those of `files` that its JVMs load in addition to Faultline's jars."""
        return ()

    def has_python_workers(self, own: P) -> bool:
        """Return whether executors start Python workers for it."""
        return False

    def source(self, own: P, common: Common, repetition: int) -> dict[str, Any]:
        """Return the part of the generator's specification that names its source: lines of text, of a text or at
        random."""
        if common.data is not None:
            told = {name: getattr(common, name) for name in ("data", *WITH_DATA)}
            return {"source": "data", **told}
        if common.skew is None:
            return {"source": "text", "corpus": common.corpus}
        return {"source": "zipf", "skew": common.skew, "vocabulary": common.vocabulary}

    def primer_lines(self, own: P) -> int:
        """Return records of the primer beside the preloaded state: what a JVM needs to get warm."""
        return PRIMER_LINES

    def primed_batches(self, own: P) -> int:
        """Return batches after which the primer is through.

        Spark takes a record for late by the watermark of the batch before: it stands once a second batch is through.
        """
        return 2 if self.can("event_time") else 1

    def drained_batches(self, own: P) -> int:
        """Return batches that must have ended at the end of the input, before nothing more is to come."""
        return 1

    def filling(self, own: P, common: Common) -> PreloadGoal | None:
        """Return the preload goal to await before T0 if no generator sends a preload."""
        return None

    def topics(self, own: P, common: Common) -> dict[str, int]:
        """Return topics of its own beside input and output: role to partitions."""
        return {"warmup": common.partitions}

    def companions(self, own: P) -> tuple[Companion, ...]:
        """Return processes that run beside it."""
        return ()

    def tuples(self, own: P) -> dict[str, Any]:
        """Return the definition of a tuple for the harvest, with its parameters."""
        return {"tuples": "words"}

    def latency_method_of(self, own: P) -> str:
        """Return the latency method: by batches, by ids, or by rank for engines without batches."""
        return self.latency_method

    def program_configuration(self, prepared: Prepared, own: P, common: Common) -> dict[str, Any]:
        """Return the program's own configuration."""
        return {}

    def application(self, attempt: Attempt, own: P, common: Common, told: Mapping[str, Any]) -> Application | None:
        """Return the user's program that runs in place of one in spark_jobs/. `told`: what any program of it is
        told."""
        return None

    def title(self, config: Mapping[str, Any]) -> str | None:
        """Return a short title of an experiment, or None if state and interval identify it."""
        return None

    def details(self, config: Mapping[str, Any]) -> list[str]:
        """Return the workload's parameters for a line on the whole configuration."""
        return []


def primer_records(workload: Workload[Any], own: Any, common: Common) -> int:
    """Return records that the generator sends before the gate: one to each partition, filler words and lines."""
    return common.partitions + common.filler_words + workload.primer_lines(own)


# What workloads over event time have in common.


class EventTime(Parameters):
    """How far event time may lag, and how many records come out of order."""

    watermark_s: float = Field(5.0, ge=0, le=3600, description="Watermark delay in seconds: older records are late.")
    disorder: float = Field(
        0.1, ge=0, le=1, description="Share of records out of order (stock, Nexmark), by at most half of `watermark_s`."
    )
