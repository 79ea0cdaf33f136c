"""Parameters that all workloads share: load, state, cluster and fault."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Literal

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel, ConfigDict, Field, field_validator

from fault.identity import VICTIMS
from fault.plan import FaultPlan, PlannedFault
from fault.registry import ACTIONS, describe_actions
from faultline.experiment.commit_modes import COMMIT_MODES, DEFAULT_ENGINE
from faultline.experiment.fault_fields import short_form
from faultline.system.endpoints import EMBEDDED
from generators.data_rows import Unit

# Seconds that the window must leave after a fault to observe the recovery.
SECONDS_AFTER_FAULT = 30.0
BUILT_IN_CORPUS = "moby-dick"
# Name of the installed engine build on an axis.
INSTALLED = "installed"
# Parameters of data replay.
WITH_DATA = ("data_key", "data_time", "data_time_unit", "data_pace", "data_speed")
# Highest rate of events that the engine creates, where it is their density in event time.
HIGHEST_RATE = 1e9
# Recovery threshold: share above the baseline.
RECOVERED_WITHIN = 0.25
# Driver restarts by the workload supervisor.
MAX_RESTARTS = 5

EngineName = Literal["spark", "flink"]
# Parameters that only one engine reads.
OF_ENGINE: Mapping[str, tuple[str, ...]] = {
    "spark": (
        "generator_on", "jvm_options", "shuffle_partitions", "snapshot_interval_s", "spark_build", "spark_conf",
    ),
    "flink": ("delivery_guarantee", "flink_conf", "spares"),
}  # fmt: skip
StateStore = Literal["rocksdb", "memory"]
GeneratorPlace = Literal["host", "executors"]
DataPace = Literal["rate", "recorded"]
if TYPE_CHECKING:
    CommitMode = str
    Victim = str
    Action = str
else:  # choices shown in forms, tables and errors
    CommitMode = Literal[tuple(COMMIT_MODES)]
    Victim = Literal["none", *VICTIMS]
    Action = Literal[tuple(ACTIONS)]


EXACTLY_ONCE: Final = "exactly-once"
DeliveryGuarantee = Literal["at-least-once", "exactly-once"]
# Seconds added to the default baseline, since commit times vary.
BASELINE_MARGIN_S = 1.0
# Default measured window: at least SHORTEST_DURATION_S; after the baseline, these intervals and seconds for the fault
# phase, the recovery and the stability window.
SHORTEST_DURATION_S = 55.0
INTERVALS_AFTER_BASELINE = 6
SECONDS_AFTER_BASELINE = 20.0
# On two cores a driver takes about 30 s to restart and as long to catch up.
SECONDS_FOR_A_DRIVER = 45.0
LONG_INTERVAL_S = 5.0
# Latest start of the measured window after T0, if the engine is not steady before.
WARMUP_MAX_S = 120.0
# The longest wait between two injections of one run.
MAX_WAIT_S = 180.0
MAX_INJECTIONS = 64
# Extra time for baselines that are not steady at once.
SECONDS_FOR_BASELINES = 60.0


def earliest_fault_s(warmup_s: float, checkpoint_interval_s: float) -> float:
    """Return the default time of a fault, in seconds after T0."""
    return warmup_s + baseline_commits(checkpoint_interval_s) * checkpoint_interval_s + BASELINE_MARGIN_S


def required_commits(checkpoint_interval_s: float) -> int:
    """Return the required number of commits between warm-up and fault: 10, or 4 for intervals of 5 s or more."""
    return 4 if checkpoint_interval_s >= LONG_INTERVAL_S else 10


def baseline_commits(checkpoint_interval_s: float) -> int:
    """Return the default number of commits between warm-up and fault: 10, or 6 for intervals of 5 s or more."""
    return 6 if checkpoint_interval_s >= LONG_INTERVAL_S else 10


def usual_duration_s(checkpoint_interval_s: float, *, driver: bool = False, injections: int = 1) -> float:
    """Return the default length of the measured window, in seconds, equal for runs with and without a fault.

    With several injections it is an upper bound, since such a run ends after its last recovery.
    """
    baseline_s = baseline_commits(checkpoint_interval_s) * checkpoint_interval_s + BASELINE_MARGIN_S
    after_s = INTERVALS_AFTER_BASELINE * checkpoint_interval_s + SECONDS_AFTER_BASELINE
    each_s = max(SHORTEST_DURATION_S, float(math.ceil(baseline_s + after_s))) + (SECONDS_FOR_A_DRIVER if driver else 0)
    return each_s * injections + (SECONDS_FOR_BASELINES if injections > 1 else 0)


def phase_of(repetition: int) -> float:
    """Return the phase of a repetition's fault in the checkpoint cycle, in [0, 1).

    The van der Corput sequence (1935), shifted by 0.5: any number of repetitions is spread over the cycle, and all
    cells have the same phases.
    """
    phase, share, rest = 0.0, 0.5, repetition
    while rest:
        phase, share, rest = phase + share * (rest % 2), share / 2, rest // 2
    return (phase + 0.5) % 1.0


def same_path_everywhere(path: str, built_in: str) -> str:
    """Return `path` if it is built in or absolute. Raises ValueError for a relative path."""
    if path != built_in and not path.startswith("/"):
        raise ValueError(f"expected `{built_in}` or an absolute path")
    return path


def expectation(message: str) -> str:
    """Return the message of a validation error as a clause such as `expected a value greater than 0`."""
    message = message.removeprefix("Value error, ").replace("String should match pattern", "expected a text of pattern")
    message = re.sub("^Input should be (?=greater|less)", "expected a value ", message)
    message = message.replace("Input should be ", "expected ")
    return message[0].lower() + message[1:]


class Common(BaseModel):
    """Parameters that all workloads share.

    Times are seconds, sizes megabytes (10⁶ bytes; executor memory is MiB, as Spark counts it). T0: start of the load.
    Field descriptions are the help texts of the Airflow form and of the generated documentation.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    workload: str = Field("word_count", description="Streaming program under test.")
    engine: EngineName = Field(
        DEFAULT_ENGINE,
        description="Engine that runs the workload; after `./faultline engine add flink`, `flink` runs `word_count` "
        "and SQL files of `query`.",
    )
    rate: float = Field(
        500.0,
        gt=0,
        le=HIGHEST_RATE,
        description="Kafka records per second. With `source=engine`: events per second of event time.",
    )
    warmup_s: float = Field(20.0, ge=5, le=3600, description="Shortest warm-up after T0, in seconds; not measured.")
    duration_s: float = Field(
        SHORTEST_DURATION_S,
        ge=5,
        le=86_400,
        description="Measured seconds after the warm-up. Empty: derived from the checkpoint interval, at least 55.",
        json_schema_extra={"empty": True},
    )
    corpus: str = Field(
        BUILT_IN_CORPUS, description="Input text: `moby-dick`, or a directory of .txt files. Unused if `skew` is set."
    )
    skew: float | None = Field(
        None, ge=0, le=5, description="Zipf exponent of a synthetic vocabulary. Empty: real text."
    )
    vocabulary: int = Field(10_000, ge=1, le=10_000_000, description="Number of distinct words if `skew` is set.")
    data: str | None = Field(
        None,
        description="User data instead of a text: a file or folder of JSON lines, CSV, Parquet or text, or a topic "
        "export.",
    )
    data_key: str | None = Field(None, description="Column of `data` with the record key.")
    data_time: str | None = Field(None, description="Column of `data` with the record time.")
    data_time_unit: Unit | None = Field(
        None, description="Unit of numeric times since 1970: s, ms, us or ns. Empty: inferred from their magnitude."
    )
    data_pace: DataPace = Field(
        "rate", description="Send `data` at `rate`, or with the `recorded` spacing of its times."
    )
    data_speed: float = Field(1.0, gt=0, le=1e6, description="Speed-up of the recorded spacing, such as 10.")
    rate_curve: dict[str, Any] | None = Field(
        None, description='Rate over time: {"kind": "step", "at_s", "to"}, or ramp, sine, burst, recorded.'
    )
    skew_curve: dict[str, Any] | None = Field(
        None, description="Skew over time, in the form of `rate_curve`. Empty: constant."
    )
    accept_overload: bool = Field(False, description="Accept a rate that the engine cannot sustain as a valid result.")
    generator_processes: int = Field(1, ge=1, le=64, description="Generator processes that share the send schedule.")
    generator_on: GeneratorPlace = Field(
        "host",
        description="Where generators run: `host` (this machine), or `executors` (separate Spark executors).",
    )
    state_mb: float = Field(1.0, ge=0, le=100_000, description="Logical state preloaded before T0, in MB.")
    state_touch: float = Field(0.01, ge=0, le=1, description="Share of records that update preloaded state.")
    checkpoint_interval_s: float = Field(
        2.0, ge=0.1, le=3600, description="Seconds between checkpoints; on Spark the trigger interval."
    )
    snapshot_interval_s: float = Field(
        10.0, ge=1, le=3600, description="Seconds between state snapshots; `aligned-changelog` only."
    )
    state_store: StateStore = Field(
        "rocksdb",
        description="State store: `rocksdb`, or `memory` (Spark's HDFS-backed provider; not for Nexmark queries 4, 6, "
        "15 and 16).",
    )
    spark_build: str | None = Field(
        None,
        json_schema_extra={"nothing": INSTALLED},
        description="Spark build registered with `./faultline build add`. Empty: the installed one.",
    )
    flink_conf: dict[str, Any] | None = Field(
        None,
        description='Flink settings by name, such as {"heartbeat.interval": "1s", "heartbeat.timeout": "5s"}.',
    )
    spark_conf: dict[str, Any] | None = Field(
        None, description='Spark settings by name, such as {"spark.sql.adaptive.enabled": "false"}.'
    )
    topic_conf: dict[str, Any] | None = Field(
        None, description='Settings of the Kafka topics by name, such as {"compression.type": "lz4"}.'
    )
    jvm_options: dict[str, Any] | None = Field(
        None, description='JVM options for `driver` and `executors`, such as {"executors": "-XX:+UseZGC"}.'
    )
    commit_mode: CommitMode = Field(
        "aligned", description="How the query commits state; see docs/explanation/commit-modes.md."
    )
    delivery_guarantee: DeliveryGuarantee = Field(
        "at-least-once",
        description="`exactly-once` writes outputs in transactions, which end with the checkpoints (Flink).",
    )
    executors: int = Field(2, ge=1, le=64, description="Number of executors: Spark's, or Flink's TaskManagers.")
    spares: int = Field(0, ge=0, le=8, description="TaskManagers in reserve, which replace a lost one (Flink).")
    executor_cores: int = Field(1, ge=1, le=64, description="Cores per executor.")
    executor_memory_mb: int = Field(
        1024, ge=512, le=262_144, description="Heap per executor, in MiB; on Flink half of it is managed memory."
    )
    target: str = Field(
        EMBEDDED, description="Cluster to run on: `embedded`, or one registered with `./faultline target add`."
    )
    partitions: int = Field(2, ge=1, le=1024, description="Partitions of the input topic and of the output topic.")
    shuffle_partitions: int = Field(2, ge=1, le=1024, description="State partitions (Spark's shuffle partitions).")
    fault: Victim = Field(
        "executor",
        description="Victim of the fault: `none` for a control run, `any` for a random process on a random node.",
    )
    fault_action: Action = Field("kill", description=describe_actions())
    fault_at_s: float | None = Field(
        None,
        description="Earliest time of the fault, in seconds after T0. Empty: as soon as the baseline is complete. The "
        "phase within the checkpoint cycle varies by repetition. Leave it empty for a control run.",
    )
    fault_plan: dict[str, Any] | None = Field(
        None,
        description='Full fault plan: {"faults": [{"victim", "action", "at_s", …}]}. It overrides `fault`, '
        "`fault_action` and `fault_at_s`, which then show its first fault.",
    )
    recovered_within: float = Field(
        RECOVERED_WITHIN,
        gt=0,
        le=10,
        description="Recovery threshold: share by which latency and lag may exceed their baseline.",
    )
    injections: int = Field(
        1,
        ge=1,
        le=MAX_INJECTIONS,
        description="Injections of the fault in one run; each waits for recovery and a new baseline.",
    )
    max_wait_s: float = Field(
        MAX_WAIT_S,
        gt=0,
        le=86_400,
        description="Longest wait for the next injection, in seconds; then the run ends.",
    )
    warmup_max_s: float = Field(
        WARMUP_MAX_S,
        ge=0,
        le=86_400,
        description="Latest start of the measured window, in seconds after T0. The window starts after `warmup_s`, as "
        "soon as the engine is steady. At or below `warmup_s`: fixed warm-up.",
    )
    restart_delay_s: float = Field(
        2.0,
        ge=0,
        le=60,
        description="Delay before a killed driver (after its exit), Spark worker or broker (after the injection) "
        "restarts. The Spark master replaces executors at once.",
    )
    seed: int = Field(1, ge=0, le=2**31 - 1, description="Seed of all random choices, combined with the repetition.")

    @field_validator("corpus")
    @classmethod
    def _same_corpus_everywhere(cls, path: str) -> str:
        return same_path_everywhere(path, BUILT_IN_CORPUS)

    @property
    def baseline_s(self) -> float:
        """Shortest time between warm-up and fault that holds the time bins of a baseline."""
        return required_commits(self.checkpoint_interval_s) * self.checkpoint_interval_s

    @property
    def earliest_fault_s(self) -> float:
        """Return the default time of a fault, in seconds after T0."""
        return earliest_fault_s(self.warmup_s, self.checkpoint_interval_s)

    @property
    def fault_window(self) -> tuple[float, float]:
        """Earliest and latest `fault_at_s`, in seconds after T0."""
        return (
            self.warmup_s + self.baseline_s,
            self.warmup_s + self.duration_s - SECONDS_AFTER_FAULT,
        )

    def plan(self) -> FaultPlan:
        """Return the complete fault plan; empty for a control run."""
        if self.fault_plan is not None:
            return FaultPlan.from_mapping(self.fault_plan)
        if self.fault == "none":
            return FaultPlan(seed=self.seed)
        return FaultPlan((short_form(self.fault, self.fault_action, self.fault_at_s),), seed=self.seed)

    def planned_faults(self) -> tuple[PlannedFault, ...]:
        """Return the planned injections in chronological order."""
        return self.plan().resolve(
            rate=self.rate,
            checkpoint_interval_s=self.checkpoint_interval_s,
            snapshot_interval_s=self.snapshot_interval_s,
        )

    @property
    def measured_window(self) -> tuple[float, float]:
        """Start and end of the measured window, in seconds after T0."""
        return self.warmup_s, self.warmup_s + self.duration_s

    @property
    def filler_words(self) -> int:
        """Preloaded words: ceil(state_mb·10⁶ / 1024), each of 1,000 incompressible characters."""
        return math.ceil(self.state_mb * 1e6 / 1024)


