"""Plan of one attempt: its resolved configuration, which `prepare` stores in the attempt's `plan.json`.

Later steps derive no values themselves. `prepare` writes the plan last, so an attempt without one has started nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from fault.errors import PlanError
from fault.plan import Fault, PlannedFault
from faultline.experiment.attempt import Attempt
from faultline.experiment.cell import Cell
from faultline.experiment.common_parameters import EXACTLY_ONCE, SECONDS_AFTER_FAULT, baseline_commits, phase_of
from faultline.experiment.prerequisites import Companion, PreloadGoal, Prepared
from faultline.system.endpoints import Endpoints
from faultline.system.errors import ConfigError, InfrastructureError
from faultline.system.files import read_document

if TYPE_CHECKING:  # importing the configuration takes half a second
    from faultline.experiment.config import Configuration

SCHEMA = 3  # of plan.json
# Seconds from the end of a lasting fault to the end of the measured window.
BEFORE_END_S = 1.0

T = TypeVar("T")


@dataclass(frozen=True)
class Topic:
    """One topic of an attempt."""

    name: str
    partitions: int


@dataclass(frozen=True)
class FaultPhase:
    """Time of a fault in short form (without a full plan): `phase`, in [0, 1), of the checkpoint cycle.

    The cycle is the first one after the planned time and after `commits` commits since the warm-up. `latest_s`: latest
    time, in seconds after T0. `later`: phases of the second and further injections.
    """

    phase: float
    commits: int
    latest_s: float
    later: tuple[float, ...] = ()

    @property
    def phases(self) -> tuple[float, ...]:
        """Phase of each injection."""
        return (self.phase, *self.later)


@dataclass(frozen=True)
class Ordered:
    """Requested experiment: its configuration, as JSON values, and its cell. Every record contains these fields.

    `keep_topics`: whether the teardown keeps the attempt's topics.
    """

    config: Mapping[str, Any]
    config_id: str
    repetition: int
    series: str
    build: str
    matrix: str | None = None
    sweep_id: str | None = None
    parent_run_id: str | None = None
    logical_date: str | None = None
    keep_topics: bool = False

    @property
    def cell(self) -> Cell:
        """Cell of the attempt."""
        return Cell(self.config_id, self.repetition, self.series)


@dataclass(frozen=True)
class PlannedEngine:
    """Engine of an attempt.

    `name`: empty if the workload determines it. `addresses`: of this run, by keys of the engine. `settings`,
    `programs` (a folder): of the build under test.
    """

    name: str
    addresses: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    programs: str = ""


@dataclass(frozen=True)
class Places:
    """Resources that the attempt shares with other processes on this machine.

    `window_lock`: lock that keeps other work out of the measured window, None if there is no other work. `instance`:
    process tag of the embedded services, None on a target (another cluster). `background`: tag of processes that pause
    during a measured window. `keeper`: pid of the services' supervisor. `holds`: file that delays a service's restart,
    by service. `ports`: of companions, by role. `checkpoint_disk`: folder on a separate disk for checkpoints, or None.
    """

    window_lock: str | None = None
    instance: str | None = None
    background: str | None = None
    keeper: int | None = None
    holds: Mapping[str, str] = field(default_factory=dict)
    ports: Mapping[str, int] = field(default_factory=dict)
    checkpoint_disk: str | None = None


class _OfConfiguration(Generic[T]):
    """Descriptor that reads the parameter of the same name from the requested configuration."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, plan: AttemptPlan, owner: type) -> T:
        value: T = plan.order.config[self._name]
        return value


