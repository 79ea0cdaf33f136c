"""Fault plans: immutable, validated specifications of what to break, when and how."""

from __future__ import annotations

import difflib
import json
import math
import signal
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from fault.errors import PlanError
from fault.identity import ROLES

# The signal that each action sends. What undoes an action stands in `UNDO`.
ACTIONS: Mapping[str, signal.Signals] = {
    "kill": signal.SIGKILL,
    "term": signal.SIGTERM,
    "pause": signal.SIGSTOP,
}
UNDO: Mapping[str, signal.Signals] = {"pause": signal.SIGCONT}
MAX_COUNT = 64


@dataclass(frozen=True)
class Fault:
    """One act: `action` on `count` processes of the role `victim`, `at_s` seconds after T0.

    `duration_s` is the length of a pause in seconds, and None for the other actions.
    Raises PlanError, naming the key, when a value is not valid.
    """

    victim: str
    action: str
    at_s: float
    duration_s: float | None = None
    count: int = 1

    def __post_init__(self) -> None:
        _choice("victim", self.victim, ROLES)
        _choice("action", self.action, ACTIONS)
        object.__setattr__(self, "at_s", _seconds("at_s", self.at_s, lowest=0.0))
        _integer("count", self.count, 1, MAX_COUNT)
        if self.action == "pause":
            if self.duration_s is None:
                raise PlanError("duration_s: a pause needs a duration in seconds; give one")
            duration = _seconds("duration_s", self.duration_s, lowest=0.0)
            if duration == 0:
                raise PlanError("duration_s: a pause of 0 s is none; give more than 0 seconds")
            object.__setattr__(self, "duration_s", duration)
        elif self.duration_s is not None:
            raise PlanError(f"duration_s: the action {self.action} has no duration; leave it out")

    @property
    def signum(self) -> signal.Signals:
        """The signal that the action sends."""
        return ACTIONS[self.action]

    @property
    def undo_signum(self) -> signal.Signals | None:
        """The signal that undoes the action; None where nothing can."""
        return UNDO.get(self.action)

    @property
    def end_s(self) -> float:
        """Seconds after T0 when the act, its undo included, is over."""
        return self.at_s + (self.duration_s or 0.0)


@dataclass(frozen=True)
class FaultPlan:
    """The faults of one experiment in order of time, and the seed that chooses their victims.

    An empty plan is a control. Raises PlanError, naming the key, when it is not valid.
    """

    faults: tuple[Fault, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        _integer("seed", self.seed, 0, 2**63 - 1)
        for index in range(1, len(self.faults)):
            earlier, later = self.faults[index - 1], self.faults[index]
            if later.at_s <= earlier.end_s:
                raise PlanError(
                    f"faults.{index}.at_s: {later.at_s:g} overlaps the fault before, which ends at {earlier.end_s:g}; "
                    "order the faults by time and leave room between them"
                )

    def require_within(self, end_s: float) -> None:
        """Raises PlanError unless every fault, its undo included, lies before T0 + `end_s`."""
        for fault in self.faults:
            if fault.end_s >= end_s:
                key = "duration_s" if fault.at_s < end_s else "at_s"
                raise PlanError(f"{key}: the fault ends {fault.end_s:g} s after T0, past the end at {end_s:g}; move it")

    def to_json(self) -> str:
        """Canonical JSON: sorted keys, no spaces, every default written out."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The plan that `to_json` wrote. Raises PlanError, naming the key."""
        try:
            data = json.loads(text)
        except ValueError as error:
            raise PlanError(f"fault_plan: not JSON ({error}); give an object") from None
        return cls.from_mapping(data)

    @classmethod
    def from_mapping(cls, data: Any) -> Self:
        """The plan {"faults": [{…}], "seed": n}. Raises PlanError, naming the key."""
        values = _known_keys("fault_plan", data, cls)
        listed = values.pop("faults", ())
        if isinstance(listed, str | bytes | Mapping) or not isinstance(listed, Iterable):
            raise PlanError("faults: not a list of faults; give a list")
        faults = []
        for index, item in enumerate(listed):
            try:
                faults.append(Fault(**_known_keys("fault", item, Fault, {"victim", "action", "at_s"})))
            except PlanError as error:
                raise PlanError(f"faults.{index}.{error}") from None
        return cls(faults=tuple(faults), **values)


def _known_keys(name: str, data: Any, kind: type, required: Iterable[str] = ()) -> dict[str, Any]:
    if not isinstance(data, Mapping):
        raise PlanError(f"{name}: not an object; give an object with named values")
    known = [item.name for item in fields(kind)]
    for key in data:
        if key not in known:
            raise PlanError(f"{key}: unknown key{_nearest(str(key), known)}")
    for key in sorted(required):
        if key not in data:
            raise PlanError(f"{key}: missing; give it")
    return dict(data)


def _choice(key: str, value: Any, known: Mapping[str, Any]) -> None:
    if not isinstance(value, str) or value not in known:
        raise PlanError(f"{key}: {value!r} is not known{_nearest(str(value), known)}")


def _nearest(name: str, known: Iterable[str]) -> str:
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else f"; known: {', '.join(sorted(names))}"


def _seconds(key: str, value: Any, lowest: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < lowest:
        raise PlanError(f"{key}: {value!r} is refused; give a finite number of seconds, at least {lowest:g}")
    return float(value)


def _integer(key: str, value: Any, lowest: int, highest: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= highest:
        raise PlanError(f"{key}: {value!r} is refused; give a whole number from {lowest} to {highest}")
