"""Text form of axes: `1, 8`, `1..32 ×2`, `10..50 +20`, `[1, 8]`; several as `seed=1, 2; rate=100, 500`.

Forms, the API and the command line accept the same text; the API also accepts lists.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args, get_origin

from faultline.experiment.config import Configuration
from faultline.experiment.named_settings import is_setting, require_known
from faultline.system.errors import ConfigError

# Upper bound on the values of an axis.
MOST_VALUES = 1024
EXAMPLE = "seed=1, 2, 3; rate=100..1600 ×4"
_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_RANGE = re.compile(rf"(?P<low>{_NUMBER})\s*\.\.\s*(?P<high>{_NUMBER})(?:\s*(?P<sign>[x×*+])\s*(?P<step>{_NUMBER}))?")
_PAIRS = {"[": "]", "{": "}"}


def parse_axis(name: str, given: Any) -> list[Any]:
    """Return the values of the axis `name`, given as a list, a text or a single value.

    Raises ConfigError naming the axis, also if it is empty or repeats a value.
    """
    require_known(name, Configuration.model_fields)
    if isinstance(given, str):
        values = _from_text(name, given)
    else:
        values = list(given) if isinstance(given, list | tuple) else [given]
    if not values:
        raise ConfigError(f"{name}: got an empty axis; expected at least one value")
    seen = set()
    for value in values:
        # JSON distinguishes 1 from 1.0, but both are the same experiment.
        key = float(value) if _is_number(value) else json.dumps(value, sort_keys=True, default=str)
        if key in seen:
            raise ConfigError(f"{name}: got {value} twice; fix: remove one")
        seen.add(key)
    return values


def parse_axes(given: Any) -> dict[str, list[Any]]:
    """Return axes by name, from an object or from a text such as EXAMPLE.

    Raises ConfigError naming the axis, or `axes`.
    """
    if given is None:
        return {}
    if isinstance(given, Mapping):
        return {str(name): parse_axis(str(name), values) for name, values in given.items()}
    if not isinstance(given, str):
        raise ConfigError(f"axes: got {given!r}; expected text or an object, such as {EXAMPLE}")
    found: dict[str, list[Any]] = {}
    for part in _split(given, ";", "axes"):
        name, separator, values = part.partition("=")
        name = name.strip()
        if not separator:
            raise ConfigError(f"axes: got {part!r} without values; expected text such as {EXAMPLE}")
        if name in found:
            raise ConfigError(f"axes: got {name} twice; fix: remove one")
        found[name] = parse_axis(name, values)
    return found


def axis_text(values: Sequence[Any]) -> str:
    """Return the values as `parse_axis` reads them."""
    return ", ".join(value if isinstance(value, str) else json.dumps(value) for value in values)


def _from_text(name: str, text: str) -> list[Any]:
    stripped = text.strip()
    if stripped.startswith("[") and stripped.endswith("]"):
        try:
            return list(json.loads(stripped))
        except ValueError:
            stripped = stripped[1:-1]  # names without quotes, or a range
    values: list[Any] = []
    for part in _split(stripped, ",", name):
        if found := _RANGE.fullmatch(part):
            values += _range(name, part, found)
        else:
            values.append(_value(name, part))
        if len(values) > MOST_VALUES:
            raise ConfigError(f"{name}: got more than {MOST_VALUES} values; expected at most {MOST_VALUES}")
    return values


def _range(name: str, text: str, found: re.Match[str]) -> list[Any]:
    """Return the values of `low..high +step` or `low..high ×factor`; `high` is included if a step reaches it."""
    low, high = _number(found["low"]), _number(found["high"])
    step: int | float
    if found["sign"] is None:
        if not (isinstance(low, int) and isinstance(high, int)):
            raise ConfigError(f"{name}: got {text}; expected a step, such as {text} +0.5 or {text} ×2")
        operator, step = "+", 1
    else:
        operator, step = found["sign"], _number(found["step"])
    if high < low:
        raise ConfigError(f"{name}: got {text}; expected the lower end first")
    grows = step > 0 if operator == "+" else step > 1 and low > 0
    if not grows:
        raise ConfigError(f"{name}: got {text}; expected a step above 0, or a factor above 1 with a start above 0")
    values: list[Any] = []
    number: int | float = low
    # The tolerance admits a last value that rounding has put just above `high`.
    while number <= high * (1 + 1e-9) and len(values) <= MOST_VALUES:
        values.append(number)
        # Computed from the start, so that rounding errors do not add up.
        number = low + len(values) * step if operator == "+" else low * step ** len(values)
        number = float(f"{number:.12g}") if isinstance(number, float) else number
    return values


def _value(name: str, text: str) -> Any:
    """Return a value with the type of its parameter: a text parameter keeps text that looks like a number."""
    try:
        parsed = json.loads(text)
    except ValueError:
        return text
    return text if _takes_text(name) and parsed is not None and not isinstance(parsed, str | list | dict) else parsed


def _takes_text(name: str) -> bool:
    """Return whether a parameter accepts only text."""
    if is_setting(name):
        return False  # settings parse their own text
    kinds = [Configuration.model_fields[name].annotation]
    while any(get_args(kind) and get_origin(kind) is not Literal for kind in kinds):
        kinds = [part for kind in kinds for part in ((get_args(kind) or (kind,)) if get_origin(kind) is not Literal
                                                     else (kind,))]  # fmt: skip
    accepted = [kind for kind in kinds if kind is not type(None)]
    return all(
        kind is str or (get_origin(kind) is Literal and all(isinstance(choice, str) for choice in get_args(kind)))
        for kind in accepted
    )


def _number(text: str) -> int | float:
    return int(text) if re.fullmatch(r"[+-]?\d+", text) else float(text)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _split(text: str, separator: str, key: str) -> list[str]:
    """Split a text, except inside brackets, braces and quotes; omit empty parts. Raises ConfigError naming `key`."""
    parts, current, closing, quoted = [], "", "", False
    for letter in text:
        if letter == '"':
            quoted = not quoted
        elif not quoted and letter in _PAIRS:
            closing += _PAIRS[letter]
        elif not quoted and closing.endswith(letter) and closing:
            closing = closing[:-1]
        if letter == separator and not quoted and not closing:
            parts.append(current)
            current = ""
        else:
            current += letter
    if closing or quoted:
        raise ConfigError(f"{key}: got {text!r}; expected a closing {closing[-1:] or chr(34)}")
    return [part.strip() for part in (*parts, current) if part.strip()]
