"""Checks of single values of a plan; each refusal is one line that begins with the key."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import Any

from fault.errors import PlanError


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


def seconds(key: str, value: Any, highest: float, above: float | None = None) -> float:
    """A number of seconds from 0, or from beyond `above`, to `highest`. Raises PlanError."""
    if above is None:
        return number(key, value, f"seconds from 0 to {highest:g}", lambda given: 0 <= given <= highest)
    wanted = f"seconds above {above:g} and at most {highest:g}"
    return number(key, value, wanted, lambda given: above < given <= highest)


def integer(key: str, value: Any, lowest: int, highest: int) -> None:
    """Raises PlanError unless `value` is a whole number from `lowest` to `highest`."""
    if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= highest:
        raise PlanError(f"{key}: {str(value)[:40]!r} is refused; give a whole number from {lowest} to {highest}")


def suggest(name: str, known: Iterable[str]) -> str:
    """`; did you mean X?` for the known name that is most like `name`, else the list of all."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else f"; known: {', '.join(sorted(names))}"
