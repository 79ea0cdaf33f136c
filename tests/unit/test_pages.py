"""What the results pages show, as functions from the store to HTML."""

from __future__ import annotations

import csv
import io
import json
from html import unescape
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from faultline.index import Index
from faultline.judge import judge
from faultline.pages.compare import Pair, compare_page
from faultline.pages.download import as_csv, as_parquet
from faultline.pages.experiment import experiment_page
from faultline.pages.overview import SWEEPS_A_PAGE, overview_page
from faultline.pages.runs import address_of_dag, address_of_run, runs_of_entry, runs_of_sweep
from faultline.pages.site import Run, Site, Unknown
from faultline.pages.sweep import Choice, matrix_page, sweep_page
from faultline.plots import FAULT_COLOUR
from faultline.record import Record
from tests.unit.pages_store import figure, figures, put, record, rows, site
from tests.unit.sample_records import CENSORED, RECOVERED
from tests.unit.synthetic import Scenario, Synthetic
from tests.unit.test_report import EVIL, Page


def grid(factor: float = 1, **named: Any) -> list[Record]:
    """State 1 and 8 MB × interval 2 and 5 s, three repetitions: p99 = 1000·state + 100·interval + repetition, times
    `factor`.
    """
    return [
        record(
            f"{named.get('sweep', 's1')}-{state:g}-{interval:g}-{repetition}",
            state_mb=state,
            checkpoint_interval_s=interval,
            repetition=repetition,
            latency={"p99": factor * (1000 * state + 100 * interval + repetition)},
            recovery=RECOVERED,
            **named,
        )
        for state in (8.0, 1.0)
        for interval in (2.0, 5.0)
        for repetition in range(3)
    ]


def test_the_first_page_lists_sweeps_matrices_and_what_cannot_be_read(tmp_path: Path) -> None:
    path = put(tmp_path, record("a1"), record("a2", status="invalid"), record("b1", sweep=None, matrix=None))
    path.with_name("broken.json").write_text("{")
    html = overview_page(site(tmp_path))
    found = rows(html)
    assert ["m", "1", "1", "0", "0", "2", "2026-11-21 06:15", "2026-11-21 06:15"] in found
    assert ["s1", "m", "1", "1", "0", "0", "2", "2026-11-21 06:15", "2026-11-21 06:15"] in found
    assert ["without a sweep", "—", "1", "0", "0", "0", "1", "2026-11-21 06:15", "2026-11-21 06:15"] in found
    assert any(row[0].endswith("/broken.json") for row in found)
    links = [a["href"] for a in Page(html).all("a")]
    assert {"/faultline/sweeps/s1", "/faultline/matrices/m", "/faultline/unswept"} <= set(links)
    assert "There are no records yet" in overview_page(site(tmp_path / "empty"))


def test_a_single_experiment_is_told_by_what_it_was(tmp_path: Path) -> None:
    put(tmp_path, record("a1", sweep="single-1", matrix=None, rate=12500.0, fault="driver"))
    (row,) = [row for row in rows(overview_page(site(tmp_path))) if row[0] == "single-1"]
    assert row[1] == "word_count, 12,500 records/s, driver kill"
    assert "word_count, 12,500 records/s, measured for 55 s" in experiment_page(site(tmp_path), "a1")


def test_a_sweep_tells_why_experiments_are_not_valid(tmp_path: Path) -> None:
    steady = [f"not-steady: lag has a trend (p = 0.0{n})" for n in range(3)]
    put(
        tmp_path,
        record("a1", status="invalid", reasons=steady[:1]),
        record("a2", status="invalid", reasons=[steady[1], "backlog-at-t0: 7 records"], repetition=1),
        record("a3", status="failed", reasons=[EVIL], repetition=2),
    )
    html = sweep_page(site(tmp_path), "s1")
    found = rows(html)
    assert ["2", steady[1], "r1"] in found, "the newest example of the commonest kind"
    assert ["1", "backlog-at-t0: 7 records", "r1"] in found
    assert any(row[1] == EVIL for row in found if len(row) > 1) and EVIL not in html
    put(tmp_path, record("b1", sweep="s2"))
    assert "Why experiments are not valid" not in sweep_page(site(tmp_path), "s2")


