"""Summary of a sweep for report and results page: texts for a template, and the Pareto front as a figure."""

from __future__ import annotations

import itertools
import math
from typing import Any

import plotly.graph_objects as go

from faultline.comparison.candidates import ParetoEntry
from faultline.comparison.sweep_summary import InvalidRuns, SweepSummary
from faultline.records.catalogue import BY_KEY, value_of
from faultline.records.format import title_of
from faultline.records.index_entry import IndexEntry
from faultline.reports.figures.style import FAINT_COLOUR, INVALID, SERIES_COLOURS, legend_above, set_layout
from faultline.reports.views.allocation import allocation_lines
from faultline.reports.views.sweep_summary import (
    SINGLE_RUNS_TEXT,
    capitalize_first,
    front_headings,
    front_rows,
    headline_lines,
    invalid_text,
    placebo_text,
    recommendation_lines,
    remaining_effects,
    single_run_lines,
    step_lines,
)

FRONT = "front"
# More labels would overlap; the table lists all candidates.
MAX_LABELS = 12
# Share of the height within which two labels overlap.
MIN_LABEL_DISTANCE = 0.15
# Keys of the template that are empty without a summary.
_PARTS = ("headline", "recommendation", "steps", "undecided", "heads", "axis", "front", "plot", "scatter", "placebo")


def summary_view(
    summary: SweepSummary | None, invalid: InvalidRuns | None, figures: dict[str, go.Figure]
) -> dict[str, Any] | None:
    """Return the values of the template and add the front to `figures`; None without a judged record.

    `invalid`: the invalid runs and their effects; without a summary, only these are shown.
    """
    common = {"single_runs": "", "excluded": "" if invalid is None else invalid_text(invalid)}
    if summary is None:
        return (
            None
            if invalid is None
            else {**dict.fromkeys(_PARTS, ()), **common, "is_decided": False, "is_doubtful": False}
        )
    figure = front_figure(summary, invalid)
    if figure is not None:
        figures[FRONT] = figure
    steps = [] if summary.is_unrepeated else step_lines(remaining_effects(summary.effects))
    return {
        **common,
        "single_runs": SINGLE_RUNS_TEXT if summary.is_unrepeated else "",
        "headline": single_run_lines(summary.effects) if summary.is_unrepeated else headline_lines(summary.effects),
        "recommendation": [] if summary.is_unrepeated and not summary.recommendation else recommendation_lines(summary),
        "is_decided": summary.recommendation is not None and summary.recommendation.is_conclusive,
        "steps": [(capitalize_first(step), decided) for step, decided, _ in steps if decided],
        "undecided": [(capitalize_first(step), undecided) for step, _, undecided in steps if undecided],
        "heads": front_headings(summary),
        "axis": ", ".join(axis.name for axis in summary.choice.axes),
        "front": front_rows(summary) if len(summary.front.entries) > 1 else [],
        "plot": None if figure is None else figure.layout.height,
        "scatter": allocation_lines(summary.allocation) if summary.allocation else [],
        "placebo": placebo_text(summary.placebo) if summary.recoveries else "",
        "is_doubtful": summary.recoveries and (summary.placebo is None or not summary.placebo.is_reliable),
    }


def front_figure(summary: SweepSummary, invalid: InvalidRuns | None = None) -> go.Figure | None:
    """Return the candidates by CPU and recovery time (without faults: latency); those on the front are filled.

    Triangles are censored recoveries, which are lower bounds. None for fewer than two candidates or metrics.
    """
    front = summary.front
    if len(front.entries) < 2 or len(front.keys) < 2:
        return None
    x, y = (BY_KEY[key] for key in front.keys[:2])
    figure = go.Figure()
    for name, colour, symbol, entries in (
        ("Pareto front", SERIES_COLOURS[0], "circle", [p for p in front.entries if p.dominated_by is None]),
        ("dominated", FAINT_COLOUR, "circle-open", [p for p in front.entries if p.dominated_by is not None]),
    ):
        for ends in (True, False):
            shown = [entry for entry in entries if math.isfinite(entry.figures[1]) == ends]
            if shown:
                _add_candidates(figure, summary, shown, f"{name}{'' if ends else ', recovery censored'}", colour,
                      symbol if ends else "triangle-up-open")  # fmt: skip
    _separate_labels(figure, max((max(trace.y) for trace in figure.data), default=1.0))
    _add_runs(figure, summary, invalid)
    highest = max((max(trace.y) for trace in figure.data), default=1.0)
    span = [x for trace in figure.data for x in trace.x]
    room = max((max(span) - min(span)) * 0.18, max(span) * 0.02)
    set_layout(
        figure,
        380,
        (64, 16, 44, 56),
        legend=legend_above(),
        showlegend=True,
        # Margin for the labels of the outermost points.
        xaxis={"title": {"text": x.title}, "zeroline": False, "range": [min(span) - room, max(span) + room]},
        yaxis={"title": {"text": y.title}, "zeroline": False, "range": [0, highest * 1.15], "tickformat": ",~r"},
    )
    return figure


