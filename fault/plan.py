"""Fault plans: immutable, validated specifications of what to break, when and how.

A plan is what somebody asked for; `FaultPlan.resolve` turns it into the occurrences that a run carries out.
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

# Checkpoint intervals for which a victim that must be at work is waited for.
WAIT_INTERVALS = 3
MAX_COUNT = 64
MAX_TIMES = 1000
MAX_RECORD = 10**15
# The sizes of an act in words, in their order, and values that are not said.
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
# Fields that the first plans did not have.
OPTIONAL_FIELDS = frozenset({"jitter_ms", "loss_percent", "peer", "way", "mbit_s", "cores", "memory_mb"})


@dataclass(frozen=True)
class Fault(FaultSpec):
    """What a plan asks for, checked. Raises PlanError, naming the key, when a value is not valid."""

    def __post_init__(self) -> None:
        require_choice("victim", self.victim, ALLOWED)
        if isinstance(self.action, str) and self.action in REFUSED:
            raise PlanError(f"action: {self.action} is not done: {REFUSED[self.action]}")
        require_choice("action", self.action, ACTIONS)
        if self.action not in ALLOWED[self.victim]:
            raise PlanError(
                f"action: {self.action} cannot be done to {self.victim}; use {', '.join(ALLOWED[self.victim])}"
            )
        self._check_time()
        self._check_parameters()
        require_integer("count", self.count, 1, MAX_COUNT)
        if self.count > 1 and self.victim in SINGLETONS:
            raise PlanError(f"count: {self.count} is refused, there is one {self.victim}; use 1")
        require_integer("times", self.times, 1, MAX_TIMES)
        if self.times > 1:
            if self.every_s is None:
                raise PlanError("every_s: a recurring fault needs the seconds between two occurrences; give them")
            self._set("every_s", require_seconds("every_s", self.every_s, above=0.0))
        elif self.every_s is not None:
            raise PlanError("every_s: a fault that occurs once has no interval; leave it out, or raise times")

    def _check_time(self) -> None:
        if self.at_s is None and self.at_record is None:
            raise PlanError("at_s: missing; give at_s in seconds after T0, or at_record")
        if self.at_s is not None and self.at_record is not None:
            raise PlanError("at_record: at_s is given as well; leave one of them out")
        if self.at_s is not None:
            self._set("at_s", require_seconds("at_s", self.at_s))
        else:
            require_integer("at_record", self.at_record, 1, MAX_RECORD)
        if self.cycle is None:
            if self.phase is not None:
                raise PlanError(f"phase: given without its cycle; add cycle ({' or '.join(CYCLES)}), or leave it out")
            return
        require_choice("cycle", self.cycle, CYCLES)
        if self.phase is None:
            raise PlanError("phase: missing beside cycle; give a number from 0 to below 1")
        self._set(
            "phase", require_number("phase", self.phase, "a number from 0 to below 1", lambda value: 0 <= value < 1)
        )

    def _check_parameters(self) -> None:
        for name, rule in RULES.items():
            value, taken = getattr(self, name), self.definition.parameter(name)
            if value is None:
                if taken is not None and taken.required:
                    raise PlanError(f"{name}: missing for {self.action}; expected {rule.needs}")
            elif taken is None:
                raise PlanError(f"{name}: not allowed: {self.action} {rule.surplus}; fix: remove it")
            else:
                self._set(name, rule.check(name, value))
        if self.jitter_ms is not None and self.jitter_ms > (self.delay_ms or 0.0):
            raise PlanError(f"jitter_ms: {self.jitter_ms:g} is more than the delay of {self.delay_ms:g} ms; give less")

    def _set(self, key: str, value: float | str) -> None:
        object.__setattr__(self, key, value)

    def first_s(self, rate: float) -> float:
        """Seconds after T0 from which on the first act may come, at `rate` input records per second."""
        return self.at_s or 0.0 if self.at_record is None else (self.at_record - 1) / rate

    @property
    def definition(self) -> Action:
        """The action that its name stands for."""
        return ACTIONS[self.action]

    @property
    def max_processes(self) -> int:
        """How many processes the act may touch."""
        return self.count if self.resource is None else 0

    @property
    def resource(self) -> str | None:
        """What the act hits in words, where that is no process chosen by seed."""
        return self.definition.resource_of(self.victim)

    @property
    def needs_hosts(self) -> bool:
        """Whether it is done to whole hosts, so there must be others than this one."""
        return self.definition.targets_hosts and self.resource is None


@dataclass(frozen=True)
class PlannedFault:
    """One occurrence; `index` counts all occurrences of a plan in order of time, from 0.

    `fault` occurs once and its `at_s` is set. The act lies in [`earliest_s`, `latest_s`] and is over,
    its undo included, at `end_s` at the latest; all in seconds after T0. `key` names its place in
    the plan, such as `faults.1.at_s`, for messages.
    """

    index: int
    fault: Fault
    earliest_s: float
    latest_s: float
    end_s: float
    key: str = field(default="", compare=False)

    def shift(self, delay_s: float) -> Self:
        """The same occurrence, `require_seconds` later."""
        return replace(
            self,
            earliest_s=self.earliest_s + delay_s,
            latest_s=self.latest_s + delay_s,
            end_s=self.end_s + delay_s,
        )

    def describe_time(self) -> str:
        """The instant in words: `at T0 + 41 s`, or the phase of the cycle that the act waits for."""
        if self.fault.cycle is None or self.fault.phase is None:
            return f"at T0 + {self.earliest_s:g} s"
        begins = f"the first {self.fault.cycle} cycle that begins after T0 + {self.earliest_s:g} s"
        return f"at phase {self.fault.phase:g} of {begins}"

    def describe(self, target: str | None = None) -> str:
        """The act in words, done to `target`; by default to what its action hits."""
        target = target or self.fault.resource or self.fault.victim
        fault, given = self.fault, ((name, getattr(self.fault, name)) for name in _PARAMETER_TEXTS)
        size = "".join(
            _PARAMETER_TEXTS[name].format(value) for name, value in given if value not in (None, *_DEFAULT_VALUES)
        )
        length = "" if fault.duration_s is None else f" for {fault.duration_s:g} s"
        return f"{fault.action} {target}{size}{length} {self.describe_time()}"

    def key_of(self, name: str) -> str:
        """The plan's key of another value of the same fault."""
        return f"{(self.key or f'faults.{self.index}.at_s').rpartition('.')[0]}.{name}"


