"""Who took the cores that a disturbed experiment did not get, as far as its samples tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from faultline.records.format import cores
from faultline.records.record import Record

CODE = "disturbed:"
_PLACE = "cpu_besides."


def explained(reasons: Sequence[str], figures: Mapping[str, float | bool | None]) -> list[str]:
    """The reasons, each once; that of a disturbed experiment with the cores that each kind took on average.

    `figures`: those of its record by path, as an Entry has them.
    """
    others, services, stolen = (figures.get(f"{_PLACE}{name}") for name in ("others", "services", "stolen"))
    besides = others if others is None or services is None else max(0.0, others - services)
    kinds = (("other processes", besides), ("Airflow and other services", services), ("the host", stolen))
    taken = [f"{name} {cores(amount)}" for name, amount in kinds if amount is not None]
    who = f"; on average {', '.join(taken)}" if taken else ""
    return [f"{reason}{who}" if reason.startswith(CODE) else reason for reason in dict.fromkeys(reasons)]


def lost_text(record: Record) -> str:
    """Cores that a record's measured processes lost to others and to the host; empty where that is not known."""
    waited = record.metrics.waited
    if waited is None or waited.others is None:
        return ""
    host = f", to the host {cores(waited.stolen)}" if waited.stolen else ""
    return f"lost to others {cores(waited.others)}{host}, in the worst 5 s {cores(waited.worst_5s)}"


def reasons_of(record: Record) -> list[str]:
    """The same of a whole record."""
    found = record.metrics.cpu_besides
    return explained(record.reasons, {f"{_PLACE}{name}": value for name, value in found or ()})