@dataclass(frozen=True)
class AttemptPlan:
    """Plan of one attempt. Times are in seconds; window times count from T0, the start of the load.

    `topics`: by role. `seed`: selects the victims of `faults`. `aim`: None if faults have fixed times. `generator`:
    None if the engine creates the events. `program`: configuration of the program, without the engine's additions.
    `filling`: preload goal; if None, `primed_batches` are awaited before T0. `drained_batches`: awaited at the end of
    the schedule; the second later commit ends transactions. `stop_s`: longest shutdown of the workload. `method`,
    `tuples`: latency method and tuple definition. `gated`: whether the workload uses the Kafka auth proxy.
    `warmup_max_s`: latest start of the measured window, which waits for a steady engine; None if it starts at
    `warmup_s`. `not_measured`: reason by figure, if a target lacks it.
    """

    order: Ordered
    engine: PlannedEngine
    endpoints: Endpoints
    places: Places
    topics: Mapping[str, Topic]
    seed: int
    faults: tuple[PlannedFault, ...]
    aim: FaultPhase | None
    generator: Mapping[str, Any] | None
    program: Mapping[str, Any]
    companions: tuple[Companion, ...]
    filling: PreloadGoal | None
    primed_batches: int
    drained_batches: int
    stop_s: float
    method: str
    tuples: Mapping[str, Any]
    gated: bool
    warmup_max_s: float | None
    not_measured: Mapping[str, str]

    workload = _OfConfiguration[str]()
    warmup_s = _OfConfiguration[float]()
    duration_s = _OfConfiguration[float]()
    checkpoint_interval_s = _OfConfiguration[float]()
    snapshot_interval_s = _OfConfiguration[float]()
    restart_delay_s = _OfConfiguration[float]()
    commit_mode = _OfConfiguration[str]()
    max_wait_s = _OfConfiguration[float]()
    recovered_within = _OfConfiguration[float]()

    def configuration(self) -> Configuration:
        """Return the requested configuration. Raises InfrastructureError if this version rejects it."""
        from faultline.experiment.config import parse_configuration

        try:
            return parse_configuration(dict(self.order.config))
        except ConfigError as error:
            raise InfrastructureError(f"plan.json: {error}; fix: clear the whole run") from None

    @property
    def delay_s(self) -> float:
        """Longest delay of the measured window and its faults beyond `warmup_s`."""
        return 0.0 if self.warmup_max_s is None else self.warmup_max_s - self.warmup_s

    @property
    def window_s(self) -> float:
        """Longest time from T0 to the end of the measured window."""
        return self.warmup_s + self.delay_s + self.duration_s

    def over_s(self, planned: PlannedFault) -> float:
        """Return the latest end of a planned fault including its undo, in seconds after T0."""
        wait_s = 0.0 if self.aim is None else max(0.0, self.aim.latest_s - planned.earliest_s)
        return planned.end_s + wait_s + self.delay_s

    @property
    def paced(self) -> bool:
        """Whether a generator sends the input on a schedule; otherwise the engine creates it."""
        return self.generator is not None

    @property
    def workload_bootstrap(self) -> str:
        """Kafka address for the workload: of the auth proxy, of the fault proxy if needed, or of the broker."""
        if self.gated:
            return self.endpoints.kafka_gate
        return self.endpoints.kafka_detour if self.detours else self.endpoints.kafka

    @property
    def stamped_by_broker(self) -> bool:
        """Whether the broker's clock sets output times, since it is the only clock common to several hosts."""
        return bool(self.endpoints.hosts) or self.endpoints.is_external

    @property
    def detours(self) -> bool:
        """Whether a fault needs a proxy between the workload and the broker."""
        return any(one.fault.definition.uses_proxy for one in self.faults)

    def as_mapping(self) -> dict[str, Any]:
        """Return the plan as JSON values for `from_mapping`."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        records = {name: asdict(values[name]) for name in ("order", "engine", "places")}
        optional = {name: values[name] and asdict(values[name]) for name in ("filling", "aim")}
        return {
            "schema": SCHEMA,
            **values,
            **records,
            **optional,
            "endpoints": self.endpoints.as_mapping(),
            "topics": {role: asdict(topic) for role, topic in self.topics.items()},
            "faults": [asdict(one) for one in self.faults],
            "companions": [asdict(one) for one in self.companions],
        }

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Self:
        """Return the plan from the values of `as_mapping`. Raises KeyError, TypeError or PlanError for other values.

        Unknown keys are ignored, so that attempts remain readable after an update; other changes increment SCHEMA.
        """
        if values["schema"] != SCHEMA:
            raise PlanError(f"schema: got {values['schema']}; expected {SCHEMA}")
        return cls(
            **{
                **{one.name: values[one.name] for one in fields(cls)},
                "order": Ordered(**values["order"]),
                "engine": PlannedEngine(**values["engine"]),
                "endpoints": Endpoints.from_mapping(values["endpoints"]),
                "places": Places(**values["places"]),
                "topics": {role: Topic(**topic) for role, topic in values["topics"].items()},
                "faults": tuple(PlannedFault(**{**one, "fault": Fault(**one["fault"])}) for one in values["faults"]),
                "companions": tuple(Companion(one["role"], tuple(one["command"])) for one in values["companions"]),
                "filling": values["filling"] and PreloadGoal(**values["filling"]),
                "aim": (aim := values["aim"]) and FaultPhase(**{**aim, "later": tuple(aim["later"])}),
            }
        )


def resolve(
    config: Configuration,
    order: Ordered,
    *,
    engine: PlannedEngine,
    endpoints: Endpoints,
    topics: Mapping[str, str],
    places: Places,
    matching: tuple[str, Mapping[str, Any]],
    cycles: frozenset[str] = frozenset(),
    not_measured: Mapping[str, str] | None = None,
) -> AttemptPlan:
    """Return the plan of a requested experiment, with an empty `program`.

    `topics`: names by role. `cycles`: those that can set the time of a fault. `matching`: method and tuples.
    """
    kind, own, partitions = config.kind, config.own, topic_partitions(config)
    return AttemptPlan(
        order=order,
        engine=engine,
        endpoints=endpoints,
        places=places,
        topics={role: Topic(name, partitions.get(role, config.partitions)) for role, name in topics.items()},
        seed=config.plan().seed,
        faults=config.planned_faults(),
        # With several injections the fault scheduler decides from the commits when the next one may start.
        aim=_aim(config, order.repetition) if "checkpoint" in cycles or config.injections > 1 else None,
        generator=_generator(config, order.repetition, endpoints, topics.get("input", "")) if config.paced else None,
        program={},
        companions=kind.companions(own),
        filling=kind.filling(own, config),
        primed_batches=kind.primed_batches(own),
        drained_batches=kind.drained_batches(own) + 2 * (config.delivery_guarantee == EXACTLY_ONCE),
        stop_s=kind.stop_s,
        method=matching[0],
        tuples=matching[1],
        gated=kind.own_client,
        warmup_max_s=config.warmup_max_s if config.adaptive_warmup else None,
        not_measured=not_measured or {},
    )


def _aim(config: Configuration, repetition: int) -> FaultPhase | None:
    """Return the fault phase; None for a control run and for a full plan, which has fixed times."""
    if config.fault == "none" or config.fault_plan is not None:
        return None
    planned = config.planned_faults()[0]
    # A lasting fault must be undone before the end of the window.
    over_s = config.measured_window[1] - (planned.end_s - planned.earliest_s) - BEFORE_END_S
    # Each later injection needs time for a recovery and a new baseline.
    later_s = (config.injections - 1) * (config.baseline_s + SECONDS_AFTER_FAULT)
    latest_s = max(planned.earliest_s, min(config.fault_window[1], over_s) - later_s)
    # All injections of all repetitions are spread over the cycle together.
    first = repetition * config.injections
    phase, *later = (phase_of(first + number) for number in range(config.injections))
    return FaultPhase(phase, baseline_commits(config.checkpoint_interval_s), latest_s, tuple(later))


def program_of(attempt: Attempt, config: Configuration, plan: AttemptPlan) -> dict[str, Any]:
    """Return the workload program's configuration, which is the same for every engine."""
    topics = {role: topic.name for role, topic in plan.topics.items()}
    prepared = Prepared(attempt, topics, plan.places.ports, plan.order.repetition)
    return {
        "bootstrap": plan.workload_bootstrap,
        "input_topic": plan.topics["input"].name,
        "output_topic": plan.topics["output"].name,
        "checkpoint_interval_s": plan.checkpoint_interval_s,
        "stop_file": str(attempt.stop_file),
        **config.kind.program_configuration(prepared, config.own, config),
    }


