"""Texts of records for every table and page: formatted figures, faults and event names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fault.fault_spec import RULES
from fault.registry import ACTIONS
from faultline.experiment.commit_modes import DEFAULT_ENGINE
from faultline.experiment.workloads.registry import workload_of
from faultline.records.record import LatencyMs, Record, RecoveryPart

NONE = "—"
CONTROL = "control"
WIDTH = 120
# Parameters shown in own columns or derived from those; a row's text names only other differences.
FAULT_KEYS = frozenset({"fault", "fault_action", "fault_at_s", "fault_plan"})


def milliseconds(value: float | None) -> str:
    """Return `2,283`; below 10 with one decimal."""
    if value is None:
        return NONE
    return f"{value:.1f}" if abs(value) < 9.95 else f"{value:,.0f}"


# The tuples of a batch share its delay, so with fewer batches the p99 equals the slowest batch.
FEWEST_BATCHES = 100


def has_few_batches(batches: float | None) -> bool:
    """Return whether there are too few batches for a p99; `batches` is None for an engine without batches."""
    return batches is not None and batches < FEWEST_BATCHES


def tail(latency: LatencyMs) -> str:
    """Return the p99, `2,556`, or with few batches its upper bound, the slowest batch, `≤ 2,583`."""
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
    """Return macro recovery from the first fault in seconds, or its lower bound, `> 33.9`, if it is censored."""
    return macro_of(record.metrics.recovery)


def macro_of(recovery: RecoveryPart) -> str:
    """Return macro recovery of one fault in seconds, or its lower bound, `> 33.9`, if it is censored."""
    if recovery.macro_s is None and recovery.censored_at_s is not None:
        return f"> {seconds(recovery.censored_at_s)}"
    return seconds(recovery.macro_s)


def recovered_since(recovery: RecoveryPart) -> str:
    """Return the lower bound of a recovery in parentheses, or an empty string if unknown."""
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
            name, repeats = f"{fault.get('victim')} {fault.get('action')}", fault.get("times", 1)
            times[name] = times.get(name, 0) + (repeats if isinstance(repeats, int) else 1)
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
        return " and ".join(map(_fault_text, faults))
    except (KeyError, ValueError, TypeError, AttributeError):  # a plan of another version
        return f"with {name}"


def _fault_text(fault: Mapping[str, Any]) -> str:
    values = {name: value for name, value in fault.items() if name in RULES and value is not None}
    text = ACTIONS[fault["action"]].describe(fault["victim"], values)
    counts = [
        f"{fault[name]} {word}" for name, word in (("count", "at once"), ("times", "times")) if fault.get(name, 1) > 1
    ]
    return f"{text} ({', '.join(counts)})" if counts else text


def lasting(record: Record) -> str:
    """Return a text on whether the engine sustained the rate, `not sustained before the fault`; empty if unknown."""
    verdict = {True: "sustained", False: "not sustained", None: ""}[record.metrics.sustained]
    # A run with a fault is judged by the time before it.
    return f"{verdict} before the fault" if verdict and fault_of(record.config) != CONTROL else verdict


def throughput(record: Record) -> str:
    """Return `344 records/s, sustained before the fault`."""
    rate = f"{count(record.metrics.throughput_rps)} records/s"
    return ", ".join(part for part in (rate, lasting(record)) if part)


def window_of(record: Record) -> tuple[Any, Any]:
    """Return the actual lengths of warm-up and measured window in s, or the configured ones without a timeline."""
    at = {event.name: event.wall_ns for event in record.timeline}
    if not {"gate", "measured_from", "measured_until"} <= at.keys():
        return record.config.get("warmup_s", "?"), record.config.get("duration_s", "?")
    start_s, end_s = ((at[name] - at["gate"]) / 1e9 for name in ("measured_from", "measured_until"))
    return round(start_s, 1), round(end_s - start_s, 1)


def plain(value: Any) -> str:
    """Return a configuration value as text, whole numbers without `.0`."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def title_of(config: Mapping[str, Any]) -> str:
    """Return one experiment in a few words: `state 1 MB, interval 2 s, executor kill`, or `query q5, control`."""
    title = workload_of(config).title(config)
    if title is None:
        state, interval = plain(config.get("state_mb", "?")), plain(config.get("checkpoint_interval_s", "?"))
        title = f"state {state} MB, interval {interval} s"
    return f"{title}{on_engine(config)}, {fault_of(config)}"


def on_engine(config: Mapping[str, Any]) -> str:
    """Return ` on flink` for an engine that is not the default; else an empty text."""
    engine = config.get("engine", DEFAULT_ENGINE)
    return "" if engine == DEFAULT_ENGINE else f" on {engine}"


# ---- Names of timeline events: those of fault n > 1 have the suffix `#n`; `gate` is T0, the start of the load ----


# Events that belong to no fault.
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
    "durable": "input committed",
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
    "t5": "input present at the fault processed",
    "t6": "consumer lag back within its threshold",
    "t7": "latency back within its threshold",
    "durable": "input present at the fault committed",
    "last_violation": "last threshold violation",
    "snapshot": "last state snapshot before the fault",
    "fault_undone": "fault undone",
    "driver_restarted": "driver restarted by the supervisor",
    "service_up": "service restarted",
    "state_epoch": "new state epoch starts with empty state",
    "replacement_up": "replacement executor registered",
}


def split_name(name: str) -> tuple[str, int]:
    """Return an event's name without suffix, and the number of its fault, from 1."""
    plain, separator, number = name.rpartition("#")
    return (plain, int(number)) if separator and number.isascii() and number.isdigit() else (name, 1)