def test_the_list_of_sweeps_has_pages(tmp_path: Path) -> None:
    number = SWEEPS_A_PAGE + 5
    put(
        tmp_path,
        *(
            record(f"a{n:03}", sweep=f"s{n:03}", measured_at=f"2026-11-21T06:{n // 60:02}:{n % 60:02}+00:00")
            for n in range(number)
        ),
    )
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
    assert heat.customdata[0][0] == "Latency p99 1,201 ms, 1,200 – 1,202 (n = 3)"
    row = next(row for row in rows(html) if row[:3] == ["1", "2", "executor kill"])
    assert row[3] == "1,201 1,200 – 1,202"
    assert row[-2:] == ["3", "r0 r1 r2"]
    links = [a["href"] for a in Page(html).all("a") if a.get("class") == "attempt valid"]
    assert len(links) == 12 and "/faultline/experiments/s1-8-5-2" in links


def test_a_reader_chooses_metric_axis_and_view(tmp_path: Path) -> None:
    put(tmp_path, *grid())
    one = site(tmp_path)
    turned = figure(sweep_page(one, "s1", Choice(x="checkpoint_interval_s"))).data[0]
    assert (turned.x, turned.y) == (("2", "5"), ("1", "8"))
    drawn = figure(sweep_page(one, "s1", Choice(view="curves", metric="recovery.macro_s")))
    assert [trace.name for trace in drawn.data] == ["checkpoint interval (s) 2", "checkpoint interval (s) 5"]
    assert list(drawn.data[0].x) == [1, 8] and list(drawn.data[0].y) == [13.84, 13.84]
    assert drawn.layout.yaxis.title.text == "Macro recovery (s)"
    for wrong in (Choice(metric="nothing"), Choice(x="rate"), Choice(view="pie"), Choice(group="b9")):
        with pytest.raises(Unknown):
            sweep_page(one, "s1", wrong)


def test_one_axis_makes_a_curve_with_error_bars(tmp_path: Path) -> None:
    put(
        tmp_path,
        *(
            record(f"a{rate}-{n}", rate=float(rate), repetition=n, fault="none", latency={"p99": rate + offset})
            for rate in (10, 100, 1000)
            for n, offset in enumerate((0.0, 5.0, 20.0))
        ),
    )
    drawn = figure(sweep_page(site(tmp_path), "s1"))
    (line,) = drawn.data
    assert list(line.y) == [15.0, 105.0, 1005.0]
    assert list(line.error_y.array) == [15.0] * 3 and list(line.error_y.arrayminus) == [5.0] * 3
    assert line.error_y.visible
    assert drawn.layout.xaxis.type == "log", "a hundredfold span"
    assert line.name == "median", "where nothing breaks anything, runs without a fault are the data"


def test_categories_and_numbers_make_curves_and_controls_stand_apart(tmp_path: Path) -> None:
    faults = [
        record(f"{fault}-{interval:g}", fault=fault, checkpoint_interval_s=interval, recovery=RECOVERED)
        for fault in ("executor", "driver")
        for interval in (2.0, 5.0)
    ]
    controls = [record(f"none-{n:g}", fault="none", checkpoint_interval_s=n, latency={"p99": 7.0}) for n in (2.0, 5.0)]
    put(tmp_path, *faults, *controls)
    drawn = figure(sweep_page(site(tmp_path), "s1"))
    assert [trace.name for trace in drawn.data] == ["driver kill", "executor kill", "control"]
    assert list(drawn.data[2].x) == [2, 5] and list(drawn.data[2].y) == [7.0, 7.0]
    turned = figure(sweep_page(site(tmp_path), "s1", Choice(x="fault")))
    assert turned.layout.xaxis.type == "category"
    assert list(turned.data[0].x) == ["driver kill", "executor kill"]


def test_a_heat_map_tells_its_controls_below(tmp_path: Path) -> None:
    put(tmp_path, *grid(), record("control", state_mb=1.0, fault="none", latency={"p99": 777.0}))
    html = sweep_page(site(tmp_path), "s1")
    assert "777 ms" not in str(figure(html).data[0].text)
    assert "Controls (no fault): state (MB) 1, checkpoint interval (s) 2: 777 ms (n = 1)." in Page(html).text