def value_of(values: Mapping[str, Any], key: str) -> Any:
    """Return the unvalidated value of a field, or its default."""
    return values.get(key, Common.model_fields[key].default)


# Values that presets of several matrices share.

# Preset that tests the claims of the papers.
FINDINGS = "findings"
# One short cell without a fault, at an interval that two cores sustain even while the JVMs compile.
SHORT: dict[str, Any] = {"warmup_s": 5.0, "duration_s": 12.0, "rate": 100.0, "fault": "none"}
# Repetitions for a comparison; the window length follows from the interval of each cell.
REPEATED: dict[str, Any] = {"repetitions": 5}
# Preset of `./faultline demo`: runs per interval, injections per run, and attempts per cell until an invalid record is
# kept. A claim along an axis needs at least three runs.
DEMO, DEMO_RUNS, DEMO_INJECTIONS, DEMO_MEASUREMENTS = "demo", 3, 2, 2
DEMO_VALUES: dict[str, Any] = {
    "state_mb": [1.0],
    "checkpoint_interval_s": [2.0, 5.0],
    "fault": ["executor"],
    "repetitions": DEMO_RUNS,
    "injections": DEMO_INJECTIONS,
}


# Field limits as text, for the form and the documentation.


def limits(name: str, model: type[BaseModel]) -> str:
    """Return the limits of a field as text, such as `≥ 1, ≤ 64`; empty without limits."""
    parts = []
    for limit in model.model_fields[name].metadata:
        if isinstance(limit, Gt):
            parts.append(f"> {limit.gt:g}")
        elif isinstance(limit, Ge):
            parts.append(f"≥ {limit.ge:g}")
        elif isinstance(limit, Lt):
            parts.append(f"< {limit.lt:g}")
        elif isinstance(limit, Le):
            parts.append(f"≤ {limit.le:.10g}")
    return ", ".join(parts)
