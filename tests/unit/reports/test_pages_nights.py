"""Page of nightly runs, and missing cells on the page of a sweep."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest

from faultline.comparison.nightly_verdict import NightlyVerdict
from faultline.experiment.config import parse_configuration
from faultline.experiment.matrices import MATRICES
from faultline.experiment.matrix import PlannedCell
from faultline.experiment.nightly_file import NIGHTLY
from faultline.records.index_entry import IndexEntry
from faultline.records.sweep_plan import ReferenceBuild, SweepPlans
from faultline.reports.pages.site import PageNotFound
from faultline.reports.pages.sweep import nightly_page, sweep_page
from faultline.reports.views import nightly
from faultline.reports.views.nightly import NightlyPageQuery
from faultline.reports.views.sweep import select_group
from tests.unit.nightly_records import date_of, nightly_records
from tests.unit.pages_store import app, ask, figures, put, record, rows, site
from tests.unit.sample_records import made_plan

SPEC = MATRICES["recovery"]
PLANNED = SPEC.matrix(SPEC.resolve({"preset": "smoke", "repetitions": 3})).cells("b1")


def history_of(html: str) -> go.Figure:
    return go.Figure(figures(html)["history"])


def keep_verdicts(results: Path, *verdicts: str | dict[str, Any]) -> None:
    """Store verdicts of the first nightly runs, as their tasks do."""
    (results / "nights").mkdir(parents=True, exist_ok=True)
    for number, kept in enumerate(verdicts, 1):
        text = kept if isinstance(kept, str) else json.dumps(kept)
        (results / "nights" / f"202611{number:02d}T020000.json").write_text(text)


def plan_nightly_run(results: Path, number: int, cells: list[PlannedCell], *, with_reference: bool = False) -> None:
    date = date_of(number)
    baseline = ReferenceBuild(series=f"{date}.baseline", build="b0", spec={}, primary={}) if with_reference else None
    plan_sweep(
        results, f"202611{number:02d}T020000", cells, matrix=NIGHTLY, run_id=f"scheduled__{date}", series=date,
        logical_date=date, planned_at=date, schedule="0 2 * * *", baseline=baseline,
    )  # fmt: skip


def plan_sweep(results: Path, sweep_id: str, cells: list[PlannedCell], **fields: Any) -> None:
    SweepPlans(results).write(made_plan(cells, **{"sweep_id": sweep_id, "matrix": "recovery", **fields}))


def test_thirty_runs_show_the_change_point_and_the_environment_change(tmp_path: Path) -> None:
    for number in range(1, 31):
        level, versions = (100, "4.2.0") if number < 19 else (115, "4.3.0")
        put(tmp_path, *nightly_records(number, level, versions=versions))
    html = nightly_page(site(tmp_path))
    table = rows(html)
    assert [row[0] for row in table[1:]] == [f"2026-11-{number:02d}" for number in range(30, 0, -1)]
    (changed,) = [row for row in table if "new level" in row[2]]
    assert changed[0] in ("2026-11-18", "2026-11-19", "2026-11-20")
    (different,) = [row for row in table[1:] if row[6]]
    assert (different[0], different[6]) == ("2026-11-19", "pyspark 4.2.0 -> 4.3.0")
    drawn = history_of(html)
    assert [trace.name for trace in drawn.data] == ["median", "environment changed"]
    assert (len(drawn.data[0].x), len(drawn.layout.shapes)) == (30, 1)
    assert "/sweeps/20261119T020000" in html


def test_a_metric_over_the_measured_commits(tmp_path: Path) -> None:
    for number, commit in ((1, "aaaa1111"), (2, "aaaa1111"), (3, "bbbb2222"), (4, "bbbb2222-dirty")):
        for one in nightly_records(number, 100 if number < 3 else 150, build="b2" if number == 2 else "b1"):
            environment = one.environment.model_copy(update={"git_commit": commit})
            put(tmp_path, one.model_copy(update={"environment": environment}))
    html = nightly_page(site(tmp_path), NightlyPageQuery(axis="commit"))
    drawn = history_of(html)
    assert list(drawn.data[0].x) == ["aaaa1111 · b1", "aaaa1111 · b2", "bbbb2222", "bbbb2222-dirty"]
    assert drawn.data[0].y[0] < 110 < drawn.data[0].y[2]
    assert "over the commits" in html and "Horizontal axis" in html
    with pytest.raises(PageNotFound, match="by: got week"):
        nightly_page(site(tmp_path), NightlyPageQuery(axis="week"))


def test_only_shown_verdicts_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = [one for number in range(1, 10) for one in nightly_records(number, 100, n=1)]
    put(tmp_path, *made)
    read: list[str | None] = []
    monkeypatch.setattr(nightly, "RUNS_PER_PAGE", 3)
    monkeypatch.setattr(
        nightly, "stored_verdict", lambda results, sweep: read.append(sweep) or NightlyVerdict(summary="s")
    )
    nightly_page(site(tmp_path))
    newest = [f"202611{number:02d}T020000" for number in (9, 8, 7)]
    assert sorted(read, key=str, reverse=True) == newest, "each once"
    read.clear()
    nightly_page(site(tmp_path), NightlyPageQuery(page=2))
    assert len(read) == 6, "the shown ones and the newest, which hold the limits"


def test_the_newest_limit_and_its_violations_are_shown(tmp_path: Path) -> None:
    put(tmp_path, *nightly_records(1, 100), *nightly_records(2, 130))
    beyond = {"summary": "s", "beyond": ["Latency p99: <b>"]}
    keep_verdicts(tmp_path, *({**beyond, "limits": {"latency_ms.p99": bound}} for bound in (90, 400)))
    html = nightly_page(site(tmp_path))
    drawn = history_of(html)
    assert drawn.layout.shapes[-1].y0 == 400 and drawn.layout.yaxis.range[1] > 400
    assert "limit: at most 400 ms" in drawn.layout.annotations[-1].text
    assert "limit violated</span> Latency p99: &lt;b&gt;" in html
    other = history_of(nightly_page(site(tmp_path), NightlyPageQuery(metric="latency_ms.p50")))
    assert not other.layout.shapes, "the limit belongs to another metric"


def test_the_verdicts_are_the_stored_ones(tmp_path: Path) -> None:
    put(tmp_path, *nightly_records(1, 100), *nightly_records(2, 130))
    worse = {"summary": "1 worse; against 2026-11-01", "reasons": ["Latency p99 (ms): <b>"], "problem": None}
    keep_verdicts(tmp_path, "[cut", worse)
    html = nightly_page(site(tmp_path))
    verdicts = [row[1] for row in rows(html)[1:3]]
    assert verdicts == ["1 worse; against 2026-11-01worse Latency p99 (ms): <b>", "not compared"]
    assert "&lt;b&gt;" in html


def test_a_run_with_a_reference_build_shows_suspicions_and_detectable_effects(tmp_path: Path) -> None:
    (reference,) = nightly_records(1, 400, n=1)
    update = {"series": f"{reference.series}.baseline", "attempt": "20261101T030000Z-ffffff"}
    put(tmp_path, *nightly_records(1, 100), reference.model_copy(update=update))
    suspected = {"summary": "red: 1 suspected", "suspicions": ["a: <b>"], "visible": ["a: 9 %"], "problem": "b: 1"}
    keep_verdicts(tmp_path, suspected)
    row = rows(nightly_page(site(tmp_path)))[1]
    assert row[1].startswith("red: 1 suspectedsuspected a: <b>Minimum detectable effect")
    assert row[1].endswith("a: 9 %b: 1")
    assert row[3] == "5 of 5", "records of the reference build do not count"


def test_a_nightly_sweep_shows_its_own_build_by_default(tmp_path: Path) -> None:
    (own,) = nightly_records(1, 100, n=1, build="b1")
    update = {"series": f"{own.series}.baseline", "build": "b0", "attempt": "20261101T030000Z-ffffff",
              "measured_at": "2026-11-01T03:00:00+00:00"}  # fmt: skip
    reference = IndexEntry.of(own.model_copy(update=update))
    mine = IndexEntry.of(own)
    assert select_group([mine, reference], "") == (mine.group, [reference.group, mine.group])
    assert select_group([mine, reference], reference.group)[0] == reference.group
    failed = replace(mine, status="failed")
    assert select_group([failed, reference], "")[0] == mine.group, "even without a usable record"
    assert select_group([reference], "")[0] == reference.group
    put(tmp_path, own, own.model_copy(update=update))
    assert set(re.findall(r"experiments/([^\"?]+)\"", sweep_page(site(tmp_path), own.sweep_id))) == {own.attempt}


def test_cells_missing_on_both_sides_of_a_pair_are_counted(tmp_path: Path) -> None:
    (own,) = nightly_records(1, 100, n=1)
    update = {"series": f"{own.series}.baseline", "attempt": "20261101T030000Z-ffffff"}
    put(tmp_path, own, own.model_copy(update=update))
    config = parse_configuration(own.config)
    planned = [PlannedCell(config, repetition, own.series) for repetition in (own.repetition, 7)]
    for number in (1, 2):
        plan_nightly_run(tmp_path, number, planned, with_reference=True)
    table = {row[0]: row[4] for row in rows(nightly_page(site(tmp_path)))[1:]}
    assert (table["2026-11-01"], table["2026-11-02"]) == ("2", "4"), "the second repetition on both sides"


def test_runs_without_a_valid_record_leave_a_gap_and_unmeasured_ones_are_listed(tmp_path: Path) -> None:
    put(tmp_path, *nightly_records(1, 100), *nightly_records(2, 100, status="failed"), *nightly_records(5, 100))
    for number in (1, 3, 5):  # the third is not measured yet; the fourth was not planned
        plan_nightly_run(tmp_path, number, PLANNED)
    html = nightly_page(site(tmp_path))
    table = {row[0]: row for row in rows(html)[1:]}
    assert table["2026-11-02"][2] == "—" and len(history_of(html).data[0].x) == 2
    assert table["2026-11-03"][1] == "nothing measured yet" and table["2026-11-03"][4] == "3"
    assert table["2026-11-04"][1].startswith("not measured; run ./faultline missing nightly_regression --measure")


def test_unknown_selections_are_not_found(tmp_path: Path) -> None:
    with pytest.raises(PageNotFound, match="No nightly run of night_weekly has a record"):
        nightly_page(site(tmp_path), NightlyPageQuery(dag_id="night_weekly"))
    first = nightly_page(site(tmp_path))
    assert "No nightly run yet" in first and "nightly.yaml" in first and "./faultline nightly check" in first
    put(tmp_path, *nightly_records(1, 100))
    for chosen, message in (
        (NightlyPageQuery(cell="0000"), "No nightly run measured the configuration 0000"),
        (NightlyPageQuery(metric="nonsense"), "No usable record has the metric nonsense"),
    ):
        with pytest.raises(PageNotFound, match=message):
            nightly_page(site(tmp_path), chosen)


def test_the_dag_redirects_to_the_page_which_requires_a_login(tmp_path: Path) -> None:
    put(tmp_path, *nightly_records(1, 100))
    pages = app(tmp_path)
    assert ask(pages, "/nights").status == 200
    assert ask(pages, "/nights?page=9&metric=latency_ms.p50").status == 200
    assert ask(pages, "/nights?metric=x").status == 404
    assert ask(pages, f"/dags/{NIGHTLY}").headers["location"] == "/nights"
    assert ask(pages, "/nights", headers={}).status == 401


def test_a_sweep_with_a_plan_lists_its_missing_cells(tmp_path: Path) -> None:
    config = PLANNED[0].config
    first = record("20261121T061500Z-000001", matrix="recovery", raw_config=config.model_dump(mode="json"))
    first = first.model_copy(update={"config_id": config.config_id})
    put(tmp_path, first)
    assert "planned cells" not in sweep_page(site(tmp_path), "s1")
    plan_sweep(tmp_path, "s1", PLANNED)

    def again(number: int, **changed: Any) -> None:
        put(tmp_path, first.model_copy(update={"attempt": f"20261121T061{number}00Z-000002", **changed}))

    again(6, repetition=1, status="invalid", reasons=["schedule-lag: <61 ms>"])
    html = sweep_page(site(tmp_path), "s1")
    assert "2 of 3 planned cells missing" in html
    assert ["fault control, checkpoint_interval_s 2.0, repetition 2", "never measured"] in rows(html)
    assert "invalid: schedule-lag: &lt;61 ms&gt;" in html
    # Cells measured by another sweep are not missing.
    again(7, repetition=2, sweep_id="s2")
    again(8, repetition=1, sweep_id="s2")
    html = sweep_page(site(tmp_path), "s1")
    assert "0 of 3 planned cells missing" in html
    assert "Every planned cell has a usable record;" in html
    assert date_of(1) not in html
