"""Results pages of sweeps and matrices."""

from __future__ import annotations

from pathlib import Path

import plotly.graph_objects as go
import pytest

from faultline.records.index import Index
from faultline.records.record import Record
from faultline.reports.pages.compare import ComparePageQuery, compare_page
from faultline.reports.pages.experiment import experiment_page
from faultline.reports.pages.overview import SWEEPS_PER_PAGE, overview_page
from faultline.reports.pages.site import PageNotFound
from faultline.reports.pages.sweep import matrix_page, sweep_page
from faultline.reports.views.sweep import SweepPageQuery
from tests.unit.pages_store import figure, grid, put, record, rows, site
from tests.unit.reports.test_report import EVIL, Page
from tests.unit.sample_records import CENSORED, RECOVERED

WHOLE = SweepPageQuery()


def swept_page(results: Path, *records: Record, choice: SweepPageQuery = WHOLE) -> str:
    """Store the records and return the page of the sweep s1."""
    put(results, *records)
    return sweep_page(site(results), "s1", choice)


def drawn_of(results: Path, *records: Record) -> go.Figure:
    return figure(swept_page(results, *records))


def test_the_limit_of_a_recommendation_is_plotted_with_its_metric(tmp_path: Path) -> None:
    put(tmp_path, *grid())
    one = site(tmp_path)
    chosen = SweepPageQuery(view="curves", limits={"latency": "7000"})
    html = sweep_page(one, "s1", chosen)
    drawn = figure(html)
    assert drawn.layout.shapes[0].y0 == 7000 and "7,000 ms" in drawn.layout.annotations[0].text
    assert 'name="latency" value="7000"' in html and "limit of the recommendation" in html
    for other in (
        SweepPageQuery(view="curves", limits={"recovery": "7000"}),
        SweepPageQuery(view="curves", limits={"latency": "-1"}),
        SweepPageQuery(limits={"latency": "7000"}),
    ):
        assert not figure(sweep_page(one, "s1", other)).layout.shapes


def test_the_overview_lists_sweeps_matrices_and_unreadable_files(tmp_path: Path) -> None:
    path = put(tmp_path, record("a1"), record("a2", status="invalid"), record("b1", sweep=None, matrix=None))
    path.with_name("broken.json").write_text("{")
    html = overview_page(site(tmp_path))
    found = rows(html)
    assert ["m", "1", "1", "2", "2026-11-21 06:15"] in found
    assert ["s1", "m", "1", "1", "2", "2026-11-21 06:15"] in found
    assert ["no sweep", "—", "1", "0", "1", "2026-11-21 06:15"] in found
    assert any(row[0].endswith("/broken.json") for row in found)
    links = [a["href"] for a in Page(html).all("a")]
    assert {"/faultline/sweeps/s1", "/faultline/matrices/m", "/faultline/unswept"} <= set(links)
    assert "There are no records yet" in overview_page(site(tmp_path / "empty"))


def test_the_axis_with_most_values_is_horizontal(tmp_path: Path) -> None:
    queries = [(f"a{2 * n + r}", f"q{n}", (100.0, 1000.0)[r]) for n in range(12) for r in range(2)]
    made = [record(name, workload="nexmark", query=query, rate=rate) for name, query, rate in queries]
    drawn = drawn_of(tmp_path, *made)
    assert {trace.name for trace in drawn.data} == {"rate 100 records/s", "rate 1,000 records/s"}
    turned = figure(sweep_page(site(tmp_path), "s1", SweepPageQuery(x="rate")))
    assert len({trace.name for trace in turned.data}) == 12, "unless another axis is selected"


def test_a_single_experiment_has_a_descriptive_label(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, record("a1", sweep="single-1", matrix=None, rate=12500.0, fault="driver"))
    about = lambda: next(row[1] for row in rows(overview_page(site(tmp_path))) if row[0] == "single-1")  # noqa: E731
    assert about() == "word_count, 12,500 records/s, driver kill"
    assert "word_count, 12,500 records/s, measured for 100 s" in experiment_page(site(tmp_path), "a1")
    monkeypatch.setattr(Index, "of_sweep", lambda index, sweep_id: [])
    assert about() == "—", "a sweep may disappear during rendering"


