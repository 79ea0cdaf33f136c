"""Words for people: names that were meant, texts in an order that a person expects, one line of a message."""

from __future__ import annotations

import difflib
import json
import math
import re
import sys
from collections.abc import Callable, Collection, Iterable
from typing import Any

from fault import fault_spec
from faultline.system.errors import ConfigError

# Says a line to whoever waits, on standard error or in a task's log.
Progress = Callable[[str], None]


def progress(text: object) -> None:
    """One line of progress on standard error."""
    print(f"faultline: {text}", file=sys.stderr, flush=True)


def nearest_name(name: str, known: Iterable[Any], *, cutoff: float = 0.6) -> str | None:
    """The known name that is most like `name`; None when none is like it by `cutoff` (0: any, 1: equal)."""
    found = difflib.get_close_matches(name, [str(item) for item in known], n=1, cutoff=cutoff)
    return found[0] if found else None


def finite_or_none(value: float | None) -> float | None:
    """The value as JSON can hold it: None for one that has no end."""
    return value if value is not None and math.isfinite(value) else None


def suggest(name: str, known: Iterable[Any]) -> str:
    """`; did you mean X?` for the nearest known name, else the list of known names, or that there is none."""
    names = [str(item) for item in known]
    return fault_spec.suggest(name, names) if names else "; there is none yet"


def require_keys(where: str, given: Iterable[Any], known: Collection[str]) -> None:
    """Raises ConfigError, `where` and the key first, for one of the `given` that is not `known`."""
    for key in given:
        if key not in known:
            raise ConfigError(f"{where}{key}: is not known{suggest(str(key), known)}")


def sort_key(value: Any) -> tuple[int, float, str]:
    """A key by which whatever a file holds can be sorted: nothing first, then numbers by size, then texts."""
    if value is None:
        return (0, 0.0, "")
    if isinstance(value, int | float) and not isinstance(value, bool):
        return (1, float(value), "")
    return (2, 0.0, natural_key(value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)))


def natural_key(text: str) -> str:
    """A text to sort by: numbers in it count by size, so that q2 stands before q10; equal for equal texts only."""
    return f"{re.sub('[0-9]+', lambda digits: digits.group().zfill(20), text)} {text}"


def pluralize(number: int, noun: str) -> str:
    """A number of things, such as `1 experiment` or `1,024 experiments`."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def one_line(text: object) -> str:
    """The text on one line, with single spaces."""
    return " ".join(str(text).split())
