"""HTML report: one file that opens without a network.

Contents come from records, `series.json` and `audit.json`. Texts of configurations, reasons and evidence are untrusted:
the template escapes them, figures are embedded as JSON without `<`, and the content security policy permits only the
two scripts of the report.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from faultline import __version__
from faultline.comparison.findings.claims import identifies_tuples, miscounts
from faultline.comparison.sweep_summary import invalid_runs_of, summary_of
from faultline.engines.registry import ENGINES
from faultline.records.columns import CatalogueColumn, Sheet
from faultline.records.format import count
from faultline.records.index_entry import IndexEntry
from faultline.records.record import WITH_FIGURES, Record
from faultline.reports.figures.configurations import PANEL_HEIGHT, legend_entries
from faultline.reports.figures.front import summary_view
from faultline.reports.figures.parts import parts_figure
from faultline.reports.html import environment, figures_json, template_text
from faultline.reports.views.experiment_report import Pairs
from faultline.reports.views.run import OVERSUBSCRIBED, period_text, run_view
from faultline.reports.views.runs import sort_records, table_rows, used_columns
from faultline.reports.views.sweep import SweepPageQuery, SweepView
from faultline.system.text import pluralize

# Names of known software versions: engines, then common software.
_SOFTWARE = {name: words for one in ENGINES.by_name.values() for name, words in one.packages.items()} | {
    "kafka": "Kafka", "java": "Java", "python": "Python", "apache-airflow": "Airflow",
}  # fmt: skip


def write_report(
    records: Sequence[Record],
    results: Path,
    target: Path,
    *,
    title: str,
) -> Path:
    """Write the report of `records` to `target` atomically, and return that path.

    `results`: folder of `attempts/`. Raises OSError if the file cannot be written.
    """
    html = render(records, results, title=title)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(html, encoding="utf-8")
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return target


def render(records: Sequence[Record], results: Path, *, title: str) -> str:
    """Return the report as HTML."""
    rows = table_rows(records)
    columns = used_columns(rows)
    figures: dict[str, go.Figure] = {}
    experiments = [
        run_view(record, results, row["number"]) for row, record in zip(rows, sort_records(records), strict=True)
    ]
    figures |= {view.figure_id: view.figure for view in experiments if view.figure is not None}
    judged = SweepView(
        [IndexEntry.of(record) for record in sort_records(records) if record.status in WITH_FIGURES], SweepPageQuery()
    )
    overview: list[tuple[str, list[tuple[str, str]], list[tuple[str, str, bool]]]] = []
    for axis, panels in judged.panels if judged.entries else ():
        drawn = {f"overview-{len(overview)}-{index}": figure for index, (_, figure) in enumerate(panels)}
        figures |= drawn
        legend = max((legend_entries(figure) for _, figure in panels), key=len)
        overview.append((axis, list(zip(drawn, [metric.title for metric, _ in panels], strict=True)), legend))
    summary = _summary(records, figures)
    parts = parts_figure(records)
    if parts is not None:
        figures["parts"] = parts
    scripts = [get_plotlyjs(), template_text("report.js")]
    return (
        environment()
        .get_template("report.html.j2")
        .render(
            title=title,
            lead=_lead_text(records),
            facts=_facts(records),
            groups=_column_groups(columns),
            runs=Sheet.RUNS,
            column_count=len(columns),
            rows=rows,
            summary=summary,
            overview=overview,
            panel_height=PANEL_HEIGHT,
            overview_text=overview_text(records, judged, has_faults=parts is not None),
            parts=None if parts is None else parts.layout.height,
            experiments=experiments,
            figures=figures_json(figures),
            scripts=[Markup(script) for script in scripts],
            script_sources=Markup(" ".join(_script_hash(script) for script in scripts)),
            css=Markup(template_text("report.css")),
            version=__version__,
            written=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        )
    )


def _summary(records: Sequence[Record], figures: dict[str, go.Figure]) -> dict[str, Any] | None:
    """Return the summary section, or None if the records compare nothing."""
    entries = [IndexEntry.of(record) for record in records]
    answer, invalid = summary_of(entries), invalid_runs_of(entries)
    if answer is not None and not answer.has_content:
        answer = None
    invalid = None if invalid is None or (answer is None and not invalid.effects) else invalid
    return summary_view(answer, invalid, figures)


def overview_text(records: Sequence[Record], view: SweepView, *, has_faults: bool) -> str:
    """Return a text on what the plots show, and why a plot is missing.

    `view`: view of the judged records; `has_faults`: whether any of them has a recovery.
    """
    if not view.entries:
        return "No record has figures; the sections below name the reasons."
    parts = [f"{pluralize(view.usable, 'usable run')} of {pluralize(len(view.points), 'configuration')}"]
    if view.invalid:
        parts.append(f"{pluralize(view.invalid, 'invalid run')}, hollow, with the reason in the tooltip")
    if others := len(view.entries) - len(view.members):
        parts.append(f"without {pluralize(others, 'record')} of other builds")
    if without := len(records) - len(view.entries):
        parts.append(f"without {pluralize(without, 'record')} that have no figures")
    text = f"Plotted: {'; '.join(parts)}."
    if view.usable and not view.is_repeated and view.axes:
        text += " Lines join repeated runs only."
    if not view.axes:
        text += " No parameter varies, so there is no axis."
    return text if has_faults else f"{text} No fault was injected, so there is no recovery."


def _lead_text(records: Sequence[Record]) -> str:
    """Return the outcome in two sentences."""
    if not records:
        return "No records."
    statuses = Counter(record.status for record in records)
    counts = ", ".join(f"{number} {status}" for status, number in sorted(statuses.items(), key=lambda item: -item[1]))
    experiments = "experiment" if len(records) == 1 else "experiments"
    usable = [record for record in records if record.is_usable]
    if not usable:
        return f"{len(records)} {experiments}: {counts}."
    sums = miscounts(usable)
    if any(sums.values()):
        found = ", ".join(f"{count(number)} {name.replace('_', ' ')}" for name, number in sums.items())
        return f"{len(records)} {experiments}: {counts}. The audit of the valid runs found {found}."
    undrained = sum(record.metrics.audit.undrained or 0 for record in usable)
    once = "; every tuple was counted exactly once" if all(map(identifies_tuples, usable)) else ""
    return (
        f"{len(records)} {experiments}: {counts}. The audit of the valid runs found no lost, overcounted or unexpected "
        f"tuples{once}." + (f" {count(undrained)} input offsets were not processed." if undrained else "")
    )


def _facts(records: Sequence[Record]) -> Pairs:
    """Return dates, machines, software and origin of the records; where records differ, all values."""
    times = sorted(record.measured_at for record in records)
    machines, warned = [], False
    for record in records:
        env = record.environment
        memory = "" if env.memory_mb is None else f", {env.memory_mb / 1024:.0f} GB of memory"
        processor = f" of {env.processor}" if env.processor else ""
        machines.append(f"{env.host or 'unknown host'}: {env.cores or 'unknown'} cores{processor}{memory}")
        warned = warned or bool(env.oversubscribed)
    engines = []
    for record in records:
        known = record.environment.versions or {}
        engines.append(" · ".join(f"{name} {known[key]}" for key, name in _SOFTWARE.items() if key in known))
    facts = [
        ("Measured", _period(times)),
        ("Machine", _join_distinct(machines)),
        ("Oversubscribed", OVERSUBSCRIBED if warned else "no"),
        ("Software", _join_distinct(engines)),
        ("Build", _join_distinct(record.build for record in records)),
        ("Faultline", _join_distinct(_faultline(record) for record in records)),
        ("Matrix", _join_distinct(record.matrix or "" for record in records)),
        ("Sweep", _join_distinct(record.sweep_id or "" for record in records)),
    ]
    return [(name, value) for name, value in facts if value]


def _faultline(record: Record) -> str:
    version = (record.environment.versions or {}).get("faultline", "")
    commit = record.environment.git_commit
    return f"{version} (commit {commit})" if commit else str(version)


def _period(times: Sequence[str]) -> str:
    """Return the period from the first to the last instant, to the minute."""
    return f"{period_text(times[0], times[-1])} UTC" if times else ""


def _join_distinct(values: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(value for value in values if value))


def _column_groups(columns: Sequence[CatalogueColumn]) -> list[tuple[str, list[CatalogueColumn]]]:
    """Return the columns grouped by their common heading."""
    groups: list[tuple[str, list[CatalogueColumn]]] = []
    for column in columns:
        if groups and groups[-1][0] == column.group:
            groups[-1][1].append(column)
        else:
            groups.append((column.group, [column]))
    return groups


def _script_hash(script: str) -> str:
    """Return the policy entry of a script; browsers hash it after converting CR LF to LF."""
    normal = script.replace("\r\n", "\n").replace("\r", "\n")
    return f"'sha256-{base64.b64encode(hashlib.sha256(normal.encode()).digest()).decode()}'"
