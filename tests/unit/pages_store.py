"""A results folder for tests of the pages, and requests to the app."""

from __future__ import annotations

import json
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from fastapi import FastAPI, HTTPException, Request

from faultline.records.index import Index
from faultline.records.record import Record
from faultline.reports.pages import local_client
from faultline.reports.pages.app import build_app
from faultline.reports.pages.site import ResultsSite
from tests.unit.sample_records import RECOVERED, sample

LOGIN = {"authorization": "Bearer known"}


def record(
    attempt: str,
    *,
    sweep: str | None = "s1",
    matrix: str | None = "m",
    build: str = "b1",
    series: str | None = None,
    measured_at: str = "2026-11-21T06:15:00.250+00:00",
    **named: Any,
) -> Record:
    """Return a sample record of a sweep; other arguments as for `sample`."""
    return sample(attempt=attempt, **named).model_copy(
        update={
            "sweep_id": sweep,
            "matrix": matrix,
            "build": build,
            "series": series or build,
            "measured_at": measured_at,
        }
    )


def put(results: Path, *records: Record) -> Path:
    """Write records into the store and return the file of the last one."""
    path = results
    for one in records:
        path = results / "records" / one.config_id / f"{one.attempt}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(one.as_json(), encoding="utf-8")
    return path


def site(results: Path, **named: Any) -> ResultsSite:
    """Return the results pages of a folder."""
    return ResultsSite(Index(results), results, **named)


def figures(html: str) -> dict[str, Any]:
    """Return the data of the figures in a page."""
    start = '<script type="application/json" id="figures">'
    if start not in html:
        return {}
    content: dict[str, Any] = json.loads(html.split(start)[1].split("</script>")[0])
    return content


def figure(html: str) -> go.Figure:
    """Return the figure of a sweep's page, validated by plotly."""
    return go.Figure(figures(html)["metric"])


class _Rows(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self._inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
            self._inside = True

    def handle_endtag(self, tag: str) -> None:
        self._inside = self._inside and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.rows[-1][-1] += data


def rows(html: str) -> list[list[str]]:
    """Return the texts of all table rows."""
    parser = _Rows()
    parser.feed(html)
    return [[" ".join(cell.split()) for cell in row] for row in parser.rows]


def guard(request: Request) -> None:
    """Reject requests without the login token."""
    if request.headers.get("authorization") != LOGIN["authorization"]:
        raise HTTPException(401, "Not authenticated")


def app(results: Path) -> FastAPI:
    """Return the app of a results folder."""
    one = site(results, prefix="")
    return build_app(lambda request: one, guard)


class Response(local_client.AsgiResponse):
    """Response of the app."""

    @property
    def line(self) -> str:
        """Message of a not-found page."""
        return unescape(self.text.split('<p class="missing">')[1].split("</p>")[0])


def ask(app: FastAPI, address: str, headers: dict[str, str] | None = None, method: str = "GET") -> Response:
    """Send one request, logged in unless `headers` are given."""
    found = local_client.fetch(app, address, LOGIN if headers is None else headers, method)
    return Response(found.status, found.headers, found.body)


def grid(factor: float = 1, **named: Any) -> list[Record]:
    """Return records of state 1 and 8 MB × interval 2 and 5 s × three repetitions.

    p99 = `factor` · (1000·state + 100·interval + repetition).
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