def _add_candidates(
    figure: go.Figure, summary: SweepSummary, entries: list[ParetoEntry], name: str, colour: str, symbol: str
) -> None:
    named = len(summary.front.entries) <= MAX_LABELS
    rows = {row[0]: row for row in front_rows(summary)}
    heads = front_headings(summary)
    texts = [
        "\n".join(
            [
                entry.candidate.name,
                *(f"{head} {text}" for head, text in zip(heads, rows[entry.candidate.name][1], strict=True)),
                f"{rows[entry.candidate.name][2]} (n = {entry.candidate.repetitions})",
            ]
        )
        for entry in entries
    ]
    heights = [
        entry.figures[1] if math.isfinite(entry.figures[1]) else entry.candidate.lower_bound(summary.front.keys[1])
        for entry in entries
    ]
    figure.add_scatter(
        x=[round(entry.figures[0], 4) for entry in entries],
        y=[round(height, 3) for height in heights],
        text=[entry.candidate.label for entry in entries],
        customdata=texts,
        name=name,
        mode="markers+text" if named else "markers",
        cliponaxis=False,
        marker={"color": colour, "symbol": symbol, "size": 11, "line": {"width": 2, "color": colour}},
        hovertemplate="%{customdata}<extra></extra>",
    )


def _add_runs(figure: go.Figure, summary: SweepSummary, invalid: InvalidRuns | None) -> None:
    """Add the runs behind the medians as small points; invalid runs are hollow, with the reason."""
    x, y = summary.front.keys[:2]
    usable = [entry for member in summary.front.entries for point in member.candidate.points for entry in point.valid]
    for entries, name, symbol in (
        ((), "", "") if summary.is_unrepeated else (usable, "one run", "circle"),
        (() if invalid is None else invalid.entries, INVALID, "circle-open"),
    ):
        shown = [
            (entry, one, other)
            for entry in entries
            if (one := value_of(entry, x)) is not None and (other := value_of(entry, y)) is not None
        ]
        if not shown:
            continue
        figure.add_scatter(
            x=[round(one, 4) for _, one, _ in shown],
            y=[round(one, 3) for _, _, one in shown],
            customdata=[_run_text(entry) for entry, _, _ in shown],
            name=name,
            mode="markers",
            marker={"color": FAINT_COLOUR, "symbol": symbol, "size": 6 if entries is usable else 8, "opacity": 0.7},
            hovertemplate="%{customdata}: %{x}, %{y}<extra></extra>",
        )


def _run_text(entry: IndexEntry) -> str:
    """Return the label of a run, with the reason if it does not count."""
    text = f"{title_of(entry.config)}, run {entry.repetition + 1}"
    return text if entry.is_usable else f"{text} ({entry.status}: {next(iter(entry.reasons), 'unknown reason')})"


def _separate_labels(figure: go.Figure, highest: float) -> None:
    """Put every second label below its marker where neighbouring markers have about the same height."""
    marks = sorted(
        (trace.x[index], trace.y[index], number, index)
        for number, trace in enumerate(figure.data)
        for index in range(len(trace.x))
    )
    sides = [["top center"] * len(trace.x) for trace in figure.data]
    for before, mark in itertools.pairwise(marks):
        _, height, number, index = mark
        if abs(height - before[1]) < MIN_LABEL_DISTANCE * highest and sides[before[2]][before[3]] == "top center":
            sides[number][index] = "bottom center"
    for trace, positions in zip(figure.data, sides, strict=True):
        trace.textposition = positions
