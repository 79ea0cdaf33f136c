"""What one attempt is to do: its configuration resolved once, by `prepare`, and kept in the attempt's folder.

Each step reads its part of the plan and derives nothing anew. Attempts from before there were plans are judged and
harvested, too: theirs is made of `attempt.json` whenever it is asked for, and lacks what only a start needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from fault.errors import PlanError
from fault.plan import Fault, PlannedFault
from faultline.experiment.attempt import Attempt
from faultline.experiment.common import (
    MAX_WAIT_S,
    RECOVERED_WITHIN,
    SECONDS_AFTER_FAULT,
    baseline_commits,
    phase_of,
)
from faultline.experiment.preparations import Companion, Filling
from faultline.system.endpoints import Endpoints
from faultline.system.errors import ConfigError, InfrastructureError
from faultline.system.files import read_document

if TYPE_CHECKING:  # half a second of imports: who works with a plan that was made needs no configuration
    from faultline.experiment.config import Configuration

# Of plan.json.
SCHEMA = 2
# An act that lasts is over by so much before the end of what is measured.
BEFORE_END_S = 1.0


@dataclass(frozen=True)
class Topic:
    """One topic of an attempt."""

    name: str
    partitions: int


@dataclass(frozen=True)
class Aim:
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
class AttemptPlan:
    """One attempt's plan. Times in seconds, those of the window after T0.

    `engine`: its name; None in a plan made of `attempt.json`, where the workload tells it. `topics`: by role.
    `seed`: chooses the victims of `faults`. `generator`: its specification; None where the engine makes the events
    itself. `program`: what the workload's program is told beside what its engine adds; empty where nothing is to be
    started. `primed_batches`: what is awaited before the gate, unless there is a `filling`; `drained_batches`: and at
    the end of the schedule. `stop_s`: how long the workload may take to end. `method`, `tuples`: how the harvest finds
    a tuple's first output, and what it takes for one. `aim`: None where the faults come at the very times that a plan
    gives them. `gated`: the workload cannot log in at the broker, and comes to it through the gate. `warmup_max_s`: the
    measured window begins when the engine is steady, between `warmup_s` and then; None: at `warmup_s`. `max_wait_s`:
    the longest wait between two of several injections. `within`: what counts as recovered, as `recovered_within`.
    """

    workload: str
    engine: str | None
    repetition: int
    endpoints: Endpoints
    topics: Mapping[str, Topic]
    warmup_s: float
    duration_s: float
    checkpoint_interval_s: float
    snapshot_interval_s: float
    restart_delay_s: float
    seed: int
    faults: tuple[PlannedFault, ...]
    generator: Mapping[str, Any] | None
    program: Mapping[str, Any]
    companions: tuple[Companion, ...]
    filling: Filling | None
    primed_batches: int
    drained_batches: int
    stop_s: float
    method: str
    tuples: Mapping[str, Any]
    aim: Aim | None = None
    gated: bool = False
    warmup_max_s: float | None = None
    max_wait_s: float = MAX_WAIT_S
    within: float = RECOVERED_WITHIN

    @property
    def delay_s(self) -> float:
        """By how much the measured window, and all that is planned in it, may begin later than after `warmup_s`."""
        return 0.0 if self.warmup_max_s is None else self.warmup_max_s - self.warmup_s

    @property
    def window_s(self) -> float:
        """From T0 to the end of what is measured, at the latest."""
        return self.warmup_s + self.delay_s + self.duration_s

    def over_s(self, planned: PlannedFault) -> float:
        """When a planned fault is over at the latest, its undo included, in seconds after T0."""
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
        return bool(self.endpoints.hosts) or self.endpoints.elsewhere

    @property
    def detours(self) -> bool:
        """Whether a fault stands between the workload and the broker."""
        return any(one.fault.how.detours for one in self.faults)

    def as_mapping(self) -> dict[str, Any]:
        """JSON values; `from_mapping` gives the same plan again."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return values | {
            "schema": SCHEMA,
            "endpoints": self.endpoints.as_mapping(),
            "topics": {role: asdict(topic) for role, topic in self.topics.items()},
            "faults": [asdict(one) for one in self.faults],
            "companions": [asdict(one) for one in self.companions],
            "filling": None if self.filling is None else asdict(self.filling),
            "aim": None if self.aim is None else asdict(self.aim),
        }

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Self:
        """The plan that `as_mapping` gave. Raises KeyError, TypeError or PlanError for anything else.

        What is added to a plan later has a default, and what is not known here any more is left aside, so that attempts
        outlive an update; `schema` rises when neither is possible.
        """
        if "cycle_s" in values:  # of schema 1, and of the first plans, which named none
            values = {**values, **{f"{cycle}_interval_s": length for cycle, length in values["cycle_s"].items()}}
        if values.get("schema", SCHEMA) not in (1, SCHEMA):
            raise PlanError(f"schema {values['schema']}, and {SCHEMA} is known here")
        return cls(
            **{
                **{name: values[name] for name in cls.__dataclass_fields__ if name in values},
                "endpoints": Endpoints.from_mapping(values["endpoints"]),
                "topics": {role: Topic(**topic) for role, topic in values["topics"].items()},
                "faults": tuple(PlannedFault(**{**one, "fault": Fault(**one["fault"])}) for one in values["faults"]),
                "companions": tuple(Companion(one["role"], tuple(one["command"])) for one in values["companions"]),
                "filling": None if values["filling"] is None else Filling(**values["filling"]),
                "aim": _aim_from(values["aim"]) if values.get("aim") else None,
            }
        )


