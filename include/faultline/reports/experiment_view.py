"""What the report and the results page show of one experiment: its figures, tables and curves, as plain texts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from faultline.experiment.workloads.registry import offered_rate, workload_of
from faultline.records.catalogue import named
from faultline.records.event_names import EDGES, label, split_name
from faultline.records.format import (
    NONE,
    count,
    lasting,
    macro,
    macro_of,
    milliseconds,
    recovered_since,
    seconds,
    share,
    signed,
)
from faultline.records.record import JUDGED, Record, RecoveryPart
from faultline.reports.curves import FILE, curves_of
from faultline.reports.disturbance import lost_text, reasons_of
from faultline.reports.out_of_bound import bounds_of, last_out_text
from faultline.reports.table import name_of
from faultline.reports.time_series import time_figure
from faultline.system.errors import FaultlineError

_VERDICTS = {
    "unmet": "The engine did not do what was asked of it; its figures count:",
    "unsound": "The measurement failed; its figures do not count:",
    "invalid": "Measured, but not valid:",
    "failed": "Not measured, because the attempt failed:",
    "cancelled": "Not measured, because the attempt was cancelled:",
}

Pairs = list[tuple[str, str]]


def section_of(number: str, record: Record, results: Path, figures: dict[str, go.Figure]) -> dict[str, Any]:
    """What the template needs for one section; adds the section's figure to `figures`."""
    folder = results / "attempts" / record.attempt
    figure, trouble = _curves(record, folder)
    name = f"time-{number}"
    if figure is not None:
        figures[name] = figure
    measured = record.status in JUDGED
    has_fault = any(event.name == "t0" for event in record.timeline)
    return {
        "number": number,
        "name": name_of(record)[0].upper() + name_of(record)[1:],
        "status": record.status,
        "about": f"Attempt {record.attempt}, measured {minute(record.measured_at)} UTC, configuration "
        f"{record.config_id}, repetition {record.repetition}, series {record.series}",
        "verdict": _VERDICTS.get(record.status, "Remarks:"),
        "reasons": reasons_of(record),
        "headline": _headline(record) if measured else [],
        "plot": name if figure is not None else None,
        "plot_height": figure.layout.height if figure is not None else 0,
        "caption": _caption(has_fault, bounded=bool(bounds_of(record))),
        "no_plot": trouble,
        "recoveries": _recoveries(record),
        "timeline": _timeline(record),
        "has_fault": has_fault,
        "audit": _audit(record) if measured else [],
        "offenders": _offenders(folder / "audit.json") if measured else [],
        "folded": _folded(record),
        "path": f"records/{record.config_id}/{record.attempt}.json",
    }


def _curves(record: Record, folder: Path) -> tuple[go.Figure | None, str]:
    """The figure over time, or why there is none."""
    shown = f"attempts/{record.attempt}/{FILE}"
    try:
        series = curves_of(folder)
    except FileNotFoundError:
        return None, f"{shown} is missing, because the attempt was not judged or its raw files were removed."
    except (OSError, ValueError, RecursionError) as error:
        return None, f"{shown} cannot be read ({type(error).__name__})."
    except (FaultlineError, KeyError, TypeError, AttributeError, IndexError) as error:
        return None, f"{shown} is missing, and cannot be made of the raw files ({type(error).__name__}: {error})."
    try:
        # A rate in records is no line among words.
        offered = offered_rate(record.config) if _counts(record) == "records" else None
        cores, bounds = record.environment.cores, bounds_of(record)
        return time_figure(series, rate=offered, machine_cores=cores, bounds=bounds), ""
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        return None, f"{shown} does not hold what is expected ({type(error).__name__}: {error})."


def _counts(record: Record) -> str:
    """What the throughput of the record's workload is of."""
    return workload_of(record.config).counts


def _caption(has_fault: bool, *, bounded: bool) -> str:
    common = (
        "Latency by second of emission; throughput over each committed batch; lag at each commit; CPU stacked by role."
    )
    marks = (
        " The orange line is the signal; dotted lines and the marks above are the events of the recovery." * has_fault
    )
    shades = (
        " Dashed: the bounds L* and lag* that count as recovered; shaded: where the p99 or the lag was above them."
        * bounded
    )
    return f"{common}{marks}{shades} Drag to zoom, double-click to reset."


def _headline(record: Record) -> list[dict[str, str]]:
    """The figures that one looks for first."""
    metrics, recovery, latency = record.metrics, record.metrics.recovery, record.metrics.latency_ms
    rate = offered_rate(record.config)
    counts = _counts(record)
    lines = "" if counts == "records" else "records/s "
    offered = f"of {rate:,.0f} {lines}offered" if rate is not None else ""
    beside = ", ".join(part for part in (offered, lasting(record)) if part)
    used = [value for value in metrics.cpu_cores.model_dump().values() if value is not None]
    tiles = [
        _tile("Latency p50", milliseconds(latency.p50), "ms", f"mean {milliseconds(latency.mean)}"),
        _tile("Latency p99", milliseconds(latency.p99), "ms", f"max {milliseconds(latency.max)}"),
        _tile("Throughput", count(metrics.throughput_rps), f"{counts}/s", beside),
        _tile("CPU, all roles", f"{sum(used):.2f}" if used else NONE, "cores", lost_text(record)),
    ]
    if recovery.recovered is not None:
        resolution = recovered_since(recovery).strip(" ()")
        tiles += [
            _tile("Reload", seconds(recovery.reload_s, 2), "s", f"detection {seconds(recovery.detection_s, 2)}"),
            _tile("Replay", seconds(recovery.replay_s, 2), "s", f"catch-up {seconds(recovery.catchup_s, 2)}"),
            _tile("Macro", macro(record), "s", resolution if recovery.recovered else _unrecovered(record)),
            _tile("Longest silence", seconds(recovery.silence_s, 2), "s", f"dip {share(recovery.dip_depth)}"),
        ]
    audit = metrics.audit
    if audit.lost is None:
        return tiles
    note = f"{count(audit.overcounted)} overcounted, {count(audit.wrong)} wrong"
    note += f", {count(audit.sums_differ)} sums differ" if audit.sums_differ else ""
    note += f", {count(audit.undrained)} not processed" if audit.undrained else ""
    return [*tiles, _tile("Lost", count(audit.lost), "", note)]


