"""Loads that move, and objects of a configuration, in canonical form.

Equal experiments must have equal identities, however they were written down: a constant curve is none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from generators.curve import parse_curve
from generators.journal import InputError
from generators.pacing import Schedule

MAX_SKEW = 5.0


def take_object(key: str, value: Any) -> dict[str, Any] | None:
    """An object, given as such or as JSON text (from a command line)."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise ValueError(f"{key}: not JSON; give an object such as {{}}") from None
    if value is not None and not isinstance(value, Mapping):
        raise ValueError(f"{key}: not an object; give an object with named values")
    return None if value is None else dict(value)


def take_curves(values: dict[str, Any], most: float) -> None:
    """Writes the curves in their canonical form; a constant one is none. `most`: records/s that a rate may reach."""
    limits = {"rate_curve": ("rate", 500.0, 0.0, most), "skew_curve": ("skew", 0.0, 0.0, MAX_SKEW)}
    for key, (of, default, low, high) in limits.items():
        if values[key] is None:
            continue
        try:
            base = float(values.get(of) or default)
        except (TypeError, ValueError, OverflowError):
            return  # the field's own check names the key
        if not low <= base <= high:
            return
        try:
            curve = parse_curve(values[key], base=base, low=low, high=high)
        except InputError as error:
            raise ValueError(f"{key}.{error}") from None
        mapping = curve.as_mapping()
        values[key] = None if mapping["kind"] == "constant" else mapping


def require_records(rate_curve: Mapping[str, Any] | None, rate: float, most: float, seconds: float) -> None:
    """Raises ValueError for a rate above `most`, and when no record would ever be due, as with a rate that moves."""
    if rate > most:
        raise ValueError(f"rate: {rate:g} is too high; give at most {most:.0f}")
    if rate_curve is None:
        return
    curve = parse_curve(rate_curve, base=rate, low=0.0, high=most)
    if Schedule.over(rate, seconds, curve).count == 0:
        raise ValueError(f"rate_curve: no record is due in {seconds:g} s; raise the curve")
