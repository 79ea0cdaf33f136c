"""Text for users: spelling suggestions, natural sort order, and single-line messages."""

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

# Reports a progress line, on standard error or in a task's log.
Progress = Callable[[str], None]


def progress(text: object) -> None:
    """Print one progress line on standard error."""
    print(f"faultline: {text}", file=sys.stderr, flush=True)


def nearest_name(name: str, known: Iterable[Any], *, cutoff: float = 0.6) -> str | None:
    """Return the known name closest to `name`; None below similarity `cutoff` (0: any, 1: equal)."""
    found = difflib.get_close_matches(name, [str(item) for item in known], n=1, cutoff=cutoff)
    return found[0] if found else None


def finite_or_none(value: float | None) -> float | None:
    """Return the value for JSON: None if it is not finite."""
    return value if value is not None and math.isfinite(value) else None


def suggest(name: str, known: Iterable[Any]) -> str:
    """Return `; did you mean X?` for the nearest known name, else the list of names, or that there is none."""
    names = [str(item) for item in known]
    return fault_spec.suggest(name, names) if names else "; there is none yet"


def require_keys(where: str, given: Iterable[Any], known: Collection[str]) -> None:
    """Raise ConfigError, starting with `where` and the key, for a key that is not `known`."""
    for key in given:
        if key not in known:
            raise ConfigError(f"{where}{key}: unknown key{suggest(str(key), known)}")


def sort_key(value: Any) -> tuple[int, float, str]:
    """Return a sort key for any JSON value: None first, then numbers, then texts."""
    if value is None:
        return (0, 0.0, "")
    if isinstance(value, int | float) and not isinstance(value, bool):
        return (1, float(value), "")
    return (2, 0.0, natural_key(value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)))


def natural_key(text: str) -> str:
    """Return a sort key by which numbers in a text compare by value: q2 before q10. Equal for equal texts only."""
    return f"{re.sub('[0-9]+', lambda digits: digits.group().zfill(20), text)} {text}"


def pluralize(number: int, noun: str) -> str:
    """Return a number with its noun, such as `1 experiment` or `1,024 experiments`."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def one_line(text: object) -> str:
    """Return the text on one line, with single spaces."""
    return " ".join(str(text).split())
