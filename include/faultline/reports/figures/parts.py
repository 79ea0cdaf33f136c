"""Stacked bars of the parts of each recovery."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from faultline.records.format import CONTROL, NONE, fault_of
from faultline.records.record import WITH_FIGURES, Record
from faultline.reports.figures.style import CLEAR, FAINT_COLOUR, set_layout
from faultline.reports.views.experiment_report import PARTS, injection_number, part_lengths, parts_of, repeated_parts
from faultline.reports.views.runs import sort_records, table_rows

# If there were more bars, each run gets a single bar with the medians of its recoveries.
MAX_BARS = 40


@dataclass(frozen=True)
class _Bar:
    """One recovery, or the medians of a run; `why`: reason of an invalid run, empty for a usable one."""

    label: str
    lengths: Mapping[str, float]
    why: str


def _run_labels(row: Mapping[str, str], several: bool) -> list[str]:
    """Return the labels that apply to a run: fault (if the runs have `several`), query, state, interval."""
    known = {**row, "fault": row["fault"] if several else NONE}
    units = {"fault": "", "query": "", "state_mb": " MB", "interval_s": " s"}
    return [f"{known[key]}{unit}" for key, unit in units.items() if known[key] != NONE]


def parts_figure(records: Sequence[Record]) -> go.Figure | None:
    """Return the parts of each recovery as stacked bars, hollow for invalid runs; None without a recovery."""
    bars = list(_bars(records, each=True))
    if len(bars) > MAX_BARS:
        bars = list(_bars(records, each=False))
    if not bars:
        return None
    figure = go.Figure()
    for hollow in (False, True):
        shown = [bar for bar in bars if bool(bar.why) is hollow]
        if not shown:
            continue
        for name, title, colour in PARTS:
            figure.add_bar(
                y=[bar.label for bar in shown],
                x=[bar.lengths.get(name) for bar in shown],
                text=[bar.why for bar in shown],
                textposition="none",
                name=title,
                legendgroup=title,
                showlegend=not (hollow and len(shown) < len(bars)),
                orientation="h",
                marker={"color": CLEAR, "line": {"color": colour, "width": 2}} if hollow else {"color": colour},
                hovertemplate=f"{title} %{{x:.2f}} s{' (%{text})' if hollow else ''}<extra>%{{y}}</extra>",
            )
    if any("unseen" in bar.lengths for bar in bars):
        figure.add_bar(
            y=[bar.label for bar in bars],
            x=[bar.lengths.get("unseen") for bar in bars],
            name="not recovered (censored)",
            orientation="h",
            marker={"color": "rgba(128,138,148,0.25)", "pattern": {"shape": "/", "fgcolor": FAINT_COLOUR}},
            hovertemplate="not recovered for another %{x:.1f} s<extra>%{y}</extra>",
        )
    set_layout(
        figure,
        92 + 30 * len(bars),
        (112, 16, 34, 44),
        barmode="stack",
        bargap=0.42,
        legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "traceorder": "normal"},
        xaxis={"title": {"text": "Seconds after the fault"}, "zeroline": False, "rangemode": "tozero"},
        yaxis={
            "autorange": "reversed",
            "fixedrange": True,
            "showgrid": False,
            "automargin": True,
            "categoryorder": "array",
            "categoryarray": [bar.label for bar in bars],
        },
    )
    return figure


def _bars(records: Sequence[Record], *, each: bool) -> Iterator[_Bar]:
    """Yield the bars in the order of the table; `each`: one per recovery, else one per run."""
    judged = [record for record in records if record.status in WITH_FIGURES]
    several = len({fault_of(record.config) for record in judged} - {CONTROL}) > 1
    for row, record in zip(table_rows(records), sort_records(records), strict=True):
        if record.status not in WITH_FIGURES:
            continue
        why = "" if record.is_usable else f"{record.status}: {row['reason'] or 'unknown reason'}"
        name = f"{row['number']} · {', '.join(_run_labels(row, several))}{' · ' + record.status if why else ''}"
        parts = parts_of(record)
        if len(repeated_parts(record)) > 1 and not each:
            parts = [record.metrics.recovery]
        for number, part in enumerate(parts, start=1):
            label = f"{name} · recovery {injection_number(part, number)}" if len(parts) > 1 else name
            yield _Bar(label, part_lengths(part), why)
