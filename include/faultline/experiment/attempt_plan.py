"""What one attempt is to do: its configuration resolved once, by `prepare`, and kept in the attempt's `plan.json`.

Each step reads its part of the plan and derives nothing anew. `prepare` writes it last, so that a folder without one
has started nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from fault.errors import PlanError
from fault.plan import Fault, PlannedFault
from faultline.experiment.attempt import Attempt
from faultline.experiment.cell import Cell
from faultline.experiment.common_parameters import SECONDS_AFTER_FAULT, baseline_commits, phase_of
from faultline.experiment.prerequisites import Companion, PreloadGoal, Prepared
from faultline.system.endpoints import Endpoints
from faultline.system.errors import ConfigError, InfrastructureError
from faultline.system.files import read_document

if TYPE_CHECKING:  # half a second of imports: who works with a plan that was made needs no configuration
    from faultline.experiment.config import Configuration

SCHEMA = 3  # of plan.json
# An act that lasts is over by so much before the end of what is measured.
BEFORE_END_S = 1.0

T = TypeVar("T")


@dataclass(frozen=True)
class Topic:
    """One topic of an attempt."""

    name: str
    partitions: int


@dataclass(frozen=True)
class FaultPhase:
    """When the one fault of the short form comes: at `phase` (0 to below 1) of the first checkpoint cycle that begins
    from its planned time on and after `commits` commits since the warm-up; at `latest_s` after T0 in any case.

    `later`: the phases of the second and of further injections.
    """

    phase: float
    commits: int
    latest_s: float
    later: tuple[float, ...] = ()

    @property
    def phases(self) -> tuple[float, ...]:
        """The phase of each injection."""
        return (self.phase, *self.later)


@dataclass(frozen=True)
class Ordered:
    """What was ordered: a configuration, as JSON values, and its cell. Every record says this of itself.

    `keep_topics`: whoever closes the attempt leaves its topics.
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
        """The unit of work that it belongs to."""
        return Cell(self.config_id, self.repetition, self.series)


@dataclass(frozen=True)
class PlannedEngine:
    """The engine by its name, empty where the workload tells it; where this run of it is reached, by keys of its own;
    and the settings and the folder of programs of the build under test."""

    name: str
    addresses: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    programs: str = ""


@dataclass(frozen=True)
class Places:
    """What the attempt shares with others on this machine.

    `window_lock`: None where nothing else works. `instance`: the mark of the embedded services that take part, None on
    a target; `background`: the mark of those that give way while a window is measured; `keeper`: the pid of what keeps
    them running. `holds`: where a fault holds each service down. `ports`: of the companions, by role.
    `checkpoint_disk`: where checkpoints have a disk of their own, which can be full while this machine's is not.
    """

    window_lock: str | None = None
    instance: str | None = None
    background: str | None = None
    keeper: int | None = None
    holds: Mapping[str, str] = field(default_factory=dict)
    ports: Mapping[str, int] = field(default_factory=dict)
    checkpoint_disk: str | None = None


class _OfConfiguration(Generic[T]):
    """A parameter of the ordered configuration, as a property of its plan under the parameter's name."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, plan: AttemptPlan, owner: type) -> T:
        value: T = plan.order.config[self._name]
        return value


@dataclass(frozen=True)
class AttemptPlan:
    """One attempt's plan. Times in seconds, those of the window after T0.

    `topics`: by role. `seed`: chooses the victims of `faults`. `generator`: its specification; None where the engine
    makes the events itself. `program`: what the workload's program is told beside what its engine adds.
    `primed_batches`: what is awaited before the gate, unless there is a `filling`; `drained_batches`: and at the end of
    the schedule. `stop_s`: how long the workload may take to end. `method`, `tuples`: how the harvest finds a tuple's
    first output, and what it takes for one. `aim`: None where the faults come at the very times that a plan gives them.
    `gated`: the workload cannot log in at the broker, and comes to it through the gate. `warmup_max_s`: the measured
    window begins when the engine is steady, between `warmup_s` and then; None: at `warmup_s`. `not_measured`: figures
    that cannot be had where it runs, and why.
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
    # The longest wait between two of several injections; and what counts as recovered.
    max_wait_s = _OfConfiguration[float]()
    recovered_within = _OfConfiguration[float]()

    def configuration(self) -> Configuration:
        """Return the ordered configuration. Raises InfrastructureError for one that this version refuses."""
        from faultline.experiment.config import parse_configuration

        try:
            return parse_configuration(dict(self.order.config))
        except ConfigError as error:
            raise InfrastructureError(f"plan.json: {error}; clear the whole run") from None

    @property
    def delay_s(self) -> float:
        """By how much the measured window, and all that is planned in it, may begin later than after `warmup_s`."""
        return 0.0 if self.warmup_max_s is None else self.warmup_max_s - self.warmup_s

    @property
    def window_s(self) -> float:
        """From T0 to the end of what is measured, at the latest."""
        return self.warmup_s + self.delay_s + self.duration_s

    def over_s(self, planned: PlannedFault) -> float:
        """Return the latest end of a planned fault with its undo, in seconds after T0."""
        aimed_s = 0.0 if self.aim is None else max(0.0, self.aim.latest_s - planned.earliest_s)
        return planned.end_s + aimed_s + self.delay_s

    @property
    def paced(self) -> bool:
        """Whether a generator sends the input by a schedule; else the engine makes it itself."""
        return self.generator is not None

    @property
    def workload_bootstrap(self) -> str:
        """Where the workload reaches the broker: by the detour only if a fault needs it, since it is one more hop."""
        if self.gated:
            return self.endpoints.kafka_gate
        return self.endpoints.kafka_detour if self.detours else self.endpoints.kafka

    @property
    def stamped_by_broker(self) -> bool:
        """Whether the broker's clock tells when a result was put out: where hosts are several, so that it is one. Those
        of a target may be, whether or not they are reached."""
        return bool(self.endpoints.hosts) or self.endpoints.is_external

    @property
    def detours(self) -> bool:
        """Whether a fault stands between the workload and the broker."""
        return any(one.fault.definition.uses_proxy for one in self.faults)

    def as_mapping(self) -> dict[str, Any]:
        """Return JSON values; `from_mapping` gives the same plan again."""
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
        """Return the plan that `as_mapping` gave. Raises KeyError, TypeError or PlanError for anything else.

        What is not known here any more is left aside, so that attempts outlive an update; `schema` rises when more
        than that changes.
        """
        if values["schema"] != SCHEMA:
            raise PlanError(f"schema {values['schema']}, and {SCHEMA} is known here")
        aim = values["aim"]
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
                "aim": aim and FaultPhase(**{**aim, "later": tuple(aim["later"])}),
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
    cycles: frozenset[str] = frozenset(),
    not_measured: Mapping[str, str] | None = None,
) -> AttemptPlan:
    """Return the plan of an order, without what the program is told. `config`: the one that was ordered. `topics`:
    their names by role. `cycles`: those of the engine that a fault can be aimed at."""
    kind, own, partitions = config.kind, config.own, topic_partitions(config)
    return AttemptPlan(
        order=order,
        engine=engine,
        endpoints=endpoints,
        places=places,
        topics={role: Topic(name, partitions.get(role, config.partitions)) for role, name in topics.items()},
        seed=config.plan().seed,
        faults=config.planned_faults(),
        # Of several injections only the conductor can tell when the next one may come, by the commits of any engine.
        aim=_aim(config, order.repetition) if "checkpoint" in cycles or config.injections > 1 else None,
        generator=_generator(config, order.repetition, endpoints, topics.get("input", "")) if config.paced else None,
        program={},
        companions=kind.companions(own),
        filling=kind.filling(own, config),
        primed_batches=kind.primed_batches(own),
        drained_batches=kind.drained_batches(own),
        stop_s=kind.stop_s,
        method=kind.latency_method_of(own),
        tuples=kind.tuples(own),
        gated=config.kind.own_client,
        warmup_max_s=config.warmup_max_s if config.adaptive_warmup else None,
        not_measured=not_measured or {},
    )