def _unrecovered(record: Record) -> str:
    """Why the recovery from the first fault was not over, as far as the record says."""
    return last_out_text(record, 1, record.metrics.recovery, None) or "not seen to recover"


def _tile(name: str, value: str, unit: str, note: str) -> dict[str, str]:
    return {"name": name, "value": value, "unit": unit if value != NONE else "", "note": note}


def _recoveries(record: Record) -> list[list[str]]:
    """A row for each fault of several; a single one stands in the headline and under all figures."""
    recoveries = record.metrics.recoveries
    if len(recoveries) < 2:
        return []
    return [[_place(number, recovery), *_recovery_row(recovery)] for number, recovery in enumerate(recoveries, start=1)]


def _place(number: int, recovery: RecoveryPart) -> str:
    """`2 at T0 + 71.0 s, not-steady`: of injections in one run also when it came, and what speaks against it."""
    when = "" if recovery.at_s is None else f" at T0 + {seconds(recovery.at_s)} s"
    return f"{number}{when}" + (f", {recovery.note.partition(':')[0]}" if recovery.note else "")


def _recovery_row(recovery: RecoveryPart) -> list[str]:
    parts = ("detection_s", "redeploy_s", "load_s", "replay_s", "catchup_s")
    return [
        *(seconds(getattr(recovery, part), 2) for part in parts),
        macro_of(recovery),
        share(recovery.dip_depth),
        seconds(recovery.silence_s, 2),
        count(recovery.lag_area_record_s),
    ]


def _timeline(record: Record) -> list[dict[str, str]]:
    at = {event.name: event.wall_ns for event in record.timeline}
    gate = at.get("gate")
    rows = []
    for event in sorted(record.timeline, key=lambda event: event.wall_ns):
        plain, number = split_name(event.name)
        # The instants of the attempt are told from its first fault.
        fault = at.get("t0" if number == 1 or plain in EDGES else f"t0#{number}")
        rows.append(
            {
                "label": label(event.name),
                "after_gate": NONE if gate is None else seconds((event.wall_ns - gate) / 1e9, 3),
                "after_fault": NONE if fault is None else signed((event.wall_ns - fault) / 1e9),
                "source": event.source,
            }
        )
    return rows


def _audit(record: Record) -> Pairs:
    if record.metrics.audit.expected is None:
        return []
    return [(named(f"audit.{name}").title, count(value)) for name, value in record.metrics.audit.model_dump().items()]


def _offenders(path: Path) -> list[dict[str, str]]:
    """The first offending keys; none when the file is absent or holds something else."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))["offenders"]
        return [
            # Halves of surrogate pairs, which JSON can bring, have no form in UTF-8.
            {
                name: as_text(entry.get(name)).encode("utf-8", "replace").decode()
                for name in ("kind", "key", "expected", "final")
            }
            for entry in found[:30]
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return []


def _folded(record: Record) -> list[tuple[str, str, Pairs]]:
    """Tables that are there when asked for: heading, the class of their names, and rows; empty ones are left out."""
    environment = record.environment
    tables = [
        ("All figures", "", _figures(record)),
        ("Configuration", "mono", _flat(record.config)),
        ("Spark settings", "mono", _flat(environment.spark_conf or {})),
        ("Kafka settings", "mono", _flat(environment.kafka_conf or {})),
        ("Versions", "mono", _flat(environment.versions or {})),
        ("Raw files", "mono", _flat(record.artifacts)),
    ]
    return [table for table in tables if table[-1]]


def _figures(record: Record) -> Pairs:
    """What is known of the attempt beside the audit, by name and unit; of several faults the first one's recovery, of
    several injections of one fault their median."""
    metrics = record.metrics.model_dump()
    metrics.pop("audit")
    first = " of fault 1" if len(metrics.pop("recoveries")) > 1 else ""
    first = ", median of its injections" if metrics["injections"] and first else first
    pairs: Pairs = []
    for key, text in _flat(metrics):
        metric = named(key)
        title = metric.name if text in ("true", "false") else metric.title
        if text != NONE:
            pairs.append((f"{title}{first}" if metric.group == "Recovery" else title, text))
    return pairs


def _flat(values: Mapping[str, Any], prefix: str = "") -> Pairs:
    """Nested names joined by dots, in the order given."""
    pairs: Pairs = []
    for name, value in values.items():
        if isinstance(value, Mapping):
            pairs += _flat(value, f"{prefix}{name}.")
        else:
            pairs.append((f"{prefix}{name}", as_text(value)))
    return pairs


def as_text(value: Any) -> str:
    if value is None:
        return NONE
    if isinstance(value, float):
        return f"{value:.6g}" if abs(value) < 1e6 else f"{value:.0f}"
    return value if isinstance(value, str) else json.dumps(value, default=str)


def minute(text: str) -> str:
    """An instant to the minute, as `2026-11-21 06:15`."""
    return text[:16].replace("T", " ")


def period(first: str, last: str) -> str:
    """From one instant to another, to the minute: `2026-11-21 06:15 to 07:02`."""
    began, ended = minute(first), minute(last)
    if began == ended:
        return began
    return f"{began} to {ended[11:] if began[:10] == ended[:10] else ended}"