def test_a_sweep_lists_reasons_of_experiments_that_are_not_valid(tmp_path: Path) -> None:
    steady = [f"not-steady: lag has a trend (p = 0.0{n})" for n in range(3)]
    put(
        tmp_path,
        record("a1", status="invalid", reasons=steady[:1]),
        record("a2", status="invalid", reasons=[steady[1], "backlog-at-t0: 7 records"], repetition=1),
        record("a3", status="failed", reasons=[EVIL], repetition=2),
    )
    html = sweep_page(site(tmp_path), "s1")
    found = rows(html)
    assert ["2", steady[1], "r1"] in found, "the newest example of the most frequent kind"
    assert ["1", "backlog-at-t0: 7 records", "r1"] in found
    assert any(row[1] == EVIL for row in found if len(row) > 1) and EVIL not in html
    put(tmp_path, record("b1", sweep="s2"))
    assert "Experiments that are not valid" not in sweep_page(site(tmp_path), "s2")


def test_the_list_of_sweeps_has_pages(tmp_path: Path) -> None:
    days = [f"2026-11-21T06:{n // 60:02}:{n % 60:02}+00:00" for n in range(SWEEPS_PER_PAGE + 5)]
    put(tmp_path, *(record(f"a{n:03}", sweep=f"s{n:03}", measured_at=day) for n, day in enumerate(days)))
    one = site(tmp_path)
    first, second, beyond = (overview_page(one, page) for page in (1, 2, 99))
    assert "sweeps/s104" in first and "sweeps/s004" not in first
    assert "sweeps/s004" in second and "sweeps/s104" not in second
    assert "page=2" in first and "page=1" in second
    assert beyond == second, "a page after the last is the last"


def test_two_numeric_axes_make_a_heat_map_of_medians(tmp_path: Path) -> None:
    put(tmp_path, *grid())
    html = sweep_page(site(tmp_path), "s1")
    (heat,) = figure(html).data
    assert heat.type == "heatmap"
    assert (list(heat.x), list(heat.y)) == (["1", "8"], ["2", "5"])
    assert [list(row) for row in heat.z] == [[1201.0, 8201.0], [1501.0, 8501.0]]
    assert heat.text[0][0] == "1,201"
    about = ["state (MB) 1", "checkpoint interval (s) 2", "Latency p99 1,201 ms, 1,200 – 1,202 (n = 3)"]
    assert heat.customdata[0][0].split("<br>") == about
    row = next(row for row in rows(html) if row[:3] == ["1", "2", "executor kill"])
    assert row[3] == "1,201 1,200 – 1,202"
    assert row[-2:] == ["3", "r0 r1 r2"]
    links = [a["href"] for a in Page(html).all("a") if a.get("class") == "attempt valid"]
    assert len(links) == 12 and "/faultline/experiments/s1-8-5-2" in links


def test_metric_axis_and_view_are_selectable(tmp_path: Path) -> None:
    put(tmp_path, *grid())
    one = site(tmp_path)
    turned = figure(sweep_page(one, "s1", SweepPageQuery(x="checkpoint_interval_s"))).data[0]
    assert (turned.x, turned.y) == (("2", "5"), ("1", "8"))
    drawn = figure(sweep_page(one, "s1", SweepPageQuery(view="curves", metric="recovery.macro_s")))
    names = [trace.name for trace in drawn.data if trace.name != "one run"]
    assert names == ["checkpoint interval 2 s", "checkpoint interval 5 s"]
    assert list(drawn.data[0].x) == [1, 8] and list(drawn.data[0].y) == [13.84, 13.84]
    assert drawn.layout.yaxis.title.text == "Macro recovery (s)"
    for wrong in (
        SweepPageQuery(metric="nothing"),
        SweepPageQuery(x="rate"),
        SweepPageQuery(view="pie"),
        SweepPageQuery(group="b9"),
    ):
        with pytest.raises(PageNotFound):
            sweep_page(one, "s1", wrong)


def test_one_axis_makes_a_curve_with_error_bars(tmp_path: Path) -> None:
    values = [(rate, n, rate + (0.0, 5.0, 20.0)[n]) for rate in (10, 100, 1000) for n in range(3)]
    drawn = drawn_of(tmp_path, *(
        record(f"a{rate}-{n}", rate=float(rate), repetition=n, fault="none", latency={"p99": p99})
        for rate, n, p99 in values
    ))  # fmt: skip
    line, runs = drawn.data
    assert (runs.name, len(runs.y), drawn.layout.showlegend) == ("one run", 9, False)
    assert list(line.y) == [15.0, 105.0, 1005.0]
    assert list(line.error_y.array) == [15.0] * 3 and list(line.error_y.arrayminus) == [5.0] * 3
    assert line.error_y.visible
    assert drawn.layout.xaxis.type == "log", "a large range"
    assert line.name == "median", "runs without faults are the data if there are no others"