def test_builds_are_never_mixed_in_one_point(tmp_path: Path) -> None:
    old = grid(build="old", measured_at="2026-11-20T06:00:00+00:00")
    new = [record(f"new-{state:g}", build="new", state_mb=state, latency={"p99": 5.0}) for state in (1.0, 8.0)]
    night = "2026-11-20T23:00:00+00:00"
    nightly = record("n1", build="new", series="2026-11-20", state_mb=1.0, latency={"p99": 9.0}, measured_at=night)
    put(tmp_path, *old, *new, nightly)
    one = site(tmp_path)
    html = sweep_page(one, "s1")
    assert list(figure(html).data[0].y) == [5.0, 5.0], "the build that was measured last, and of it one series"
    options = [a for a in Page(html).all("option") if "value" not in a]
    assert len(options) == 3, "old, new, and a night of new"
    assert figure(sweep_page(one, "s1", Choice(group="old"))).data[0].type == "heatmap"
    assert "3 builds here" in Page(html).text


def test_a_recovery_that_was_not_seen_to_end_bounds_the_median(tmp_path: Path) -> None:
    put(
        tmp_path,
        *(record(f"a{n}", state_mb=1.0, repetition=n, recovery=RECOVERED) for n in range(2)),
        *(record(f"b{n}", state_mb=8.0, repetition=n, recovery=CENSORED) for n in range(2)),
        record("b2", state_mb=8.0, repetition=2, recovery=RECOVERED),
    )
    html = sweep_page(site(tmp_path), "s1", Choice(metric="recovery.macro_s"))
    seen, bound = figure(html).data
    assert (list(seen.y), list(bound.y)) == ([13.84], [33.94])
    assert bound.marker.symbol == "triangle-up-open" and bound.mode == "markers"
    assert any("> 33.94 13.84 – 33.94" in row for row in rows(html))
    catchup = sweep_page(site(tmp_path), "s1", Choice(metric="recovery.catchup_s"))
    assert list(figure(catchup).data[0].x) == [1], "a part that is partly unknown has no median"


def test_only_valid_records_make_figures_but_all_are_linked(tmp_path: Path) -> None:
    put(
        tmp_path,
        record("a1", state_mb=1.0, latency={"p99": 10.0}),
        record("a2", state_mb=8.0, latency={"p99": 20.0}),
        record("a3", state_mb=8.0, repetition=1, status="invalid", reasons=["not-steady: lag"], latency={"p99": 99.0}),
        record("a4", state_mb=16.0, status="failed", reasons=["broker gone"]),
    )
    html = sweep_page(site(tmp_path), "s1")
    assert list(figure(html).data[0].y) == [10.0, 20.0]
    titles = [a.get("title") for a in Page(html).all("a") if "attempt" in (a.get("class") or "")]
    assert "a3: invalid: not-steady: lag" in titles and "a4: failed: broker gone" in titles
    put(tmp_path, record("f1", sweep="s2", status="failed"))
    assert "No record of this build is valid" in sweep_page(site(tmp_path), "s2")


def test_numbers_without_any_fault_make_a_heat_map_of_their_own(tmp_path: Path) -> None:
    put(
        tmp_path,
        *(
            record(f"a{n}-{interval:g}", workload="pi", iterations=n, checkpoint_interval_s=interval, fault="none")
            for n in (10, 1000)
            for interval in (1.0, 2.0)
        ),
    )
    (heat,) = figure(sweep_page(site(tmp_path), "s1")).data
    assert [list(row) for row in heat.z] == [[8046.4, 8046.4]] * 2


def test_a_cell_of_many_sweeps_links_to_its_newest_experiments(tmp_path: Path) -> None:
    put(tmp_path, *(record(f"a{n:03}", sweep=f"s{n}") for n in range(50)))
    html = matrix_page(site(tmp_path), "m")
    assert "30 older" in html and "experiments/a049" in html and "experiments/a029" not in html
    assert ["executor kill", "8,046 8,046 – 8,046"] in [row[:2] for row in rows(html)]


