"""The page of the nights, and what a sweep's page says is missing."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import plotly.graph_objects as go
import pytest

from faultline.experiment.config import parse_configuration
from faultline.experiment.matrices import MATRICES
from faultline.experiment.matrix import PlannedCell
from faultline.experiment.night_file import NIGHTLY
from faultline.records.manifest import Baseline, Manifest, Manifests, cells_of
from faultline.records.summary import Entry
from faultline.reports.pages.site import Unknown
from faultline.reports.pages.sweep import nights_page, sweep_page
from faultline.reports.views import nights
from faultline.reports.views.nights import Chosen
from faultline.reports.views.sweep import chosen_group
from tests.unit.night_records import night_of, night_records
from tests.unit.pages_store import app, ask, figures, put, record, rows, site

SPEC = MATRICES["recovery"]
PLANNED = SPEC.matrix(SPEC.resolve({"preset": "smoke", "repetitions": 3})).cells("b1")


def thirty(results: Path) -> None:
    """A change of level with the nineteenth night, and an upgrade before it."""
    for number in range(1, 31):
        put(results, *night_records(number, 100 if number < 19 else 115, versions="4.2.0" if number < 19 else "4.3.0"))


def test_thirty_nights_show_where_a_new_level_begins_and_what_was_different(tmp_path: Path) -> None:
    thirty(tmp_path)
    html = nights_page(site(tmp_path))
    table = rows(html)
    assert [row[0] for row in table[1:]] == [f"2026-11-{number:02d}" for number in range(30, 0, -1)]
    (begun,) = [row for row in table if "new level" in row[2]]
    assert begun[0] in ("2026-11-18", "2026-11-19", "2026-11-20")
    (different,) = [row for row in table[1:] if row[6]]
    assert (different[0], different[6]) == ("2026-11-19", "pyspark 4.2.0 -> 4.3.0")
    drawn = go.Figure(figures(html)["course"])
    assert [trace.name for trace in drawn.data] == ["median", "other surroundings"]
    assert len(drawn.data[0].x) == 30
    assert len(drawn.layout.shapes) == 1
    assert "/sweeps/20261119T020000" in html


def test_a_figure_is_drawn_over_the_commits_that_the_nights_measured(tmp_path: Path) -> None:
    for number, commit in ((1, "aaaa1111"), (2, "aaaa1111"), (3, "bbbb2222"), (4, "bbbb2222-dirty")):
        for one in night_records(number, 100 if number < 3 else 150, build="b2" if number == 2 else "b1"):
            put(tmp_path, one.model_copy(update={
                "environment": one.environment.model_copy(update={"git_commit": commit})}))  # fmt: skip
    html = nights_page(site(tmp_path), Chosen(by="commit"))
    drawn = go.Figure(figures(html)["course"])
    assert list(drawn.data[0].x) == ["aaaa1111 · b1", "aaaa1111 · b2", "bbbb2222", "bbbb2222-dirty"]
    assert drawn.data[0].y[0] < 110 < drawn.data[0].y[2]
    assert "over the commits" in html and "Along" in html
    with pytest.raises(Unknown, match="Nights are drawn by night or commit, not by week"):
        nights_page(site(tmp_path), Chosen(by="week"))


def test_only_the_verdicts_that_are_looked_at_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = [one for number in range(1, 10) for one in night_records(number, 100, n=1)]
    put(tmp_path, *made)
    read: list[str | None] = []
    monkeypatch.setattr(nights, "NIGHTS_A_PAGE", 3)
    monkeypatch.setattr(nights, "kept_verdict", lambda results, sweep: read.append(sweep) or {"summary": "s"})
    nights_page(site(tmp_path))
    newest = [f"202611{number:02d}T020000" for number in (9, 8, 7)]
    assert sorted(read, key=str, reverse=True) == newest, "each once"
    read.clear()
    nights_page(site(tmp_path), Chosen(page=2))
    assert len(read) == 6, "beside those shown the newest, which say the limits"


def test_the_limit_of_the_newest_night_is_drawn_and_what_is_beyond_it_said(tmp_path: Path) -> None:
    put(tmp_path, *night_records(1, 100), *night_records(2, 130))
    (tmp_path / "nights").mkdir()
    for number, bound in ((1, 90), (2, 400)):
        kept = {"summary": "s", "limits": {"latency_ms.p99": bound}, "beyond": ["Latency p99: <b>"]}
        (tmp_path / "nights" / f"2026110{number}T020000.json").write_text(json.dumps(kept))
    html = nights_page(site(tmp_path))
    drawn = go.Figure(figures(html)["course"])
    assert drawn.layout.shapes[-1].y0 == 400 and drawn.layout.yaxis.range[1] > 400
    assert "limit: at most 400 ms" in drawn.layout.annotations[-1].text
    assert "beyond its limit</span> Latency p99: &lt;b&gt;" in html
    other = go.Figure(figures(nights_page(site(tmp_path), Chosen(metric="latency_ms.p50")))["course"])
    assert not other.layout.shapes, "of another figure it is no limit"


def test_the_verdicts_are_those_that_the_nights_own_task_kept(tmp_path: Path) -> None:
    put(tmp_path, *night_records(1, 100), *night_records(2, 130))
    kept = {"summary": "1 worse; against 2026-11-01", "reasons": ["Latency p99 (ms): <b>"], "problem": None}
    (tmp_path / "nights").mkdir()
    (tmp_path / "nights" / "20261102T020000.json").write_text(json.dumps(kept))
    (tmp_path / "nights" / "20261101T020000.json").write_text("[cut")
    html = nights_page(site(tmp_path))
    table = rows(html)
    assert table[1][1] == "1 worse; against 2026-11-01worse Latency p99 (ms): <b>"
    assert table[2][1] == "not compared"
    assert "&lt;b&gt;" in html


def test_a_night_beside_a_baseline_says_what_is_suspected_and_what_would_have_been_seen(tmp_path: Path) -> None:
    put(tmp_path, *night_records(1, 100))
    (beside,) = night_records(1, 400, n=1)
    series = f"{beside.series}.baseline"
    put(tmp_path, beside.model_copy(update={"series": series, "attempt": "20261101T030000Z-ffffff"}))
    kept = {"summary": "red: 1 suspected", "suspicions": ["a: <b>"], "visible": ["a: 9 %"], "problem": "b: 1"}
    (tmp_path / "nights").mkdir()
    (tmp_path / "nights" / "20261101T020000.json").write_text(json.dumps(kept))
    row = rows(nights_page(site(tmp_path)))[1]
    assert row[1].startswith("red: 1 suspectedsuspected a: <b>Would have been seen within two nights, four")
    assert row[1].endswith("a: 9 %b: 1")
    assert row[3] == "5 of 5", "the baseline's records are no part of the night's own figures"


def test_a_nights_sweep_opens_on_its_own_build_though_the_baseline_was_measured_last(tmp_path: Path) -> None:
    (own,) = night_records(1, 100, n=1, build="b1")
    update = {"series": f"{own.series}.baseline", "build": "b0", "attempt": "20261101T030000Z-ffffff",
              "measured_at": "2026-11-01T03:00:00+00:00"}  # fmt: skip
    beside = Entry.of(own.model_copy(update=update))
    mine = Entry.of(own)
    assert chosen_group([mine, beside], "") == (mine.group, [beside.group, mine.group])
    assert chosen_group([mine, beside], beside.group)[0] == beside.group
    failed = replace(mine, status="failed")
    assert chosen_group([failed, beside], "")[0] == mine.group, "also where nothing of it is valid"
    assert chosen_group([beside], "")[0] == beside.group
    put(tmp_path, own, own.model_copy(update=update))
    assert experiments_of(sweep_page(site(tmp_path), own.sweep_id)) == [own.attempt]


def experiments_of(html: str) -> list[str]:
    """The attempts that a sweep's page links to."""
    return sorted(set(re.findall(r"experiments/([^\"?]+)\"", html)))


