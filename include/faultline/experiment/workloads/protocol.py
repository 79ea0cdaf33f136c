"""Protocol of workloads; each module of this package defines some.

A workload sees its own parameters and the shared ones, never the whole configuration, so that no workload can depend on
parameters of another.
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

# `preloaded_state`: its state is keyed words of any preloaded size. `words`: its word frequencies can be estimated.
# `skewed`: its keys can be skewed. `real_time`: it supports Spark's real-time mode. `stateful`: it keeps state.
# `event_time`: records have an event time and can be late. `data`: it accepts user data.
CAPABILITIES = frozenset({"preloaded_state", "words", "skewed", "real_time", "stateful", "event_time", "data"})

# Usual unit of throughput.
RECORDS = "records"

# One generator process reaches about 600,000 records/s, as does a single local broker; a higher rate would only measure
# schedule lag.
MAX_RATE = 500_000.0
# Lines of the preload, which warms up the JVM: it plans its first micro-batches ten times slower than later ones.
PRIMER_LINES = 2000
# Unmeasured batches of the preload before T0.
WARM_UP_BATCHES = 10


class Parameters(BaseModel):
    """Base of the parameters that only some workloads have; they become fields of the configuration."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


P = TypeVar("P", bound=Parameters)


class Workload(Generic[P]):
    """One streaming program under test; the defaults are those of a plain query over a generator's records.

    Arguments: `own`, its own parameters; `common`, those of every workload; `config`, the raw configuration, or that of
    a record, in which keys may be missing or invalid.
    """

    name: str
    parameters: type[P]
    # Section of its parameters in the form, and its position among the workloads.
    section = "Workload"
    order = 100
    capabilities: frozenset[str] = frozenset({"stateful"})
    # Unit of its throughput, and its latency method (docs/reference/metrics.md).
    counts = RECORDS
    latency_method = "batch"
    # Whether each output identifies its tuple, so that counts by key are exact.
    carries_ids = False
    # Its program in spark_jobs/, without suffix, or None; and whether the program warms itself up.
    program: str | None = None
    warms_itself = False
    warm_up_batches = WARM_UP_BATCHES
    # Its parameters with a file or folder, each with the name of the built-in one.
    built_in_paths: Mapping[str, str] = MappingProxyType({})
    # Whether it runs user code.
    of_the_user = False
    # Whether its commits show its consumer lag, so that a run can wait until it is steady.
    shows_steadiness = True
    # Whether its own Kafka client lacks credentials.
    own_client = False
    # Longest shutdown, in seconds.
    stop_s = 60.0
    # Matrix of this workload alone, and the axis on which that matrix selects a part.
    whole: tuple[str, str] | None = None

    def can(self, capability: str) -> bool:
        """Return whether it has one of CAPABILITIES."""
        return capability in self.capabilities

    def defaults(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the workload's defaults that differ from those of the fields."""
        return {}

    def take(self, values: dict[str, Any]) -> None:
        """Convert the workload's objects in `values` to canonical form. Raises ValueError naming the key."""

    def check(self, own: P, common: Common) -> None:
        """Raise ValueError naming a parameter that contradicts another one."""

    def check_faults(self, own: P, common: Common, planned: Sequence[PlannedFault]) -> None:
        """Raise ValueError for an unsupported planned fault."""

    def check_whole(self, own: P, common: Common) -> None:
        """Raise ValueError for a contradiction; called after all other checks have passed."""

    def check_here(self, own: P, common: Common) -> None:
        """Raise ConfigError if this machine lacks a prerequisite; called before anything starts."""

    def paced(self, config: Mapping[str, Any]) -> bool:
        """Return whether a generator sends the input on a schedule; otherwise the engine creates it."""
        return True

    def highest_rate(self, config: Mapping[str, Any]) -> float:
        """Return the highest rate of a configuration, in records/s."""
        return MAX_RATE

    def files(self, own: P) -> Mapping[str, Path]:
        """Return the user files under test by name; each attempt runs and keeps its own copy."""
        return {}

    def jars(self, own: P) -> tuple[Path, ...]:
        """Return the jars among `files` that the workload's JVMs load in addition to Faultline's."""
        return ()

    def has_python_workers(self, own: P) -> bool:
        """Return whether executors start Python workers for the workload."""
        return False

    def source(self, own: P, common: Common, repetition: int) -> dict[str, Any]:
        """Return the source in the generator's specification: a data file, a text or random words."""
        if common.data is not None:
            return {"source": "data", **{name: getattr(common, name) for name in ("data", *WITH_DATA)}}
        if common.skew is None:
            return {"source": "text", "corpus": common.corpus}
        return {"source": "zipf", "skew": common.skew, "vocabulary": common.vocabulary}

    def primer_lines(self, own: P) -> int:
        """Return the number of records that warm up the JVM before T0, in addition to the preloaded state."""
        return PRIMER_LINES

    def primed_batches(self, own: P) -> int:
        """Return the number of batches that complete the preload.

        Spark drops late records by the watermark of the previous batch, which exists after a second batch.
        """
        return 2 if self.can("event_time") else 1

    def drained_batches(self, own: P) -> int:
        """Return the number of batches after the end of the input until all results are out."""
        return 1

    def filling(self, own: P, common: Common) -> PreloadGoal | None:
        """Return the preload goal to await before T0 if no generator sends a preload."""
        return None

    def topics(self, own: P, common: Common) -> dict[str, int]:
        """Return the numbers of partitions of topics other than input and output, by role."""
        return {"warmup": common.partitions}

    def companions(self, own: P) -> tuple[Companion, ...]:
        """Return the further processes that the workload needs."""
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

    def application(self, attempt: Attempt, own: P, common: Common, passed: Mapping[str, Any]) -> Application | None:
        """Return the user program that replaces one in spark_jobs/, or None.

        `passed`: values passed to every program.
        """
        return None

    def title(self, config: Mapping[str, Any]) -> str | None:
        """Return a short title of an experiment, or None if state and interval identify it."""
        return None

    def details(self, config: Mapping[str, Any]) -> list[str]:
        """Return the workload's parameters for a one-line description of the configuration."""
        return []


def primer_records(workload: Workload[Any], own: Any, common: Common) -> int:
    """Return the number of records that the generator sends before T0: one per partition, filler words, lines."""
    return common.partitions + common.filler_words + workload.primer_lines(own)


# Shared parameters of workloads with event time.


class EventTime(Parameters):
    """Watermark delay and share of records out of order."""

    watermark_s: float = Field(5.0, ge=0, le=3600, description="Watermark delay in seconds: older records are late.")
    disorder: float = Field(
        0.1, ge=0, le=1, description="Share of records out of order (stock, Nexmark), by at most half of `watermark_s`."
    )