def resolve(
    config: Configuration,
    *,
    engine: str | None,
    repetition: int,
    endpoints: Endpoints,
    topics: Mapping[str, str],
    cycles: frozenset[str] = frozenset(),
) -> AttemptPlan:
    """The plan of a configuration, without what the program is told. `topics`: their names by role. `cycles`: those of
    the engine that a fault can be aimed at."""
    kind, own, partitions = config.kind, config.own, topic_partitions(config)
    known = {role: Topic(name, partitions.get(role, config.partitions)) for role, name in topics.items()}
    return AttemptPlan(
        workload=config.workload,
        engine=engine,
        repetition=repetition,
        endpoints=endpoints,
        topics=known,
        warmup_s=config.warmup_s,
        duration_s=config.duration_s,
        checkpoint_interval_s=config.checkpoint_interval_s,
        snapshot_interval_s=config.snapshot_interval_s,
        restart_delay_s=config.restart_delay_s,
        seed=config.plan().seed,
        faults=config.planned_faults(),
        generator=_generator(config, repetition, endpoints, topics.get("input", "")) if config.paced else None,
        program={},
        companions=kind.companions(own),
        filling=kind.filling(own, config),
        primed_batches=kind.primed_batches(own),
        drained_batches=kind.drained_batches(own),
        stop_s=kind.stop_s,
        method=kind.latency_method_of(own),
        tuples=kind.tuples(own),
        # Of several injections only the conductor can tell when the next one may come, by the commits of any engine.
        aim=_aim(config, repetition) if "checkpoint" in cycles or config.injections > 1 else None,
        gated=config.kind.own_client,
        warmup_max_s=config.warmup_max_s if config.adaptive_warmup else None,
        max_wait_s=config.max_wait_s,
        within=config.recovered_within,
    )


def _aim_from(values: Mapping[str, Any]) -> Aim:
    return Aim(**{**values, "later": tuple(values.get("later") or ())})


def _aim(config: Configuration, repetition: int) -> Aim | None:
    """None for a control, and where a plan in its full form says when."""
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
    return Aim(phase, baseline_commits(config.checkpoint_interval_s), latest_s, tuple(later))


def program_of(attempt: Attempt, config: Configuration, plan: AttemptPlan) -> dict[str, Any]:
    """What the workload's program is told, whichever engine runs it; it may look into the attempt's own file."""
    return {
        "bootstrap": plan.workload_bootstrap,
        "input_topic": plan.topics["input"].name,
        "output_topic": plan.topics["output"].name,
        "checkpoint_interval_s": plan.checkpoint_interval_s,
        "stop_file": str(attempt.stop_file),
        **config.kind.program_configuration(attempt, config.own, config),
    }


def _generator(config: Configuration, repetition: int, endpoints: Endpoints, topic: str) -> dict[str, Any]:
    """What the generator is told."""
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
    """The topics of an attempt by role, and how many partitions each has."""
    return {"input": config.partitions, "output": config.partitions, **config.kind.topics(config.own, config)}


def configuration_of(attempt: Attempt) -> Configuration:
    """The configuration in `attempt.json`.

    Raises InfrastructureError when that file is missing or damaged, or this version refuses what it holds.
    """
    from faultline.experiment.config import parse_configuration

    try:
        return parse_configuration(attempt.read()["config"])
    except ConfigError as error:
        raise InfrastructureError(f"{attempt.folder / 'attempt.json'}: {error}; clear the whole run") from None


def plan_of(attempt: Attempt) -> AttemptPlan:
    """The attempt's plan. Raises InfrastructureError naming the file that is missing or damaged."""
    return _read(attempt) if attempt.plan.exists() else _from_before(attempt)


def faults_of(attempt: Attempt, config: Configuration) -> tuple[PlannedFault, ...]:
    """The planned faults of an attempt with this configuration."""
    return _read(attempt).faults if attempt.plan.exists() else config.planned_faults()


def _read(attempt: Attempt) -> AttemptPlan:
    try:
        return AttemptPlan.from_mapping(read_document(attempt.plan))
    except (KeyError, TypeError, AttributeError, PlanError) as error:
        raise InfrastructureError(f"{attempt.plan}: not a plan ({error}); clear the whole run") from None


def _from_before(attempt: Attempt) -> AttemptPlan:
    """What can be told from `attempt.json` alone, of which a healer needs no more than the configuration."""
    description = attempt.read()
    kafka, engine = description.get("kafka") or {}, description.get("spark") or {}
    bootstrap = str(kafka.get("bootstrap", ""))
    plan = resolve(
        configuration_of(attempt),
        engine=None,
        repetition=int(description.get("repetition", 0)),
        endpoints=Endpoints(
            kafka=bootstrap,
            kafka_detoured="",
            kafka_detour=str(kafka.get("workload_bootstrap", bootstrap)),
            kafka_gate=str(kafka.get("workload_bootstrap", bootstrap)),
            engine=str(engine.get("master", "")),
            engine_ui="",
            airflow="",
            hosts=description.get("hosts") or {},
        ),
        topics=description.get("topics") or {},
    )
    return replace(plan, warmup_max_s=None)
