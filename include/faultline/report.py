"""The report: one HTML file that opens without a network.

Everything in it comes from records, their `series.json` and their `audit.json`. Texts of the configuration, of
reasons and of evidence are untrusted: the template escapes all of them, data goes in as JSON that holds no `<`, and
the page's own policy lets no script run but the two that belong to it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jinja2
import plotly.graph_objects as go
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from faultline import __version__
from faultline.event_names import EDGES, label, split_name
from faultline.overview import overview_figures, parts_figure
from faultline.plots import time_figure
from faultline.record import Record, RecoveryPart
from faultline.table import (
    NONE,
    Column,
    columns_of,
    count,
    macro,
    macro_of,
    milliseconds,
    name_of,
    ordered,
    plain_rows,
    seconds,
    share,
    signed,
)

TEMPLATES = Path(__file__).parent / "templates"
_ENGINES = {"pyspark": "Spark", "kafka": "Kafka", "java": "Java", "python": "Python", "apache-airflow": "Airflow"}
_VERDICTS = {
    "invalid": "Measured, but not valid:",
    "failed": "Not measured, because the attempt failed:",
    "cancelled": "Not measured, because the attempt was cancelled:",
}

Pairs = list[tuple[str, str]]


def write_report(
    records: Sequence[Record],
    results: Path,
    target: Path,
    *,
    title: str,
    sweep: Mapping[str, Any] | None = None,
) -> Path:
    """Writes the report of `records` to `target` and returns that path.

    `results`: the folder that holds `attempts/`; `sweep`: more facts for the head, by name. The file appears whole
    or not at all. Raises OSError when it cannot be written.
    """
    html = render(records, results, title=title, sweep=sweep)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(html, encoding="utf-8")
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return target


def render(records: Sequence[Record], results: Path, *, title: str, sweep: Mapping[str, Any] | None = None) -> str:
    """The report as text."""
    rows = plain_rows(records)
    columns = columns_of(rows)
    figures: dict[str, go.Figure] = {}
    experiments = [
        _experiment(row["number"], record, results, figures) for row, record in zip(rows, ordered(records), strict=True)
    ]
    overview = []
    for index, (axis, figure) in enumerate(overview_figures(records)):
        figures[f"overview-{index}"] = figure
        overview.append((axis, f"overview-{index}", figure.layout.height))
    parts = parts_figure(records)
    if parts is not None:
        figures["parts"] = parts
    scripts = [get_plotlyjs(), (TEMPLATES / "report.js").read_text(encoding="utf-8")]
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
    )
    return environment.get_template("report.html.j2").render(
        title=title,
        lead=_lead(records),
        facts=_facts(records, sweep),
        groups=_groups(columns),
        column_count=len(columns),
        rows=rows,
        overview=overview,
        parts=None if parts is None else parts.layout.height,
        experiments=experiments,
        figures=Markup(_as_json({name: _stripped(figure) for name, figure in figures.items()})),
        scripts=[Markup(script) for script in scripts],
        script_sources=Markup(" ".join(_source(script) for script in scripts)),
        css=Markup((TEMPLATES / "report.css").read_text(encoding="utf-8")),
        version=__version__,
        written=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
    )


def _lead(records: Sequence[Record]) -> str:
    """The outcome in two sentences."""
    if not records:
        return "No records."
    statuses = Counter(record.status for record in records)
    told = ", ".join(f"{number} {status}" for status, number in sorted(statuses.items(), key=lambda item: -item[1]))
    experiments = "experiment" if len(records) == 1 else "experiments"
    audits = [record.metrics.audit for record in records if record.status == "valid"]
    if not audits:
        return f"{len(records)} {experiments}: {told}."
    sums = {name: sum(getattr(audit, name) or 0 for audit in audits) for name in ("lost", "overcounted", "wrong")}
    if any(sums.values()):
        found = ", ".join(f"{count(number)} {name}" for name, number in sums.items())
        return f"{len(records)} {experiments}: {told}. The audit of the valid ones found {found}."
    return f"{len(records)} {experiments}: {told}. In the valid ones nothing was lost, overcounted or wrong."


def _facts(records: Sequence[Record], sweep: Mapping[str, Any] | None) -> Pairs:
    """When, on what and with what it was measured; several values of one thing are all named."""
    times = sorted(record.measured_at for record in records)
    machines, warned = [], False
    for record in records:
        env = record.environment
        memory = "" if env.memory_mb is None else f", {env.memory_mb / 1024:.0f} GB of memory"
        machines.append(f"{env.host or 'unknown host'}: {env.cores or 'unknown'} cores{memory}")
        warned = warned or bool(env.oversubscribed)
    engines = []
    for record in records:
        known = record.environment.versions or {}
        engines.append(" · ".join(f"{name} {known[key]}" for key, name in _ENGINES.items() if key in known))
    facts = [
        ("Measured", _period(times)),
        ("Machine", _distinct(machines)),
        ("Oversubscribed", "yes: the executors ask for more cores than there are" if warned else "no"),
        ("Software", _distinct(engines)),
        ("Build", _distinct(record.build for record in records)),
        ("Faultline", _distinct(_faultline(record) for record in records)),
        ("Matrix", _distinct(record.matrix or "" for record in records)),
        ("Sweep", _distinct(record.sweep_id or "" for record in records)),
    ]
    facts += [(str(name), _as_text(value)) for name, value in (sweep or {}).items()]
    return [(name, value) for name, value in facts if value]


def _faultline(record: Record) -> str:
    version = (record.environment.versions or {}).get("faultline", "")
    commit = record.environment.git_commit
    return f"{version} (commit {commit})" if commit else str(version)


def _period(times: Sequence[str]) -> str:
    """From the first to the last instant, to the minute."""
    if not times:
        return ""
    first, last = (_minute(text) for text in (times[0], times[-1]))
    if first == last:
        return f"{first} UTC"
    return f"{first} to {last[11:] if first[:10] == last[:10] else last} UTC"


def _minute(text: str) -> str:
    return text[:16].replace("T", " ")


def _distinct(values: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(value for value in values if value))


def _groups(columns: Sequence[Column]) -> list[tuple[str, list[Column]]]:
    """Columns under the heading that they share."""
    groups: list[tuple[str, list[Column]]] = []
    for column in columns:
        if groups and groups[-1][0] == column.group:
            groups[-1][1].append(column)
        else:
            groups.append((column.group, [column]))
    return groups


def _experiment(number: str, record: Record, results: Path, figures: dict[str, go.Figure]) -> dict[str, Any]:
    """What the template needs for one section; adds the section's figure to `figures`."""
    folder = results / "attempts" / record.attempt
    figure, trouble = _curves(record, folder)
    name = f"time-{number}"
    if figure is not None:
        figures[name] = figure
    measured = record.status in ("valid", "invalid")
    has_fault = any(event.name == "t0" for event in record.timeline)
    return {
        "number": number,
        "name": name_of(record)[0].upper() + name_of(record)[1:],
        "status": record.status,
        "about": f"Attempt {record.attempt}, measured {_minute(record.measured_at)} UTC, configuration "
        f"{record.config_id}, repetition {record.repetition}, series {record.series}",
        "verdict": _VERDICTS.get(record.status, "Remarks:"),
        "reasons": list(dict.fromkeys(record.reasons)),
        "headline": _headline(record) if measured else [],
        "plot": name if figure is not None else None,
        "plot_height": figure.layout.height if figure is not None else 0,
        "caption": _caption(has_fault),
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
    path = folder / "series.json"
    shown = f"attempts/{record.attempt}/series.json"
    try:
        series = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None, f"{shown} is missing, because the attempt was not judged or its raw files were removed."
    except (OSError, ValueError) as error:
        return None, f"{shown} cannot be read ({type(error).__name__})."
    rate, machine_cores = record.config.get("rate"), record.environment.cores
    try:
        return time_figure(
            series, rate=rate if isinstance(rate, int | float) else None, machine_cores=machine_cores
        ), ""
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return None, f"{shown} does not hold what is expected ({type(error).__name__}: {error})."


def _caption(has_fault: bool) -> str:
    common = (
        "Latency by second of emission; throughput over each committed batch; lag at each commit; CPU stacked by role."
    )
    marks = (
        " The orange line is the signal; dotted lines and the marks above are the events of the recovery." * has_fault
    )
    return f"{common}{marks} Drag to zoom, double-click to reset."


def _headline(record: Record) -> list[dict[str, str]]:
    """The figures that one looks for first."""
    metrics, recovery, latency = record.metrics, record.metrics.recovery, record.metrics.latency_ms
    rate = record.config.get("rate")
    offered = f"of {rate:,.0f} offered" if isinstance(rate, int | float) else ""
    lasting = {True: "sustained", False: "not sustained", None: ""}[metrics.sustained]
    used = [value for value in metrics.cpu_cores.model_dump().values() if value is not None]
    tiles = [
        _tile("Latency p50", milliseconds(latency.p50), "ms", f"mean {milliseconds(latency.mean)}"),
        _tile("Latency p99", milliseconds(latency.p99), "ms", f"max {milliseconds(latency.max)}"),
        _tile("Throughput", count(metrics.throughput_rps), "records/s", ", ".join(x for x in (offered, lasting) if x)),
        _tile("CPU, all roles", f"{sum(used):.2f}" if used else NONE, "cores", ""),
    ]
    if recovery.recovered is not None:
        resolution = f"± {seconds(recovery.resolution_s)} (one bin)" if recovery.resolution_s is not None else ""
        tiles += [
            _tile("Reload", seconds(recovery.reload_s, 2), "s", f"detection {seconds(recovery.detection_s, 2)}"),
            _tile("Replay", seconds(recovery.replay_s, 2), "s", f"catch-up {seconds(recovery.catchup_s, 2)}"),
            _tile("Macro", macro(record), "s", resolution if recovery.recovered else "not recovered while watched"),
            _tile("Longest silence", seconds(recovery.silence_s, 2), "s", f"dip {share(recovery.dip_depth)}"),
        ]
    audit = metrics.audit
    note = f"{count(audit.overcounted)} overcounted, {count(audit.wrong)} wrong"
    return [*tiles, _tile("Lost", count(audit.lost), "", note)]


def _tile(name: str, value: str, unit: str, note: str) -> dict[str, str]:
    return {"name": name, "value": value, "unit": unit if value != NONE else "", "note": note}


def _recoveries(record: Record) -> list[list[str]]:
    """A row for each fault of several; a single one stands in the headline and under all figures."""
    recoveries = record.metrics.recoveries
    if len(recoveries) < 2:
        return []
    return [[str(number), *_recovery_row(recovery)] for number, recovery in enumerate(recoveries, start=1)]


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
    return [(name, count(value)) for name, value in record.metrics.audit.model_dump().items()]


def _offenders(path: Path) -> list[dict[str, str]]:
    """The first offending keys; none when the file is absent or holds something else."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))["offenders"]
        return [
            {name: _as_text(entry.get(name)) for name in ("kind", "key", "expected", "final")} for entry in found[:30]
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []


def _folded(record: Record) -> list[tuple[str, Pairs]]:
    """Tables that are there when asked for; empty ones are left out."""
    environment = record.environment
    metrics = record.metrics.model_dump()
    metrics.pop("audit")
    if len(metrics.pop("recoveries")) > 1:
        metrics["recovery of fault 1"] = metrics.pop("recovery")
    tables = [
        ("All figures", _flat(metrics)),
        ("Configuration", _flat(record.config)),
        ("Spark settings", _flat(environment.spark_conf or {})),
        ("Kafka settings", _flat(environment.kafka_conf or {})),
        ("Versions", _flat(environment.versions or {})),
        ("Raw files", _flat(record.artifacts)),
    ]
    return [(name, pairs) for name, pairs in tables if pairs]


def _flat(values: Mapping[str, Any], prefix: str = "") -> Pairs:
    """Nested names joined by dots, in the order given."""
    pairs: Pairs = []
    for name, value in values.items():
        if isinstance(value, Mapping):
            pairs += _flat(value, f"{prefix}{name}.")
        else:
            pairs.append((f"{prefix}{name}", _as_text(value)))
    return pairs


def _as_text(value: Any) -> str:
    if value is None:
        return NONE
    if isinstance(value, float):
        return f"{value:.6g}" if abs(value) < 1e6 else f"{value:.0f}"
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _stripped(figure: go.Figure) -> dict[str, Any]:
    """Traces and layout without plotly's template, which the page's own theme replaces."""
    content: dict[str, Any] = figure.to_plotly_json()
    content["layout"].pop("template", None)
    return content


def _as_json(content: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(content, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _source(script: str) -> str:
    """The policy's permission for exactly this script. HTML parsing turns CR LF into LF before it is hashed."""
    normal = script.replace("\r\n", "\n").replace("\r", "\n")
    return f"'sha256-{base64.b64encode(hashlib.sha256(normal.encode()).digest()).decode()}'"