def test_a_matrix_page_takes_all_its_sweeps(tmp_path: Path) -> None:
    put(tmp_path, record("a1", state_mb=1.0), record("b1", sweep="s2", state_mb=8.0))
    html = matrix_page(site(tmp_path), "m")
    assert len(figure(html).data[0].y) == 2
    for page in (matrix_page, sweep_page):
        with pytest.raises(Unknown, match="nothing"):
            page(site(tmp_path), "nothing")


def test_a_later_parameter_at_its_default_is_no_axis(tmp_path: Path) -> None:
    old = record("a1").model_copy(update={"attempt": "old"})
    config = {name: value for name, value in old.config.items() if name not in ("iterations", "window_s")}
    put(tmp_path, record("a1", repetition=1), old.model_copy(update={"config": config}))
    assert "One configuration only" in sweep_page(site(tmp_path), "s1")


def judged(results: Path, scenario: Scenario) -> Record:
    directory = Synthetic(scenario).write(results)
    target = results / "attempts" / directory.name
    target.parent.mkdir(exist_ok=True)
    directory.rename(target)
    made = judge(target)
    put(results, made)
    return made


def test_an_experiment_in_full(tmp_path: Path) -> None:
    made = judged(tmp_path, Scenario())
    html = experiment_page(site(tmp_path), made.attempt)
    found = rows(html)
    assert ["28.549", "+0.350", "t2 the loss is detected", "recorder.jsonl: removeTime of executor 0 (REST)"] in found
    assert any("the gate opens: T0" in row for row in found), "events of the experiment itself"
    assert ["lost", "0"] in found
    text = Page(html).text
    for expected in ("Fault 1:", "Recovered in", "Longest silence", "checkpoint_interval_s", "Again: ./faultline run"):
        assert expected in text, expected
    (plot,) = figures(html).values()
    marks = [shape for shape in plot["layout"]["shapes"] if shape["name"] == "t0"]
    assert [mark["line"]["color"] for mark in marks] == [FAULT_COLOUR]


def test_an_experiment_without_raw_files_shows_its_record(tmp_path: Path) -> None:
    put(
        tmp_path,
        record(
            "a1",
            status="invalid",
            reasons=["not-steady: lag has a trend"],
            recovery=RECOVERED,
            timeline={"gate": (0.0, "gate.json"), "t0": (41.0, "conductor.jsonl")},
        ),
        record("a2", status="valid", recovery=RECOVERED),
        record("f1", status="failed", reasons=["broker gone"], state_mb=8.0),
    )
    one = site(tmp_path)
    text = Page(experiment_page(one, "a1")).text
    for expected in (
        "not-steady: lag has a trend",
        "series.json is missing",
        "Recovered in 13.84 s",
        "bench-1: 2 cores",
    ):
        assert expected in text, expected
    assert "/faultline/experiments/a2" in experiment_page(one, "a1"), "the same cell measured again"
    assert "broker gone" in Page(experiment_page(one, "f1")).text
    with pytest.raises(Unknown, match="No attempt a3"):
        experiment_page(one, "a3")


@pytest.mark.parametrize("content", ["{", "[]", "null", '{"event": 5}\n', '"x"\n"y"\n', "5\n6\n", "\xff"])
def test_raw_files_may_hold_anything(tmp_path: Path, content: str) -> None:
    put(tmp_path, record("a1", recovery=RECOVERED))
    folder = tmp_path / "attempts" / "a1"
    folder.mkdir(parents=True)
    names = ("series.json", "audit.json", "attempt.json", "conductor.jsonl", "supervisor.jsonl", "services.jsonl")
    for name in names:
        (folder / name).write_text(content, encoding="latin-1")
    assert "Recovered in 13.84 s" in experiment_page(site(tmp_path), "a1") or "only the record is shown" in (
        experiment_page(site(tmp_path), "a1")
    )


DEEP = "[" * 100_000


@pytest.mark.parametrize("name", ["series.json", "audit.json", "attempt.json", "conductor.jsonl", "supervisor.jsonl"])
@pytest.mark.parametrize("content", [DEEP, '{"a": ' * 50_000, f"{DEEP}\n{{}}\n"])
def test_a_raw_file_may_be_nested_without_end(tmp_path: Path, name: str, content: str) -> None:
    put(tmp_path, record("a1", recovery=RECOVERED))
    folder = tmp_path / "attempts" / "a1"
    folder.mkdir(parents=True)
    (folder / name).write_text(content)
    assert "executor kill" in experiment_page(site(tmp_path), "a1")


