"""App of the results pages: login, lookup of ids, content security policy, links between runs and pages."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pandas as pd
import plotly
import pytest
from fastapi import FastAPI

from faultline.records.index_entry import IndexEntry
from faultline.records.record import Record
from faultline.reports.html import asset_version
from faultline.reports.pages.airflow_links import address_of_dag, address_of_run, runs_of_entry, runs_of_sweep
from faultline.reports.pages.experiment import experiment_page
from faultline.reports.pages.site import AirflowRun, PageNotFound
from faultline.reports.pages.sweep import sweep_page
from faultline.reports.tables import as_csv, as_parquet
from tests.unit.pages_store import app, ask, grid, put, record, site
from tests.unit.reports.test_report import EVIL
from tests.unit.sample_records import RECOVERED

PAGES = (
    "/", "/sweeps/s1", "/matrices/m", "/unswept", "/experiments/a1", "/compare", "/compare?a=s1&b=s2",
    "/experiments.csv", "/experiments.parquet?sweep=s1", "/static/plotly.min.js", "/static/style.css", "/now",
    "/metrics",
)  # fmt: skip
# Addresses that look like paths or existing ids.
TRICKS = (
    "%2e%2e/%2e%2e/secret", "%2e%2e%2f%2e%2e%2fsecret", "../../secret", "..%5c..%5csecret", "%2fetc%2fpasswd",
    "//etc/passwd", "a1%00", "a1.json", "./a1", "%252e%252e%252fsecret", "broken", ".", "..", "%ff", "*", "a1%20", "A1",
)  # fmt: skip


@pytest.fixture
def served(tmp_path: Path) -> FastAPI:
    made = [record("a1", recovery=RECOVERED), record("a2", sweep="s2", state_mb=8.0)]
    path = put(tmp_path / "results", *made, record("a3", sweep=None, matrix=None))
    path.with_name("broken.json").write_text("{")
    (tmp_path / "secret.json").write_text('{"secret": 1}')
    return app(tmp_path / "results")


@pytest.mark.parametrize("address", [*PAGES, "/runs/m/s1", "/dags/m", "/nothing", "/docs", "/openapi.json"])
def test_nothing_is_answered_without_a_login(served: FastAPI, address: str) -> None:
    response = ask(served, address, headers={})
    assert response.status == 401
    assert "Not authenticated" in response.text and "s1" not in response.text


@pytest.mark.parametrize("address", PAGES)
def test_every_page_answers_and_allows_only_its_own_files(served: FastAPI, address: str) -> None:
    response = ask(served, address)
    assert response.status == 200
    policy = response.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self';") and "frame-ancestors 'self'" in policy
    assert response.headers["x-content-type-options"] == "nosniff"
    if response.headers["content-type"].startswith("text/html"):
        assert not re.search(r"""(src|href|action)=["'](?!/|data:,|#)""", response.text)
        assert "<script>" not in response.text, "no inline script"
        assert len(response.text) < 100_000, "plotly is not in the page"


def test_plotly_is_the_installed_one_and_may_be_kept(served: FastAPI) -> None:
    response = ask(served, "/static/plotly.min.js")
    installed = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
    assert response.body == installed.read_bytes()
    assert response.headers["content-type"].startswith("text/javascript")
    assert "immutable" in response.headers["cache-control"]
    page = ask(served, "/experiments/a1").text
    assert f"/static/style.css?v={asset_version('style.css')}" in page
    assert "no-cache" in ask(served, "/").headers["cache-control"]


@pytest.mark.parametrize("trick", TRICKS)
@pytest.mark.parametrize("place", ["experiments", "sweeps", "matrices", "static", "runs/m", "dags"])
def test_an_id_is_looked_up_and_never_a_path(served: FastAPI, place: str, trick: str) -> None:
    response = ask(served, f"/{place}/{trick}")
    if place == "dags" and response.status == 303:
        assert response.headers["location"] == "/", "a DAG without records redirects to the overview"
        return
    assert response.status == 404
    assert '"secret": 1' not in response.text and "root:" not in response.text
    assert response.line and "\n" not in response.line, "one line"


