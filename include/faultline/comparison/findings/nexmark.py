"""Throughput of the Nexmark queries: per core, with and without the driver's cores, and per machine.

It is not compared with other engines: that would require both engines on one machine, with the same semantics of each
query (docs/reference/workloads.md).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any

from faultline.comparison.findings.claims import valid_records
from faultline.experiment.workloads.nexmark_events import DENSE_RATE, FIRST_RESULT_S
from faultline.experiment.workloads.registry import has_schedule
from faultline.records.format import NONE
from faultline.records.record import Record


class Kind(StrEnum):
    """Initial state of a query, and density of its events in event time."""

    EMPTY = "empty state"
    DENSE = "empty state, dense events"
    FILLED = "state filled"

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Kind:
        """Return the kind of a record's configuration."""
        if config.get("preload_events"):
            return cls.FILLED
        return cls.DENSE if config.get("rate") == DENSE_RATE else cls.EMPTY


def per_core(records: Sequence[Record], *, kind: Kind = Kind.EMPTY, driver: bool = False) -> dict[str, list[float]]:
    """Return events per second and core of each usable record, by query.

    Cores are those that executors and Python workers used, with `driver` also those of the driver. Only queries without
    a rate limit and with a single configuration are included.
    """
    return _by_query(records, kind, _with_driver if driver else lambda record: record.metrics.rps_per_core)


def per_machine(records: Sequence[Record], *, kind: Kind = Kind.EMPTY) -> dict[str, list[float]]:
    """Return events per second of the same records, regardless of the cores that they used."""
    return _by_query(records, kind, lambda record: record.metrics.throughput_rps)


def with_driver(rps: float | None, rps_per_core: float | None, driver_cores: float | None) -> float | None:
    """Return events per second and core including the driver; None if a figure is unknown."""
    if not rps or not rps_per_core or driver_cores is None:
        return None
    return rps / (rps / rps_per_core + driver_cores)


def ambiguous(records: Sequence[Record], kind: Kind = Kind.EMPTY) -> list[str]:
    """Return the queries that have no figure because they were measured in several configurations."""
    return sorted((query for query, found in _measured(records, kind).items() if len(found) > 1), key=_number)


def without_results(records: Sequence[Record], kind: Kind) -> list[str]:
    """Return the queries of which no run lasted until the first result; their figures exclude the cost of results.

    This is an estimate, which assumes that event time advances at the measured speed from T0 (start of warm-up) on.
    In fact warm-up is slower, and batches before T0 are not recorded.
    """
    found = []
    for query, configurations in _measured(records, kind).items():
        first_s = FIRST_RESULT_S.get(query)
        there = [record for measured in configurations.values() for record in measured]
        # Event time does not follow the rate along a curve.
        if first_s is not None and all(
            not record.config.get("rate_curve") and _covered_s(record) < record.config["watermark_s"] + first_s
            for record in there
        ):
            found.append(query)
    return sorted(found, key=_number)


def table_of(records: Sequence[Record]) -> list[str]:
    """Return lines of a Markdown table in thousand events per second, with notes; empty without a figure."""
    columns = [(kind, name, found) for kind in Kind for name, found in _columns(records, kind) if found]
    lines = []
    if columns:
        heads = ["query", *(f"{kind}: {name}" for kind, name, _ in columns)]
        lines = [f"| {' | '.join(heads)} |", f"|{' --- |' * len(heads)}"]
    for query in sorted({query for _, _, found in columns for query in found}, key=_number):
        lines.append(f"| {' | '.join([query, *(_cell(found.get(query)) for _, _, found in columns)])} |")
    for kind in Kind:
        if left_out := ambiguous(records, kind):
            listed = ", ".join(left_out)
            lines += ["", f"No figure under *{kind}* where it was measured in more than one configuration: {listed}."]
        if without := without_results(records, kind):
            lines += [
                "",
                f"Work without results, under *{kind}*: {', '.join(without)}. At its measured speed no run of these "
                "reaches the event time at which their first result is due.",
            ]
    return lines


def _columns(records: Sequence[Record], kind: Kind) -> list[tuple[str, dict[str, list[float]]]]:
    return [
        ("per core", per_core(records, kind=kind)),
        ("with the driver", per_core(records, kind=kind, driver=True)),
        ("machine", per_machine(records, kind=kind)),
    ]


def _by_query(
    records: Sequence[Record], kind: Kind, figure: Callable[[Record], float | None]
) -> dict[str, list[float]]:
    """Return a figure of each record, by query; queries without a known figure are omitted."""
    found = {
        query: [value for record in measured if (value := figure(record)) is not None]
        for query, configurations in _measured(records, kind).items()
        if len(configurations) == 1
        for measured in configurations.values()
    }
    return {query: values for query, values in found.items() if values}


def _measured(records: Sequence[Record], kind: Kind) -> dict[str, dict[str, list[Record]]]:
    """Return usable records by query and configuration."""
    found: dict[str, dict[str, list[Record]]] = {}
    for record in valid_records(records):
        config = record.config
        if record.metrics.rps_per_core is not None and not has_schedule(config) and Kind.of(config) is kind:
            found.setdefault(str(config["query"]), {}).setdefault(record.config_id, []).append(record)
    return found


def _with_driver(record: Record) -> float | None:
    metrics = record.metrics
    return with_driver(metrics.throughput_rps, metrics.rps_per_core, metrics.cpu_cores.driver)


def _covered_s(record: Record) -> float:
    """Return the event time from the first event to the last, in s."""
    config = record.config
    lasted_s = float(config["warmup_s"]) + float(config["duration_s"])
    events = (record.metrics.throughput_rps or 0.0) * lasted_s + float(config.get("preload_events") or 0)
    return events / float(config["rate"])


def _cell(values: Sequence[float] | None) -> str:
    """Return median and range, in thousands."""
    if not values:
        return NONE
    spread = f" ({min(values) / 1000:,.0f}–{max(values) / 1000:,.0f})" if len(values) > 1 else ""
    return f"{statistics.median(values) / 1000:,.0f}{spread}"


def _number(query: str) -> int:
    return int(query[1:])
