"""Configuration of one experiment: typed, validated, and identified by its content.

`Configuration` holds every parameter except the repetition: those of all workloads and those of only some. Its
`config_id` is the first 12 hex digits of the SHA-256 of its canonical JSON, so equal experiments have equal identities
on any machine.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

from pydantic import Field, ValidationError, model_validator

from fault.errors import PlanError
from fault.plan import PlannedFault, require_window
from fault.registry import REFUSED
from faultline.experiment.commit_modes import COMMIT_MODES, DEFAULT_ENGINE
from faultline.experiment.common_parameters import (
    BUILT_IN_CORPUS,
    MAX_RESTARTS,
    SECONDS_AFTER_FAULT,
    WITH_DATA,
    Common,
    earliest_fault_s,
    expectation,
    usual_duration_s,
    value_of,
)
from faultline.experiment.fault_fields import in_short_form, require_records, take_curves, take_object, take_plan
from faultline.experiment.injections import check_injections, repeat_fault
from faultline.experiment.named_settings import (
    OBJECTS,
    check_topic_settings,
    fold_settings,
    require_known,
    take_settings,
)
from faultline.experiment.workloads.protocol import Parameters, Workload, primer_records
from faultline.experiment.workloads.registry import WORKLOADS, own_fields, owners, workload_of
from faultline.system.errors import ConfigError
from faultline.system.settings import WORKERS
from faultline.system.text import suggest

# Largest share of executor memory for live state.
STATE_SHARE_OF_MEMORY = 0.25
# Fields with a file or folder, each with the name of the built-in one.
BUILT_IN_PATHS = {"corpus": BUILT_IN_CORPUS, "data": ""} | {
    key: path for one in WORKLOADS.values() for key, path in one.built_in_paths.items()
}
# Name of the empty value on an axis, by field.
NAMES_OF_NOTHING = {
    key: str(extra["nothing"])
    for key, field in Common.model_fields.items()
    if isinstance(extra := field.json_schema_extra, dict) and "nothing" in extra
}
# Fields of the first records. The identity omits later fields that have their default.
FIRST_FIELDS = frozenset({
    "workload", "rate", "warmup_s", "duration_s", "corpus", "skew", "vocabulary", "state_mb", "state_touch",
    "checkpoint_interval_s", "snapshot_interval_s", "commit_mode", "executors", "executor_cores", "executor_memory_mb",
    "partitions", "shuffle_partitions", "fault", "fault_action", "fault_at_s", "fault_plan", "truth", "restart_delay_s",
    "seed",
})  # fmt: skip


class _Checked(Common):
    """Rules between parameters, and the identity."""

    def __hash__(self) -> int:
        return hash(self.canonical_json())

    @property
    def kind(self) -> Workload[Any]:
        """Workload of the configuration."""
        return WORKLOADS[self.workload]

    @property
    def own(self) -> Parameters:
        """Parameters that only its workload has."""
        model = self.kind.parameters
        own: Parameters = model.model_construct(**{name: getattr(self, name) for name in model.model_fields})
        return own

    @property
    def paced(self) -> bool:
        """Whether a generator sends the input through Kafka by a schedule; else the engine creates it."""
        return self.kind.paced({name: getattr(self, name) for name in ("workload", *self.kind.parameters.model_fields)})

    def planned_faults(self) -> tuple[PlannedFault, ...]:
        """Return the planned injections in chronological order."""
        return repeat_fault(super().planned_faults(), self)

    @property
    def adaptive_warmup(self) -> bool:
        """Whether the measured window starts when the engine is steady, instead of after a fixed time.

        Fixed if the load varies, if a full fault plan has times from T0, or if commits do not show steadiness.
        """
        varies = self.rate_curve is not None or self.skew_curve is not None or self.data_pace == "recorded"
        observable = self.paced and self.kind.shows_steadiness and self.generator_on == "host"
        return observable and not varies and self.fault_plan is None and self.warmup_max_s > self.warmup_s

    @property
    def longest_s(self) -> float:
        """Longest time from T0 to the end of the measured window, in seconds."""
        return (self.warmup_max_s if self.adaptive_warmup else self.warmup_s) + self.duration_s

    @property
    def primer_records(self) -> int:
        """Number of records that the generator sends before T0."""
        return primer_records(self.kind, self.own, self)

    def input_source(self, repetition: int = 0) -> dict[str, Any]:
        """Return the part of the generator's specification that names its source and the source's parameters."""
        return self.kind.source(self.own, self, repetition)

    @property
    def config_id(self) -> str:
        """First 12 hex digits of the SHA-256 of the canonical JSON."""
        return hashlib.sha256(self.canonical_json().encode()).hexdigest()[:12]

    def canonical_json(self) -> str:
        """Return JSON with sorted keys, no spaces and all defaults: equal configurations give equal text.

        Fields that older records lack are omitted if they have their default, so those records keep their identity.
        """
        values = self.model_dump(mode="json")
        for name, field in type(self).model_fields.items():
            if name not in FIRST_FIELDS and values[name] == field.default:
                del values[name]
        return json.dumps(values, sort_keys=True, separators=(",", ":"))

    @model_validator(mode="before")
    @classmethod
    def _write_defaults_out(cls, data: Any) -> Any:
        """Set derived values, so that the identity does not depend on which values were given."""
        if not isinstance(data, Mapping):
            return data
        values = dict(data)
        for key, field in cls.model_fields.items():
            if field.annotation == dict[str, Any] | None:
                values[key] = take_object(key, values.get(key))
        for key in OBJECTS:
            values[key] = take_settings(key, values.get(key))
        values |= {key: None for key, name in NAMES_OF_NOTHING.items() if values.get(key) == name}
        if values.get("duration_s", 0) is None:
            del values["duration_s"]  # an empty field of a form
        kind = workload_of({"workload": "word_count"} | values)
        for key, value in kind.defaults(values).items():
            values.setdefault(key, value)
        kind.take(values)
        if not kind.can("preloaded_state"):
            values.setdefault("state_mb", 0.0)
        take_curves(values, kind.highest_rate(values))
        if values["fault_plan"] is not None:
            take_plan(values)
        _place_fault(values)
        _set_length(values)
        return values

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        memory_mb = self.executors * self.executor_memory_mb * 1.048576
        if self.state_mb > STATE_SHARE_OF_MEMORY * memory_mb:
            raise ValueError(
                f"state_mb: got {self.state_mb:g}; expected at most a quarter of the executors' memory "
                f"({memory_mb:.0f} MB); fix: lower state_mb, or raise executor_memory_mb or executors"
            )
        self._check_parameters()
        if self.engine == DEFAULT_ENGINE:  # others refuse real-time mode
            COMMIT_MODES[self.commit_mode].check(
                self.workload,
                workloads_that_can("real_time"),
                checkpoint_interval_s=self.checkpoint_interval_s,
                cores=self.executors * self.executor_cores,
                partitions=self.partitions,
            )
        self._check_generator()
        check_topic_settings(self.topic_conf, paced=self.paced, workload=self.workload)
        most = self.kind.highest_rate(self.model_dump(include={"workload", *self.kind.parameters.model_fields}))
        require_records(self.rate_curve, self.rate, most, self.longest_s)
        if self.fault != "none":
            self._check_faults()
        self.kind.check_whole(self.own, self)
        return self

    def _check_parameters(self) -> None:
        """Refuse a parameter that this workload would silently ignore, or that contradicts another."""
        fields, kind = own_fields(), self.kind
        for key in sorted(fields.keys() - kind.parameters.model_fields.keys()):
            default = fields[key].default
            if getattr(self, key) != default:
                usual = f"{default:g} (default)" if isinstance(default, int | float) else f"{default or 'no value'}"
                raise ValueError(
                    f"{key}: unsupported by {self.workload}; expected {usual}, or workload {' or '.join(owners(key))}"
                )
        if self.state_mb and not kind.can("preloaded_state"):
            raise ValueError(f"state_mb: unsupported by {self.workload}, which has no state to preload; expected 0")
        for key in ("skew", "skew_curve"):
            if getattr(self, key) is not None and not kind.can("skewed"):
                raise ValueError(f"{key}: unsupported by {self.workload}, which draws no keys; fix: leave it empty")
        if self.skew_curve is not None and self.skew is None:
            raise ValueError("skew: missing; expected a base exponent for skew_curve, such as 1.0")
        self._check_data()
        kind.check(self.own, self)

    def _check_data(self) -> None:
        """Raise ValueError for unused data parameters and for parameters that contradict data."""
        for key in WITH_DATA:
            if self.data is None and getattr(self, key) != type(self).model_fields[key].default:
                raise ValueError(f"{key}: got a value without data; fix: set data or remove it")
        if self.data is None:
            return
        if not self.kind.can("data"):
            able = " and ".join(workloads_that_can("data"))
            raise ValueError(f"data: unsupported by {self.workload}; fix: remove it, or use {able}")
        if not self.data.startswith("/"):
            raise ValueError(f"data: got {self.data!r}; expected an absolute path")
        for key in ("skew", "skew_curve"):
            if getattr(self, key) is not None:
                raise ValueError(f"{key}: conflicts with data; fix: leave it empty")
        self._check_pace()

    def _check_pace(self) -> None:
        """Raise ValueError for parameters that contradict the recorded times of data."""
        if self.data_pace == "recorded" and self.rate_curve is not None:
            raise ValueError("rate_curve: conflicts with data_pace=recorded; fix: leave it empty")
        if self.data_pace == "recorded" and any(fault.at_record is not None for fault in self.plan().faults):
            raise ValueError("fault_plan: got at_record with data_pace=recorded; expected at_s")
        if self.data_pace == "rate" and self.data_speed != 1:
            raise ValueError("data_speed: conflicts with data_pace=rate; fix: use data_pace=recorded, or change rate")

    def _check_generator(self) -> None:
        """Raise ValueError for generator parameters without a generator, or if a fault could hit the generator."""
        for key in ("generator_processes", "generator_on"):
            if not self.paced and getattr(self, key) != type(self).model_fields[key].default:
                raise ValueError(f"{key}: got a value for a workload without a generator; fix: leave it empty")
        if self.generator_on == "executors" and self.fault != "none":
            victims = {one.fault.victim for one in self.planned_faults()} & {"worker", "any"}
            if victims:
                raise ValueError(
                    f"generator_on: got executors, which a fault with victim {victims.pop()} would hit; "
                    "fix: use host, or another victim"
                )

    def _check_possible(self, planned: Sequence[PlannedFault]) -> None:
        """Raise ValueError for a planned fault that the workload or its commit mode excludes."""
        if self.rate_curve is not None and any(fault.at_record is not None for fault in self.plan().faults):
            raise ValueError("fault_plan: got at_record with rate_curve; expected at_s")
        self.kind.check_faults(self.own, self, planned)
        in_python = self.kind.has_python_workers(self.own)
        if any(one.fault.victim == "python_worker" for one in planned) and not in_python:
            raise ValueError(
                f"fault: got victim python_worker, which {self.workload} does not have; fix: use workload "
                "word_count_python, or another victim"
            )
        for one in planned:
            COMMIT_MODES[self.commit_mode].check_cycle(one.fault.cycle)

    def _check_faults(self) -> None:
        """Raise ValueError for faults outside the window or without enough victims."""
        low, high = self.fault_window
        check_injections(self, self.paced and self.kind.shows_steadiness)
        if high < low:
            raise ValueError(
                f"duration_s: got {self.duration_s:g}; expected at least {self.baseline_s + SECONDS_AFTER_FAULT:g} "
                f"(baseline {self.baseline_s:g} s, {SECONDS_AFTER_FAULT:g} s after the fault)"
            )
        if self.fault_plan is None and self.fault_at_s is not None and not low <= self.fault_at_s <= high:
            raise ValueError(
                f"fault_at_s: got {self.fault_at_s:g}; expected a value in [{low:g}, {high:g}], after the "
                "baseline and 30 s before the end; fix: move it, or raise duration_s"
            )
        where = "fault_plan." if self.fault_plan is not None else ""
        try:
            planned = self.planned_faults()
            require_window(planned, low_s=low, high_s=high, end_s=self.measured_window[1])
        except PlanError as error:
            raise ValueError(f"{where}{error}" if where else in_short_form(str(error))) from None
        for one in planned:
            available = self._victim_count(one.fault.victim)
            if one.fault.count > available:
                raise ValueError(
                    f"{where}{one.key_of('count')}: got {one.fault.count}; expected at most {available} "
                    f"({one.fault.victim}); fix: lower count or raise executors"
                )
        restarts = sum(one.fault.victim == "driver" and one.fault.definition.ends_victim for one in planned)
        if restarts > max(MAX_RESTARTS, self.injections):
            raise ValueError(
                f"{where}faults: got {restarts} driver kills; expected at most {MAX_RESTARTS} (restart limit)"
            )
        self._check_possible(planned)

    def _victim_count(self, victim: str) -> int:
        """Return the smallest number of processes of a kind of victim during the run."""
        hosts = min(WORKERS, self.executors)
        return {
            "executor": self.executors,
            "worker": hosts,
            "any": self.executors + hosts,
            "python_worker": self.executors * self.executor_cores,
        }.get(victim, 1)


def workloads_that_can(capability: str) -> list[str]:
    """Return the names of the workloads with a capability."""
    return [name for name, one in WORKLOADS.items() if one.can(capability)]


if TYPE_CHECKING:

    class Configuration(_Checked):
        """Configuration as type checkers see it: the parameters that all workloads share."""

else:
    # Pydantic orders fields by base class, the last base first.
    Configuration = type(_Checked)(
        "Configuration",
        (*reversed(list(dict.fromkeys(one.parameters for one in WORKLOADS.values()))), _Checked),
        {
            "__module__": __name__,
            "__doc__": "The complete parameters of one experiment, without its repetition.",
            "__annotations__": {"workload": Literal[tuple(WORKLOADS)]},
            "__hash__": _Checked.__hash__,
            "workload": Field("word_count", description=Common.model_fields["workload"].description),
        },
    )


def may_be_empty(name: str) -> bool:
    """Return whether a parameter may be empty, so that its value is derived."""
    field = Configuration.model_fields.get(name)
    if field is None:
        return False
    extra = field.json_schema_extra
    return type(None) in get_args(field.annotation) or (isinstance(extra, dict) and bool(extra.get("empty")))


def _set_length(values: dict[str, Any]) -> None:
    """Set the default `duration_s`."""
    if "duration_s" not in values:
        try:
            checkpoint_interval_s = float(value_of(values, "checkpoint_interval_s"))
            driver, injections = values.get("fault") == "driver", int(values.get("injections", 1))
            values["duration_s"] = usual_duration_s(checkpoint_interval_s, driver=driver, injections=injections)
        except (TypeError, ValueError, OverflowError):
            return  # the field's own check names the key


def _place_fault(values: dict[str, Any]) -> None:
    """Set the default time of the fault in short form; a control run has none."""
    if values.get("fault", "executor") == "none":
        if values.get("fault_at_s") is not None:
            raise ValueError("fault_at_s: got a time for a control (fault=none); fix: leave it empty")
        for key in ("fault_action", "injections"):  # all faults share one control
            values.pop(key, None)
    elif values.get("fault_at_s") is None:
        try:
            warmup = float(value_of(values, "warmup_s"))
            interval = float(value_of(values, "checkpoint_interval_s"))
        except (TypeError, ValueError):
            return  # the field's own check names the key
        values["fault_at_s"] = earliest_fault_s(warmup, interval)


def parse_configuration(values: Mapping[str, Any]) -> Configuration:
    """Validate `values` and return the configuration.

    Raises ConfigError with one line that names the key and the fix; for an unknown name, with the nearest known one.
    """
    for key in values:
        require_known(key, Configuration.model_fields)
    try:
        return Configuration.model_validate(fold_settings(values))
    except ValidationError as error:
        raise ConfigError(_first_line(error)) from None


def _first_line(error: ValidationError) -> str:
    """Return the first problem of a validation error as one line that starts with its key."""
    problem = error.errors(include_url=False)[0]
    if problem["type"] == "value_error" and not problem["loc"]:
        return str(problem["ctx"]["error"])
    key = ".".join(str(part) for part in problem["loc"]) or "configuration"
    given = problem.get("input")
    is_choice, is_number = problem["type"] == "literal_error", problem["type"] in ("float_parsing", "int_parsing")
    if (is_choice or is_number) and "," in str(given):
        return f"{key}: got {given!r}; expected one value; fix, in a sweep: {key}=[{given}]"
    if is_choice:
        if key == "fault_action" and str(given) in REFUSED:
            return f"{key}: unsupported action {given}: {REFUSED[given]}"
        choices = str(problem["ctx"]["expected"]).replace("'", "").replace(" or ", ", ").split(", ")
        return f"{key}: got {given!r}; expected a known value{suggest(str(given), choices)}"
    if is_number:
        return f"{key}: got {given!r}; expected a number"
    return f"{key}: got {given!r}; {expectation(problem['msg'])}"
