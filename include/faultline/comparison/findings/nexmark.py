"""How many events of Nexmark a query handles: per core, with the driver's cores counted, and of the whole machine.

Nothing here is held against another engine. That takes both of them on one machine, with the same meaning of each query
(docs/reference/workloads.md).
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
    """What a query began with, and whether its events lie denser in event time than the suite's."""

    EMPTY = "empty state"
    DENSE = "empty state, dense events"
    FILLED = "state filled"

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Kind:
        """By a record's configuration."""
        if config.get("preload_events"):
            return cls.FILLED
        return cls.DENSE if config.get("rate") == DENSE_RATE else cls.EMPTY


def per_core(records: Sequence[Record], *, kind: Kind = Kind.EMPTY, driver: bool = False) -> dict[str, list[float]]:
    """Events per second and core of each valid record, by query.

    Cores are those of executors and Python workers, and of the `driver` if it is to count. Only of queries that ran as
    fast as they can, and in one configuration: others cannot be told from each other here.
    """
    return _by_query(records, kind, _with_driver if driver else lambda record: record.metrics.rps_per_core)


def per_machine(records: Sequence[Record], *, kind: Kind = Kind.EMPTY) -> dict[str, list[float]]:
    """Events per second of each of the same records, whatever share of the machine's cores was used for them."""
    return _by_query(records, kind, lambda record: record.metrics.throughput_rps)


def with_driver(rps: float | None, rps_per_core: float | None, driver_cores: float | None) -> float | None:
    """Events per second and core, of a figure without the driver; None where that or the driver's CPU is unknown."""
    if not rps or not rps_per_core or driver_cores is None:
        return None
    return rps / (rps / rps_per_core + driver_cores)


def ambiguous(records: Sequence[Record], kind: Kind = Kind.EMPTY) -> list[str]:
    """Queries that were measured in more than one configuration, and so have no figure here."""
    return sorted((query for query, found in _measured(records, kind).items() if len(found) > 1), key=_number)


def without_results(records: Sequence[Record], kind: Kind) -> list[str]:
    """Queries of which no run lasted until a result was due; they are measured without what a result costs.

    An estimate: a run is taken to get as far in event time as it would at the measured speed from T0 on. The warm-up is
    slower, and of the batches before T0, when everything is cold, a record says nothing.
    """
    found = []
    for query, configurations in _measured(records, kind).items():
        first_s = FIRST_RESULT_S.get(query)
        there = [record for measured in configurations.values() for record in measured]
        # A curve moves event time otherwise than the rate says.
        if first_s is not None and all(
            not record.config.get("rate_curve") and _covered_s(record) < record.config["watermark_s"] + first_s
            for record in there
        ):
            found.append(query)
    return sorted(found, key=_number)


def table_of(records: Sequence[Record]) -> list[str]:
    """Lines of a Markdown table, thousand events a second, and below it what must be known of them.

    No lines when no query ran as fast as it can.
    """
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
        if mute := without_results(records, kind):
            lines += [
                "",
                f"Work without results, under *{kind}*: {', '.join(mute)}. At its measured speed no run of these "
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
    """A figure of each record, by query; queries of which it is never known are left out."""
    found = {
        query: [value for record in measured if (value := figure(record)) is not None]
        for query, configurations in _measured(records, kind).items()
        if len(configurations) == 1
        for measured in configurations.values()
    }
    return {query: values for query, values in found.items() if values}


def _measured(records: Sequence[Record], kind: Kind) -> dict[str, dict[str, list[Record]]]:
    """Valid records by query and configuration."""
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
    """Seconds of event time from the first event to the last."""
    config = record.config
    lasted_s = float(config["warmup_s"]) + float(config["duration_s"])
    events = (record.metrics.throughput_rps or 0.0) * lasted_s + float(config.get("preload_events") or 0)
    return events / float(config["rate"])


def _cell(values: Sequence[float] | None) -> str:
    """Median with least and greatest, in thousands."""
    if not values:
        return NONE
    spread = f" ({min(values) / 1000:,.0f}–{max(values) / 1000:,.0f})" if len(values) > 1 else ""
    return f"{statistics.median(values) / 1000:,.0f}{spread}"


def _number(query: str) -> int:
    return int(query[1:])