def test_unknown_ids_are_reported_in_one_line(served: FastAPI) -> None:
    for address, line in (
        ("/sweeps/s9", "No record of the sweep s9."),
        ("/experiments/a9", "No attempt a9."),
        ("/compare?a=s1&b=s9", "No record of the sweep s9."),
        ("/sweeps/s1?metric=nothing", "No usable record has the metric nothing."),
        ("/experiments.csv?sweep=s9", "No record of s9."),
        ("/experiments.exe", "No table experiments.exe."),
        ("/elsewhere/x", "No page elsewhere/x."),
        ("/runs/m/never", "The run never of m has no record yet."),
    ):
        response = ask(served, address)
        assert (response.status, response.line) == (404, line)
        # Only pending records get a retry link.
        assert ('<a href="/runs/m/never">Retry</a>' in response.text) is (address == "/runs/m/never")
    assert re.search("broken.* cannot", ask(served, "/experiments/broken").line)
    for page in ("-1", "0", "x", "99999999999999999999", "%F0%9D%9F%99"):
        assert ask(served, f"/?page={page}").status == 200


def test_requested_names_are_escaped_in_the_response(served: FastAPI) -> None:
    from urllib.parse import quote

    evil = quote(EVIL, safe="")
    for address in (f"/sweeps/{evil}", f"/experiments/{evil}", f"/{evil}", f"/compare?a=s1&b={evil}", f"/runs/m/{evil}",
                    f"/sweeps/s1?metric={evil}", f"/sweeps/s1?build={evil}", f"/static/{evil}"):  # fmt: skip
        response = ask(served, address)
        assert response.status == 404
        assert EVIL not in response.text and EVIL in response.line


def test_runs_and_dags_redirect_to_their_pages(served: FastAPI) -> None:
    for address, page in (("/runs/m/s1", "/sweeps/s1"), ("/dags/m", "/matrices/m")):
        response = ask(served, address)
        assert (response.status, response.headers["location"]) == (303, page)


def test_only_reading_is_offered(served: FastAPI) -> None:
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        assert ask(served, "/sweeps/s1", method=method).status == 405


def test_a_download_has_a_harmless_name(served: FastAPI, tmp_path: Path) -> None:
    assert ask(served, "/experiments.csv").headers["content-disposition"] == 'attachment; filename="faultline-all.csv"'
    put(tmp_path / "results", record("q1", matrix='a"; x\n/../b'))
    response = ask(served, "/experiments.parquet?matrix=a%22%3B%20x%0A%2F..%2Fb")
    assert response.headers["content-disposition"] == 'attachment; filename="faultline-a_x_b.parquet"'
    assert response.body.startswith(b"PAR1")


def test_a_lone_surrogate_in_a_raw_file_is_not_an_error(tmp_path: Path) -> None:
    put(tmp_path, record("a1", recovery=RECOVERED))
    folder = tmp_path / "attempts" / "a1"
    folder.mkdir(parents=True)
    (folder / "services.jsonl").write_text('{"event": "started", "service": "x\\ud800y", "wall_ns": 1}\n')
    response = ask(app(tmp_path), "/experiments/a1")
    assert response.status == 200 and "x?y" in response.text


def test_runs_and_pages_link_to_each_other(tmp_path: Path) -> None:
    cell = record("a1", sweep="20261121T061500-123456", measured_at="2026-11-21T06:15:00+00:00")
    again = record("a2", sweep="20261121T061500-123456", status="invalid")
    single = record("b1", sweep="single-20261121T111350Z-c7fd", matrix=None)
    put(tmp_path, cell, again, single, record("c1", sweep="demo_5", matrix="m"))
    one = site(tmp_path)
    run_id = "manual__2026-11-21T06:15:00.123456+00:00"
    assert address_of_run(one, "m", run_id) == "/faultline/sweeps/20261121T061500-123456"
    child = f"20261121T061500-123456__{cell.config_id}-r0"
    for name in (child, f"{child}-0a1b2c3d"):
        assert address_of_run(one, "experiment", name) == "/faultline/experiments/a2", "the newest attempt"
    assert address_of_run(one, "experiment", "single-20261121T111350Z-c7fd") == "/faultline/experiments/b1"
    assert address_of_run(one, "m", "demo_5") == "/faultline/sweeps/demo_5"
    for dag_id, unknown in (("m", "manual__2027"), ("experiment", f"x__{'0' * 12}-r0"), ("m", ""), ("m", "../..")):
        with pytest.raises(PageNotFound, match="no record yet"):
            address_of_run(one, dag_id, unknown)
    assert address_of_dag(one, "m") == "/faultline/matrices/m"
    assert address_of_dag(one, "experiment") == "/faultline/"

    known = {("m", f"{run_id}_x7"), ("experiment", child), ("experiment", "single-20261121T111350Z-c7fd")}

    def find(dag_id: str, run_ids: Any, beginnings: Any) -> list[str]:
        return [run for dag, run in known if dag == dag_id and (run in run_ids or any(map(run.startswith, beginnings)))]

    asking = site(tmp_path, find_runs=find)
    assert runs_of_sweep(asking, "m", "20261121T061500-123456") == [AirflowRun("m", f"{run_id}_x7")]
    entry, alone = one.index.of_attempt("a1"), one.index.of_attempt("b1")
    assert entry is not None and alone is not None
    assert runs_of_entry(asking, entry) == [AirflowRun("experiment", child), AirflowRun("m", f"{run_id}_x7")]
    assert runs_of_entry(asking, alone) == [AirflowRun("experiment", "single-20261121T111350Z-c7fd")]
    html = experiment_page(asking, "a1")
    assert f"/dags/experiment/runs/{child}" in html
    assert "/dags/m/runs/manual__2026-11-21T06%3A15%3A00.123456%2B00%3A00_x7" in html
    assert "/dags/m/runs/" in sweep_page(asking, "20261121T061500-123456")


