"""The lengths that actions can take from a plan, each with its limits and its refusals."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fault.values import number, seconds

MAX_SECONDS = 1e7
MAX_DELAY_MS = 600_000.0
# What has a duration lasts, and is undone at its end.
DURATION = "duration_s"


@dataclass(frozen=True)
class Rule:
    """How the plan checks one length. `check(key, value)` gives it as a float or raises PlanError.

    `missing` and `surplus` say, with `{action}` in them, why its absence or presence is refused.
    """

    check: Callable[[str, Any], float]
    missing: str
    surplus: str


@dataclass(frozen=True)
class Parameter:
    """A length that an action takes: `name`, a key of RULES, and what the short form of a fault means by it.

    `short` is in the unit of the key. `required`: a plan that leaves it out is refused.
    """

    name: str
    short: float | None = None
    required: bool = True


def _duration(key: str, value: Any) -> float:
    return seconds(key, value, MAX_SECONDS, above=0.0)


def _delay(key: str, value: Any) -> float:
    wanted = f"a number of milliseconds above 0 and at most {MAX_DELAY_MS:g}"
    return number(key, value, wanted, lambda given: 0 < given <= MAX_DELAY_MS)


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
}
