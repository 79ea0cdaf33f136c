"""Fault plans: immutable, validated specifications of what to inject, when and how.

`FaultPlan.resolve` turns a plan into the occurrences that a run injects.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

from fault.action import Action
from fault.errors import PlanError
from fault.fault_spec import (
    RULES,
    FaultSpec,
    require_choice,
    require_integer,
    require_known_keys,
    require_number,
    require_seconds,
)
from fault.registry import ACTIONS, ALLOWED, REFUSED

SINGLETONS = ("driver", "kafka")
CYCLES = ("checkpoint", "snapshot")

# Checkpoint intervals to wait for a busy victim.
WAIT_INTERVALS = 3
MAX_COUNT = 64
MAX_TIMES = 1000
MAX_RECORD = 10**15
# Parameters in the description of an injection, in this order; the default values below it are omitted.
_PARAMETER_TEXTS = {
    "delay_ms": " by {:g} ms",
    "jitter_ms": " ± {:g} ms",
    "loss_percent": " of {:g} %",
    "peer": " from {}",
    "way": " ({} only)",
    "mbit_s": " to {:g} Mbit/s",
    "cores": " with {:g} cores",
    "memory_mb": " with {:g} MiB",
}
_DEFAULT_VALUES = ("all", "both")
# Fields that early plans lack; a plan omits them while they are None.
OPTIONAL_FIELDS = frozenset({"jitter_ms", "loss_percent", "peer", "way", "mbit_s", "cores", "memory_mb"})


@dataclass(frozen=True)
class Fault(FaultSpec):
    """One validated fault of a plan. Raises PlanError, naming the key, for an invalid value."""

    def __post_init__(self) -> None:
        require_choice("victim", self.victim, ALLOWED)
        if isinstance(self.action, str) and self.action in REFUSED:
            raise PlanError(f"action: got {self.action}, which is not supported: {REFUSED[self.action]}")
        require_choice("action", self.action, ACTIONS)
        if self.action not in ALLOWED[self.victim]:
            raise PlanError(f"action: got {self.action} for {self.victim}; expected {', '.join(ALLOWED[self.victim])}")
        self._check_time()
        self._check_parameters()
        require_integer("count", self.count, 1, MAX_COUNT)
        if self.count > 1 and self.victim in SINGLETONS:
            raise PlanError(f"count: got {self.count} for {self.victim}; expected 1")
        require_integer("times", self.times, 1, MAX_TIMES)
        if self.times > 1:
            if self.every_s is None:
                raise PlanError("every_s: missing for times > 1; expected seconds between occurrences")
            self._set("every_s", require_seconds("every_s", self.every_s, above=0.0))
        elif self.every_s is not None:
            raise PlanError("every_s: not allowed for times = 1; fix: remove it or raise times")

    def _check_time(self) -> None:
        if self.at_s is None and self.at_record is None:
            raise PlanError("at_s: missing; expected seconds after T0, or at_record")
        if self.at_s is not None and self.at_record is not None:
            raise PlanError("at_record: not allowed with at_s; fix: remove one")
        if self.at_s is not None:
            self._set("at_s", require_seconds("at_s", self.at_s))
        else:
            require_integer("at_record", self.at_record, 1, MAX_RECORD)
        if self.cycle is None:
            if self.phase is not None:
                raise PlanError(f"phase: not allowed without cycle; expected cycle: {' or '.join(CYCLES)}")
            return
        require_choice("cycle", self.cycle, CYCLES)
        if self.phase is None:
            raise PlanError("phase: missing for cycle; expected a number in [0, 1)")
        self._set("phase", require_number("phase", self.phase, "a number in [0, 1)", lambda value: 0 <= value < 1))

    def _check_parameters(self) -> None:
        for name, rule in RULES.items():
            value, parameter = getattr(self, name), self.definition.parameter(name)
            if value is None:
                if parameter is not None and parameter.required:
                    raise PlanError(f"{name}: missing for {self.action}; expected {rule.needs}")
            elif parameter is None:
                raise PlanError(f"{name}: not allowed: {self.action} {rule.surplus}; fix: remove it")
            else:
                self._set(name, rule.check(name, value))
        if self.jitter_ms is not None and self.jitter_ms > (self.delay_ms or 0.0):
            raise PlanError(f"jitter_ms: got {self.jitter_ms:g}; expected at most delay_ms, {self.delay_ms:g}")

    def _set(self, key: str, value: float | str) -> None:
        object.__setattr__(self, key, value)

    def first_s(self, rate: float) -> float:
        """Return the earliest time of the first injection in seconds after T0, at `rate` input records/s."""
        return self.at_s or 0.0 if self.at_record is None else (self.at_record - 1) / rate

    @property
    def definition(self) -> Action:
        """The action's declaration."""
        return ACTIONS[self.action]

    @property
    def max_processes(self) -> int:
        """Maximum number of affected processes; 0 if a resource is affected."""
        return self.count if self.resource is None else 0

    @property
    def resource(self) -> str | None:
        """Affected resource, or None if processes are chosen by seed."""
        return self.definition.resource_of(self.victim)

    @property
    def needs_hosts(self) -> bool:
        """Whether the fault affects whole hosts, so that other hosts must exist."""
        return self.definition.targets_hosts and self.resource is None


