"""Texts of records: figures with their digits, faults and names, the same in every table and page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fault.fault_spec import RULES
from fault.registry import ACTIONS
from faultline.experiment.workloads.registry import workload_of
from faultline.records.record import LatencyMs, Record, RecoveryPart

NONE = "—"


CONTROL = "control"


WIDTH = 120


# Shown in their own columns, or derived from those; the row names other differences.
FAULT_KEYS = frozenset({"fault", "fault_action", "fault_at_s", "fault_plan"})


def milliseconds(value: float | None) -> str:
    """Return `2,283`; below 10 with one decimal."""
    if value is None:
        return NONE
    return f"{value:.1f}" if abs(value) < 9.95 else f"{value:,.0f}"


# The tuples of a batch share its delay: below this number of batches the p99 equals the slowest batch.
FEWEST_BATCHES = 100


def has_few_batches(batches: float | None) -> bool:
    """Return whether there are too few batches for a p99; None stands for an engine without batches."""
    return batches is not None and batches < FEWEST_BATCHES


def tail(latency: LatencyMs) -> str:
    """Return the p99, `2,556`, or what it is at most: the slowest batch, `≤ 2,583`, where there are few."""
    few = has_few_batches(latency.batches) and latency.max is not None
    return f"≤ {milliseconds(latency.max)}" if few else milliseconds(latency.p99)


def seconds(value: float | None, digits: int = 1) -> str:
    """Return `1.8`; three digits give milliseconds."""
    return NONE if value is None else f"{value:,.{digits}f}"


def signed(value: float, digits: int = 3) -> str:
    """Return `+0.350`, `−1.837`, and zero without a sign."""
    return f"{value:+.{digits}f}".replace("-", "−") if round(value, digits) else f"{0:.{digits}f}"


def cores(value: float | None) -> str:
    """Return `0.25`."""
    return NONE if value is None else f"{value:.2f}"


def count(value: float | None) -> str:
    """Return `376,357`."""
    return NONE if value is None else f"{value:,.0f}"


def share(value: float | None) -> str:
    """Return `87 %`."""
    return NONE if value is None else f"{value * 100:.0f} %"


def macro(record: Record) -> str:
    """Return macro recovery from the first fault in seconds; `> 33.9` when it was watched that long and not seen."""
    return macro_of(record.metrics.recovery)


def macro_of(recovery: RecoveryPart) -> str:
    """Return macro recovery of one fault in seconds, or the time after which it was given up on, as `> 33.9`."""
    if recovery.macro_s is None and recovery.censored_at_s is not None:
        return f"> {seconds(recovery.censored_at_s)}"
    return seconds(recovery.macro_s)


def recovered_since(recovery: RecoveryPart) -> str:
    """Return the lower end of a recovery in parentheses, or an empty text if unknown."""
    if recovery.macro_s is None or recovery.resolution_s is None:
        return ""
    return f" (not before {seconds(recovery.macro_s - recovery.resolution_s, 2)} s)"


def fault_of(config: Mapping[str, Any]) -> str:
    """Return `executor kill`, or `control`; a full plan as `executor kill ×3, kafka pause`."""
    if config.get("fault", "none") == "none":
        return CONTROL
    plan = config.get("fault_plan")
    faults = plan.get("faults") if isinstance(plan, Mapping) else None
    if not isinstance(faults, list | tuple):
        return f"{config['fault']} {config.get('fault_action', '')}".strip()
    times: dict[str, int] = {}
    for fault in faults:
        if isinstance(fault, Mapping):
            name, every = f"{fault.get('victim')} {fault.get('action')}", fault.get("times", 1)
            times[name] = times.get(name, 0) + (every if isinstance(every, int) else 1)
    return ", ".join(f"{name} ×{number}" if number > 1 else name for name, number in times.items())


def condition_text(config: Mapping[str, Any]) -> str:
    """Return the conditions in words: `after an executor was killed`, `without a fault`."""
    if (name := fault_of(config)) == CONTROL:
        return "without a fault"
    plan = config.get("fault_plan")
    faults = plan.get("faults") if isinstance(plan, Mapping) else None
    if not isinstance(faults, list | tuple):
        faults = [{"victim": config.get("fault"), "action": config.get("fault_action")}]
    try:
        return " and ".join(map(_broken, faults))
    except (KeyError, ValueError, TypeError, AttributeError):  # of a record that another version made
        return f"with {name}"


def _broken(fault: Mapping[str, Any]) -> str:
    values = {name: value for name, value in fault.items() if name in RULES and value is not None}
    text = ACTIONS[fault["action"]].describe(fault["victim"], values)
    often = [
        f"{fault[name]} {word}" for name, word in (("count", "at once"), ("times", "times")) if fault.get(name, 1) > 1
    ]
    return f"{text} ({', '.join(often)})" if often else text


def lasting(record: Record) -> str:
    """Return whether the engine kept up with the rate: `sustained`, `not sustained before the fault`, or nothing."""
    verdict = {True: "sustained", False: "not sustained", None: ""}[record.metrics.sustained]
    # With a fault only what lies before it is judged.
    return f"{verdict} before the fault" if verdict and fault_of(record.config) != CONTROL else verdict


def throughput(record: Record) -> str:
    """Return `344 records/s, sustained before the fault`."""
    rate = f"{count(record.metrics.throughput_rps)} records/s"
    return ", ".join(part for part in (rate, lasting(record)) if part)


def window_of(record: Record) -> tuple[Any, Any]:
    """Return actual seconds of the warm-up and of the measured window; the configured ones without a timeline."""
    at = {event.name: event.wall_ns for event in record.timeline}
    if not {"gate", "measured_from", "measured_until"} <= at.keys():
        return record.config.get("warmup_s", "?"), record.config.get("duration_s", "?")
    begun_s, ended_s = ((at[name] - at["gate"]) / 1e9 for name in ("measured_from", "measured_until"))
    return round(begun_s, 1), round(ended_s - begun_s, 1)


def plain(value: Any) -> str:
    """Return a configuration value as text: numbers without a useless `.0`."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def title_of(config: Mapping[str, Any]) -> str:
    """Return one experiment in a few words: `state 1 MB, interval 2 s, executor kill`, or `query q5, control`."""
    title = workload_of(config).title(config)
    if title is None:
        state, interval = plain(config.get("state_mb", "?")), plain(config.get("checkpoint_interval_s", "?"))
        title = f"state {state} MB, interval {interval} s"
    return f"{title}, {fault_of(config)}"