def test_an_attempt_records_its_run(tmp_path: Path) -> None:
    put(tmp_path, record("a1", sweep="s1"), record("a2", sweep="s1"), record("b1", sweep="given", matrix=None))
    one = site(tmp_path)
    one.index.refresh()
    cell, entry, alone = (one.index.of_attempt(name) for name in ("a1", "a2", "b1"))
    assert cell is not None and entry is not None and alone is not None
    child, search = f"s1__{entry.config_id}-r0", f"s1__{entry.config_id}-search-061500"
    assert address_of_run(one, "experiment", search) == "/faultline/experiments/a2", "attempts without a recorded run"
    assert runs_of_entry(one, entry)[0] == AirflowRun("experiment", child)
    for attempt, fields in (("a1", {"run_id": child}), ("a2", {"run_id": search}), ("b1", {"run_id": "manual__7"})):
        folder = tmp_path / "attempts" / attempt
        folder.mkdir(parents=True)
        (folder / "attempt.json").write_text(json.dumps({**fields, "parent_run_id": None}))
    assert [runs_of_entry(one, each)[0].run_id for each in (cell, entry, alone)] == [child, search, "manual__7"]
    assert address_of_run(one, "experiment", search) == "/faultline/experiments/a2"
    assert address_of_run(one, "experiment", child) == "/faultline/experiments/a1", "another run of the same cell"
    with pytest.raises(PageNotFound, match="no record yet"):
        address_of_run(one, "experiment", search.replace("0615", "0715"))
    for odd in ('{"run_id": 5}', '{"run_id": "\\ud800", "parent_run_id": "\\ud800"}', '{"run_id": ["x"]}'):
        (tmp_path / "attempts" / "a2" / "attempt.json").write_text(odd)
        assert runs_of_entry(one, entry)[0] == AirflowRun("experiment", child)


def entries_of(results: Path, *records: Record) -> list[IndexEntry]:
    put(results, *records)
    one = site(results)
    one.index.refresh()
    return one.index.all()


def test_the_download_holds_every_record(tmp_path: Path) -> None:
    plan = {"faults": [{"victim": "executor", "action": "kill", "at_s": 41.0}]}
    reasons = ['a, "quoted"\nline', "=1+1"]
    failed = record("f1", status="failed", reasons=reasons, raw_config={"corpus": "ä", "fault_plan": plan})
    entries = entries_of(tmp_path, *grid(), failed)
    table_rows = list(csv.DictReader(io.StringIO(as_csv(entries).decode())))
    assert len(table_rows) == 13
    row = next(row for row in table_rows if row["attempt"] == "f1")
    assert (row["status"], row["latency_ms_p99"], row["config_corpus"]) == ("failed", "", "ä")
    assert row["reasons"] == 'a, "quoted"\nline; =1+1'
    assert json.loads(row["config_fault_plan"]) == plan
    table = pd.read_parquet(io.BytesIO(as_parquet(entries)))
    assert len(table) == 13
    assert table["latency_ms_p99"].dtype == "float64" and table["repetition"].dtype == "int64"
    assert table.set_index("attempt").loc["s1-8-5-2", "latency_ms_p99"] == 8502.0
    assert set(table_rows[0]) == set(table.columns)


def test_columns_of_mixed_types_become_text(tmp_path: Path) -> None:
    kinds = ({"odd": 1, "flag": True}, {"odd": "x", "flag": None})
    entries = entries_of(tmp_path, *(record(f"a{n}", raw_config=one) for n, one in enumerate(kinds)))
    table = pd.read_parquet(io.BytesIO(as_parquet(entries)))
    assert list(table["config_odd"]) == ["1", "x"]
    assert list(table["config_flag"]) == [True, None]