def _generator(config: Configuration, repetition: int, endpoints: Endpoints, topic: str) -> dict[str, Any]:
    """Return the generator's specification."""
    return {
        "bootstrap": endpoints.kafka,
        "topic": topic,
        "partitions": config.partitions,
        "rate": config.rate,
        "rate_curve": config.rate_curve,
        "seconds": config.longest_s,
        **config.input_source(repetition),
        "skew_curve": config.skew_curve,
        "state_mb": config.state_mb,
        "state_touch": config.state_touch,
        "primer_lines": config.kind.primer_lines(config.own),
        "seed": config.seed,
        "repetition": repetition,
        "processes": config.generator_processes,
    }


def topic_partitions(config: Configuration) -> dict[str, int]:
    """Return the number of partitions of each topic of an attempt, by role."""
    return {"input": config.partitions, "output": config.partitions, **config.kind.topics(config.own, config)}


def is_added(attempt: Attempt) -> bool:
    """Return whether `scripts/migrate.py` created the plan."""
    return bool(_values_of(attempt).get("migrated") == {"schema": None})


def _values_of(attempt: Attempt) -> dict[str, Any]:
    return read_document(attempt.plan) if attempt.plan.exists() else {}


def read_plan(attempt: Attempt) -> AttemptPlan:
    """Return the attempt's plan. Raises InfrastructureError naming the file that is missing or damaged."""
    values = _values_of(attempt)
    if values.get("schema", SCHEMA - 1) < SCHEMA and "config" in (description := attempt.read()):
        return _from_before(attempt, description)
    try:
        return AttemptPlan.from_mapping(values)
    except (KeyError, TypeError, AttributeError, PlanError) as error:
        raise InfrastructureError(f"{attempt.plan}: got an invalid plan ({error}); fix: clear the whole run") from None


