"""Names of schema 2 that schema 3 replaces; readers accept both.

A path names a key from the top of a record, without indices of lists. A reason starts with its code.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

RENAMED_SCHEMA: Final = 2
# Path of a key of schema 2 → its name in schema 3.
KEYS: Final = {
    "environment.latency_clock.unsure": "uncertain",
    "metrics.audit.sums_differ": "checksum_mismatches",
    "metrics.audit.wrong": "unexpected",
    "metrics.cpu_besides": "background_cpu",
    "metrics.cpu_besides.others": "processes",
    "metrics.cpu_besides.stolen": "steal",
    "metrics.cpu_nodes": "cpu_by_host",
    "metrics.keys": "key_skew",
    "metrics.late": "late_records",
}
EVENTS: Final = {"last_out": "last_violation", "lineage": "state_epoch", "undone": "fault_undone"}
STATUSES: Final = {"unsound": "invalid"}
CODES: Final = {
    "clocks-apart": "clock-skew",
    "conductor-died": "scheduler-died",
    "disturbed": "background-load",
    "fault-unknown": "fault-outcome-unknown",
    "store-unread": "store-unverified",
    "timeline-broken": "timeline-incomplete",
}
VERDICTS: Final = {
    "cannot tell": "inconclusive",
    "no change seen": "no change detected",
    "no difference that matters": "equivalent",
    "not asked": "not covered",
}
_AUDIT: Final = {path.rpartition(".")[2]: name for path, name in KEYS.items() if path.startswith("metrics.audit.")}
_PARENTS: Final = frozenset(path[:end] for path in KEYS for end, sign in enumerate(path) if sign == ".")


def renamed_record(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record of schema 2 under the names of schema 3; malformed parts stay as they are."""
    status = renamed(STATUSES, values.get("status"))
    record = _with_keys(values, "") | {"schema": RENAMED_SCHEMA + 1, "status": status}
    if isinstance(reasons := values.get("reasons"), list):
        record["reasons"] = [renamed_reason(reason) for reason in reasons]
    if isinstance(timeline := values.get("timeline"), list):
        record["timeline"] = [_with_event(event) for event in timeline]
    if isinstance(metrics := record.get("metrics"), dict):
        for name in ("recovery", "placebo"):
            if name in metrics:
                metrics[name] = _with_note(metrics[name])
        if isinstance(parts := metrics.get("recoveries"), list):
            metrics["recoveries"] = [_with_note(part) for part in parts]
    return record


def renamed_series(values: Any) -> Any:
    """Return the content of a `series.json` with current event names; malformed content is returned unchanged."""
    if not isinstance(values, dict) or not isinstance(values.get("events"), list):
        return values
    return {**values, "events": [_with_event(one) for one in values["events"]]}


def renamed_audit(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of an `audit.json` with the current names of counts."""
    counts = {_AUDIT.get(key, key): value for key, value in values.items()}
    offenders = [{**offender, "kind": renamed(_AUDIT, offender.get("kind"))} for offender in values["offenders"]]
    return {**counts, "offenders": offenders}


def renamed_figure(key: str) -> str:
    """Return the current path of a figure below `metrics`."""
    path, parts = "metrics", []
    for part in key.split("."):
        path = f"{path}.{part}"
        parts.append(KEYS.get(path, part))
    return ".".join(parts)


def renamed_event(name: str) -> str:
    """Return the current name of a timeline event; a suffix `#n` is kept."""
    plain, sign, number = name.partition("#")
    return f"{EVENTS.get(plain, plain)}{sign}{number}"


def renamed_reason(reason: Any) -> Any:
    """Return a reason or note with its current code."""
    if not isinstance(reason, str):
        return reason
    code, sign, rest = reason.partition(":")
    return f"{CODES.get(code, code)}{sign}{rest}"


def renamed(names: Mapping[str, str], value: Any) -> Any:
    """Return the current name of `value`, or `value` itself if it was not renamed."""
    return names.get(value, value) if isinstance(value, str) else value


def _with_keys(values: Mapping[str, Any], path: str) -> dict[str, Any]:
    current = {}
    for key, value in values.items():
        full_key = f"{path}{key}"
        current[KEYS.get(full_key, key)] = (
            _with_keys(value, f"{full_key}.") if full_key in _PARENTS and isinstance(value, dict) else value
        )
    return current


def _with_event(event: Any) -> Any:
    known = isinstance(event, dict) and isinstance(event.get("name"), str)
    return {**event, "name": renamed_event(event["name"])} if known else event


def _with_note(part: Any) -> Any:
    return {**part, "note": renamed_reason(part["note"])} if isinstance(part, dict) and part.get("note") else part
