"""View of one run: figures, tables, curves and report as plain texts for terminal, pages and HTML report."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from faultline.experiment.attempt import Attempt
from faultline.experiment.workloads.registry import offered_rate, workload_of
from faultline.records.catalogue import metric_for, metrics_in
from faultline.records.columns import Metric, Sheet
from faultline.records.format import (
    NONE,
    cores,
    count,
    fault_of,
    lasting,
    macro,
    macro_of,
    milliseconds,
    plain,
    recovered_since,
    seconds,
    share,
    signed,
    window_of,
)
from faultline.records.index_entry import IndexEntry
from faultline.records.record import WITH_FIGURES, Record, RecoveryPart
from faultline.reports.figures.attempt import time_figure
from faultline.reports.views.experiment_report import ExperimentReport, Pairs
from faultline.reports.views.faults import build_report
from faultline.reports.views.runs import load_parts, run_name
from faultline.reports.views.series import FILE, FILE_GONE, last_violation_text, recovery_bounds, try_read_curves
from faultline.system.errors import FaultlineError

# Errors that any content of a raw file may cause; other programs wrote it, so a view must tolerate them.
READ_ERRORS = (
    FaultlineError, KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, RecursionError,
)  # fmt: skip
_VERDICTS = {
    "unmet": "The engine missed the request; the figures count:",
    "invalid": "The measurement failed; the figures do not count:",
    "failed": "Not measured; the attempt failed:",
    "cancelled": "Not measured; the attempt was cancelled:",
}
DISTURBED = "background-load:"
_BACKGROUND_CPU = "background_cpu."
MAX_OFFENDERS = 30


@dataclass(frozen=True)
class RunView:
    """One run. `curves`: content of series.json; None if missing, with the cause in `missing_curves_reason`."""

    record: Record
    curves: Mapping[str, Any] | None
    missing_curves_reason: str
    report: ExperimentReport
    number: str = ""

    @property
    def name(self) -> str:
        """Name of the experiment, capitalized."""
        name = run_name(self.record)
        return name[0].upper() + name[1:]

    @property
    def status(self) -> str:
        """Status of the record."""
        return self.record.status

    @property
    def has_figures(self) -> bool:
        """Whether the record has figures."""
        return self.record.status in WITH_FIGURES

    @property
    def identity_text(self) -> str:
        """Identity of the run in one line."""
        record = self.record
        return (
            f"Attempt {record.attempt}, measured {minute_text(record.measured_at)} UTC, "
            f"configuration {record.config_id}, repetition {record.repetition}, series {record.series}"
        )

    @property
    def path(self) -> str:
        """Path of the record below the results folder."""
        return f"records/{self.record.config_id}/{self.record.attempt}.json"

    @property
    def reasons_heading(self) -> str:
        """Heading of the reasons."""
        return _VERDICTS.get(self.record.status, "Remarks:")

    @property
    def reasons(self) -> list[str]:
        """Reasons of the status, with the background CPU where it was the cause."""
        background = self.record.metrics.background_cpu
        return explain_reasons(
            self.record.reasons, {f"{_BACKGROUND_CPU}{name}": value for name, value in background or ()}
        )

    @cached_property
    def _drawn(self) -> tuple[go.Figure | None, str]:
        shown = f"attempts/{self.record.attempt}/{FILE}"
        if self.curves is None:
            return None, f"{shown} {self.missing_curves_reason}."
        # The offered rate counts records, so it is drawn only for workloads whose throughput also counts records.
        offered = offered_rate(self.record.config) if self._unit == "records" else None
        machine_cores, bounds = self.record.environment.cores, recovery_bounds(self.record)
        try:
            return time_figure(self.curves, rate=offered, machine_cores=machine_cores, bounds=bounds), ""
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            return None, f"{shown}: unexpected content ({type(error).__name__}: {error})."

    @property
    def figure(self) -> go.Figure | None:
        """Figure over time; None if missing, with the cause in `missing_figure_reason`."""
        return self._drawn[0]

    @property
    def missing_figure_reason(self) -> str:
        """Cause of a missing figure."""
        return self._drawn[1]

    @property
    def _unit(self) -> str:
        """Unit that the throughput of the workload counts."""
        return workload_of(self.record.config).counts

    @property
    def figure_id(self) -> str:
        """Id of the figure's element on the page."""
        return f"time-{self.number}"

    @property
    def caption(self) -> str:
        """Caption of the figure."""
        marks = (
            " Orange line: injection. Dotted lines and the markers above: recovery events."
            * any(event.name == "t0" for event in self.record.timeline)
        )  # fmt: skip
        shades = " Dashed: the recovery thresholds L* and lag*. Shaded: p99 or lag above its threshold." * bool(
            recovery_bounds(self.record)
        )
        latency = self.record.metrics.latency_ms
        by_second = latency.batches is None and latency.method != "none"
        bins = "throughput and lag by second" if by_second else "throughput per committed batch; lag at each commit"
        return f"Latency by second of output; {bins}; CPU by role.{marks}{shades} Drag to zoom, double-click to reset."

    @property
    def tiles(self) -> list[dict[str, str]]:
        """Main figures: name, value, unit and note of each tile."""
        if not self.has_figures:
            return []
        metrics, recovery, latency = self.record.metrics, self.record.metrics.recovery, self.record.metrics.latency_ms
        rate, counts = offered_rate(self.record.config), self._unit
        offered = f"of {rate:,.0f} {'' if counts == 'records' else 'records/s '}offered" if rate is not None else ""
        notes = ", ".join(part for part in (offered, lasting(self.record)) if part)
        used = [value for value in metrics.cpu_cores.model_dump().values() if value is not None]
        tiles = [
            _tile("Latency p50", milliseconds(latency.p50), "ms", f"mean {milliseconds(latency.mean)}"),
            _tile("Latency p99", milliseconds(latency.p99), "ms", f"max {milliseconds(latency.max)}"),
            _tile("Throughput", count(metrics.throughput_rps), f"{counts}/s", notes),
            _tile("CPU, all roles", f"{sum(used):.2f}" if used else NONE, "cores", self.lost_cores),
        ]
        if recovery.recovered is not None:
            resolution = recovered_since(recovery).strip(" ()")
            unrecovered = last_violation_text(self.record, 1, recovery, None) or "recovery censored"
            tiles += [
                _tile("Reload", seconds(recovery.reload_s, 2), "s", f"detection {seconds(recovery.detection_s, 2)}"),
                _tile("Replay", seconds(recovery.replay_s, 2), "s", f"catch-up {seconds(recovery.catchup_s, 2)}"),
                _tile("Macro", macro(self.record), "s", resolution if recovery.recovered else unrecovered),
                _tile("Longest silence", seconds(recovery.silence_s, 2), "s", f"dip {share(recovery.dip_depth)}"),
            ]
        audit = metrics.audit
        if audit.lost is None:
            return tiles
        note = f"{count(audit.overcounted)} overcounted, {count(audit.unexpected)} unexpected"
        note += f", {count(audit.checksum_mismatches)} checksum mismatches" if audit.checksum_mismatches else ""
        note += f", {count(audit.undrained)} not processed" if audit.undrained else ""
        return [*tiles, _tile("Lost", count(audit.lost), "", note)]

    @property
    def lost_cores(self) -> str:
        """CPU that the measured processes lost to other processes and to steal, as text; empty if unknown."""
        waited = self.record.metrics.waited
        if waited is None or waited.others is None:
            return ""
        steal = f", to steal {cores(waited.stolen)}" if waited.stolen else ""
        return f"lost to other processes {cores(waited.others)}{steal}, in the worst 5 s {cores(waited.worst_5s)}"

    @property
    def recoveries(self) -> list[list[str]]:
        """One row per fault if there are several; a single one is shown by the tiles and the table of all figures."""
        recoveries = self.record.metrics.recoveries
        if len(recoveries) < 2:
            return []
        return [[_fault_label(number, one), *_recovery_row(one)] for number, one in enumerate(recoveries, start=1)]

    @cached_property
    def audit(self) -> list[tuple[Metric, str]]:
        """Audit figures with their texts; none for events that the engine generates, since none are stored."""
        if not self.has_figures or self.record.metrics.audit.expected is None:
            return []
        entry = IndexEntry.of(self.record)
        return [(one, one.text(one.value(entry))) for one in metrics_in(Sheet.AUDIT) if one.key.startswith("audit.")]

    @property
    def offenders(self) -> list[dict[str, str]]:
        """First mismatched keys of the audit."""
        # JSON may hold lone surrogates, which UTF-8 cannot encode.
        return [
            {name: value_text(value).encode("utf-8", "replace").decode() for name, value in one.items()}
            for one in (self.report.offenders[:MAX_OFFENDERS] if self.has_figures else ())
        ]

    @property
    def collapsed_tables(self) -> list[tuple[str, str, Pairs]]:
        """Collapsed tables that are not empty: heading, CSS class of the names, and rows."""
        environment = self.record.environment
        tables = [
            ("All figures", "", self._figures),
            ("Configuration", "mono", _flatten(self.record.config)),
            ("Engine settings", "mono", _flatten(environment.spark_conf or {})),
            ("Kafka settings", "mono", _flatten(environment.kafka_conf or {})),
            ("Versions", "mono", _flatten(environment.versions or {})),
            ("Raw files", "mono", _flatten(self.record.artifacts)),
        ]
        return [table for table in tables if table[-1]]

    @property
    def _figures(self) -> Pairs:
        """All figures except the audit; the recovery is that of the first fault, or medians of repeated injections."""
        metrics = self.record.metrics.model_dump()
        metrics.pop("audit")
        first = " of fault 1" if len(metrics.pop("recoveries")) > 1 else ""
        first = ", median of its injections" if metrics["injections"] and first else first
        pairs: Pairs = []
        for key, text in _flatten(metrics):
            metric = metric_for(key)
            title = metric.name if text in ("true", "false") else metric.title
            if text != NONE:
                pairs.append((f"{title}{first}" if metric.group == "Recovery" else title, text))
        return pairs

    @property
    def facts(self) -> Pairs:
        """Cell and environment of the run."""
        record, environment = self.record, self.record.environment
        memory = "" if environment.memory_mb is None else f", {environment.memory_mb / 1024:.0f} GB"
        load = ", ".join([*load_parts(record.config), f"measured for {plain(window_of(record)[1])} s"])
        facts = [
            ("Workload", load),
            ("Measured", f"{minute_text(record.measured_at)} UTC"),
            ("Configuration", record.config_id),
            ("Repetition", str(record.repetition)),
            ("Build", record.build),
            ("Series", record.series if record.series != record.build else ""),
            ("Logical date", record.logical_date or ""),
            ("Machine", f"{environment.host or 'unknown host'}: {environment.cores or 'unknown'} cores{memory}"),
            ("Oversubscribed", OVERSUBSCRIBED if environment.oversubscribed else ""),
            ("Faultline", value_text((environment.versions or {}).get("faultline", NONE))),
            ("Commit", environment.git_commit or ""),
            ("Clock offsets", self.clocks),
            ("Latency clock", self.latency_clock),
            ("Record", self.path),
        ]
        return [(name, value) for name, value in facts if value]

    @property
    def clocks(self) -> str:
        """Offsets of other hosts' clocks; empty without other hosts."""
        return ", ".join(
            f"{host} {signed(one.offset_s * 1000, 1)} ms (round trip {one.round_trip_s * 1000:.1f} ms)"
            for host, one in (self.record.environment.clock_offsets or {}).items()
        )

    @property
    def latency_clock(self) -> str:
        """Clock that gives the end of latencies, with its uncertainty; empty if it also gives their start."""
        ends = self.record.environment.latency_clock
        if ends is None:
            return ""
        known = "uncertainty unknown" if ends.uncertain_ms is None else f"uncertainty {ends.uncertain_ms:.2f} ms"
        text = f"{ends.host}, offset {signed(ends.ahead_ms, 0)} ms (corrected), {known}"
        return text + "; it limits the precision of latencies" * ends.uncertain

    def as_dict(self) -> dict[str, Any]:
        """Return all facts as JSON values."""
        record, report = self.record, self.report
        kept = ("attempt", "status", "reasons", "matrix", "sweep_id", "config_id", "repetition", "series", "build")
        facts = record.as_dict()
        return {
            **{name: facts[name] for name in (*kept, "measured_at", "config")},
            "fault": fault_of(record.config),
            "metrics": {key: value for key, value in facts["metrics"].items() if not key.startswith("recover")},
            "attempt_events": [asdict(event) for event in report.attempt_events],
            "faults": [{**asdict(fault), "recovery": fault.recovery.model_dump()} for fault in report.faults],
            "restarts": [asdict(restart) for restart in report.restarts],
            "offenders": [dict(offender) for offender in report.offenders],
            "clock_offsets": facts["environment"].get("clock_offsets"),
            "remarks": list(report.remarks),
        }