def _from_before(attempt: Attempt, description: Mapping[str, Any]) -> AttemptPlan:
    """Return the plan of an attempt older than plan schema 3, with what its `attempt.json` holds for the judge."""
    from faultline.experiment.config import parse_configuration

    try:
        config = parse_configuration(description["config"])
    except ConfigError as error:
        raise InfrastructureError(f"{attempt.folder / 'attempt.json'}: {error}; fix: clear the whole run") from None
    ordered = {one.name: description[one.name] for one in fields(Ordered) if one.name in description}
    missing = {"config_id": config.config_id, "repetition": 0, "series": "", "build": ""}
    kafka, services = description.get("kafka") or {}, description.get("services") or {}
    faults, topics, partitions = config.planned_faults(), description.get("topics") or {}, topic_partitions(config)
    unused: dict[str, Any] = dict.fromkeys(("aim", "generator", "filling", "warmup_max_s"))
    unused |= {"program": {}, "companions": (), "tuples": {}, "gated": False, "primed_batches": 1, "drained_batches": 1}
    return AttemptPlan(
        **unused,
        order=Ordered(**{**missing, **ordered, "config": config.model_dump(mode="json")}),
        engine=PlannedEngine("", programs=str(description.get("programs", ""))),
        endpoints=Endpoints(str(kafka.get("bootstrap", "")), "", "", "", "", "", hosts=description.get("hosts") or {}),
        places=Places(instance=services.get("instance"), holds=services.get("holds") or {}),
        topics={role: Topic(name, partitions.get(role, config.partitions)) for role, name in topics.items()},
        seed=config.plan().seed,
        faults=faults,
        stop_s=config.kind.stop_s,
        method=config.kind.latency_method,
        not_measured=description.get("not_measured") or {},
    )
