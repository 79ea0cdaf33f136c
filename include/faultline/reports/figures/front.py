"""What the report and the results page show of an answer: texts for a template, and the front as a figure."""

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
from faultline.reports.figures.style import FAINT_COLOUR, INVALID, SERIES_COLOURS, finish, legend_above
from faultline.reports.views.allocation import allocation_lines
from faultline.reports.views.sweep_summary import (
    NOISE,
    advice_text,
    capital,
    front_heads,
    front_rows,
    invalid_text,
    placebo_text,
    rest_of,
    seen_lines,
    step_lines,
    trade_lines,
)

FRONT = "front"
# More names than this lie on top of each other; the table below has them.
MOST_NAMED = 12
# Share of the height within which two names would lie on each other.
NEAR = 0.15
# What the template shows of an answer, where there is one.
_PARTS = ("trade", "advice", "steps", "undecided", "heads", "axis", "front", "plot", "scatter", "placebo")


def answer_view(
    answer: SweepSummary | None, invalid: InvalidRuns | None, figures: dict[str, go.Figure]
) -> dict[str, Any] | None:
    """What the template needs; adds the front to `figures` where there is one. None without a judged record.

    `invalid`: what the invalid runs would add. Without an answer it is all that there is.
    """
    beside = {"noise": "", "others": "" if invalid is None else invalid_text(invalid)}
    if answer is None:
        return None if invalid is None else {**dict.fromkeys(_PARTS, ()), **beside, "told": False, "doubt": False}
    figure = front_figure(answer, invalid)
    if figure is not None:
        figures[FRONT] = figure
    steps = [] if answer.single else step_lines(rest_of(answer.effects))
    return {
        **beside,
        "noise": NOISE if answer.single else "",
        "trade": seen_lines(answer.effects) if answer.single else trade_lines(answer.effects),
        "advice": [] if answer.single and not answer.advice else advice_text(answer),
        "told": answer.advice is not None and answer.advice.told,
        "steps": [(capital(step), decided) for step, decided, _ in steps if decided],
        "undecided": [(capital(step), undecided) for step, _, undecided in steps if undecided],
        "heads": front_heads(answer),
        "axis": ", ".join(axis.name for axis in answer.choice.axes),
        "front": front_rows(answer) if len(answer.front.places) > 1 else [],
        "plot": None if figure is None else figure.layout.height,
        "scatter": allocation_lines(answer.allocation) if answer.allocation else [],
        "placebo": placebo_text(answer.placebo) if answer.recoveries else "",
        "doubt": answer.recoveries and (answer.placebo is None or not answer.placebo.relied_on),
    }


def front_figure(answer: SweepSummary, invalid: InvalidRuns | None = None) -> go.Figure | None:
    """The candidates by CPU and recovery, or latency where nothing was broken: those on the front filled, others open.

    A triangle is a recovery that was not seen to end: it lies above. None for fewer than two of them, or of figures.
    """
    front = answer.front
    if len(front.places) < 2 or len(front.keys) < 2:
        return None
    x, y = (BY_KEY[key] for key in front.keys[:2])
    figure = go.Figure()
    for name, colour, symbol, places in (
        ("no other beats it in all", SERIES_COLOURS[0], "circle", [p for p in front.places if p.beaten_by is None]),
        ("beaten", FAINT_COLOUR, "circle-open", [p for p in front.places if p.beaten_by is not None]),
    ):
        for ends in (True, False):
            shown = [place for place in places if math.isfinite(place.figures[1]) == ends]
            if shown:
                _mark(figure, answer, shown, f"{name}{'' if ends else ', recovery not seen to end'}", colour,
                      symbol if ends else "triangle-up-open")  # fmt: skip
    _part_names(figure, max((max(trace.y) for trace in figure.data), default=1.0))
    _runs(figure, answer, invalid)
    highest = max((max(trace.y) for trace in figure.data), default=1.0)
    span = [x for trace in figure.data for x in trace.x]
    room = max((max(span) - min(span)) * 0.18, max(span) * 0.02)
    finish(
        figure,
        380,
        (64, 16, 44, 56),
        legend=legend_above(),
        showlegend=True,
        # Room for the names of the outermost.
        xaxis={"title": {"text": x.title}, "zeroline": False, "range": [min(span) - room, max(span) + room]},
        yaxis={"title": {"text": y.title}, "zeroline": False, "range": [0, highest * 1.15], "tickformat": ",~r"},
    )
    return figure


def _mark(
    figure: go.Figure, answer: SweepSummary, places: list[ParetoEntry], name: str, colour: str, symbol: str
) -> None:
    named = len(answer.front.places) <= MOST_NAMED
    rows = {row[0]: row for row in front_rows(answer)}
    heads = front_heads(answer)
    told = [
        "\n".join(
            [
                place.candidate.name,
                *(f"{head} {text}" for head, text in zip(heads, rows[place.candidate.name][1], strict=True)),
                f"{rows[place.candidate.name][2]} (n = {place.candidate.repetitions})",
            ]
        )
        for place in places
    ]
    heights = [
        place.figures[1] if math.isfinite(place.figures[1]) else place.candidate.known_over(answer.front.keys[1])
        for place in places
    ]
    figure.add_scatter(
        x=[round(place.figures[0], 4) for place in places],
        y=[round(height, 3) for height in heights],
        text=[place.candidate.label for place in places],
        customdata=told,
        name=name,
        mode="markers+text" if named else "markers",
        cliponaxis=False,
        marker={"color": colour, "symbol": symbol, "size": 11, "line": {"width": 2, "color": colour}},
        hovertemplate="%{customdata}<extra></extra>",
    )


def _runs(figure: go.Figure, answer: SweepSummary, invalid: InvalidRuns | None) -> None:
    """The runs behind the medians, as small points; hollow where they are invalid, with the reason."""
    x, y = answer.front.keys[:2]
    usable = [entry for place in answer.front.places for point in place.candidate.points for entry in point.valid]
    for entries, name, symbol in (
        ((), "", "") if answer.single else (usable, "one run", "circle"),
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
            customdata=[_run_words(entry) for entry, _, _ in shown],
            name=name,
            mode="markers",
            marker={"color": FAINT_COLOUR, "symbol": symbol, "size": 6 if entries is usable else 8, "opacity": 0.7},
            hovertemplate="%{customdata}: %{x}, %{y}<extra></extra>",
        )


def _run_words(entry: IndexEntry) -> str:
    """A run, and why it does not count if it does not."""
    told = f"{title_of(entry.config)}, run {entry.repetition + 1}"
    return told if entry.sound else f"{told} ({entry.status}: {next(iter(entry.reasons), 'no reason is known')})"


def _part_names(figure: go.Figure, highest: float) -> None:
    """Puts every other name below its mark, where marks that follow each other lie at about one height."""
    marks = sorted(
        (trace.x[place], trace.y[place], number, place)
        for number, trace in enumerate(figure.data)
        for place in range(len(trace.x))
    )
    sides = [["top center"] * len(trace.x) for trace in figure.data]
    for before, mark in itertools.pairwise(marks):
        _, height, number, place = mark
        if abs(height - before[1]) < NEAR * highest and sides[before[2]][before[3]] == "top center":
            sides[number][place] = "bottom center"
    for trace, positions in zip(figure.data, sides, strict=True):
        trace.textposition = positions