@pytest.mark.parametrize(
    "line",
    [
        '{"event": "settled", "fault": 0, "outcome": 5}',
        '{"event": "delivered", "fault": 0, "planned_wall_ns": NaN, "wall_ns": Infinity}',
        f'{{"event": "delivered", "fault": 0, "planned_wall_ns": {"9" * 400}, "wall_ns": 1}}',
    ],
)
def test_a_journal_may_hold_odd_values(tmp_path: Path, line: str) -> None:
    put(tmp_path, record("a1", recovery=RECOVERED, timeline={"gate": (0.0, "gate.json"), "t0": (41.0, "x")}))
    folder = tmp_path / "attempts" / "a1"
    folder.mkdir(parents=True)
    (folder / "conductor.jsonl").write_text(f"{line}\n")
    assert "executor kill" in experiment_page(site(tmp_path), "a1")


def test_curves_with_numbers_that_are_none_have_gaps(tmp_path: Path) -> None:
    made = judged(tmp_path, Scenario())
    path = tmp_path / "attempts" / made.attempt / "series.json"
    series = json.loads(path.read_text())
    series["latency"][2]["p99_ms"] = series["lag"][1]["t_s"] = series["cpu"][0]["driver"] = float("nan")
    series["events"][0]["t_s"] = float("inf")
    path.write_text(json.dumps(series))
    (plot,) = figures(experiment_page(site(tmp_path), made.attempt)).values()
    drawn = {trace["name"]: trace for trace in plot["data"]}
    assert drawn["latency p99"]["y"][2] is None and drawn["latency p99"]["y"][3] is not None
    assert drawn["lag at commit"]["x"][1] is None and drawn["driver"]["y"][0] is None
    assert all(isinstance(edge, int | float) for edge in plot["layout"]["xaxis"]["range"])


def test_a_record_with_numbers_that_are_none_hides_no_other(tmp_path: Path) -> None:
    good, bad = record("a1"), record("a2", rate=600.0)
    path = put(tmp_path, good, bad)
    for number in ("NaN", "Infinity", "9" * 400):
        path.write_text(bad.as_json().replace('"rate": 600.0', f'"rate": {number}'))
        one = site(tmp_path)
        assert "/faultline/experiments/a1" in sweep_page(one, "s1")
        assert ["config.rate"] == [row[1].partition(":")[0] for row in rows(overview_page(one)) if "a2.json" in row[0]]
        assert as_parquet(one.index.all())
        with pytest.raises(Unknown, match="a2 cannot be read: config.rate"):
            experiment_page(one, "a2")


def test_two_sweeps_side_by_side(tmp_path: Path) -> None:
    put(tmp_path, *grid(), *grid(sweep="s2")[:6], record("extra", sweep="s2", state_mb=64.0, latency={"p99": 1.0}))
    put(tmp_path, *grid(sweep="s3", factor=2))
    one = site(tmp_path)
    html = compare_page(one, Pair("s1", "s2"))
    assert "2 configurations in both, 2 in A only, 1 in B only" in Page(html).text
    found = [row[:10] for row in rows(html)]
    assert [
        "8",
        "2",
        "executor kill",
        "8,201 8,200 – 8,202",
        "3",
        "r0 r1 r2",
        "8,201 8,200 – 8,202",
        "3",
        "r0 r1 r2",
        "1.00",
    ] in found
    assert ["1", "2", "executor kill", "1,201 1,200 – 1,202", "3", "r0 r1 r2", "—", "0", "", "—"] in found
    doubled = [row[9] for row in rows(compare_page(one, Pair("s1", "s3"))) if "executor kill" in row]
    assert doubled == ["2.00"] * 4
    assert "datalist" in compare_page(one, Pair()) and "Give the ids" in compare_page(one, Pair(a="s1"))
    with pytest.raises(Unknown, match="s9"):
        compare_page(one, Pair("s1", "s9"))