OVERSUBSCRIBED = "yes: the executors use more cores than the machine has"


def run_view(record: Record, results: Path, number: str = "") -> RunView:
    """Return the view of `record`.

    `results`: folder of `attempts/`, whose raw files may be missing. `number`: number of the section in a report.
    """
    attempt = Attempt(results / "attempts" / record.attempt)
    curves, why = try_read_curves(attempt.folder)
    try:
        report = build_report(record, attempt, curves if isinstance(curves, dict) else None)
    except READ_ERRORS as error:
        report = ExperimentReport(
            remarks=(f"raw files: reading failed ({type(error).__name__}: {error}); only the record is shown",)
        )
    if why and FILE_GONE not in why:
        report = replace(report, remarks=(*report.remarks, f"{FILE} {why}"))
    return RunView(record, curves, why, report, number)


def explain_reasons(reasons: Sequence[str], figures: Mapping[str, float | bool | None]) -> list[str]:
    """Return the distinct reasons; a background load is broken down by origin, in mean cores.

    `figures`: figures of the record by path, as an IndexEntry holds them.
    """
    others, services, stolen = (figures.get(f"{_BACKGROUND_CPU}{name}") for name in ("processes", "services", "steal"))
    background = others if others is None or services is None else max(0.0, others - services)
    kinds = (("other processes", background), ("Airflow and other services", services), ("steal", stolen))
    taken = [f"{name} {cores(amount)}" for name, amount in kinds if amount is not None]
    who = f"; on average {', '.join(taken)}" if taken else ""
    return [f"{reason}{who}" if reason.startswith(DISTURBED) else reason for reason in dict.fromkeys(reasons)]


