"""Single runs are never joined by lines: on the pages, in the report, in the pictures of the Markdown page."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go
import pytest

from faultline.comparison.cells import axes_of, in_order, points_of
from faultline.comparison.nights import Course
from faultline.comparison.statistics.estimate import Interval
from faultline.records.catalogue import KNOWN
from faultline.records.record import Record
from faultline.records.summary import Entry
from faultline.reports.figures.configurations import curves
from faultline.reports.figures.nights import course_figure
from faultline.reports.markdown.svg import Line, Mark, Panel, draw
from tests.unit.swept_records import swept

(P99,) = (metric for metric in KNOWN if metric.key == "latency_ms.p99")


def curved(records: Sequence[Record]) -> go.Figure:
    points = points_of([Entry.of(one) for one in records])
    axes = {axis.key: axis for axis in axes_of(points)}
    x, state = axes["checkpoint_interval_s"], axes["state_mb"]
    return curves(in_order(points, [state, x]), x, [state], P99)[0]


@pytest.mark.parametrize("repetitions", [1, 2])
def test_curves_of_a_sweep(repetitions: int) -> None:
    figure = curved(swept(repetitions=repetitions, controls=False))
    joined = {trace.mode for trace in figure.data if trace.name != "one run"}
    assert joined == ({"markers"} if repetitions == 1 else {"lines+markers"})
    runs = sum(len(trace.x) for trace in figure.data if trace.name == "one run")
    assert runs == (0 if repetitions == 1 else 2 * 3 * repetitions), (
        "each run is a small point, where there are several"
    )


def test_in_a_line_of_both_only_what_was_repeated_is_joined() -> None:
    records = swept(repetitions=2, states=(1.0, 8.0), controls=False)
    kept = [one for one in records if one.config["checkpoint_interval_s"] != 5.0 or one.repetition == 0]
    figure = curved(kept)
    line, single = (trace for trace in figure.data if trace.name == "state 1 MB")
    assert (line.mode, list(line.x)) == ("lines+markers", [2.0, 10.0])
    assert (single.mode, list(single.x), single.showlegend) == ("markers", [5.0], False)


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