def test_the_ratio_is_missing_where_it_would_mislead(tmp_path: Path) -> None:
    put(tmp_path, record("a1", recovery=CENSORED), record("b1", sweep="s2", recovery=RECOVERED))
    one = site(tmp_path)
    macro = compare_page(one, Pair("s1", "s2", metric="recovery.macro_s"))
    assert ["executor kill", "> 33.94", "1", "r0", "13.84", "1", "r0", "—"] in [row[:8] for row in rows(macro)]
    lost = compare_page(one, Pair("s1", "s2", metric="audit.lost"))
    assert ["executor kill", "0", "1", "r0", "0", "1", "r0", "—"] in [row[:8] for row in rows(lost)]


def test_five_repetitions_a_side_get_a_verdict_with_its_reason(tmp_path: Path) -> None:
    for sweep, factor in (("s1", 1.0), ("s2", 1.3), ("s3", 1.0)):
        put(
            tmp_path,
            *(
                record(f"{sweep}-{number}", sweep=sweep, repetition=number, latency={"p99": factor * (1000 + number)})
                for number in range(5)
            ),
        )
    put(tmp_path, record("few", sweep="s4"))
    one = site(tmp_path)
    (slower,) = [row for row in rows(compare_page(one, Pair("s1", "s2"))) if "executor kill" in row]
    assert slower[-2:] == ["0.0079", "worse"] and slower[-3].startswith("+30.0% [")
    (equal,) = [row for row in rows(compare_page(one, Pair("s1", "s3"))) if "executor kill" in row]
    assert equal[-1] == "same"
    (few,) = [row for row in rows(compare_page(one, Pair("s1", "s4"))) if "executor kill" in row]
    assert few[-1] == "cannot tell 1 of 5 repetitions"
    assert "Verdict" not in compare_page(one, Pair("s1", "s1")), "a side held against itself"


def test_the_download_holds_every_record(tmp_path: Path) -> None:
    plan = {"faults": [{"victim": "executor", "action": "kill", "at_s": 41.0}]}
    put(
        tmp_path,
        *grid(),
        record(
            "f1",
            status="failed",
            reasons=['a, "quoted"\nline', "=1+1"],
            raw_config={"corpus": "ä", "fault_plan": plan},
        ),
    )
    one = site(tmp_path)
    one.index.refresh()
    entries = one.index.of_sweep("s1")
    table_rows = list(csv.DictReader(io.StringIO(as_csv(entries).decode())))
    assert len(table_rows) == 13
    failed = next(row for row in table_rows if row["attempt"] == "f1")
    assert (failed["status"], failed["latency_ms_p99"], failed["config_corpus"]) == ("failed", "", "ä")
    assert failed["reasons"] == 'a, "quoted"\nline; =1+1'
    assert json.loads(failed["config_fault_plan"]) == plan
    table = pd.read_parquet(io.BytesIO(as_parquet(entries)))
    assert len(table) == 13
    assert table["latency_ms_p99"].dtype == "float64" and table["repetition"].dtype == "int64"
    assert table.set_index("attempt").loc["s1-8-5-2", "latency_ms_p99"] == 8502.0
    assert set(table_rows[0]) == set(table.columns)


def test_columns_of_mixed_kinds_become_text(tmp_path: Path) -> None:
    put(
        tmp_path, record("a1", raw_config={"odd": 1, "flag": True}), record("a2", raw_config={"odd": "x", "flag": None})
    )
    one = site(tmp_path)
    one.index.refresh()
    table = pd.read_parquet(io.BytesIO(as_parquet(one.index.all())))
    assert list(table["config_odd"]) == ["1", "x"]
    assert list(table["config_flag"]) == [True, None]


