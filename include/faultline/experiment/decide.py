"""Question of a sequential sweep: figure, axis, smallest relevant difference and budget."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from faultline.system.errors import ConfigError
from faultline.system.text import require_keys, suggest

ERROR = 0.05
# More than a year is a typing error.
MOST_HOURS = 10_000
EXAMPLE = '{"figure": "cpu_cores.total", "along": "checkpoint_interval_s", "smallest": 0.1, "experiments": 60}'


@dataclass(frozen=True)
class Decide:
    """Form field `decide`.

    Attributes:
        figure: Path of a figure with a better direction; for recoveries, only `recovery.macro_s`.
        along: Axis with at least two values; neighbouring values are compared.
        smallest: Smallest difference that matters, as a share: 0.1 is 10 %.
        error: Accepted probability that any statement about the sweep is wrong.
        experiments: Budget as a number of experiments; invalid attempts are not counted.
        hours: Budget in hours from the start of the run; may replace or supplement `experiments`.
    """

    figure: str
    along: str
    smallest: float
    error: float = ERROR
    experiments: int | None = None
    hours: float | None = None


def parse_decide(given: Any, *, figures: Collection[str], axes: Mapping[str, Sequence[Any]]) -> Decide | None:
    """Return the form field `decide`, or None if it is empty.

    `figures`: allowed figures. `axes`: axes of the sweep with their values. Raises ConfigError with one line that names
    the key and the fix.
    """
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise ConfigError(f"decide: got {given!r}; expected an object such as {EXAMPLE}")
    _require_keys(given)
    figure, along = given["figure"], given["along"]
    for key, value in (("figure", figure), ("along", along)):
        if not isinstance(value, str):
            raise ConfigError(f"decide.{key}: got {value!r}; expected a name, as in {EXAMPLE}")
    if figure not in figures:
        raise ConfigError(f"decide.figure: got {figure!r}; expected a comparable figure{suggest(str(figure), figures)}")
    if along not in axes:
        raise ConfigError(f"decide.along: got {along!r}; expected an axis of this sweep{suggest(str(along), axes)}")
    if len(axes[along]) < 2:
        raise ConfigError(f"decide.along: got {along} with one value; expected an axis with at least two")
    return Decide(figure, along, *_shares(given), *_budget(given))


def _require_keys(given: Mapping[str, Any]) -> None:
    require_keys("decide.", given, [field.name for field in fields(Decide)])
    for key in ("figure", "along", "smallest"):
        if given.get(key) is None:
            raise ConfigError(f"decide.{key}: missing; expected a value, as in {EXAMPLE}")


def _shares(given: Mapping[str, Any]) -> tuple[float, float]:
    """Return the smallest difference that matters, and the error."""
    smallest = _number("smallest", given["smallest"])
    if not 0 < smallest <= 1:
        raise ConfigError(f"decide.smallest: got {smallest:g}; expected a share in (0, 1], such as 0.1")
    error = ERROR if given.get("error") is None else _number("error", given["error"])
    if not 0 < error < 0.5:
        raise ConfigError(f"decide.error: got {error:g}; expected a value in (0, 0.5), such as {ERROR}")
    return smallest, error


def _budget(given: Mapping[str, Any]) -> tuple[int | None, float | None]:
    """Return experiments and hours."""
    experiments, hours = (given.get(key) for key in ("experiments", "hours"))
    if experiments is None and hours is None:
        raise ConfigError("decide: missing budget; expected `experiments`, `hours` or both")
    if experiments is not None:
        number = _number("experiments", experiments)
        if number < 1 or number != int(number):
            raise ConfigError(f"decide.experiments: got {experiments!r}; expected a whole number above 0, such as 60")
        experiments = int(number)
    if hours is not None:
        hours = _number("hours", hours)
        if not 0 < hours <= MOST_HOURS:
            raise ConfigError(f"decide.hours: got {hours:g}; expected a value in (0, {MOST_HOURS:,}], such as 2.5")
    return experiments, hours


def _number(key: str, value: Any) -> float:
    try:
        number = math.nan if isinstance(value, bool) or not isinstance(value, int | float) else float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ConfigError(f"decide.{key}: got {repr(value)[:40]}; expected a finite number")
    return number