@dataclass(frozen=True)
class PlannedFault:
    """One occurrence of a fault; `index` numbers all occurrences of a plan by time, from 0.

    `fault` occurs once and its `at_s` is set. The injection happens in [`earliest_s`, `latest_s`] and is over, its undo
    included, by `end_s`; all in seconds after T0. `key`: key of the time in the plan, for messages, such as
    `faults.1.at_s`.
    """

    index: int
    fault: Fault
    earliest_s: float
    latest_s: float
    end_s: float
    key: str = field(default="", compare=False)

    def shift(self, delay_s: float) -> Self:
        """Return the same occurrence, `delay_s` later."""
        return replace(
            self,
            earliest_s=self.earliest_s + delay_s,
            latest_s=self.latest_s + delay_s,
            end_s=self.end_s + delay_s,
        )

    def describe_time(self) -> str:
        """Return the time in words: `at T0 + 41 s`, or the phase of a cycle."""
        if self.fault.cycle is None or self.fault.phase is None:
            return f"at T0 + {self.earliest_s:g} s"
        begins = f"the first {self.fault.cycle} cycle that begins after T0 + {self.earliest_s:g} s"
        return f"at phase {self.fault.phase:g} of {begins}"

    def describe(self, target: str | None = None) -> str:
        """Return the injection in words, on `target` (default: its resource or victim)."""
        target = target or self.fault.resource or self.fault.victim
        fault, given = self.fault, ((name, getattr(self.fault, name)) for name in _PARAMETER_TEXTS)
        size = "".join(
            _PARAMETER_TEXTS[name].format(value) for name, value in given if value not in (None, *_DEFAULT_VALUES)
        )
        length = "" if fault.duration_s is None else f" for {fault.duration_s:g} s"
        return f"{fault.action} {target}{size}{length} {self.describe_time()}"

    def key_of(self, name: str) -> str:
        """Return the plan's key of this fault's value `name`, for messages."""
        return f"{(self.key or f'faults.{self.index}.at_s').rpartition('.')[0]}.{name}"