def test_runs_lead_to_pages_and_pages_to_runs(tmp_path: Path) -> None:
    cell = record("a1", sweep="20261121T061500-123456", measured_at="2026-11-21T06:15:00+00:00")
    again = record("a2", sweep="20261121T061500-123456", status="invalid")
    single = record("b1", sweep="single-20261121T111350Z-c7fd", matrix=None)
    put(tmp_path, cell, again, single, record("c1", sweep="demo_5", matrix="m"))
    one = site(tmp_path)
    run_id = "manual__2026-11-21T06:15:00.123456+00:00"
    assert address_of_run(one, "m", run_id) == "/faultline/sweeps/20261121T061500-123456"
    child = f"20261121T061500-123456__{cell.config_id}-r0"
    for name in (child, f"{child}-0a1b2c3d"):
        assert address_of_run(one, "experiment", name) == "/faultline/experiments/a2", "the newest try"
    assert address_of_run(one, "experiment", "single-20261121T111350Z-c7fd") == "/faultline/experiments/b1"
    assert address_of_run(one, "m", "demo_5") == "/faultline/sweeps/demo_5"
    for dag_id, unknown in (("m", "manual__2027"), ("experiment", f"x__{'0' * 12}-r0"), ("m", ""), ("m", "../..")):
        with pytest.raises(Unknown, match="no record yet"):
            address_of_run(one, dag_id, unknown)
    assert address_of_dag(one, "m") == "/faultline/matrices/m"
    assert address_of_dag(one, "experiment") == "/faultline/"

    known = {("m", f"{run_id}_x7"), ("experiment", child), ("experiment", "single-20261121T111350Z-c7fd")}

    def find(dag_id: str, run_ids: Any, beginnings: Any) -> list[str]:
        return [run for dag, run in known if dag == dag_id and (run in run_ids or any(map(run.startswith, beginnings)))]

    asking = site(tmp_path, find_runs=find)
    assert runs_of_sweep(asking, "m", "20261121T061500-123456") == [Run("m", f"{run_id}_x7")]
    entry, alone = one.index.of_attempt("a1"), one.index.of_attempt("b1")
    assert entry is not None and alone is not None
    assert runs_of_entry(asking, entry) == [Run("experiment", child), Run("m", f"{run_id}_x7")]
    assert runs_of_entry(asking, alone) == [Run("experiment", "single-20261121T111350Z-c7fd")]
    html = experiment_page(asking, "a1")
    assert f"/dags/experiment/runs/{child}" in html
    assert "/dags/m/runs/manual__2026-11-21T06%3A15%3A00.123456%2B00%3A00_x7" in html
    assert "/dags/m/runs/" in sweep_page(asking, "20261121T061500-123456")


def test_a_run_is_noted_in_its_attempt(tmp_path: Path) -> None:
    put(tmp_path, record("a1", sweep="s1"), record("a2", sweep="s1"), record("b1", sweep="given", matrix=None))
    one = site(tmp_path)
    one.index.refresh()
    cell, entry, alone = (one.index.of_attempt(name) for name in ("a1", "a2", "b1"))
    assert cell is not None and entry is not None and alone is not None
    child, search = f"s1__{entry.config_id}-r0", f"s1__{entry.config_id}-search-061500"
    assert address_of_run(one, "experiment", search) == "/faultline/experiments/a2", "before runs were noted"
    assert runs_of_entry(one, entry)[0] == Run("experiment", child)
    for attempt, said in (("a1", {"run_id": child}), ("a2", {"run_id": search}), ("b1", {"run_id": "manual__7"})):
        folder = tmp_path / "attempts" / attempt
        folder.mkdir(parents=True)
        (folder / "attempt.json").write_text(json.dumps({**said, "parent_run_id": None}))
    assert [runs_of_entry(one, each)[0].run_id for each in (cell, entry, alone)] == [child, search, "manual__7"]
    assert address_of_run(one, "experiment", search) == "/faultline/experiments/a2"
    assert address_of_run(one, "experiment", child) == "/faultline/experiments/a1", "another run of the same cell"
    with pytest.raises(Unknown, match="no record yet"):
        address_of_run(one, "experiment", search.replace("0615", "0715"))
    for odd in ('{"run_id": 5}', '{"run_id": "\\ud800", "parent_run_id": "\\ud800"}', '{"run_id": ["x"]}'):
        (tmp_path / "attempts" / "a2" / "attempt.json").write_text(odd)
        assert runs_of_entry(one, entry)[0] == Run("experiment", child)


def test_a_sweep_may_go_while_the_first_page_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, record("a1", sweep="single-1", matrix=None))
    monkeypatch.setattr(Index, "of_sweep", lambda index, sweep_id: [])
    (row,) = [row for row in rows(overview_page(site(tmp_path))) if row[0] == "single-1"]
    assert row[1] == "—"


