"""The configuration of one experiment: typed, validated, and identified by its content.

`Configuration` holds every parameter but the repetition. Its `config_id` is the first 12 hex
digits of the SHA-256 of its canonical JSON, so equal experiments have equal identities whoever
writes them down, and wherever.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from faultline.errors import ConfigError

# One generator process of this kind of machine reaches some 600,000 records/s; a single local
# broker takes no more, so a higher rate would measure the generator's lateness and nothing else.
MAX_RATE = 500_000.0
# The share of executor memory that live state may take (definitions: "refused above 25 %").
STATE_SHARE_OF_MEMORY = 0.25
# What must be left after the fault, so that a recovery can be seen to hold.
SECONDS_AFTER_FAULT = 30.0
# Added to the shortest baseline by default: commits jitter, and a bin counts when it ends in time.
BASELINE_MARGIN_S = 1.0

BUILT_IN_CORPUS = "moby-dick"

Workload = Literal["word_count"]
CommitMode = Literal["aligned", "aligned-changelog"]
Victim = Literal["none", "executor"]
Action = Literal["kill"]


def baseline_bins(interval_s: float) -> int:
    """Bins needed between warm-up and fault: 10, or 4 where the interval is 5 s or longer."""
    return 4 if interval_s >= 5 else 10


class Configuration(BaseModel):
    """The complete parameters of one experiment, without its repetition.

    Times are seconds, sizes megabytes (10⁶ bytes; executor memory is MiB, as Spark counts it).
    Field descriptions are the help texts of the Airflow form and of the generated documentation.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    workload: Workload = Field("word_count", description="The streaming program under test.")
    rate: float = Field(500.0, gt=0, le=MAX_RATE, description="Kafka records per second; for text, a record is a line.")
    warmup_s: float = Field(20.0, ge=5, le=3600, description="Seconds after the gate that are not measured.")
    duration_s: float = Field(55.0, ge=5, le=86_400, description="Seconds measured after the warm-up.")
    corpus: str = Field(
        BUILT_IN_CORPUS, description="`moby-dick`, or a directory of .txt files; unused when `skew` is set."
    )
    skew: float | None = Field(
        None, ge=0, le=5, description="Zipf exponent of a synthetic vocabulary; empty: real text."
    )
    vocabulary: int = Field(10_000, ge=1, le=10_000_000, description="Distinct words when `skew` is set.")
    state_mb: float = Field(1.0, ge=0, le=100_000, description="Logical state preloaded before the gate, in MB.")
    state_touch: float = Field(0.01, ge=0, le=1, description="Share of records that touch the preloaded state.")
    checkpoint_interval_s: float = Field(
        2.0, ge=0.1, le=3600, description="Seconds between checkpoints: the trigger interval."
    )
    snapshot_interval_s: float = Field(
        10.0, ge=1, le=3600, description="Seconds between state snapshots (`aligned-changelog` only)."
    )
    commit_mode: CommitMode = Field("aligned", description="How state is committed; see docs/matrices.md.")
    executors: int = Field(2, ge=1, le=64, description="Spark executors.")
    executor_cores: int = Field(1, ge=1, le=64, description="Cores of each executor.")
    executor_memory_mb: int = Field(1024, ge=512, le=262_144, description="Heap of each executor, in MiB.")
    partitions: int = Field(2, ge=1, le=1024, description="Partitions of the input and the output topic.")
    shuffle_partitions: int = Field(2, ge=1, le=1024, description="State partitions of the counting operator.")
    fault: Victim = Field("executor", description="What is broken: `none` for a control.")
    fault_action: Action = Field("kill", description="How it is broken: `kill` sends SIGKILL.")
    fault_at_s: float | None = Field(
        None,
        description="Seconds after T0, warm-up included. Empty: as early as the baseline allows. A control has none.",
    )
    restart_delay_s: float = Field(
        2.0, ge=0, le=60, description="Pause before a supervisor restarts what it supervises."
    )
    seed: int = Field(1, ge=0, le=2**31 - 1, description="Seed of every random choice, together with the repetition.")

    @property
    def baseline_s(self) -> float:
        """Shortest time between warm-up and fault that holds the bins of a baseline."""
        return baseline_bins(self.checkpoint_interval_s) * self.checkpoint_interval_s

    @property
    def fault_window(self) -> tuple[float, float]:
        """Earliest and latest `fault_at_s`, in seconds after T0 (definitions, section Recovery)."""
        return (
            self.warmup_s + self.baseline_s,
            self.warmup_s + self.duration_s - SECONDS_AFTER_FAULT,
        )

    @property
    def measured_window(self) -> tuple[float, float]:
        """Start and end of the measured window, in seconds after T0."""
        return self.warmup_s, self.warmup_s + self.duration_s

    @property
    def filler_words(self) -> int:
        """Preloaded words: ceil(state_mb·10⁶ / 1024), each of 1,000 incompressible characters."""
        return math.ceil(self.state_mb * 1e6 / 1024)

    @property
    def config_id(self) -> str:
        """First 12 hex digits of the SHA-256 of the canonical JSON."""
        return hashlib.sha256(self.canonical_json().encode()).hexdigest()[:12]

    def canonical_json(self) -> str:
        """Keys sorted, no spaces, every default written out: equal configurations, equal text."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))

    @model_validator(mode="before")
    @classmethod
    def _default_fault_time(cls, data: Any) -> Any:
        """Writes the fault's default time out, so that the identity does not hang on a default."""
        if not isinstance(data, Mapping):
            return data
        values = dict(data)
        if values.get("fault", "executor") == "none":
            if values.get("fault_at_s") is not None:
                raise ValueError("fault_at_s: a control (fault=none) has no fault time; leave it empty")
        elif values.get("fault_at_s") is None:
            try:
                warmup = float(values.get("warmup_s", 20.0))
                interval = float(values.get("checkpoint_interval_s", 2.0))
            except (TypeError, ValueError):
                return values  # the field's own check names the key
            values["fault_at_s"] = warmup + baseline_bins(interval) * interval + BASELINE_MARGIN_S
        return values

    @field_validator("corpus")
    @classmethod
    def _same_corpus_everywhere(cls, corpus: str) -> str:
        if corpus != BUILT_IN_CORPUS and not corpus.startswith("/"):
            raise ValueError(f"give `{BUILT_IN_CORPUS}` or an absolute path, which means the same for every process")
        return corpus

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        memory_mb = self.executors * self.executor_memory_mb * 1.048576
        if self.state_mb > STATE_SHARE_OF_MEMORY * memory_mb:
            raise ValueError(
                f"state_mb: {self.state_mb:g} MB exceeds a quarter of the executors' memory "
                f"({memory_mb:.0f} MB); lower state_mb or raise executor_memory_mb or executors"
            )
        if self.fault_at_s is not None:
            low, high = self.fault_window
            if high < low:
                raise ValueError(
                    f"duration_s: {self.duration_s:g} s cannot hold a baseline of {self.baseline_s:g} s and "
                    f"{SECONDS_AFTER_FAULT:g} s after the fault; use at least {self.baseline_s + SECONDS_AFTER_FAULT:g}"
                )
            if not low <= self.fault_at_s <= high:
                raise ValueError(
                    f"fault_at_s: {self.fault_at_s:g} lies outside [{low:g}, {high:g}] "
                    "(after the baseline, and 30 s before the end); move it, or raise duration_s"
                )
        return self


