"""Single runs are never joined by lines: on the pages, in the report, in the pictures of the Markdown page."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go
import pytest

from faultline.comparison.cells import axes_of, in_order, points_of
from faultline.comparison.nights import Course
from faultline.comparison.statistics.intervals import Interval
from faultline.records.catalogue import KNOWN
from faultline.records.record import Record
from faultline.records.summary import Entry
from faultline.reports.document.svg import Line, Mark, Panel, draw
from faultline.reports.figures.configurations import curves
from faultline.reports.pages.nights import course_figure
from faultline.reports.sweep_figures import overview_figures
from tests.unit.swept_records import swept

(P99,) = (metric for metric in KNOWN if metric.key == "latency_ms.p99")


def curved(records: Sequence[Record]) -> go.Figure:
    points = points_of([Entry.of(one) for one in records])
    axes = {axis.key: axis for axis in axes_of(points)}
    x, state = axes["checkpoint_interval_s"], axes["state_mb"]
    return curves(in_order(points, [state, x]), x, [state], P99)[0]


@pytest.mark.parametrize("repetitions", [1, 2])
def test_curves_of_a_sweep(repetitions: int) -> None:
    joined = {trace.mode for trace in curved(swept(repetitions=repetitions, controls=False)).data}
    assert joined == ({"markers"} if repetitions == 1 else {"lines+markers"})


def test_in_a_line_of_both_only_what_was_repeated_is_joined() -> None:
    records = swept(repetitions=2, states=(1.0, 8.0), controls=False)
    kept = [one for one in records if one.config["checkpoint_interval_s"] != 5.0 or one.repetition == 0]
    figure = curved(kept)
    line, single = (trace for trace in figure.data if trace.legendgroup == "state 1 MB")
    assert (line.mode, list(line.x)) == ("lines+markers", [2.0, 10.0])
    assert (single.mode, list(single.x), single.showlegend) == ("markers", [5.0], False)


@pytest.mark.parametrize(("repetitions", "lines"), [(1, 0), (3, 2 * 2 * 4)])
def test_panels_of_the_report(repetitions: int, lines: int) -> None:
    figures = dict(overview_figures(swept((2.0, 5.0), repetitions=repetitions, controls=False)))
    found = [trace for figure in figures.values() for trace in figure.data if "lines" in trace.mode]
    assert len(found) == lines
    if found:
        runs = {
            trace.name: trace
            for trace in figures["checkpoint interval (s)"].data
            if trace.xaxis == "x4" and trace.y[0] is not None
        }
        (group,) = (name for name in runs if name == "state 1 MB")
        middle = sorted(runs[group].y[:repetitions])[1]
        assert runs[f"median, {group}"].y[0] == pytest.approx(middle)


def test_a_recovery_that_was_not_seen_to_end_makes_no_median_to_join() -> None:
    figures = dict(overview_figures(swept((2.0, 5.0), states=(1.0,), repetitions=2, censored=1, controls=False)))
    (figure,) = figures.values()
    assert not [trace for trace in figure.data if trace.xaxis == "x3" and "lines" in trace.mode]


@pytest.mark.parametrize(("n", "paths"), [(1, 0), (2, 1)])
def test_pictures_of_the_markdown_page(n: int, paths: int) -> None:
    marks = tuple(Mark(place, 1.0 + place, 1.0 + place, 1.0 + place, n=n) for place in range(3))
    picture = draw([Panel("p", (Line("a", marks),))], ["1", "2", "3"], "x", "t")
    assert picture.count('<path class="line') == paths


def test_nights_of_one_run() -> None:
    wide, point = Interval(5.0, 4.0, 6.0), Interval(7.0, 7.0, 7.0)
    dates = tuple(f"2026-11-2{day}T00:00:00+00:00" for day in range(4))
    figure = course_figure(Course("c", P99, dates, (wide, point, wide, None), ()), {})
    modes = {trace.mode: list(trace.x) for trace in figure.data}
    assert modes == {"lines+markers": ["2026-11-20", "2026-11-22"], "markers": ["2026-11-21"]}
