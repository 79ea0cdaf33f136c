"""Faults of a plan, and the parameters of actions with their limits."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Protocol

from fault.errors import PlanError

MAX_SECONDS = 1e7
MAX_DELAY_MS = 600_000.0
MAX_LOSS_PERCENT = 90.0
# Parameter for the duration of a fault; an action that has it is undone afterwards.
DURATION = "duration_s"
# Peers of a partition: all other hosts, the host of the broker, this host (driver), or the hosts of workers.
PEERS = ("all", "kafka", "driver", "workers")
WAYS = ("both", "in", "out")


@dataclass(frozen=True)
class FaultSpec:
    """One fault of a plan: an action, injected once or repeatedly. `fault.plan.Fault` checks the values.

    Attributes:
        victim: Kind of process to hit.
        action: Fault action.
        at_s: Time in seconds after T0, the start of the load; exactly one of `at_s` and `at_record` is given.
        at_record: Number n, from 1, of an input record; the time is that record's intended send time.
        cycle: Wait for the first `checkpoint` or `snapshot` cycle that starts at or after that time.
        phase: Position in that cycle, in [0, 1).
        duration_s: Duration, for actions that are undone.
        delay_ms: Delay per direction, at most 600,000 ms.
        count: Number of victims at once, 1 to 64; 1 for `driver` and `kafka`.
        every_s: Seconds between occurrences, if `times` > 1.
        times: Number of occurrences, 1 to 1,000.
        peer: Other side of a partition: `all` (default), `kafka`, `driver` or `workers`.
        way: Blocked direction: `both` (default), `in` or `out`.
        mbit_s: Remaining rate, 0.1 to 100,000 Mbit/s.
        cores: Busy cores, 1 to 256.
        memory_mb: Allocated memory in MiB, 1 to 1,000,000.
        jitter_ms: Random variation of the delay, at most `delay_ms`.
        loss_percent: Share of lost packets, 0.01 to 90 %.
    """

    victim: str
    action: str
    at_s: float | None = None
    at_record: int | None = None
    cycle: str | None = None
    phase: float | None = None
    duration_s: float | None = None
    delay_ms: float | None = None
    count: int = 1
    every_s: float | None = None
    times: int = 1
    peer: str | None = None
    way: str | None = None
    mbit_s: float | None = None
    cores: float | None = None
    memory_mb: float | None = None
    jitter_ms: float | None = None
    loss_percent: float | None = None

    @property
    def needs_busy_victim(self) -> bool:
        """Whether the injection waits until its victims are busy, and chooses them then."""
        return self.victim == "python_worker"

    @property
    def max_processes(self) -> int:
        """Maximum number of affected processes; 0 if the fault affects something else, such as connections."""
        raise NotImplementedError


class Occurrence(Protocol):
    """One occurrence of a planned fault, numbered from 0; implemented by `fault.plan.PlannedFault`."""

    @property
    def index(self) -> int: ...

    @property
    def fault(self) -> FaultSpec: ...

    @property
    def latest_s(self) -> float: ...

    @property
    def end_s(self) -> float: ...

    def describe(self, target: str | None = None) -> str:
        """Return the injection in words, on `target` (default: the action's resource or victim)."""
        ...


@dataclass(frozen=True)
class Rule:
    """Check of one parameter.

    `check(key, value)` returns the value (numbers as float) or raises PlanError. `needs`: text of the error if the
    parameter is missing; `surplus`: if the action does not support it.
    """

    check: Callable[[str, Any], Any]
    needs: str
    surplus: str


@dataclass(frozen=True)
class Parameter:
    """A parameter of an action.

    `name`: a key of RULES. `default`: its value in the short form of a fault, which gives only victim, action and time.
    `required`: a plan must give it.
    """

    name: str
    default: float | str | None = None
    required: bool = True


def require_known_keys(name: str, data: Any, kind: type, required: Iterable[str] = ()) -> dict[str, Any]:
    """Return `data` as arguments of dataclass `kind`. Raises PlanError for an unknown or missing key."""
    if not isinstance(data, Mapping):
        raise PlanError(f"{name}: got {type(data).__name__}; expected an object")
    known = [item.name for item in fields(kind)]
    for key in data:
        if key not in known:
            raise PlanError(f"{' '.join(str(key).split())}: unknown key{suggest(str(key), known)}")
    for key in sorted(required):
        if key not in data:
            raise PlanError(f"{key}: missing; expected a value")
    return dict(data)


def require_choice(key: str, value: Any, known: Iterable[str]) -> None:
    """Raise PlanError, with a suggestion, unless `value` is one of `known`."""
    if not isinstance(value, str) or value not in known:
        raise PlanError(f"{key}: got {value!r}; expected a known value{suggest(str(value), known)}")


def require_number(key: str, value: Any, wanted: str, fits: Callable[[float], bool]) -> float:
    """Return `value` as a float. Raises PlanError, asking for `wanted`, unless it is finite and `fits`."""
    problem = PlanError(f"{key}: got {str(value)[:40]!r}; expected {wanted}")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise problem
    try:
        # Adding zero turns -0.0 into 0.0, so that equal plans have equal texts.
        converted = float(value) + 0.0
    except OverflowError:
        raise problem from None
    if not math.isfinite(converted) or not fits(converted):
        raise problem
    return converted


def require_seconds(key: str, value: Any, above: float | None = None) -> float:
    """Return seconds in [0, MAX_SECONDS], or in (`above`, MAX_SECONDS]. Raises PlanError."""
    if above is None:
        return require_number(key, value, f"seconds from 0 to {MAX_SECONDS:g}", lambda given: 0 <= given <= MAX_SECONDS)
    wanted = f"seconds above {above:g} and at most {MAX_SECONDS:g}"
    return require_number(key, value, wanted, lambda given: above < given <= MAX_SECONDS)


def require_integer(key: str, value: Any, lowest: int, highest: int) -> None:
    """Raise PlanError unless `value` is an integer from `lowest` to `highest`."""
    if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= highest:
        raise PlanError(f"{key}: got {str(value)[:40]!r}; expected an integer from {lowest} to {highest}")


# Flink's names of victims.
_ALIASES = {"taskmanager": "executor", "jobmanager": "driver"}


def suggest(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean X?` with the known name closest to `name`, else `; known: ` and all names."""
    names = list(known)
    near = difflib.get_close_matches(_ALIASES.get(name.lower(), name), names, n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else f"; known: {', '.join(sorted(names))}"


def _duration(key: str, value: Any) -> float:
    return require_seconds(key, value, above=0.0)


def _delay(key: str, value: Any) -> float:
    wanted = f"a number of milliseconds above 0 and at most {MAX_DELAY_MS:g}"
    return require_number(key, value, wanted, lambda given: 0 < given <= MAX_DELAY_MS)


def _one_of(known: tuple[str, ...]) -> Callable[[str, Any], str]:
    def check(key: str, value: Any) -> str:
        require_choice(key, value, known)
        return str(value)

    return check


def _between(low: float, high: float, unit: str) -> Callable[[str, Any], float]:
    wanted = f"a number of {unit} from {low:g} to {high:g}"
    return lambda key, value: require_number(key, value, wanted, lambda given: low <= given <= high)


# In the order of a plan's checks. Each name is also a field of `FaultSpec`.
RULES: Mapping[str, Rule] = {
    DURATION: Rule(_duration, "seconds", "has no duration"),
    "delay_ms": Rule(_delay, "milliseconds", "has no delay"),
    "jitter_ms": Rule(_delay, "milliseconds", "has no delay"),
    "loss_percent": Rule(
        _between(0.01, MAX_LOSS_PERCENT, "percent"),
        "percent of lost packets",
        "has no packet loss",
    ),
    "peer": Rule(_one_of(PEERS), "a peer", "has no peer"),
    "way": Rule(_one_of(WAYS), "a direction", "has no direction"),
    "mbit_s": Rule(_between(0.1, 100_000.0, "Mbit/s"), "Mbit/s", "has no rate limit"),
    "cores": Rule(_between(1, 256, "cores"), "a number of cores", "uses no cores"),
    "memory_mb": Rule(_between(1, 1_000_000, "MiB"), "MiB", "uses no memory"),
}