def test_what_both_sides_of_a_pair_lack_is_missing_and_nothing_else(tmp_path: Path) -> None:
    (own,) = night_records(1, 100, n=1)
    series = f"{own.series}.baseline"
    put(tmp_path, own, own.model_copy(update={"series": series, "attempt": "20261101T030000Z-ffffff"}))
    config = parse_configuration(own.config)
    planned = cells_of([PlannedCell(config, own.repetition, own.series), PlannedCell(config, 7, own.series)])
    for number, sweep in ((1, "20261101T020000"), (2, "20261102T020000")):
        night = f"2026-11-{number:02d}T02:00:00+00:00"
        beside = Baseline(series=f"{night}.baseline", build="b0", spec={}, primary={})
        plan = Manifest(
            sweep_id=sweep, matrix=NIGHTLY, run_id=f"scheduled__{night}", series=night, build="b1", logical_date=night,
            planned_at=night, schedule="0 2 * * *", baseline=beside, cells=planned,
        )  # fmt: skip
        Manifests(tmp_path).write(plan)
    table = {row[0]: row for row in rows(nights_page(site(tmp_path)))[1:]}
    assert table["2026-11-01"][4] == "2", "the second repetition, of both"
    assert table["2026-11-02"][4] == "4"


def test_a_night_without_a_valid_record_leaves_a_gap(tmp_path: Path) -> None:
    put(tmp_path, *night_records(1, 100), *night_records(2, 100, status="failed"), *night_records(3, 100))
    html = nights_page(site(tmp_path))
    assert [row[2] for row in rows(html)[1:]][1] == "—"
    assert len(go.Figure(figures(html)["course"]).data[0].x) == 2


