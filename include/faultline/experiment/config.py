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
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator

from fault.errors import PlanError
from fault.plan import FaultPlan, PlannedFault, require_window
from fault.registry import ACTIONS, in_words
from faultline.base.errors import ConfigError
from faultline.base.settings import WORKERS
from faultline.experiment.canonical import (
    highest_rate,
    in_short_form,
    require_records,
    short_form,
    take_curves,
    take_object,
    take_own,
    take_plan,
)
from faultline.experiment.workloads.base import (
    TRAITS,
    require_commit_mode,
    require_own_parameters,
    require_possible_faults,
)
from faultline.experiment.workloads.known_truth_script import parse_script, require_fit
from faultline.experiment.workloads.nexmark import MAX_EVENT_RATE
from faultline.experiment.workloads.topology import MECHANISMS_PATTERN, PARALLELISM_PATTERN

# The share of executor memory that live state may take (definitions: "refused above 25 %").
STATE_SHARE_OF_MEMORY = 0.25
# What must be left after the fault, so that a recovery can be seen to hold.
SECONDS_AFTER_FAULT = 30.0
# Added to the shortest baseline by default: commits jitter, and a bin counts when it ends in time.
BASELINE_MARGIN_S = 1.0

BUILT_IN_CORPUS = "moby-dick"
BUILT_IN_PRICES = "five-companies"
# Fields that name a file or a folder, each with the name of what Faultline brings along.
BUILT_IN_PATHS = {"corpus": BUILT_IN_CORPUS, "prices": BUILT_IN_PRICES}

# How often the workload supervisor starts a driver again.
MAX_RESTARTS = 5

Workload = Literal[
    "word_count", "word_count_python", "pi", "stock_group_by", "stock_join", "nexmark", "topology", "known_truth"
]
CommitMode = Literal["none", "unaligned", "aligned", "aligned-changelog"]
StateStore = Literal["rocksdb", "memory"]
Query = Literal[
    "q0", "q1", "q2", "q3", "q4", "q5", "q6", "q7", "q8", "q9", "q10", "q11", "q12", "q13", "q14", "q15", "q16", "q17",
    "q18", "q19", "q20", "q21", "q22", "q23",
]  # fmt: skip
Victim = Literal["none", "executor", "worker", "driver", "python_worker", "kafka", "any"]
if TYPE_CHECKING:
    Action = str
else:  # the choice that forms, tables and refusals show
    Action = Literal[tuple(ACTIONS)]


def baseline_bins(interval_s: float) -> int:
    """Bins needed between warm-up and fault: 10, or 4 where the interval is 5 s or longer."""
    return 4 if interval_s >= 5 else 10


# What configurations gained after the first records were written; never a field's removal.
LATER_FIELDS = (
    "iterations", "window_s", "slide_s", "watermark_s", "disorder", "late", "stocks", "users", "rate_curve",
    "skew_curve", "accept_overload", "prices", "query", "source", "events", "batch_events", "preload_events",
    "state_store", "mechanisms", "parallelism", "topology",
)  # fmt: skip


