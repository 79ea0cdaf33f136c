"""The canonical form of what a configuration holds as objects: fault plan and curves.

Equal experiments must have equal identities, however they were written down: a plan that says no more than
the short form can is written as that, faults stand in order of time, and a constant curve is none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fault.errors import PlanError
from fault.plan import Fault, FaultPlan
from fault.registry import ACTIONS
from faultline.experiment.workloads.known_truth_script import parse_script
from faultline.experiment.workloads.nexmark import (
    ENGINE_DEFAULTS,
    KAFKA_RATE,
    MAX_EVENT_RATE,
    RATE,
    WATERMARK_S,
    take_events,
)
from faultline.experiment.workloads.topology import DEFAULTS as TOPOLOGY_DEFAULTS
from faultline.experiment.workloads.topology import parallelism, take_mechanisms, take_rules
from generators.curve import parse_curve
from generators.errors import InputError
from generators.pacing import Schedule

# One generator process of this kind of machine reaches some 600,000 records/s; a single local
# broker takes no more, so a higher rate would measure the generator's lateness and nothing else.
MAX_RATE = 500_000.0
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


def highest_rate(workload: Any, source: Any) -> float:
    """Records/s that a configuration may ask for."""
    return MAX_EVENT_RATE if (workload, source) == ("nexmark", "engine") else MAX_RATE


def take_curves(values: dict[str, Any]) -> None:
    """Writes the curves in their canonical form; a constant one is none."""
    most = highest_rate(values.get("workload"), values.get("source", "engine"))
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


def own_defaults(workload: Any, source: Any = None) -> dict[str, Any]:
    """What a workload has other defaults for than the fields have."""
    if workload == "known_truth":
        return {"fault": "driver"}  # the one process that it is
    if workload == "nexmark":
        # The suite's; and events from the engine keep no schedule that a fault could delay.
        suite = {"watermark_s": WATERMARK_S, "disorder": 0.0, "fault": "none"}
        return {**suite, "rate": KAFKA_RATE} if source == "kafka" else {**suite, "rate": RATE, **ENGINE_DEFAULTS}
    return TOPOLOGY_DEFAULTS if workload == "topology" else {}


def take_own(values: dict[str, Any]) -> None:
    """Writes out what some workloads have other defaults for, and their objects in canonical form."""
    for key, value in own_defaults(values.get("workload"), values.get("source")).items():
        values.setdefault(key, value)
    if values.get("workload") == "known_truth":
        values["truth"] = parse_script(values["truth"] or {}).as_mapping()
    if values.get("workload") == "nexmark":
        values["events"] = take_events(values["events"] or {})
    if values.get("workload") == "topology":
        stages = parallelism(str(values.get("parallelism", "1-1-1")))
        values["mechanisms"] = take_mechanisms(str(values.get("mechanisms", "none")), stages)
        values["topology"] = take_rules(values["topology"] or {})


def take_plan(values: dict[str, Any]) -> None:
    """Writes the plan in its canonical form, and its first fault into the short form.

    Faults are put in order of time, and a plan that says no more than the short form can is written as that.
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
            raise ValueError("fault_plan.faults: empty; list a fault, leave fault_plan empty, or use fault=none")
        values["fault_plan"] = None
        return
    faults = sorted(plan.faults, key=lambda fault: (fault.first_s(rate), FaultPlan((fault,)).to_json()))
    first, at_s = faults[0], faults[0].first_s(rate)
    short = short_form(first.victim, first.action, at_s)
    values |= {
        "fault": first.victim,
        "fault_action": first.action,
        "fault_at_s": at_s,
        "fault_plan": None if plan == FaultPlan((short,), seed) else FaultPlan(tuple(faults), plan.seed).as_mapping(),
    }


def short_form(victim: str, action: str, at_s: float | None) -> Fault:
    """The fault that the three short fields stand for; its lengths are the action's own, the full form sets them."""
    return Fault(victim, action, at_s=at_s, **ACTIONS[action].short_form)


def in_short_form(message: str) -> str:
    """A plan's complaint in the words of the short form's three fields."""
    key, _, rest = message.partition(":")
    name = {"victim": "fault", "action": "fault_action", "at_s": "fault_at_s"}.get(key.rpartition(".")[2], key)
    return f"{name}:{rest}"