def test_nights_that_never_ran_are_listed_too(tmp_path: Path) -> None:
    put(tmp_path, *night_records(1, 100), *night_records(4, 100))
    for number in (1, 2, 4):  # the second was planned, and nothing of it is measured yet; the third was not even that
        night = f"2026-11-{number:02d}T02:00:00+00:00"
        plan = Manifest(
            sweep_id=f"202611{number:02d}T020000", matrix=NIGHTLY, run_id=f"scheduled__{night}", series=night,
            build="b1", logical_date=night, planned_at=night, schedule="0 2 * * *", cells=cells_of(PLANNED),
        )  # fmt: skip
        Manifests(tmp_path).write(plan)
    table = {row[0]: row for row in rows(nights_page(site(tmp_path)))[1:]}
    assert table["2026-11-02"][1] == "nothing measured yet" and table["2026-11-02"][4] == "3"
    assert table["2026-11-03"][1].startswith("not measured; ./faultline missing nightly_regression --measure ")


def test_what_no_night_has_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(Unknown, match="No night of night_weekly has a record yet"):
        nights_page(site(tmp_path), Chosen(of="night_weekly"))
    first = nights_page(site(tmp_path))
    assert "No night yet" in first and "nightly.yaml" in first and "./faultline nightly check" in first
    put(tmp_path, *night_records(1, 100))
    with pytest.raises(Unknown, match="No night has measured the configuration 0000"):
        nights_page(site(tmp_path), Chosen(cell="0000"))
    with pytest.raises(Unknown, match="No valid record here has the metric nonsense"):
        nights_page(site(tmp_path), Chosen(metric="nonsense"))


def test_the_way_from_the_dag_leads_there_and_nobody_sees_it_without_a_login(tmp_path: Path) -> None:
    put(tmp_path, *night_records(1, 100))
    pages = app(tmp_path)
    assert ask(pages, "/nights").status == 200
    assert ask(pages, "/nights?page=9&metric=latency_ms.p50").status == 200
    assert ask(pages, "/nights?metric=x").status == 404
    assert ask(pages, f"/dags/{NIGHTLY}").headers["location"] == "/nights"
    assert ask(pages, "/nights", headers={}).status == 401


def test_a_sweeps_page_says_what_is_missing(tmp_path: Path) -> None:
    plan = Manifest(
        sweep_id="s1", matrix="recovery", run_id="r", series="b1", build="b1", logical_date=None,
        planned_at="2026-11-21T06:00:00+00:00", cells=cells_of(PLANNED),
    )  # fmt: skip
    Manifests(tmp_path).write(plan)
    config = PLANNED[0].config
    first = record("20261121T061500Z-000001", matrix="recovery", raw_config=config.model_dump(mode="json"))
    first = first.model_copy(update={"config_id": config.config_id})
    bad = {
        "attempt": "20261121T061600Z-000002",
        "repetition": 1,
        "status": "unsound",
        "reasons": ["schedule-lag: <61 ms>"],
    }
    put(tmp_path, first, first.model_copy(update=bad))
    html = sweep_page(site(tmp_path), "s1")
    assert "2 of 3 planned cells missing" in html
    assert ["fault control, checkpoint_interval_s 2.0, repetition 2", "never measured"] in rows(html)
    assert "unsound: schedule-lag: &lt;61 ms&gt;" in html
    # Measured by another sweep: it is not missing, wherever it was measured.
    late = {"attempt": "20261121T061700Z-000003", "repetition": 2, "sweep_id": "s2"}
    put(
        tmp_path,
        first.model_copy(update=late),
        first.model_copy(update={**late, "attempt": "20261121T061800Z-000004", "repetition": 1}),
    )
    html = sweep_page(site(tmp_path), "s1")
    assert "0 of 3 planned cells missing" in html
    assert "Every cell that it set out to measure has a valid record;" in html
    assert night_of(1) not in html


def test_a_sweep_without_a_plan_says_nothing_of_it(tmp_path: Path) -> None:
    put(tmp_path, record("20261121T061500Z-000001"))
    assert "planned cells" not in sweep_page(site(tmp_path), "s1")