# ---- Names of timeline events; those of fault n > 1 have the suffix `#n` ----


# Events of the attempt, which belong to no fault.
EDGES = frozenset({"gate", "measured_from", "measured_until"})

# Short names for legends, in the usual order of the events.
LABELS = {
    "t0": "t0 fault injected",
    "t1": "t1 last output",
    "t2": "t2 loss detected",
    "t3": "t3 task launched",
    "t4": "t4 state loaded",
    "t5": "t5 caught up",
    "t6": "t6 lag normal",
    "t7": "t7 latency normal",
    "last_violation": "last violation",
    "snapshot": "last snapshot",
    "fault_undone": "fault undone",
    "driver_restarted": "driver restarted",
    "service_up": "service restarted",
    "state_epoch": "new state epoch",
    "replacement_up": "replacement up",
}

# Descriptions for tables of events.
WORDS = {
    "gate": "start barrier opened (T0)",
    "measured_from": "warm-up ends, measured window starts",
    "measured_until": "measured window ends",
    "t0": "fault injected",
    "t1": "last output before the longest silence",
    "t2": "loss detected",
    "t3": "recovering task launched",
    "t4": "state reload ends",
    "t5": "input present at the fault committed",
    "t6": "consumer lag back within its threshold",
    "t7": "latency back within its threshold",
    "last_violation": "last threshold violation",
    "snapshot": "last state snapshot before the fault",
    "fault_undone": "fault undone",
    "driver_restarted": "driver restarted by the supervisor",
    "service_up": "service restarted",
    "state_epoch": "new state epoch starts with empty state",
    "replacement_up": "replacement executor registered",
}


def split_name(name: str) -> tuple[str, int]:
    """Return the plain name, and the number of the fault from 1; a name without a number belongs to the first."""
    plain, separator, number = name.rpartition("#")
    return (plain, int(number)) if separator and number.isascii() and number.isdigit() else (name, 1)