@dataclass(frozen=True)
class FaultPlan:
    """What to break in one experiment, and the seed that chooses the victims.

    An empty plan is a control. The order of `faults` means nothing but the numbers in messages.
    Raises PlanError, naming the key, when it is not valid.
    """

    faults: tuple[Fault, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "faults", tuple(self.faults))
        require_integer("seed", self.seed, 0, 2**63 - 1)

    def resolve(
        self, *, rate: float, checkpoint_interval_s: float, snapshot_interval_s: float
    ) -> tuple[PlannedFault, ...]:
        """Every occurrence in order of time, at `rate` input records/s and with cycles of these lengths in s.

        Raises PlanError naming `faults.N.at_s` (or what stands in its place) when two of them overlap.
        """
        lengths = {"checkpoint": checkpoint_interval_s, "snapshot": snapshot_interval_s}
        require_number("rate", rate, "a number of records per second above 0", lambda value: value > 0)
        found: list[PlannedFault] = []
        for position, fault in enumerate(self.faults):
            length_s = 0.0
            if fault.cycle is not None:
                length_s = require_seconds(f"{fault.cycle}_interval_s", lengths[fault.cycle], above=0.0)
            # A Python worker is waited for until it is at work, which it is once in every interval.
            wait_s = WAIT_INTERVALS * checkpoint_interval_s if fault.needs_busy_victim else 0.0
            found += _occurrences(position, fault, float(rate), length_s, wait_s)
        found.sort(key=lambda one: (one.earliest_s, one.latest_s))
        for earlier, later in zip(found, found[1:], strict=False):
            if later.earliest_s <= earlier.end_s:
                raise PlanError(
                    f"{later.key}: {later.earliest_s:g} s after T0 overlaps {earlier.key.rpartition('.')[0]}, "
                    f"which may last until {earlier.end_s:g} s; leave room between them"
                )
        return tuple(replace(one, index=index) for index, one in enumerate(found))

    def as_mapping(self) -> dict[str, Any]:
        """The plan as JSON values, defaults written out; `from_mapping` gives the same plan again."""
        return {"faults": [_as_mapping(fault) for fault in self.faults], "seed": self.seed}

    def to_json(self) -> str:
        """Canonical JSON: sorted keys, no spaces, defaults written out."""
        return json.dumps(self.as_mapping(), sort_keys=True, separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_mapping(cls, data: Any) -> Self:
        """The plan {"faults": [{…}], "seed": n}. Raises PlanError, naming the key."""
        values = require_known_keys("fault_plan", data, cls)
        listed = values.pop("faults", ())
        if isinstance(listed, str | bytes | Mapping) or not isinstance(listed, Iterable):
            raise PlanError("faults: not a list of faults; give a list")
        faults = []
        for index, item in enumerate(listed):
            try:
                faults.append(Fault(**require_known_keys("fault", item, Fault, ("victim", "action"))))
            except PlanError as error:
                raise PlanError(f"faults.{index}.{error}") from None
        return cls(faults=tuple(faults), **values)


def _as_mapping(fault: Fault) -> dict[str, Any]:
    """Its values. Those that the first plans did not have are left out where they are empty: equal plans stay equal."""
    return {name: value for name, value in asdict(fault).items() if value is not None or name not in OPTIONAL_FIELDS}


def require_window(planned: Sequence[PlannedFault], low_s: float, high_s: float, end_s: float) -> None:
    """Raises PlanError, naming the key, unless every act lies in [low_s, high_s] and is over before end_s.

    All in seconds after T0.
    """
    for one in planned:
        at, window = one.key or one.key_of("at_s"), f"the window [{low_s:g}, {high_s:g}]; move it"
        if one.earliest_s < low_s:
            raise PlanError(f"{at}: the act may come {one.earliest_s:g} s after T0, before {window}")
        if one.latest_s > high_s:
            raise PlanError(f"{at}: the act may come {one.latest_s:g} s after T0, past {window}")
        if one.end_s >= end_s:
            raise PlanError(
                f"{one.key_of('duration_s')}: the act may last until {one.end_s:g} s after T0, "
                f"past the end at {end_s:g} s; shorten it or move it"
            )


def _occurrences(position: int, fault: Fault, rate: float, length_s: float, wait_s: float) -> list[PlannedFault]:
    """All occurrences of one fault; `index` is not set yet."""
    name, first_s = "at_s" if fault.at_record is None else "at_record", fault.first_s(rate)
    found = []
    for turn in range(fault.times):
        at_s = first_s + turn * (fault.every_s or 0.0)
        key = f"faults.{position}.{name}"
        try:
            single = replace(fault, at_s=at_s, at_record=None, every_s=None, times=1)
        except PlanError as error:
            raise PlanError(f"{key}: occurrence {turn + 1} is refused: {error}") from None
        # The cycle that runs at at_s must end, the next one is watched as it begins, and the act
        # follows in it; a cycle may also be missed once, so two of them are allowed for.
        latest_s = at_s if fault.phase is None else at_s + 2 * length_s + fault.phase * length_s
        end_s = latest_s + wait_s + (fault.duration_s or 0.0)
        found.append(PlannedFault(-1, single, at_s, latest_s, end_s, key))
    return found
