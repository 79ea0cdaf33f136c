"""What a plan asks for, and the lengths and words that actions can take from it, with their limits and refusals."""

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
# What has a duration lasts, and is undone at its end.
DURATION = "duration_s"
# From whom a host is cut off: all other hosts, the broker's, this one, on which the driver runs, or those of workers.
PEERS = ("all", "kafka", "driver", "workers")
WAYS = ("both", "in", "out")


@dataclass(frozen=True)
class FaultSpec:
    """One fault of a plan: one action at one time, or several alike. `fault.plan.Fault` checks the values.

    Attributes:
        victim: Kind of process to hit.
        action: Fault action.
        at_s: Time in seconds after T0; exactly one of `at_s` and `at_record` is given.
        at_record: Intended send time of the n-th input record, counted from 1.
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
    def waits(self) -> bool:
        """Whether the act waits, from its instant on, until its victims are at work; they are chosen then."""
        return self.victim == "python_worker"

    @property
    def most_processes(self) -> int:
        """How many processes the act may touch; 0 for one that hits something else."""
        raise NotImplementedError


class Occurrence(Protocol):
    """One act of a plan, and its number within it, from 0; `fault.plan.PlannedFault` is one."""

    @property
    def index(self) -> int: ...

    @property
    def fault(self) -> FaultSpec: ...

    @property
    def latest_s(self) -> float: ...

    @property
    def end_s(self) -> float: ...

    def what(self, whom: str | None = None) -> str:
        """The act in words, done to `whom`; by default to what its action hits."""
        ...


@dataclass(frozen=True)
class Rule:
    """How the plan checks one of them. `check(key, value)` gives it, a length as a float, or raises PlanError.

    `needs` and `surplus` say of an action why its absence or presence is refused.
    """

    check: Callable[[str, Any], Any]
    needs: str
    surplus: str


@dataclass(frozen=True)
class Parameter:
    """A length or word that an action takes: `name`, a key of RULES, and what the short form of a fault means by it.

    `short` is in the unit of the key. `required`: a plan that leaves it out is refused.
    """

    name: str
    short: float | str | None = None
    required: bool = True


def known_keys(name: str, data: Any, kind: type, required: Iterable[str] = ()) -> dict[str, Any]:
    """`data` as arguments of the dataclass `kind`. Raises PlanError for an unknown or a missing key."""
    if not isinstance(data, Mapping):
        raise PlanError(f"{name}: not an object; give an object with named values")
    known = [item.name for item in fields(kind)]
    for key in data:
        if key not in known:
            raise PlanError(f"{' '.join(str(key).split())}: unknown key{suggest(str(key), known)}")
    for key in sorted(required):
        if key not in data:
            raise PlanError(f"{key}: missing; give it")
    return dict(data)


def choice(key: str, value: Any, known: Iterable[str]) -> None:
    """Raises PlanError, offering the nearest one, unless `value` is one of the `known` words."""
    if not isinstance(value, str) or value not in known:
        raise PlanError(f"{key}: {value!r} is not known{suggest(str(value), known)}")


def number(key: str, value: Any, wanted: str, fits: Callable[[float], bool]) -> float:
    """`value` as a float. Raises PlanError asking for `wanted` unless it is a finite number that `fits`."""
    problem = PlanError(f"{key}: {str(value)[:40]!r} is refused; give {wanted}")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise problem
    try:
        # Adding zero makes the negative zero a plain one, so that equal plans have equal texts.
        converted = float(value) + 0.0
    except OverflowError:
        raise problem from None
    if not math.isfinite(converted) or not fits(converted):
        raise problem
    return converted


def seconds(key: str, value: Any, above: float | None = None) -> float:
    """A number of seconds from 0, or from beyond `above`, to `MAX_SECONDS`. Raises PlanError."""
    if above is None:
        return number(key, value, f"seconds from 0 to {MAX_SECONDS:g}", lambda given: 0 <= given <= MAX_SECONDS)
    wanted = f"seconds above {above:g} and at most {MAX_SECONDS:g}"
    return number(key, value, wanted, lambda given: above < given <= MAX_SECONDS)


def integer(key: str, value: Any, lowest: int, highest: int) -> None:
    """Raises PlanError unless `value` is a whole number from `lowest` to `highest`."""
    if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= highest:
        raise PlanError(f"{key}: {str(value)[:40]!r} is refused; give a whole number from {lowest} to {highest}")


def suggest(name: str, known: Iterable[str]) -> str:
    """`; did you mean X?` for the known name that is most like `name`, else the list of all."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else f"; known: {', '.join(sorted(names))}"


def _duration(key: str, value: Any) -> float:
    return seconds(key, value, above=0.0)


def _delay(key: str, value: Any) -> float:
    wanted = f"a number of milliseconds above 0 and at most {MAX_DELAY_MS:g}"
    return number(key, value, wanted, lambda given: 0 < given <= MAX_DELAY_MS)


def _word(known: tuple[str, ...]) -> Callable[[str, Any], str]:
    def check(key: str, value: Any) -> str:
        choice(key, value, known)
        return str(value)

    return check


def _between(low: float, high: float, unit: str) -> Callable[[str, Any], float]:
    wanted = f"a number of {unit} from {low:g} to {high:g}"
    return lambda key, value: number(key, value, wanted, lambda given: low <= given <= high)


# In the order in which a plan checks them. A new one is also a field of `FaultSpec`.
RULES: Mapping[str, Rule] = {
    DURATION: Rule(_duration, "a duration in seconds; give one", "has no duration"),
    "delay_ms": Rule(_delay, "its size in milliseconds; give one", "delays nothing"),
    "jitter_ms": Rule(_delay, "by how many milliseconds it varies; give them", "delays nothing"),
    "loss_percent": Rule(
        _between(0.01, MAX_LOSS_PERCENT, "percent"),
        "how many percent of the packets are lost; give them",
        "loses nothing",
    ),
    "peer": Rule(_word(PEERS), "whom it is from; give one", "is not between hosts"),
    "way": Rule(_word(WAYS), "its direction; give one", "has no direction"),
    "mbit_s": Rule(_between(0.1, 100_000.0, "megabits a second"), "megabits a second; give them", "narrows nothing"),
    "cores": Rule(_between(1, 256, "cores"), "a number of cores; give one", "takes no cores"),
    "memory_mb": Rule(_between(1, 1_000_000, "MiB"), "a size in MiB; give one", "takes no memory"),
}