def evil_store(results: Path) -> Site:
    """A record with markup in every text that a file can bring, and its raw files likewise."""
    texts: dict[str, Any] = {
        "status": "invalid",
        "reasons": [EVIL],
        "recovery": RECOVERED,
        "recoveries": [RECOVERED, CENSORED],
        "timeline": {"gate": (0.0, EVIL), "t0": (41.0, EVIL), EVIL: (42.0, "x")},
        "raw_config": {"corpus": EVIL, EVIL: EVIL, "fault": EVIL, "state_mb": EVIL, "workload": EVIL},
    }
    bad = record("evil", sweep=EVIL, matrix=EVIL, build=EVIL, series=f"{EVIL}s", measured_at=EVIL, **texts)
    environment = bad.environment.model_copy(update={"host": EVIL, "git_commit": EVIL, "versions": {"faultline": EVIL}})
    bad = bad.model_copy(update={"environment": environment, "logical_date": EVIL, "artifacts": {EVIL: EVIL}})
    others = [
        bad.model_copy(
            update={"attempt": f"v{n}", "status": "valid", "repetition": n, "config": {**bad.config, "a": value}}
        )
        for n, value in enumerate((EVIL, 5))
    ]
    put(results, bad)
    for number, one in enumerate(others):
        put(results, one.model_copy(update={"config_id": f"{number:012x}"}))
    (results / "records" / bad.config_id / "x<script>alert(1)<script>.json").write_text("{")
    folder = results / "attempts" / "evil"
    folder.mkdir(parents=True)
    (folder / "audit.json").write_text(json.dumps({"offenders": [{"kind": EVIL, "key": EVIL, "expected": 1}]}))
    (folder / "attempt.json").write_text(json.dumps({"parent_run_id": EVIL, "run_id": EVIL}))
    curves: dict[str, Any] = {name: [] for name in ("latency", "throughput", "lag", "cpu")}
    events = [{"name": "t0", "t_s": 1.0, "source": EVIL}, {"name": EVIL, "t_s": 1.0, "source": EVIL}]
    (folder / "series.json").write_text(json.dumps({**curves, "events": events, "warmup_s": 1, "duration_s": 2}))
    lines = [
        {"event": "victims", "victims": [{"role": EVIL, "pid": EVIL, "host": EVIL}], "wall_ns": 1, "mono_ns": 1},
        {"event": "settled", "fault": 0, "outcome": EVIL, "detail": EVIL, "wall_ns": 1, "mono_ns": 1},
        {"event": "undone", "fault": 0, "undo": EVIL, "error": EVIL, "wall_ns": 1, "mono_ns": 1},
    ]
    (folder / "conductor.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    started = {"event": "started", "service": EVIL, "pid": EVIL, "wall_ns": 1, "mono_ns": 1}
    (folder / "services.jsonl").write_text(json.dumps(started) + "\n")
    return site(results)


def test_untrusted_texts_stay_texts_on_every_page(tmp_path: Path) -> None:
    one = evil_store(tmp_path)
    pages = {
        "overview": overview_page(one),
        "sweep": sweep_page(one, EVIL),
        "matrix": matrix_page(one, EVIL, Choice(view="curves")),
        "experiment": experiment_page(one, "evil"),
        "compare": compare_page(one, Pair(EVIL, EVIL)),
        "form": compare_page(one, Pair(a=EVIL)),
    }
    for name, html in pages.items():
        page = Page(html)
        own = [script for script in page.all("script") if (script.get("src") or "").startswith("/faultline/static/")]
        data = [script for script in page.all("script") if script.get("id") == "figures"]
        assert len(page.all("script")) == len(own) + len(data), name
        assert page.all("img") == [], name
        assert EVIL in page.text or name == "form", f"{name} shows it as it is"
        assert all(not key.startswith("on") for _, attributes in page.elements for key in attributes), name
        for _, attributes in page.elements:
            for key in ("href", "src", "action"):
                address = attributes.get(key)
                assert address is None or address.startswith(("/", "#", "data:,")), (name, address)
        for content in figures(html).values():
            drawn = json.dumps(content)
            assert "<script" not in drawn and "<img" not in drawn, "plotly would read it as markup"
    assert EVIL in unescape(pages["form"])