class Configuration(BaseModel):
    """The complete parameters of one experiment, without its repetition.

    Times are seconds, sizes megabytes (10⁶ bytes; executor memory is MiB, as Spark counts it).
    Field descriptions are the help texts of the Airflow form and of the generated documentation.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    workload: Workload = Field("word_count", description="The streaming program under test.")
    rate: float = Field(
        500.0, gt=0, le=MAX_EVENT_RATE, description="Kafka records (lines of text) per s; source=engine: of event time."
    )
    warmup_s: float = Field(20.0, ge=5, le=3600, description="Seconds after the gate that are not measured.")
    duration_s: float = Field(55.0, ge=5, le=86_400, description="Seconds measured after the warm-up.")
    corpus: str = Field(
        BUILT_IN_CORPUS, description="`moby-dick`, or a directory of .txt files; unused when `skew` is set."
    )
    skew: float | None = Field(
        None, ge=0, le=5, description="Zipf exponent of a synthetic vocabulary; empty: real text."
    )
    vocabulary: int = Field(10_000, ge=1, le=10_000_000, description="Distinct words when `skew` is set.")
    iterations: int = Field(
        1000, ge=1, le=10_000_000, description="Terms of the series that `pi` sums for each record."
    )
    window_s: float = Field(10.0, ge=1, le=3600, description="Length of the stock queries' windows (the paper: Range).")
    slide_s: float = Field(5.0, ge=1, le=3600, description="Time between windows (the paper: Slide), ≤ window_s.")
    watermark_s: float = Field(5.0, ge=0, le=3600, description="How far event time may lag before a record is late.")
    disorder: float = Field(
        0.1, ge=0, le=1, description="Share of records (stock, Nexmark) out of order, by at most half of watermark_s."
    )
    late: float = Field(0.01, ge=0, le=1, description="Share of stock records an hour too old, to be left out.")
    prices: str = Field(
        BUILT_IN_PRICES, description="`five-companies`, or a CSV file of daily closes (szcode,date,close) to follow."
    )
    stocks: int = Field(100, ge=1, le=10_000, description="Listed stocks; `skew` makes some more traded than others.")
    users: int = Field(1000, ge=1, le=10_000_000, description="Users who trade and hold stocks.")
    query: Query = Field("q0", description="Which query of Nexmark runs.")
    source: Literal["engine", "kafka"] = Field(
        "engine",
        description="Where Nexmark's events come from: the engine makes them itself, or a generator sends them.",
    )
    events: dict[str, Any] | None = Field(
        None, description='How events differ from the suite\'s, such as {"shares": [2, 6, 92]}; see docs/matrices.md.'
    )
    batch_events: int | None = Field(
        None, ge=1000, le=100_000_000, description="Events of a batch with source=engine. Empty: what suits the query."
    )
    preload_events: int = Field(
        0, ge=0, le=10_000_000_000,
        description="Events that fill the state before the query is started again from its checkpoint and measured.",
    )  # fmt: skip
    mechanisms: str = Field(
        "none",
        pattern=MECHANISMS_PATTERN,
        description="What keeps `topology` responsive: `none`, `all`, or names joined by +; see docs/matrices.md.",
    )
    parallelism: str = Field(
        "1-1-1",
        pattern=PARALLELISM_PATTERN,
        description="Tasks of `topology`'s source-split-count, or with a fourth persist.",
    )
    topology: dict[str, Any] | None = Field(
        None, description='How its rules differ, such as {"queue_capacity": 20000}; see docs/matrices.md.'
    )
    rate_curve: dict[str, Any] | None = Field(
        None, description='How the rate moves: {"kind": "step", "at_s", "to"}, ramp, sine, burst, recorded.'
    )
    skew_curve: dict[str, Any] | None = Field(
        None, description="How `skew` moves, in the words of rate_curve; empty: it stays."
    )
    accept_overload: bool = Field(
        False, description="Take a rate that the engine cannot keep up with as a result, not as a failed measurement."
    )
    state_mb: float = Field(1.0, ge=0, le=100_000, description="Logical state preloaded before the gate, in MB.")
    state_touch: float = Field(0.01, ge=0, le=1, description="Share of records that touch the preloaded state.")
    checkpoint_interval_s: float = Field(
        2.0, ge=0.1, le=3600, description="Seconds between checkpoints: the trigger interval."
    )
    snapshot_interval_s: float = Field(
        10.0, ge=1, le=3600, description="Seconds between state snapshots (`aligned-changelog` only)."
    )
    state_store: StateStore = Field(
        "rocksdb",
        description="Where executors keep state: `rocksdb`, or `memory` (Spark's HDFS-backed store; not for Nexmark's "
        "queries 4, 6, 15 and 16).",
    )
    commit_mode: CommitMode = Field("aligned", description="How state is committed; see docs/matrices.md.")
    executors: int = Field(2, ge=1, le=64, description="Spark executors.")
    executor_cores: int = Field(1, ge=1, le=64, description="Cores of each executor.")
    executor_memory_mb: int = Field(1024, ge=512, le=262_144, description="Heap of each executor, in MiB.")
    partitions: int = Field(2, ge=1, le=1024, description="Partitions of the input and the output topic.")
    shuffle_partitions: int = Field(2, ge=1, le=1024, description="State partitions of the counting operator.")
    fault: Victim = Field(
        "executor",
        description="What is broken: `none` for a control, `any` for a random process on a random node.",
    )
    fault_action: Action = Field("kill", description=in_words())
    fault_at_s: float | None = Field(
        None,
        description="Seconds after T0, warm-up included. Empty: as early as the baseline allows. A control has none.",
    )
    fault_plan: dict[str, Any] | None = Field(
        None,
        description='The full form: {"faults": [{"victim", "action", "at_s", …}]}. When given it decides, and the '
        "three fields above show its first fault.",
    )
    truth: dict[str, Any] | None = Field(None, description="What `known_truth` plants; other workloads have none.")
    restart_delay_s: float = Field(
        2.0,
        ge=0,
        le=60,
        description="Pause before a supervisor restarts the driver (from its end), a Spark worker or Kafka (from the "
        "signal); the Master replaces executors at once.",
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

    def plan(self) -> FaultPlan:
        """What is to be broken, complete; an empty plan for a control."""
        if self.fault_plan is not None:
            return FaultPlan.from_mapping(self.fault_plan)
        if self.fault == "none":
            return FaultPlan(seed=self.seed)
        return FaultPlan((short_form(self.fault, self.fault_action, self.fault_at_s),), seed=self.seed)

    def planned_faults(self) -> tuple[PlannedFault, ...]:
        """Each occurrence of the plan, in order of time."""
        return self.plan().resolve(
            rate=self.rate,
            checkpoint_interval_s=self.checkpoint_interval_s,
            snapshot_interval_s=self.snapshot_interval_s,
        )

    def __hash__(self) -> int:
        return hash(self.canonical_json())

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
        """Keys sorted, no spaces, every default written out: equal configurations, equal text.

        Fields that older records lack are left out at their defaults, so those records keep their identity.
        """
        values = self.model_dump(mode="json")
        for name in LATER_FIELDS:
            if values[name] == type(self).model_fields[name].default:
                del values[name]
        return json.dumps(values, sort_keys=True, separators=(",", ":"))

    @model_validator(mode="before")
    @classmethod
    def _write_defaults_out(cls, data: Any) -> Any:
        """Makes what is derived explicit, so that the identity does not hang on how much was written down."""
        if not isinstance(data, Mapping):
            return data
        values = dict(data)
        for key in ("fault_plan", "truth", "rate_curve", "skew_curve", "events", "topology"):
            values[key] = take_object(key, values.get(key))
        take_own(values)
        if not TRAITS.get(str(values.get("workload", "word_count")), TRAITS["word_count"]).words:
            values.setdefault("state_mb", 0.0)
        take_curves(values)
        if values["fault_plan"] is not None:
            take_plan(values)
        if values.get("fault", "executor") == "none":
            if values.get("fault_at_s") is not None:
                raise ValueError("fault_at_s: a control (fault=none) has no fault time; leave it empty")
            values.pop("fault_action", None)  # one control, whatever the faults beside it do
        elif values.get("fault_at_s") is None:
            try:
                warmup = float(values.get("warmup_s", 20.0))
                interval = float(values.get("checkpoint_interval_s", 2.0))
            except (TypeError, ValueError):
                return values  # the field's own check names the key
            values["fault_at_s"] = warmup + baseline_bins(interval) * interval + BASELINE_MARGIN_S
        return values

    @field_validator(*BUILT_IN_PATHS)
    @classmethod
    def _same_path_everywhere(cls, path: str, info: ValidationInfo) -> str:
        built_in = BUILT_IN_PATHS[str(info.field_name)]
        if path != built_in and not path.startswith("/"):
            raise ValueError(f"give `{built_in}` or an absolute path, which means the same for every process")
        return path

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        memory_mb = self.executors * self.executor_memory_mb * 1.048576
        if self.state_mb > STATE_SHARE_OF_MEMORY * memory_mb:
            raise ValueError(
                f"state_mb: {self.state_mb:g} MB exceeds a quarter of the executors' memory "
                f"({memory_mb:.0f} MB); lower state_mb or raise executor_memory_mb or executors"
            )
        require_own_parameters(self)
        require_commit_mode(self)
        most = highest_rate(self.workload, self.source)
        require_records(self.rate_curve, self.rate, most, self.warmup_s + self.duration_s)
        if self.fault != "none":
            self._check_faults()
        if self.truth is not None:
            if self.commit_mode != "aligned":
                raise ValueError(f"commit_mode: known_truth commits as `aligned` does; {self.commit_mode} is refused")
            require_fit(parse_script(self.truth), self)
        return self

    def _check_faults(self) -> None:
        """The plan as a whole: inside the window, and with victims that this workload can have."""
        low, high = self.fault_window
        if high < low:
            raise ValueError(
                f"duration_s: {self.duration_s:g} s cannot hold a baseline of {self.baseline_s:g} s and "
                f"{SECONDS_AFTER_FAULT:g} s after the fault; use at least {self.baseline_s + SECONDS_AFTER_FAULT:g}"
            )
        if self.fault_plan is None and self.fault_at_s is not None and not low <= self.fault_at_s <= high:
            raise ValueError(
                f"fault_at_s: {self.fault_at_s:g} lies outside [{low:g}, {high:g}] "
                "(after the baseline, and 30 s before the end); move it, or raise duration_s"
            )
        where = "fault_plan." if self.fault_plan is not None else ""
        try:
            planned = self.planned_faults()
            require_window(planned, low_s=low, high_s=high, end_s=self.measured_window[1])
        except PlanError as error:
            raise ValueError(f"{where}{error}" if where else in_short_form(str(error))) from None
        for one in planned:
            there = self._victims_there(one.fault.victim)
            if one.fault.count > there:
                raise ValueError(
                    f"{where}{one.key_of('count')}: {one.fault.count} victims at once, but the run has {there} of "
                    f"{one.fault.victim}; lower count or raise executors"
                )
        restarts = sum(one.fault.victim == "driver" and one.fault.how.ends for one in planned)
        if restarts > MAX_RESTARTS:
            raise ValueError(
                f"{where}faults: the driver is ended {restarts} times, and restarted at most {MAX_RESTARTS}; plan fewer"
            )
        require_possible_faults(self, planned)

    def _victims_there(self, victim: str) -> int:
        """How many processes of a kind the run will have at least."""
        hosts = min(WORKERS, self.executors)
        return {
            "executor": self.executors,
            "worker": hosts,
            "any": self.executors + hosts,
            "python_worker": self.executors * self.executor_cores,
        }.get(victim, 1)


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
    if not names:
        return "; there is none yet"
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