def test_mixed_axes_make_curves_with_separate_control_runs(tmp_path: Path) -> None:
    points = [(fault, interval) for fault in ("executor", "driver") for interval in (2.0, 5.0)]
    faults = [record(f"{f}-{n:g}", fault=f, checkpoint_interval_s=n, recovery=RECOVERED) for f, n in points]
    controls = [record(f"none-{n:g}", fault="none", checkpoint_interval_s=n, latency={"p99": 7.0}) for n in (2.0, 5.0)]
    drawn = drawn_of(tmp_path, *faults, *controls)
    assert [trace.name for trace in drawn.data] == ["driver kill", "executor kill", "control"]
    assert list(drawn.data[2].x) == [2, 5] and list(drawn.data[2].y) == [7.0, 7.0]
    turned = figure(sweep_page(site(tmp_path), "s1", SweepPageQuery(x="fault")))
    assert turned.layout.xaxis.type == "category"
    assert list(turned.data[0].x) == ["driver kill", "executor kill"]


def test_a_heat_map_lists_control_runs_below(tmp_path: Path) -> None:
    html = swept_page(tmp_path, *grid(), record("control", state_mb=1.0, fault="none", latency={"p99": 777.0}))
    assert "777 ms" not in str(figure(html).data[0].text)
    assert "Control runs: state 1 MB, checkpoint interval 2 s: 777 ms (n = 1)." in Page(html).text


def test_builds_are_not_mixed(tmp_path: Path) -> None:
    old = grid(build="old", measured_at="2026-11-20T06:00:00+00:00")
    new = [record(f"new-{state:g}", build="new", state_mb=state, latency={"p99": 5.0}) for state in (1.0, 8.0)]
    date = "2026-11-20T23:00:00+00:00"
    nightly = record("n1", build="new", series="2026-11-20", state_mb=1.0, latency={"p99": 9.0}, measured_at=date)
    put(tmp_path, *old, *new, nightly)
    one = site(tmp_path)
    html = sweep_page(one, "s1")
    assert list(figure(html).data[0].y) == [5.0, 5.0], "one series of the newest build"
    options = [a for a in Page(html).all("option") if "value" not in a]
    assert len(options) == 3, "old, new, and a nightly series of new"
    assert figure(sweep_page(one, "s1", SweepPageQuery(group="old"))).data[0].type == "heatmap"
    assert "3 builds; never mixed" in Page(html).text


def test_a_censored_recovery_bounds_the_median(tmp_path: Path) -> None:
    cells = [(1.0, 0, RECOVERED), (1.0, 1, RECOVERED), (8.0, 0, CENSORED), (8.0, 1, CENSORED), (8.0, 2, RECOVERED)]
    made = [record(f"a{mb}{n}", state_mb=mb, repetition=n, recovery=recovery) for mb, n, recovery in cells]
    html = swept_page(tmp_path, *made, choice=SweepPageQuery(metric="recovery.macro_s"))
    seen, bound = (trace for trace in figure(html).data if trace.name != "one run")
    assert (list(seen.y), list(bound.y)) == ([13.84], [33.94])
    assert bound.marker.symbol == "triangle-up-open" and bound.mode == "markers"
    assert any("> 33.94 13.84 – 33.94" in row for row in rows(html))
    catchup = sweep_page(site(tmp_path), "s1", SweepPageQuery(metric="recovery.catchup_s"))
    assert list(figure(catchup).data[0].x) == [1], "a part with unknown values has no median"


