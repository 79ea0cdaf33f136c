"""Figures: traces, event markers, and unconnected single runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.comparison.config_points import axes_of, points_of, sort_points
from faultline.comparison.nightly_history import MetricHistory
from faultline.comparison.statistics.estimate import Interval
from faultline.records.catalogue import KNOWN
from faultline.records.format import LABELS
from faultline.records.index_entry import IndexEntry
from faultline.records.judge.judge import judge
from faultline.records.record import Record
from faultline.reports.figures.attempt import time_figure
from faultline.reports.figures.configurations import curves
from faultline.reports.figures.nightly import history_figure
from faultline.reports.figures.parts import parts_figure
from faultline.reports.figures.style import FAULT_COLOUR, ROLE_COLOURS
from faultline.reports.markdown.svg import ChartLine, ChartPoint, Panel, draw_chart
from faultline.reports.views.run import run_view
from faultline.reports.views.runs import table_rows
from faultline.reports.views.series import (
    RecoveryBounds,
    lag_violations,
    last_violation_text,
    latency_violations,
    recovery_bounds,
)
from faultline.reports.views.sweep import SweepPageQuery, SweepView
from faultline.system.measured_window import NS
from tests.unit.sample_records import CENSORED, RECOVERED, matrix, sample
from tests.unit.swept_records import swept
from tests.unit.synthetic import T0_NS, Scenario, Synthetic

EMPTY: dict[str, Any] = {name: [] for name in ("latency", "throughput", "lag", "cpu", "events")}


def series_of(folder: Path, scenario: Scenario) -> tuple[Synthetic, dict[str, Any]]:
    made = Synthetic(scenario)
    directory = made.write(folder)
    judge(directory)
    content: dict[str, Any] = json.loads((directory / "series.json").read_text())
    return made, content


def traces(figure: Any) -> dict[str, Any]:
    return {trace.name: trace for trace in figure.data}


def shapes(figure: Any) -> dict[str, Any]:
    return {shape.name: shape for shape in figure.layout.shapes}


def test_a_kill_over_time(tmp_path: Path) -> None:
    made, series = series_of(tmp_path, Scenario())
    figure = time_figure(series, rate=200.0, machine_cores=1)
    found = traces(figure)
    assert {trace.xaxis for trace in figure.data} <= {None, "x"}, "one time axis"
    rows = {"latency p50": "y", "latency p99": "y", "latency max": "y", "committed": "y2", "lag at commit": "y3"}
    for name, axis in rows.items():
        assert found[name].yaxis == axis
    assert list(found["latency p99"].y) == [point["p99_ms"] for point in series["latency"]]
    assert list(found["committed"].x) == [point["t_s"] for point in series["throughput"]]
    assert found["committed"].line.shape == "vh", "points are the ends of bins"
    assert list(found["lag at commit"].y) == [point["records"] for point in series["lag"]]
    assert list(found["offered"].y) == [200.0, 200.0]
    assert list(found["1 cores"].y) == [1, 1]
    for role in ("executors", "driver", "kafka", "generator"):
        assert (found[role].yaxis, found[role].stackgroup) == ("y4", "cpu")
        assert found[role].line.color == ROLE_COLOURS[role]
    assert "python workers" not in found, "a role without CPU has no area"

    marks = {trace.meta: trace for trace in figure.data if trace.yaxis == "y5"}
    lines = shapes(figure)
    for name in ("t0", "t2", "t3", "t4", "t5", "t6", "t7"):
        at = (getattr(made, name) - T0_NS) / NS
        assert marks[name].x[0] == pytest.approx(at, abs=0.0006), name
        assert (lines[name].x0, lines[name].x1) == (marks[name].x[0], marks[name].x[0])
        assert (lines[name].yref, lines[name].y0, lines[name].y1) == ("paper", 0, 1.0), "through all rows"
    assert lines["t0"].line.color == FAULT_COLOUR
    assert [name for name, line in lines.items() if line.line.color == FAULT_COLOUR] == ["t0"]
    assert marks["t7"].name == f"{LABELS['t7']} +16.9 s"
    assert (lines["warm-up"].x0, lines["warm-up"].x1) == (0.0, 6.0)
    assert lines["drain"].x0 == pytest.approx(6.0 + made.s.duration_s)
    assert figure.layout.hovermode == "x unified"
    titles = [figure.layout[axis].title.text for axis in ("yaxis", "yaxis3", "yaxis4")]
    assert titles == ["Latency (ms)", "Lag (records)", "CPU (cores)"]
    assert figure.layout.yaxis.type is None
    for point in series["latency"]:
        point["p50_ms"] = point["p99_ms"] = 5.0
    assert time_figure(series).layout.yaxis.type == "log", "for a large peak"


def test_a_control_run_has_no_fault_line(tmp_path: Path) -> None:
    _, series = series_of(tmp_path, Scenario(fault=False))
    figure = time_figure(series)
    assert set(shapes(figure)) == {"warm-up", "drain"}
    assert not [trace for trace in figure.data if trace.yaxis == "y5"]


def test_empty_and_invalid_curves() -> None:
    figure = time_figure({**EMPTY, "warmup_s": 5.0, "duration_s": 10.0}, rate=10.0, machine_cores=2)
    assert list(figure.layout.xaxis.range) == [0.0, 15.0]
    with pytest.raises(KeyError):
        time_figure({"latency": []})


def parts_of(records: Sequence[Record]) -> go.Figure:
    figure = parts_figure(records)
    assert figure is not None
    return figure


def test_invalid_runs_are_hollow_with_reason_and_not_in_the_median() -> None:
    why = "not-steady: lag drifts by 30 %"
    cells = [(s, run, "valid" if run < 2 and s == 2.0 else "invalid") for s in (2.0, 5.0) for run in range(3)]
    records = [
        sample(checkpoint_interval_s=s, attempt=f"a{s}{run}", repetition=run, recovery=RECOVERED, status=status,
               reasons=[why])
        for s, run, status in cells
    ]  # fmt: skip
    ((axis, panels),) = SweepView([IndexEntry.of(one) for one in records], SweepPageQuery()).panels
    figure = dict((one.key, figure) for one, figure in panels)["recovery.macro_s"]
    (hollow,) = (trace for trace in figure.data if trace.name == "invalid run, does not count")
    assert axis == "checkpoint interval (s)" and len(hollow.x) == 4 and all(why in text for text in hollow.text)
    open_bars = {bar.y for bar in parts_of(records).data if bar.marker.color == "rgba(0,0,0,0)"}
    assert all(len(labels) == 4 and all("invalid" in label for label in labels) for labels in open_bars)


def test_each_recovery_is_a_bar_up_to_a_limit() -> None:
    def run(interval: float, number: int) -> Record:
        parts = [{**RECOVERED, "macro_s": macro} for macro in (10.0 + interval + number, 20.0, 30.0)]
        named = {"recovery": parts[1], "recoveries": parts, "raw_config": {"injections": 3}}
        return sample(checkpoint_interval_s=interval, attempt=f"a{interval}{number}", repetition=number, **named)

    records = [run(interval, number) for interval in (2.0, 5.0) for number in range(2)]
    bars = parts_of(records).data[0].y
    assert len(bars) == 12 and bars[1].endswith("recovery 2")
    assert [row["injections.made"] for row in table_rows(records)] == ["3"] * 4
    assert len(parts_of([run(2.0, number) for number in range(20)]).data[0].y) == 20, "one bar per run"


def test_faults_are_an_axis_of_their_own() -> None:
    victims = (("none", None), ("worker", RECOVERED), ("driver", CENSORED))
    records = [
        sample(fault=victim, checkpoint_interval_s=interval, recovery=recovery, attempt=f"{victim}-{interval}")
        for interval in (2.0, 5.0)
        for victim, recovery in victims
    ]
    names = [axis for axis, _ in SweepView([IndexEntry.of(one) for one in records], SweepPageQuery()).panels]
    assert names == ["checkpoint interval (s)", "fault"]
    assert "2 · worker kill, 1 MB, 2 s" in parts_of(records).data[0].y


def test_later_faults_have_lines_and_markers_but_no_legend() -> None:
    instants = [("gate", 0.0), ("t0", 40.0), ("t2", 40.5), ("fault_undone", 45.0), ("fault_undone", 45.001),
                ("t0#2", 60.0), ("service_up#2", 62.25), ("unheard_of", 63.0)]  # fmt: skip
    events = [{"name": name, "t_s": t_s, "source": "x"} for name, t_s in instants]
    figure = time_figure({**EMPTY, "events": events, "warmup_s": 5.0, "duration_s": 90.0})
    marks = [(trace.meta, trace.name, trace.showlegend) for trace in figure.data if trace.yaxis == "y5"]
    assert marks == [
        ("t0", LABELS["t0"], True),
        ("t2", f"{LABELS['t2']} +0.5 s", True),
        ("fault_undone", "fault undone +5.0 s", True),
        ("fault_undone", "fault undone +5.0 s", False),
        ("t0#2", f"{LABELS['t0']} (fault 2)", False),
        ("service_up#2", f"{LABELS['service_up']} +2.2 s (fault 2)", False),
    ]
    lines = shapes(figure)
    assert [lines[name].line.color for name in ("t0", "t0#2")] == [FAULT_COLOUR] * 2


def test_parts_add_up_to_macro_or_to_the_observed_time() -> None:
    figure = parts_of(matrix())
    bars = traces(figure)
    labels = list(bars["replay"].y)
    assert labels == ["1 · 1 MB, 2 s", "3 · 1 MB, 5 s", "4 · 8 MB, 2 s", "5 · 8 MB, 5 s"], "the control run has none"
    totals = [sum(bar.x[index] or 0 for bar in figure.data) for index in range(4)]
    assert totals == pytest.approx([13.84, 13.84, 13.84, 33.94], abs=0.002)
    assert list(bars["not recovered (censored)"].x)[:3] == [None] * 3
    assert parts_figure([sample(fault="none")]) is None


LIMITS = {"latency_limit_ms": 4000.0, "lag_limit": 2500.0, "hold_s": 10.0, "plateau_ratio": 1.4}
CURVES: dict[str, Any] = {
    **EMPTY,
    "latency": [
        {"t_s": float(t), "p50_ms": 900.0, "p99_ms": 6000.0 if 42 <= t < 50 or t == 74 else 2000.0, "max_ms": 6120.0}
        for t in range(80)
    ],
    "lag": [{"t_s": float(t), "records": 9000 if 44 <= t <= 52 else 1000} for t in range(0, 80, 2)],
    "warmup_s": 20.0,
    "duration_s": 55.0,
}


def censored_record(source: str, at_s: float = 74.9, **changed: Any) -> Record:
    """Return a record with a censored recovery from a kill at 41 s and its last violation."""
    timeline = {"gate": (0.0, "gate.json"), "t0": (41.0, "conductor"), "last_violation": (at_s, source)}
    recovery = CENSORED | LIMITS | changed
    return sample(recovery=recovery, recoveries=[recovery], timeline=timeline)


@pytest.mark.parametrize(
    ("source", "at_s", "series", "expected"),
    [
        ("tuples later than L*", 74.9, CURVES, "latency was 6,120 ms, 53 % above the threshold L* of 4,000 ms"),
        ("tuples later than L*", 74.9, None, "latency was above the threshold L* of 4,000 ms"),
        ("lag above lag*", 52.0, CURVES, "lag was 9,000 records, 3.6 times the threshold lag* of 2,500 records"),
        ("lag above lag*", 52.0, {"lag": 7}, "lag was above the threshold lag* of 2,500 records"),
        ("not caught up", 60.0, CURVES, "no commit had covered the input present at the fault"),
        ("no commit covered what was there at the fault", 60.0, None, "no commit had covered"),
        ("nothing", 60.0, CURVES, ""),
    ],
)
def test_the_last_violation_names_signal_and_size(source: str, at_s: float, series: Any, expected: str) -> None:
    record = censored_record(source, at_s)
    found = last_violation_text(record, 1, record.metrics.recovery, series)
    assert found.startswith(expected) if expected else found == ""


def test_the_verdict_of_a_censored_recovery(tmp_path: Path) -> None:
    record = censored_record("tuples later than L*")
    folder = tmp_path / "attempts" / record.attempt
    folder.mkdir(parents=True)
    (folder / "series.json").write_text(json.dumps(CURVES))
    (fault,) = run_view(record, tmp_path).report.faults
    assert fault.verdict == (
        "censored: not recovered 33.9 s after the fault, when latency was 6,120 ms, 53 % above the "
        "threshold L* of 4,000 ms; p99 of the last 10 s was 1.4 × that before the fault"
    )
    (folder / "series.json").write_text("[")
    story = run_view(record, tmp_path).report
    assert "latency was above the threshold L*" in story.faults[0].verdict
    assert any(remark.startswith("series.json cannot be read") for remark in story.remarks)


def test_records_without_thresholds() -> None:
    timeline = {"gate": (0.0, ""), "t0": (41.0, ""), "last_violation": (74.0, "lag above lag*")}
    old = sample(recovery=CENSORED, timeline=timeline)
    assert recovery_bounds(old) == recovery_bounds(sample(fault="none")) == []
    assert last_violation_text(old, 1, old.metrics.recovery, CURVES) == ""


def test_violations_are_shaded_from_fault_to_recovery() -> None:
    record = sample(recovery=RECOVERED | LIMITS, timeline={"gate": (0.0, ""), "t0": (41.0, "")})
    (bound,) = recovery_bounds(record)
    assert (bound.from_s, bound.until_s) == pytest.approx((41.0, 54.84))
    assert latency_violations(CURVES["latency"], bound) == [(42.0, 50.0)]
    assert lag_violations(CURVES["lag"], bound) == [(42.0, 52.0)]
    figure = time_figure(CURVES, bounds=[bound])
    lines = {trace.name: trace for trace in figure.data}
    assert list(lines["L* 4,000 ms"].y) == [4000.0, 4000.0]
    assert lines["lag* 2,500"].yaxis == "y3"
    shaded = [(shape.yref, shape.x0, shape.x1) for shape in figure.layout.shapes if shape.name == "violation"]
    assert shaded == [("y domain", 42.0, 50.0), ("y3 domain", 42.0, 52.0)]
    assert not [one for one in time_figure(CURVES).layout.shapes if one.name == "violation"]


@given(
    st.lists(st.floats(0, 10_000) | st.none(), max_size=60),
    st.floats(0, 60),
    st.floats(0, 60),
    st.floats(1, 9_000),
)
def test_violation_spans_are_disjoint_ordered_and_exact(
    values: list[float | None], from_s: float, length_s: float, limit: float
) -> None:
    points = [{"t_s": float(t), "p99_ms": value} for t, value in enumerate(values)]
    bound = RecoveryBounds(limit, 1.0, from_s, from_s + length_s)
    spans = latency_violations(points, bound)
    assert all(left < right for left, right in spans)
    assert all(before[1] < after[0] for before, after in zip(spans, spans[1:], strict=False))
    assert all(left >= from_s for left, _ in spans)
    for t, value in enumerate(values):
        if value is not None and from_s <= t and t + 1 <= from_s + length_s:
            covered = any(left <= t and t + 1 <= right for left, right in spans)
            assert covered == (value > limit)


(P99,) = (metric for metric in KNOWN if metric.key == "latency_ms.p99")


def curved(records: Sequence[Record]) -> go.Figure:
    points = points_of([IndexEntry.of(one) for one in records])
    axes = {axis.key: axis for axis in axes_of(points)}
    x, state = axes["checkpoint_interval_s"], axes["state_mb"]
    return curves(sort_points(points, [state, x]), x, [state], P99)[0]


@pytest.mark.parametrize(("repetitions", "mode", "small"), [(1, "markers", 0), (2, "lines+markers", 2 * 3 * 2)])
def test_single_runs_are_not_joined_and_repeated_ones_are_small_points(repetitions: int, mode: str, small: int) -> None:
    figure = curved(swept(repetitions=repetitions, controls=False))
    assert {trace.mode for trace in figure.data if trace.name != "one run"} == {mode}
    assert sum(len(trace.x) for trace in figure.data if trace.name == "one run") == small


def test_only_repeated_points_of_a_line_are_joined() -> None:
    records = swept(repetitions=2, states=(1.0, 8.0), controls=False)
    figure = curved([one for one in records if one.config["checkpoint_interval_s"] != 5.0 or one.repetition == 0])
    line, single = (trace for trace in figure.data if trace.name == "state 1 MB")
    assert (line.mode, list(line.x)) == ("lines+markers", [2.0, 10.0])
    assert (single.mode, list(single.x), single.showlegend) == ("markers", [5.0], False)


def test_single_runs_are_not_joined_in_nightly_figures_and_svg_charts() -> None:
    for n, paths in ((1, 0), (2, 1)):
        marks = tuple(ChartPoint(place, 1.0 + place, 1.0 + place, 1.0 + place, n=n) for place in range(3))
        picture = draw_chart([Panel("p", (ChartLine("a", marks),))], ["1", "2", "3"], "x", "t")
        assert picture.count('<path class="line') == paths
    wide, point = Interval(5.0, 4.0, 6.0), Interval(7.0, 7.0, 7.0)
    dates = tuple(f"2026-11-2{day}T00:00:00+00:00" for day in range(4))
    figure = history_figure(MetricHistory("c", P99, dates, (wide, point, wide, None), ()), {})
    modes = {trace.mode: list(trace.x) for trace in figure.data}
    assert modes == {"lines+markers": ["2026-11-20", "2026-11-22"], "markers": ["2026-11-21"]}