def parse_configuration(values: Mapping[str, Any]) -> Configuration:
    """Validates `values` and returns the configuration.

    Raises ConfigError with one line that names the key and the remedy; unknown keys and names
    come with the nearest known one.
    """
    unknown = [key for key in values if key not in Configuration.model_fields]
    if unknown:
        raise ConfigError(f"{unknown[0]}: unknown parameter{suggest(unknown[0], Configuration.model_fields)}")
    try:
        return Configuration.model_validate(dict(values))
    except ValidationError as error:
        raise ConfigError(_first_line(error)) from None


def suggest(name: str, known: Any) -> str:
    """`; did you mean X?` for the nearest known name, else the list of known names."""
    names = [str(item) for item in known]
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else f"; known: {', '.join(sorted(names))}"


def _first_line(error: ValidationError) -> str:
    """The first problem of a validation error, as `key: what is wrong; remedy`."""
    problem = error.errors(include_url=False)[0]
    if problem["type"] == "value_error" and not problem["loc"]:
        return str(problem["ctx"]["error"])
    key = ".".join(str(part) for part in problem["loc"]) or "configuration"
    given = problem.get("input")
    if problem["type"] == "literal_error":
        choices = str(problem["ctx"]["expected"]).replace("'", "").replace(" or ", ", ").split(", ")
        return f"{key}: {given!r} is not known{suggest(str(given), choices)}"
    message = problem["msg"].removeprefix("Value error, ")
    message = message[0].lower() + message[1:]
    return f"{key}: {given!r} is refused: {message}"