def _aim(config: Configuration, repetition: int) -> FaultPhase | None:
    """Return the fault phase; None for a control and for a full plan with times."""
    if config.fault == "none" or config.fault_plan is not None:
        return None
    planned = config.planned_faults()[0]
    # What lasts must be undone before the end.
    over_s = config.measured_window[1] - (planned.end_s - planned.earliest_s) - BEFORE_END_S
    # And those that follow need their time.
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
    """Return the topics of an attempt by role, and how many partitions each has."""
    return {"input": config.partitions, "output": config.partitions, **config.kind.topics(config.own, config)}


def is_added(attempt: Attempt) -> bool:
    """Return whether `scripts/migrate.py` made the plan of an attempt that had none."""
    return bool(_values_of(attempt).get("migrated") == {"schema": None})


def _values_of(attempt: Attempt) -> dict[str, Any]:
    return read_document(attempt.plan) if attempt.plan.exists() else {}


def read_plan(attempt: Attempt) -> AttemptPlan:
    """Return the attempt's plan. Raises InfrastructureError naming the file that is missing or damaged."""
    values = _values_of(attempt)
    if values.get("schema", SCHEMA - 1) < SCHEMA and "config" in (said := attempt.read()):
        return _from_before(attempt, said)
    try:
        return AttemptPlan.from_mapping(values)
    except (KeyError, TypeError, AttributeError, PlanError) as error:
        raise InfrastructureError(f"{attempt.plan}: not a plan ({error}); clear the whole run") from None


def _from_before(attempt: Attempt, said: Mapping[str, Any]) -> AttemptPlan:
    """Return the plan of an attempt older than plan schema 3 from its `attempt.json`, as far as the judge needs it."""
    from faultline.experiment.config import parse_configuration

    try:
        config = parse_configuration(said["config"])
    except ConfigError as error:
        raise InfrastructureError(f"{attempt.folder / 'attempt.json'}: {error}; clear the whole run") from None
    named = {one.name: said[one.name] for one in fields(Ordered) if one.name in said}
    unnamed = {"config_id": config.config_id, "repetition": 0, "series": "", "build": ""}
    kafka, services = said.get("kafka") or {}, said.get("services") or {}
    faults, topics, partitions = config.planned_faults(), said.get("topics") or {}, topic_partitions(config)
    unread: dict[str, Any] = dict.fromkeys(("aim", "generator", "filling", "warmup_max_s"))
    unread |= {"program": {}, "companions": (), "tuples": {}, "gated": False, "primed_batches": 1, "drained_batches": 1}
    return AttemptPlan(
        **unread,
        order=Ordered(**{**unnamed, **named, "config": config.model_dump(mode="json")}),
        engine=PlannedEngine("", programs=str(said.get("programs", ""))),
        endpoints=Endpoints(str(kafka.get("bootstrap", "")), "", "", "", "", "", hosts=said.get("hosts") or {}),
        places=Places(instance=services.get("instance"), holds=services.get("holds") or {}),
        topics={role: Topic(name, partitions.get(role, config.partitions)) for role, name in topics.items()},
        seed=config.plan().seed,
        faults=faults,
        stop_s=config.kind.stop_s,
        method=config.kind.latency_method,
        not_measured=said.get("not_measured") or {},
    )
