"""Pages of one experiment and of two overlaid ones, for any content of raw files."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import plotly.graph_objects as go
import pytest

from faultline.records.format import WORDS
from faultline.records.record import Record
from faultline.records.work_parts import BackgroundCpuPart
from faultline.reports.figures.style import FAULT_COLOUR
from faultline.reports.pages.experiment import experiment_page, overlay_page
from faultline.reports.pages.overview import overview_page
from faultline.reports.pages.site import PageNotFound, ResultsSite
from faultline.reports.pages.sweep import sweep_page
from faultline.reports.tables import as_parquet
from faultline.reports.views.run import run_view
from faultline.reports.views.series import read_curves
from tests.unit.pages_store import app, ask, figures, put, record, rows, site
from tests.unit.reports.test_report import Page
from tests.unit.reports.test_report import judged as made_of
from tests.unit.sample_records import RECOVERED
from tests.unit.synthetic import Scenario


def judged(results: Path, scenario: Scenario) -> Record:
    """Return the stored record of a judged synthetic attempt."""
    made = made_of(results, scenario)
    put(results, made)
    return made


def site_with(results: Path, made: Record) -> ResultsSite:
    put(results, made)
    return site(results)


def test_an_experiment_in_full(tmp_path: Path) -> None:
    made = judged(tmp_path, Scenario())
    html = experiment_page(site(tmp_path), made.attempt)
    found = rows(html)
    assert ["28.549", "+0.350", f"t2 {WORDS['t2']}", "recorder.jsonl: removeTime of executor 0 (REST)"] in found
    assert any(WORDS["gate"] in row for row in found), "events of the experiment"
    assert ["Lost (tuples)", "0"] in found and ["Macro recovery (s)", f"{made.metrics.recovery.macro_s:.6g}"] in found
    text = Page(html).text
    assert "latency_ms" not in text and "checksum_mismatches" not in text, "figures have names"
    for expected in (
        "Fault 1:",
        "Recovered in",
        "Longest silence",
        "checkpoint_interval_s",
        "Rerun: ./faultline run",
    ):
        assert expected in text, expected
    (plot,) = figures(html).values()
    marks = [shape for shape in plot["layout"]["shapes"] if shape["name"] == "t0"]
    assert [mark["line"]["color"] for mark in marks] == [FAULT_COLOUR]


def test_an_engine_that_emits_per_record_has_bins_of_seconds_and_restarts(tmp_path: Path) -> None:
    made = made_of(tmp_path, Scenario())
    assert "throughput per committed batch" in experiment_page(site_with(tmp_path, made), made.attempt)
    latency = made.metrics.latency_ms.model_copy(update={"method": "rank", "batches": None})
    recovery = made.metrics.recovery.model_copy(update={"restarts": 22.0})
    metrics = made.metrics.model_copy(update={"latency_ms": latency, "recovery": recovery, "recoveries": [recovery]})
    changed = made.model_copy(update={"metrics": metrics})
    html = experiment_page(site_with(tmp_path, changed), made.attempt)
    assert "throughput and lag by second" in html and ["Job restarts", "22"] in rows(html)
    (fault,) = run_view(changed, tmp_path).report.faults
    assert dict(fault.facts)["Job restarts"] == "22"


def test_all_lists_show_the_background_cpu_of_a_disturbed_experiment(tmp_path: Path) -> None:
    reason = "background-load: others and the host took 0.40 cores > 0.3"
    one = record("a1", status="invalid", reasons=[reason])
    known = (
        BackgroundCpuPart(processes=0.35, steal=0.05, services=0.1),
        BackgroundCpuPart(processes=0.35, steal=None),
        None,
    )
    for number, background in enumerate(known):
        metrics = one.metrics.model_copy(update={"background_cpu": background})
        put(tmp_path, one.model_copy(update={"attempt": f"a{number}", "metrics": metrics}))
    pages = site(tmp_path)
    reasons = (
        f"{reason}; on average other processes 0.25, Airflow and other services 0.10, steal 0.05",
        f"{reason}; on average other processes 0.35<",
        f"{reason}<",  # unknown background CPU
    )
    for number, text in enumerate(reasons):
        assert text in experiment_page(pages, f"a{number}").replace("&gt;", ">")
    overview = overview_page(pages).replace("&gt;", ">")
    assert reasons[0] in overview and reasons[1] in overview
    assert reasons[2] in sweep_page(pages, "s1").replace("&gt;", ">"), "the newest reason"


def test_an_experiment_without_raw_files_shows_its_record(tmp_path: Path) -> None:
    timeline = {"gate": (0.0, "gate.json"), "t0": (41.0, "conductor.jsonl")}
    invalid = {"status": "invalid", "reasons": ["not-steady: lag has a trend"], "timeline": timeline}
    put(
        tmp_path,
        record("a1", recovery=RECOVERED, **invalid),
        record("a2", status="valid", recovery=RECOVERED),
        record("f1", status="failed", reasons=["broker gone"], state_mb=8.0),
    )
    one = site(tmp_path)
    html = experiment_page(one, "a1")
    for text in (*invalid["reasons"], "series.json is missing", "Recovered in 13.84 s", "bench-1: 2 cores"):
        assert text in Page(html).text, text
    assert "/faultline/experiments/a2" in html, "other attempts of the cell"
    assert "broker gone" in Page(experiment_page(one, "f1")).text
    with pytest.raises(PageNotFound, match="No attempt a3"):
        experiment_page(one, "a3")


def test_curves_are_computed_from_raw_files(tmp_path: Path) -> None:
    made = judged(tmp_path, Scenario())
    directory = tmp_path / "attempts" / made.attempt
    kept = json.loads((directory / "series.json").read_text())
    drawn = figures(experiment_page(site(tmp_path), made.attempt))
    for file in ("series.json", "audit.json", "latency.hlog"):
        (directory / file).unlink()
    assert read_curves(directory) == kept
    assert figures(experiment_page(site(tmp_path), made.attempt)) == drawn != {}
    assert not (directory / "series.json").exists(), "reading writes no file"
    (directory / "batches.json").unlink()
    os.utime(directory / "harvest" / "tuples.parquet", ns=(1, 1))
    text = Page(experiment_page(site(tmp_path), made.attempt)).text
    assert "series.json is missing, and the raw files are unusable (InfrastructureError: " in text


RAW = ("series.json", "audit.json", "attempt.json", "conductor.jsonl", "supervisor.jsonl", "services.jsonl")
DEEP = "[" * 100_000


def shown_with(results: Path, names: Sequence[str], content: str) -> str:
    """Return the page of an experiment whose raw files `names` contain `content`."""
    timeline = {"gate": (0.0, "gate.json"), "t0": (41.0, "x")}
    put(results, record("a1", recovery=RECOVERED, timeline=timeline))
    folder = results / "attempts" / "a1"
    folder.mkdir(parents=True)
    for name in names:
        (folder / name).write_text(content, encoding="latin-1")
    return experiment_page(site(results), "a1")


@pytest.mark.parametrize("content", ["{", "[]", "null", '{"event": 5}\n', '"x"\n"y"\n', "5\n6\n", "\xff"])
def test_raw_files_may_have_any_content(tmp_path: Path, content: str) -> None:
    html = shown_with(tmp_path, RAW, content)
    assert "Recovered in 13.84 s" in html or "only the record is shown" in html


@pytest.mark.parametrize("name", RAW)
@pytest.mark.parametrize("content", [DEEP, '{"a": ' * 50_000, f"{DEEP}\n{{}}\n"], ids=["list", "mapping", "line"])
def test_a_raw_file_may_be_deeply_nested(tmp_path: Path, name: str, content: str) -> None:
    assert "executor kill" in shown_with(tmp_path, [name], content)


@pytest.mark.parametrize(
    "line",
    [
        '{"event": "settled", "fault": 0, "outcome": 5}',
        '{"event": "delivered", "fault": 0, "planned_wall_ns": NaN, "wall_ns": Infinity}',
        f'{{"event": "delivered", "fault": 0, "planned_wall_ns": {"9" * 400}, "wall_ns": 1}}',
    ],
)
def test_a_journal_may_have_unexpected_values(tmp_path: Path, line: str) -> None:
    assert "executor kill" in shown_with(tmp_path, ["conductor.jsonl"], f"{line}\n")


def test_non_finite_numbers_are_gaps_in_curves(tmp_path: Path) -> None:
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


def test_a_record_with_non_finite_numbers_does_not_affect_others(tmp_path: Path) -> None:
    good, bad = record("a1"), record("a2", rate=600.0)
    path = put(tmp_path, good, bad)
    for number in ("NaN", "Infinity", "9" * 400):
        path.write_text(bad.as_json().replace('"rate": 600.0', f'"rate": {number}'))
        one = site(tmp_path)
        assert "/faultline/experiments/a1" in sweep_page(one, "s1")
        assert ["config.rate"] == [row[1].partition(":")[0] for row in rows(overview_page(one)) if "a2.json" in row[0]]
        assert as_parquet(one.index.all())
        with pytest.raises(PageNotFound, match="a2 cannot be read: config.rate"):
            experiment_page(one, "a2")


def two(results: Path) -> tuple[Record, Record]:
    """Return a judged attempt and another of its sweep with curves shifted by 3 s and half the recovery time."""
    first = judged(results, Scenario()).model_copy(update={"sweep_id": "kills", "matrix": "kill"})
    put(results, first)
    second = first.model_copy(update={"attempt": "20261121T070000Z-ffffff", "repetition": 1, "build": "b2"})
    recovery = first.metrics.recovery
    halved = recovery.model_copy(update={"macro_s": (recovery.macro_s or 0) / 2})
    put(results, second.model_copy(update={"metrics": first.metrics.model_copy(update={"recovery": halved})}))
    series = json.loads((results / "attempts" / first.attempt / "series.json").read_text())
    for name in ("latency", "throughput", "lag", "cpu", "events"):
        for point in series[name]:
            point["t_s"] += 3.0
    folder = results / "attempts" / second.attempt
    folder.mkdir()
    (folder / "series.json").write_text(json.dumps(series))
    return first, second


def test_an_overlay_aligns_faults_and_marks_recoveries(tmp_path: Path) -> None:
    first, second = two(tmp_path)
    html = overlay_page(site(tmp_path), first.attempt, second.attempt)
    drawn = go.Figure(figures(html)["overlay"])
    a, b = drawn.data[:4], drawn.data[4:]
    for mine, other in zip(a, b, strict=True):
        assert mine.x == pytest.approx(other.x) and mine.y == other.y and min(mine.x) < 0 < max(mine.x)
    macro = first.metrics.recovery.macro_s
    assert macro is not None
    assert sorted(shape.x0 for shape in drawn.layout.shapes) == pytest.approx([0.0, macro / 2, macro])
    table = rows(html)
    assert ["build", first.build, "b2"] in table
    assert next(row for row in table if row[0] == "Macro recovery (s)")[3] == "0.50"


def test_an_overlay_without_faults_starts_at_t0(tmp_path: Path) -> None:
    made = judged(tmp_path, Scenario(fault=False))
    html = overlay_page(site(tmp_path), made.attempt, made.attempt)
    drawn = go.Figure(figures(html)["overlay"])
    assert not drawn.layout.shapes and drawn.layout.xaxis.title.text.startswith("Seconds after T0")
    assert "repetitions of the same configuration" in html


def test_an_experiment_offers_overlays_of_its_sweep(tmp_path: Path) -> None:
    put(
        tmp_path, record("a1", recovery=RECOVERED), record("a2", state_mb=8.0), record("a3"), record("other", sweep="z")
    )
    one = site(tmp_path)
    asked = Page(experiment_page(one, "a1")).text
    assert asked.index("a3") < asked.index("a2") and "· other" not in asked, "same configuration first"
    assert 'value="a2"' in overlay_page(one, "a1", "") and 'value="other"' in overlay_page(one, "", "")


@pytest.mark.parametrize("content", ["[cut", "[]", "{}", '{"events": 3}', '{"events": [{"name": "t0", "t_s": "x"}]}'])
def test_unreadable_curves_leave_the_figures(tmp_path: Path, content: str) -> None:
    first, second = two(tmp_path)
    (tmp_path / "attempts" / second.attempt / "series.json").write_text(content)
    html = overlay_page(site(tmp_path), first.attempt, second.attempt)
    assert "Macro recovery" in html and not figures(html)
    assert "reading failed" in html or "unexpected content" in html


def test_a_missing_record_is_reported(tmp_path: Path) -> None:
    put(tmp_path, record("a1"))
    with pytest.raises(PageNotFound, match="No record of the attempt zz"):
        overlay_page(site(tmp_path), "a1", "zz")
    assert ask(app(tmp_path), "/overlay?a=a1&b=zz").status == 404
    assert ask(app(tmp_path), "/overlay").status == 200
