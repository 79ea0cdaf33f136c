"""The lengths and words that actions can take from a plan, each with its limits and its refusals."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fault.values import choice, number, seconds

MAX_SECONDS = 1e7
MAX_DELAY_MS = 600_000.0
MAX_LOSS_PERCENT = 90.0
# What has a duration lasts, and is undone at its end.
DURATION = "duration_s"
# From whom a host is cut off: all other hosts, the broker's, this one, on which the driver runs, or those of workers.
PEERS = ("all", "kafka", "driver", "workers")
WAYS = ("both", "in", "out")


@dataclass(frozen=True)
class Rule:
    """How the plan checks one of them. `check(key, value)` gives it, a length as a float, or raises PlanError.

    `missing` and `surplus` say, with `{action}` in them, why its absence or presence is refused.
    """

    check: Callable[[str, Any], Any]
    missing: str
    surplus: str


@dataclass(frozen=True)
class Parameter:
    """A length or word that an action takes: `name`, a key of RULES, and what the short form of a fault means by it.

    `short` is in the unit of the key. `required`: a plan that leaves it out is refused.
    """

    name: str
    short: float | str | None = None
    required: bool = True


def _duration(key: str, value: Any) -> float:
    return seconds(key, value, MAX_SECONDS, above=0.0)


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


# In the order in which a plan checks them. A new one is also a field of `fault.plan.Fault`.
RULES: Mapping[str, Rule] = {
    DURATION: Rule(
        _duration,
        missing="a {action} needs a duration in seconds; give one",
        surplus="the action {action} has no duration; leave it out",
    ),
    "delay_ms": Rule(
        _delay,
        missing="a {action} needs its size in milliseconds; give one",
        surplus="the action {action} delays nothing; leave it out",
    ),
    "jitter_ms": Rule(
        _delay,
        missing="a {action} needs by how many milliseconds it varies; give them",
        surplus="the action {action} delays nothing; leave it out",
    ),
    "loss_percent": Rule(
        _between(0.01, MAX_LOSS_PERCENT, "percent"),
        missing="a {action} needs how many percent of the packets are lost; give them",
        surplus="the action {action} loses nothing; leave it out",
    ),
    "peer": Rule(
        _word(PEERS),
        missing="a {action} needs whom it is from; give one",
        surplus="the action {action} is not between hosts; leave it out",
    ),
    "way": Rule(
        _word(WAYS),
        missing="a {action} needs its direction; give one",
        surplus="the action {action} has no direction; leave it out",
    ),
    "mbit_s": Rule(
        _between(0.1, 100_000.0, "megabits a second"),
        missing="a {action} needs megabits a second; give them",
        surplus="the action {action} narrows nothing; leave it out",
    ),
    "cores": Rule(
        _between(1, 256, "cores"),
        missing="a {action} needs a number of cores; give one",
        surplus="the action {action} takes no cores; leave it out",
    ),
    "memory_mb": Rule(
        _between(1, 1_000_000, "MiB"),
        missing="a {action} needs a size in MiB; give one",
        surplus="the action {action} takes no memory; leave it out",
    ),
}
