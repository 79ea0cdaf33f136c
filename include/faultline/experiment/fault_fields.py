"""Canonical form of the faults and curves of a configuration.

A fault has a short form, the fields `fault`, `fault_action` and `fault_at_s`, or is part of a full plan.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from fault.errors import PlanError
from fault.plan import Fault, FaultPlan
from fault.registry import ACTIONS


def take_plan(values: dict[str, Any]) -> None:
    """Set the plan in canonical form, and the short form to the plan's first fault.

    Faults are sorted by time. A plan that the short form can express is replaced by it.
    """
    try:
        seed, rate = int(values.get("seed", 1)), max(float(values.get("rate", 500.0)), 1e-9)
    except (TypeError, ValueError):
        return  # the field's own check names the key
    try:
        plan = FaultPlan.from_mapping({"seed": seed, **values["fault_plan"]})
    except PlanError as error:
        raise ValueError(f"fault_plan.{error}".replace("fault_plan.fault_plan", "fault_plan")) from None
    if not plan.faults:
        if values.get("fault") != "none":
            raise ValueError(
                "fault_plan.faults: got an empty list; expected a fault; fix: leave fault_plan empty, or use fault=none"
            )
        values["fault_plan"] = None
        return
    faults = sorted(plan.faults, key=lambda fault: (fault.first_s(rate), FaultPlan((fault,)).to_json()))
    first, at_s = faults[0], faults[0].first_s(rate)
    given = values.get("fault_at_s")
    if given is not None and at_s is not None and not _same_instant(given, at_s):
        raise ValueError(
            f"fault_at_s: got {given}; expected {at_s:g}, the time of the plan's first fault; "
            "fix: remove it, or change the plan"
        )
    short = short_form(first.victim, first.action, at_s)
    values |= {
        "fault": first.victim,
        "fault_action": first.action,
        "fault_at_s": at_s,
        "fault_plan": None if plan == FaultPlan((short,), seed) else FaultPlan(tuple(faults), plan.seed).as_mapping(),
    }


def _same_instant(given: Any, at_s: float) -> bool:
    try:
        return math.isclose(float(given), at_s, abs_tol=1e-6)
    except (TypeError, ValueError):
        return True  # the field's own check names the key


def short_form(victim: str, action: str, at_s: float | None) -> Fault:
    """Return the fault of the three short fields, with the default durations of its action."""
    return Fault(victim, action, at_s=at_s, **ACTIONS[action].defaults)


def in_short_form(message: str) -> str:
    """Return an error of a plan under the field names of the short form."""
    key, _, rest = message.partition(":")
    name = {"victim": "fault", "action": "fault_action", "at_s": "fault_at_s"}.get(key.rpartition(".")[2], key)
    return f"{name}:{rest}"


# Largest exponent of a skew curve.
MAX_SKEW = 5.0


def take_object(key: str, value: Any) -> dict[str, Any] | None:
    """Return an object from a mapping or from JSON text."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise ValueError(f"{key}: got invalid JSON; expected an object such as {{}}") from None
    if value is not None and not isinstance(value, Mapping):
        raise ValueError(f"{key}: got no object; expected an object with named values")
    return None if value is None else dict(value)


def take_curves(values: dict[str, Any], most: float) -> None:
    """Set the curves in canonical form, None if constant. `most`: highest rate in records/s."""
    if values["rate_curve"] is values["skew_curve"] is None:
        return
    from generators.curve import parse_curve  # imports numpy, which would delay every configuration
    from generators.send_progress import InputError

    limits = {"rate_curve": ("rate", 500.0, 0.0, most), "skew_curve": ("skew", 0.0, 0.0, MAX_SKEW)}
    for key, (base_key, default, low, high) in limits.items():
        if values[key] is None:
            continue
        try:
            base = float(values.get(base_key) or default)
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
    """Raise ValueError for a rate above `most`, and for a rate curve without any record."""
    if rate > most:
        raise ValueError(f"rate: got {rate:g}; expected at most {most:.0f}")
    if rate_curve is None:
        return
    from generators.curve import parse_curve
    from generators.pacing import SendSchedule

    curve = parse_curve(rate_curve, base=rate, low=0.0, high=most)
    if SendSchedule.for_duration(rate, seconds, curve).count == 0:
        raise ValueError(f"rate_curve: got a curve without records in {seconds:g} s; fix: raise the curve")
