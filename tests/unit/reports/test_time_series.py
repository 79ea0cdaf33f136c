"""Figures: the right traces, with marks at the right instants."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from faultline.analysis.judge import judge
from faultline.base.window import NS
from faultline.reports.sweep_figures import overview_figures, parts_figure
from faultline.reports.time_series import FAULT_COLOUR, ROLE_COLOURS, time_figure
from tests.unit.sample_records import CENSORED, RECOVERED, matrix, sample
from tests.unit.synthetic import T0_NS, Scenario, Synthetic


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
    assert {trace.xaxis for trace in figure.data} <= {None, "x"}, "one time axis for all"
    rows = {"latency p50": "y", "latency p99": "y", "latency max": "y", "committed": "y2", "lag at commit": "y3"}
    for name, axis in rows.items():
        assert found[name].yaxis == axis
    assert list(found["latency p99"].y) == [point["p99_ms"] for point in series["latency"]]
    assert list(found["committed"].x) == [point["t_s"] for point in series["throughput"]]
    assert found["committed"].line.shape == "vh", "a bin is given by its end"
    assert list(found["lag at commit"].y) == [point["records"] for point in series["lag"]]
    assert list(found["offered"].y) == [200.0, 200.0]
    assert list(found["1 cores"].y) == [1, 1]
    for role in ("executors", "driver", "kafka", "generator"):
        assert (found[role].yaxis, found[role].stackgroup) == ("y4", "cpu")
        assert found[role].line.color == ROLE_COLOURS[role]
    assert "python workers" not in found, "a role without work has no area"

    marks = {trace.meta: trace for trace in figure.data if trace.yaxis == "y5"}
    lines = shapes(figure)
    for name in ("t0", "t2", "t3", "t4", "t5", "t6", "t7"):
        at = (getattr(made, name) - T0_NS) / NS
        assert marks[name].x[0] == pytest.approx(at, abs=0.0006), name
        assert (lines[name].x0, lines[name].x1) == (marks[name].x[0], marks[name].x[0])
        assert (lines[name].yref, lines[name].y0, lines[name].y1) == ("paper", 0, 1.0), "through all rows"
    assert lines["t0"].line.color == FAULT_COLOUR
    assert [name for name, line in lines.items() if line.line.color == FAULT_COLOUR] == ["t0"]
    assert marks["t7"].name == "t7 on time +16.9 s"
    assert (lines["warm-up"].x0, lines["warm-up"].x1) == (0.0, 6.0)
    assert lines["drain"].x0 == pytest.approx(6.0 + made.s.duration_s)
    assert figure.layout.hovermode == "x unified"
    assert {figure.layout[axis].title.text for axis in ("yaxis", "yaxis3", "yaxis4")} == {
        "Latency (ms)",
        "Lag (records)",
        "CPU (cores)",
    }


def test_a_control_has_no_fault_line(tmp_path: Path) -> None:
    _, series = series_of(tmp_path, Scenario(fault=False))
    figure = time_figure(series)
    assert set(shapes(figure)) == {"warm-up", "drain"}
    assert not [trace for trace in figure.data if trace.yaxis == "y5"]


def test_a_log_axis_where_the_peak_dwarfs_the_rest(tmp_path: Path) -> None:
    _, series = series_of(tmp_path, Scenario())
    assert time_figure(series).layout.yaxis.type is None
    for point in series["latency"]:
        point["p50_ms"] = point["p99_ms"] = 5.0
    assert time_figure(series).layout.yaxis.type == "log"


def test_empty_curves_and_wrong_content() -> None:
    empty: dict[str, Any] = {name: [] for name in ("latency", "throughput", "lag", "cpu", "events")}
    figure = time_figure({**empty, "warmup_s": 5.0, "duration_s": 10.0}, rate=10.0, machine_cores=2)
    assert list(figure.layout.xaxis.range) == [0.0, 15.0]
    with pytest.raises(KeyError):
        time_figure({"latency": []})


def test_the_overview_has_a_figure_for_each_axis() -> None:
    figures = dict(overview_figures(matrix()))
    assert list(figures) == ["state (MB)", "checkpoint interval (s)"]
    figure = figures["state (MB)"]
    assert list(figure.layout.xaxis.categoryarray) == ["1", "8"]
    macro = {trace.name: trace for trace in figure.data if trace.xaxis == "x3"}
    assert list(macro["interval 2 s"].y) == [13.84, 13.84]
    assert (list(macro["interval 5 s"].x), list(macro["interval 5 s"].y)) == (["1"], [13.84])
    bound = macro["not seen to recover"]
    assert (list(bound.x), list(bound.y)) == (["8"], [33.94])
    control = traces(figure)["control"]
    assert (control.xaxis, list(control.x), list(control.y)) == ("x4", ["1"], [2557.0])
    assert [trace.name for trace in figure.data if trace.showlegend is not False] == [
        "interval 2 s",
        "interval 5 s",
        "control",
    ]


def test_a_figure_that_no_record_knows_has_no_panel() -> None:
    controls = [sample(fault="none", checkpoint_interval_s=interval, attempt=f"a{interval}") for interval in (2.0, 5.0)]
    (figure,) = dict(overview_figures(controls)).values()
    assert [note.text for note in figure.layout.annotations] == ["Latency p99 (ms)"]
    assert list(figure.layout.xaxis4.domain) == pytest.approx([0, 1]) and figure.layout.xaxis.domain is None


def test_faults_are_an_axis_of_their_own() -> None:
    records = [
        sample(fault=victim, checkpoint_interval_s=interval, recovery=recovery, attempt=f"{victim}-{interval}")
        for interval in (2.0, 5.0)
        for victim, recovery in (("none", None), ("worker", RECOVERED), ("driver", CENSORED))
    ]
    figures = dict(overview_figures(records))
    assert list(figures) == ["checkpoint interval (s)", "fault"]
    by_fault = figures["fault"]
    assert list(by_fault.layout.xaxis.categoryarray) == ["driver kill", "worker kill", "control"]
    macro = {trace.name: trace for trace in by_fault.data if trace.xaxis == "x3"}
    assert list(macro["interval 5 s"].x) == ["worker kill"]
    assert {trace.mode for trace in by_fault.data} == {"markers"}, "victims have no order that a line could follow"
    assert list(macro["not seen to recover"].x) == ["driver kill"]
    control = traces(by_fault)["control"]
    assert list(control.x) == ["control", "control"]
    by_interval = figures["checkpoint interval (s)"]
    assert [trace.name for trace in by_interval.data if trace.showlegend is not False] == [
        "driver kill",
        "worker kill",
        "control",
    ]
    parts = parts_figure(records)
    assert parts is not None
    assert "2 · worker kill, 1 MB, 2 s" in parts.data[0].y


def test_later_faults_have_lines_and_marks_but_no_legend() -> None:
    events = [
        {"name": name, "t_s": t_s, "source": "x"}
        for name, t_s in (
            ("gate", 0.0),
            ("t0", 40.0),
            ("t2", 40.5),
            ("undone", 45.0),
            ("undone", 45.001),
            ("t0#2", 60.0),
            ("service_up#2", 62.25),
            ("unheard_of", 63.0),
        )
    ]
    empty: dict[str, Any] = {name: [] for name in ("latency", "throughput", "lag", "cpu")}
    figure = time_figure({**empty, "events": events, "warmup_s": 5.0, "duration_s": 90.0})
    marks = [(trace.meta, trace.name, trace.showlegend) for trace in figure.data if trace.yaxis == "y5"]
    assert marks == [
        ("t0", "t0 signal delivered", True),
        ("t2", "t2 loss detected +0.5 s", True),
        ("undone", "fault undone +5.0 s", True),
        ("undone", "fault undone +5.0 s", False),
        ("t0#2", "t0 signal delivered (fault 2)", False),
        ("service_up#2", "service up again +2.2 s (fault 2)", False),
    ]
    lines = shapes(figure)
    assert [lines[name].line.color for name in ("t0", "t0#2")] == [FAULT_COLOUR] * 2


def test_nothing_to_compare_no_overview() -> None:
    assert overview_figures([sample()]) == []
    assert overview_figures([]) == []
    invalid = [sample(status="unsound", state_mb=state) for state in (1.0, 8.0)]
    assert overview_figures(invalid) == [], "invalid records are in no comparison"


def test_parts_add_up_to_macro_or_to_what_was_watched() -> None:
    figure = parts_figure(matrix())
    assert figure is not None
    bars = traces(figure)
    labels = list(bars["replay"].y)
    assert labels == ["1 · 1 MB, 2 s", "3 · 1 MB, 5 s", "4 · 8 MB, 2 s", "5 · 8 MB, 5 s"], "the control has none"
    totals = [sum(bar.x[index] or 0 for bar in figure.data) for index in range(4)]
    assert totals == pytest.approx([13.84, 13.84, 13.84, 33.94], abs=0.002)
    assert list(bars["not seen to recover"].x)[:3] == [None] * 3
    assert parts_figure([sample(fault="none")]) is None