@dataclass(frozen=True)
class FaultPlan:
    """Faults of one experiment, and the seed that chooses the victims.

    An empty plan is a control run. The order of `faults` only numbers them in messages. Raises PlanError, naming the
    key, if the plan is invalid.
    """

    faults: tuple[Fault, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "faults", tuple(self.faults))
        require_integer("seed", self.seed, 0, 2**63 - 1)

    def resolve(
        self, *, rate: float, checkpoint_interval_s: float, snapshot_interval_s: float
    ) -> tuple[PlannedFault, ...]:
        """Return all occurrences in chronological order, at `rate` input records/s and with cycle lengths in s.

        Raises PlanError, naming `faults.N.at_s` or `faults.N.at_record`, if two occurrences overlap.
        """
        lengths = {"checkpoint": checkpoint_interval_s, "snapshot": snapshot_interval_s}
        require_number("rate", rate, "a number of records per second above 0", lambda value: value > 0)
        found: list[PlannedFault] = []
        for position, fault in enumerate(self.faults):
            length_s = 0.0
            if fault.cycle is not None:
                length_s = require_seconds(f"{fault.cycle}_interval_s", lengths[fault.cycle], above=0.0)
            # A Python worker is busy once per interval.
            wait_s = WAIT_INTERVALS * checkpoint_interval_s if fault.needs_busy_victim else 0.0
            found += _occurrences(position, fault, float(rate), length_s, wait_s)
        found.sort(key=lambda one: (one.earliest_s, one.latest_s))
        for earlier, later in zip(found, found[1:], strict=False):
            if later.earliest_s <= earlier.end_s:
                raise PlanError(
                    f"{later.key}: got {later.earliest_s:g} s, which overlaps {earlier.key.rpartition('.')[0]}; "
                    f"expected more than {earlier.end_s:g} s, the latest end of the earlier fault"
                )
        return tuple(replace(one, index=index) for index, one in enumerate(found))

    def as_mapping(self) -> dict[str, Any]:
        """Return the plan as JSON values with defaults; `from_mapping` restores it."""
        return {"faults": [_as_mapping(fault) for fault in self.faults], "seed": self.seed}

    def to_json(self) -> str:
        """Return canonical JSON: sorted keys, no spaces, defaults included."""
        return json.dumps(self.as_mapping(), sort_keys=True, separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_mapping(cls, data: Any) -> Self:
        """Return the plan {"faults": [{…}], "seed": n}. Raises PlanError, naming the key."""
        values = require_known_keys("fault_plan", data, cls)
        listed = values.pop("faults", ())
        if isinstance(listed, str | bytes | Mapping) or not isinstance(listed, Iterable):
            raise PlanError(f"faults: got {type(listed).__name__}; expected a list")
        faults = []
        for index, item in enumerate(listed):
            try:
                faults.append(Fault(**require_known_keys("fault", item, Fault, ("victim", "action"))))
            except PlanError as error:
                raise PlanError(f"faults.{index}.{error}") from None
        return cls(faults=tuple(faults), **values)


def _as_mapping(fault: Fault) -> dict[str, Any]:
    """Return the fault's values; OPTIONAL_FIELDS are omitted while None, so that an early plan keeps its text."""
    return {name: value for name, value in asdict(fault).items() if value is not None or name not in OPTIONAL_FIELDS}


def require_window(planned: Sequence[PlannedFault], low_s: float, high_s: float, end_s: float) -> None:
    """Raise PlanError, naming the key, unless all injections are in [low_s, high_s] and over before end_s.

    All times in seconds after T0.
    """
    for one in planned:
        key, expectation = one.key or one.key_of("at_s"), f"expected a time in [{low_s:g}, {high_s:g}] s"
        if one.earliest_s < low_s:
            raise PlanError(f"{key}: got an injection at {one.earliest_s:g} s at the earliest; {expectation}")
        if one.latest_s > high_s:
            raise PlanError(f"{key}: got an injection at {one.latest_s:g} s at the latest; {expectation}")
        if one.end_s >= end_s:
            raise PlanError(
                f"{one.key_of('duration_s')}: got an end at {one.end_s:g} s; expected before {end_s:g} s; "
                "fix: shorten the fault or inject earlier"
            )


def _occurrences(position: int, fault: Fault, rate: float, length_s: float, wait_s: float) -> list[PlannedFault]:
    """Return all occurrences of one fault, with `index` still unset."""
    name, first_s = "at_s" if fault.at_record is None else "at_record", fault.first_s(rate)
    found = []
    for turn in range(fault.times):
        at_s = first_s + turn * (fault.every_s or 0.0)
        key = f"faults.{position}.{name}"
        try:
            single = replace(fault, at_s=at_s, at_record=None, every_s=None, times=1)
        except PlanError as error:
            raise PlanError(f"{key}: occurrence {turn + 1}: {error}") from None
        # The injection happens in the cycle after the current one. That one may be missed, so allow two.
        latest_s = at_s if fault.phase is None else at_s + 2 * length_s + fault.phase * length_s
        end_s = latest_s + wait_s + (fault.duration_s or 0.0)
        found.append(PlannedFault(-1, single, at_s, latest_s, end_s, key))
    return found
