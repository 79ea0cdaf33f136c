"""Figures: the right traces, with marks at the right instants."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from faultline.records.judge.judge import judge
from faultline.records.record import Record
from faultline.records.summary import Entry
from faultline.reports.figures.attempt import time_figure
from faultline.reports.figures.parts import parts_figure
from faultline.reports.figures.style import FAULT_COLOUR, ROLE_COLOURS
from faultline.reports.views.runs import plain_rows
from faultline.reports.views.sweep import Choice, SweepView
from faultline.system.window import NS
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


def test_unsound_runs_are_hollow_and_say_why_and_make_no_median() -> None:
    why = "not-steady: lag drifts by 30 %"
    records = [
        sample(
            checkpoint_interval_s=interval, attempt=f"a{interval}{run}", repetition=run, recovery=RECOVERED,
            status="valid" if run < 2 and interval == 2.0 else "unsound", reasons=[why],
        )
        for interval in (2.0, 5.0) for run in range(3)
    ]  # fmt: skip
    view = SweepView([Entry.of(one) for one in records], Choice())
    ((axis, panels),) = view.panels
    figure = dict((one.key, figure) for one, figure in panels)["recovery.macro_s"]
    (hollow,) = (trace for trace in figure.data if trace.name == "unsound run, does not count")
    assert axis == "checkpoint interval (s)" and len(hollow.x) == 4 and all(why in text for text in hollow.text)
    parts = parts_figure(records)
    assert parts is not None
    open_bars = {bar.y for bar in parts.data if bar.marker.color == "rgba(0,0,0,0)"}
    assert all(len(labels) == 4 and all("unsound" in label for label in labels) for labels in open_bars)


def test_each_recovery_of_a_run_is_a_small_point_beside_the_median_of_the_run() -> None:
    def run(interval: float, number: int) -> Record:
        macros = [10.0 + interval + number, 20.0, 30.0]
        return sample(
            checkpoint_interval_s=interval,
            attempt=f"a{interval}{number}",
            repetition=number,
            recovery={**RECOVERED, "macro_s": 20.0},
            recoveries=[{**RECOVERED, "macro_s": macro} for macro in macros],
            raw_config={"injections": 3},
        )

    records = [run(interval, number) for interval in (2.0, 5.0) for number in range(2)]
    parts = parts_figure(records)
    assert parts is not None and len(parts.data[0].y) == 12
    assert parts.data[0].y[1].endswith("recovery 2")
    assert [row["injections.made"] for row in plain_rows(records)] == ["3"] * 4
    many = [run(2.0, number) for number in range(20)]
    whole = parts_figure(many)
    assert whole is not None and len(whole.data[0].y) == 20, "a bar a run where there are many"


def test_faults_are_an_axis_of_their_own() -> None:
    records = [
        sample(fault=victim, checkpoint_interval_s=interval, recovery=recovery, attempt=f"{victim}-{interval}")
        for interval in (2.0, 5.0)
        for victim, recovery in (("none", None), ("worker", RECOVERED), ("driver", CENSORED))
    ]
    names = [axis for axis, _ in SweepView([Entry.of(one) for one in records], Choice()).panels]
    assert names == ["checkpoint interval (s)", "fault"]
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