def test_only_valid_records_make_figures_but_all_are_linked_and_invalid_ones_hollow(tmp_path: Path) -> None:
    html = swept_page(
        tmp_path,
        record("a1", state_mb=1.0, latency={"p99": 10.0}),
        record(
            "a2", state_mb=1.0, repetition=1, status="invalid", reasons=["background-load: why"], latency={"p99": 77.0}
        ),
        record("a3", state_mb=8.0, status="invalid", reasons=["not-steady: lag"], latency={"p99": 99.0}),
        record("a4", state_mb=16.0, status="failed", reasons=["broker gone"]),
    )
    traces = {trace.name: trace for trace in figure(html).data}
    assert list(traces["median"].y) == [10.0]
    hollow = traces["invalid run, does not count"]
    assert sorted(zip(map(round, hollow.x), hollow.y, strict=True)) == [(1, 77.0), (8, 99.0)]
    assert hollow.marker.symbol.endswith("-open") and any("not-steady: lag" in text for text in hollow.text)
    shown = [row for row in Page(html).all("tr") if "configuration" in (row.get("title") or "")]
    assert ["open" in (row.get("class") or "") for row in shown] == [False, True, True]
    assert "not-steady: lag" in str(shown[1]["title"])
    assert html.count("1 invalid</span>") == 2 and "99</td>" in html
    titles = [a.get("title") for a in Page(html).all("a") if "attempt" in (a.get("class") or "")]
    assert "a3: invalid: not-steady: lag" in titles and "a4: failed: broker gone" in titles
    put(tmp_path, record("f1", sweep="s2", status="failed"))
    assert "No record of this build has figures" in sweep_page(site(tmp_path), "s2")


@pytest.mark.parametrize("status", ["valid", "invalid"])
def test_the_overview_starts_with_the_newest_summary_and_ends_with_failures(tmp_path: Path, status: str) -> None:
    named = {"recovery": RECOVERED, "status": status, "reasons": ["background-load: why"] * (status == "invalid")}
    cells = [(interval, run) for interval in (2.0, 5.0) for run in range(3)]
    made = [record(f"a{s}{run}", checkpoint_interval_s=s, repetition=run, **named) for s, run in cells]
    put(tmp_path, record("old", sweep="s0", status="invalid", reasons=["not-steady: lag"]), *made)
    html = overview_page(site(tmp_path))
    summary, failures = html.index("<h2>Newest summary</h2>"), html.index("without usable figures")
    assert summary < html.index("<h2>Matrices</h2>") < html.index("<h2>Sweeps</h2>") < failures
    assert "checkpoint interval 5 s instead of 2 s: CPU" in html[summary:failures].replace("Checkpoint", "checkpoint")
    nothing = "No usable run; 6 invalid runs excluded (6 background-load)"
    assert (nothing in html) is (status == "invalid")


def test_a_heat_map_shows_invalid_cells_in_parentheses_without_colour(tmp_path: Path) -> None:
    bad = {"status": "invalid", "reasons": ["background-load: why"]}
    cells = [(state, interval, bad if (state, interval) == (8.0, 5.0) else {}) for state in (1.0, 8.0)
             for interval in (2.0, 5.0)]  # fmt: skip
    drawn = drawn_of(tmp_path, *(
        record(f"a{mb}{s}", state_mb=mb, checkpoint_interval_s=s, latency={"p99": 10.0 * s}, **how)
        for mb, s, how in cells
    ))  # fmt: skip
    assert sum(value is not None for row in drawn.data[0].z for value in row) == 3
    (note,) = drawn.layout.annotations
    assert note.text == "(50)" and "background-load: why" in note.hovertext
    assert (note.x, note.y) == (1, 1), "the index of 8 MB and 5 s"


def test_each_recovery_of_a_run_is_a_small_point(tmp_path: Path) -> None:
    parts = [{**RECOVERED, "macro_s": macro} for macro in (10.0, 12.0, 17.0)]
    named = {"recovery": parts[1], "recoveries": parts, "raw_config": {"injections": 3}}
    made = [record(f"a{interval}", checkpoint_interval_s=interval, **named) for interval in (2.0, 5.0)]
    drawn = figure(swept_page(tmp_path, *made, choice=SweepPageQuery(metric="recovery.macro_s")))
    (small,) = (trace for trace in drawn.data if trace.name == "one run")
    assert sorted(small.y) == [10.0, 10.0, 12.0, 12.0, 17.0, 17.0] and small.marker.size < 6