def _tile(name: str, value: str, unit: str, note: str) -> dict[str, str]:
    return {"name": name, "value": value, "unit": unit if value != NONE else "", "note": note}


def _fault_label(number: int, recovery: RecoveryPart) -> str:
    """Return `2 at T0 + 71.0 s, not-steady`: number, and for repeated injections the time and remark."""
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


def _flatten(values: Mapping[str, Any], prefix: str = "") -> Pairs:
    """Return nested names joined by dots, in the given order."""
    pairs: Pairs = []
    for name, value in values.items():
        if isinstance(value, Mapping):
            pairs += _flatten(value, f"{prefix}{name}.")
        else:
            pairs.append((f"{prefix}{name}", value_text(value)))
    return pairs


def value_text(value: Any) -> str:
    """Return the text of any JSON value."""
    if value is None:
        return NONE
    if isinstance(value, float):
        return f"{value:.6g}" if abs(value) < 1e6 else f"{value:.0f}"
    return value if isinstance(value, str) else json.dumps(value, default=str)


def minute_text(text: str) -> str:
    """Return an instant to the minute, as `2026-11-21 06:15`."""
    return text[:16].replace("T", " ")


def period_text(first: str, last: str) -> str:
    """Return a period to the minute, as `2026-11-21 06:15 to 07:02`."""
    began, ended = minute_text(first), minute_text(last)
    if began == ended:
        return began
    return f"{began} to {ended[11:] if began[:10] == ended[:10] else ended}"
