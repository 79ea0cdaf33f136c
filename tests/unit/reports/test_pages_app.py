"""The app: nothing without a login, nothing but the store, nothing from elsewhere."""

from __future__ import annotations

import re
from pathlib import Path

import plotly
import pytest
from fastapi import FastAPI

from faultline.reports.html import asset_version
from tests.unit.pages_store import app, ask, put, record
from tests.unit.reports.test_report import EVIL
from tests.unit.sample_records import RECOVERED

PAGES = (
    "/",
    "/sweeps/s1",
    "/matrices/m",
    "/unswept",
    "/experiments/a1",
    "/compare",
    "/compare?a=s1&b=s2",
    "/experiments.csv",
    "/experiments.parquet?sweep=s1",
    "/static/plotly.min.js",
    "/static/style.css",
    "/now",
    "/metrics",
)


@pytest.fixture
def served(tmp_path: Path) -> FastAPI:
    path = put(
        tmp_path / "results",
        record("a1", recovery=RECOVERED),
        record("a2", sweep="s2", state_mb=8.0),
        record("a3", sweep=None, matrix=None),
    )
    path.with_name("broken.json").write_text("{")
    (tmp_path / "secret.json").write_text('{"secret": 1}')
    return app(tmp_path / "results")


@pytest.mark.parametrize("address", [*PAGES, "/runs/m/s1", "/dags/m", "/nothing", "/docs", "/openapi.json"])
def test_nothing_is_answered_without_a_login(served: FastAPI, address: str) -> None:
    answer = ask(served, address, headers={})
    assert answer.status == 401
    assert "Not authenticated" in answer.text and "s1" not in answer.text


@pytest.mark.parametrize("address", PAGES)
def test_every_page_answers_and_allows_only_its_own_files(served: FastAPI, address: str) -> None:
    answer = ask(served, address)
    assert answer.status == 200
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self';") and "frame-ancestors 'self'" in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    if answer.headers["content-type"].startswith("text/html"):
        assert not re.search(r"""(src|href|action)=["'](?!/|data:,|#)""", answer.text)
        assert "<script>" not in answer.text, "no script stands in a page"
        assert len(answer.text) < 100_000, "plotly is not in the page"


def test_plotly_is_the_installed_one_and_may_be_kept(served: FastAPI) -> None:
    answer = ask(served, "/static/plotly.min.js")
    installed = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
    assert answer.body == installed.read_bytes()
    assert answer.headers["content-type"].startswith("text/javascript")
    assert "immutable" in answer.headers["cache-control"]
    page = ask(served, "/experiments/a1").text
    assert f"/static/style.css?v={asset_version('style.css')}" in page
    assert "no-cache" in ask(served, "/").headers["cache-control"]


@pytest.mark.parametrize(
    "trick",
    [
        "%2e%2e/%2e%2e/secret",
        "%2e%2e%2f%2e%2e%2fsecret",
        "../../secret",
        "..%5c..%5csecret",
        "%2fetc%2fpasswd",
        "//etc/passwd",
        "a1%00",
        "a1.json",
        "./a1",
        "%252e%252e%252fsecret",
        "broken",
        ".",
        "..",
        "%ff",
        "*",
        "a1%20",
        "A1",
    ],
)
@pytest.mark.parametrize("place", ["experiments", "sweeps", "matrices", "static", "runs/m", "dags"])
def test_an_id_is_looked_up_and_never_a_path(served: FastAPI, place: str, trick: str) -> None:
    answer = ask(served, f"/{place}/{trick}")
    if place == "dags" and answer.status == 303:
        assert answer.headers["location"] == "/", "a DAG without records leads to the list"
        return
    assert answer.status == 404
    assert '"secret": 1' not in answer.text and "root:" not in answer.text
    assert answer.line and "\n" not in answer.line, "one clear line"


def test_unknown_ids_are_told_in_one_line(served: FastAPI) -> None:
    assert ask(served, "/sweeps/s9").line == "No sweep s9 has a record."
    assert ask(served, "/experiments/a9").line == "No attempt a9."
    assert "broken" in ask(served, "/experiments/broken").line and "cannot" in ask(served, "/experiments/broken").line
    assert ask(served, "/compare?a=s1&b=s9").line == "No sweep s9 has a record."
    assert ask(served, "/sweeps/s1?metric=nothing").line == "No valid record here has the metric nothing."
    assert ask(served, "/experiments.csv?sweep=s9").line == "No record belongs to s9."
    assert ask(served, "/experiments.exe").line == "No table is called experiments.exe."
    assert ask(served, "/elsewhere/x").line == "Nothing is at elsewhere/x."
    for page in ("-1", "0", "x", "99999999999999999999", "%F0%9D%9F%99"):
        assert ask(served, f"/?page={page}").status == 200


def test_what_is_asked_for_is_escaped_in_the_answer(served: FastAPI) -> None:
    from urllib.parse import quote

    evil = quote(EVIL, safe="")
    for address in (f"/sweeps/{evil}", f"/experiments/{evil}", f"/{evil}", f"/compare?a=s1&b={evil}", f"/runs/m/{evil}",
                    f"/sweeps/s1?metric={evil}", f"/sweeps/s1?build={evil}", f"/static/{evil}"):  # fmt: skip
        answer = ask(served, address)
        assert answer.status == 404
        assert EVIL not in answer.text and EVIL in answer.line


def test_runs_and_dags_lead_to_their_pages(served: FastAPI) -> None:
    answer = ask(served, "/runs/m/s1")
    assert (answer.status, answer.headers["location"]) == (303, "/sweeps/s1")
    assert ask(served, "/dags/m").headers["location"] == "/matrices/m"
    never = ask(served, "/runs/m/never")
    assert (never.status, never.line) == (404, "The run never of m has no record yet.")
    assert '<a href="/runs/m/never">Look again</a>' in never.text
    assert "Look again" not in ask(served, "/sweeps/s9").text, "what does not exist will not come to be"


def test_a_download_has_a_harmless_name(served: FastAPI, tmp_path: Path) -> None:
    assert ask(served, "/experiments.csv").headers["content-disposition"] == 'attachment; filename="faultline-all.csv"'
    put(tmp_path / "results", record("q1", matrix='a"; x\n/../b'))
    answer = ask(served, "/experiments.parquet?matrix=a%22%3B%20x%0A%2F..%2Fb")
    assert answer.headers["content-disposition"] == 'attachment; filename="faultline-a_x_b.parquet"'
    assert answer.body.startswith(b"PAR1")


def test_only_reading_is_offered(served: FastAPI) -> None:
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        assert ask(served, "/sweeps/s1", method=method).status == 405


def test_a_half_of_a_surrogate_pair_in_a_raw_file_is_no_error(tmp_path: Path) -> None:
    put(tmp_path, record("a1", recovery=RECOVERED))
    folder = tmp_path / "attempts" / "a1"
    folder.mkdir(parents=True)
    (folder / "services.jsonl").write_text('{"event": "started", "service": "x\\ud800y", "wall_ns": 1}\n')
    answer = ask(app(tmp_path), "/experiments/a1")
    assert answer.status == 200 and "x?y" in answer.text