def test_a_matrix_page_covers_all_sweeps_and_links_to_the_newest_experiments(tmp_path: Path) -> None:
    put(tmp_path, *(record(f"a{n:03}", sweep=f"s{n}") for n in range(50)))
    html = matrix_page(site(tmp_path), "m")
    assert "30 older" in html and "experiments/a049" in html and "experiments/a029" not in html
    assert ["executor kill", "8,046 8,046 – 8,046"] in [row[:2] for row in rows(html)]
    put(tmp_path, record("b1", sweep="s99", state_mb=8.0))
    drawn = figure(matrix_page(site(tmp_path), "m")).data
    assert {x for trace in drawn if trace.name == "median" for x in trace.x} == {1.0, 8.0}
    for page in (matrix_page, sweep_page):
        with pytest.raises(PageNotFound, match="nothing"):
            page(site(tmp_path), "nothing")


def test_a_new_parameter_at_its_default_is_not_an_axis(tmp_path: Path) -> None:
    old = record("a1").model_copy(update={"attempt": "old"})
    config = {name: value for name, value in old.config.items() if name not in ("iterations", "window_s")}
    put(tmp_path, record("a1", repetition=1), old.model_copy(update={"config": config}))
    assert "have the same configuration" in sweep_page(site(tmp_path), "s1")


def test_the_comparison_of_two_sweeps(tmp_path: Path) -> None:
    put(tmp_path, *grid(), *grid(sweep="s2")[:6], record("extra", sweep="s2", state_mb=64.0, latency={"p99": 1.0}))
    put(tmp_path, *grid(sweep="s3", factor=2), record("z1", sweep="z1", rate=100.0), record("z2", sweep="z2", rate=9.0))
    one = site(tmp_path)
    html = compare_page(one, ComparePageQuery("s1", "s2"))
    assert "2 configurations in both, 2 in A only, 1 in B only" in Page(html).text
    found = [(row[:8], row[-2:]) for row in rows(html) if "executor kill" in row]
    both = ["8", "2", "executor kill", "8,201 8,200 – 8,202", "3", "8,201 8,200 – 8,202", "3", "1.00"]
    one_only = ["1", "2", "executor kill", "1,201 1,200 – 1,202", "3", "—", "0", "—"]
    assert (both, ["r0 r1 r2", "r0 r1 r2"]) in found and (one_only, ["r0 r1 r2", ""]) in found
    doubled = [row[7] for row in rows(compare_page(one, ComparePageQuery("s1", "s3"))) if "executor kill" in row]
    assert doubled == ["2.00"] * 4
    apart = compare_page(one, ComparePageQuery("z1", "z2"))
    assert "no common configuration; they differ in rate." in apart and not rows(apart)
    asked = compare_page(one, ComparePageQuery(a="s1"))
    assert '<option value="s1" selected>' in asked and '<option value="s2">' in asked, "sweeps are listed"
    assert "Select two sweeps" in asked and '<optgroup label="m">' in asked
    with pytest.raises(PageNotFound, match="s9"):
        compare_page(one, ComparePageQuery("s1", "s9"))


def test_misleading_ratios_are_omitted(tmp_path: Path) -> None:
    put(tmp_path, record("a1", recovery=CENSORED), record("b1", sweep="s2", recovery=RECOVERED))
    one = site(tmp_path)
    macro = compare_page(one, ComparePageQuery("s1", "s2", metric="recovery.macro_s"))
    assert ["executor kill", "> 33.94", "1", "13.84", "1", "—"] in [row[:6] for row in rows(macro)]
    lost = compare_page(one, ComparePageQuery("s1", "s2", metric="audit.lost"))
    assert ["executor kill", "0", "1", "0", "1", "—"] in [row[:6] for row in rows(lost)]


def test_five_repetitions_per_side_get_a_verdict(tmp_path: Path) -> None:
    sides = [(sweep, n, factor * (1000 + n)) for sweep, factor in (("s1", 1.0), ("s2", 1.3), ("s3", 1.0))
             for n in range(5)]  # fmt: skip
    put(tmp_path, *(record(f"{s}-{n}", sweep=s, repetition=n, latency={"p99": p99}) for s, n, p99 in sides))
    put(tmp_path, record("few", sweep="s4"))
    one = site(tmp_path)
    slower, equal, few = (
        next(row for row in rows(compare_page(one, ComparePageQuery("s1", other))) if "executor kill" in row)
        for other in ("s2", "s3", "s4")
    )
    assert slower[-4:-2] == ["< 0.0001", "worse"] and slower[-5].startswith("+30.0% [")
    assert (equal[-3], few[-3]) == ("equivalent", "inconclusive 1 of 5 repetitions")
    assert "Verdict" not in compare_page(one, ComparePageQuery("s1", "s1")), "a side compared with itself"
