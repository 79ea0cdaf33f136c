"""App that serves the results pages; the guard (login check) applies to every address, including unknown ones."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from fastapi import Depends, FastAPI, Request
from fastapi.responses import FileResponse, HTMLResponse, RedirectResponse, Response
from starlette.exceptions import HTTPException as StarletteHTTPException

from faultline.records.index_entry import IndexEntry
from faultline.reports.html import asset
from faultline.reports.pages.airflow_links import address_of_dag, address_of_run
from faultline.reports.pages.compare import ComparePageQuery, compare_page
from faultline.reports.pages.experiment import experiment_page, overlay_page
from faultline.reports.pages.overview import active_runs_page, overview_page
from faultline.reports.pages.site import PageNotFound, ResultsSite, not_found_page
from faultline.reports.pages.sweep import matrix_page, sweep_page
from faultline.reports.tables import as_csv, as_parquet
from faultline.reports.views.sweep import COST_FIELDS, SweepPageQuery

# Only files of this app may run or load; plotly requires inline styles.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src data: blob:; connect-src 'self'; form-action 'self'; frame-ancestors 'self'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-cache, private",
}
# The address of an asset changes with its content, so it may be cached.
ASSET_HEADERS = {**HEADERS, "Cache-Control": "private, max-age=31536000, immutable"}
_DOWNLOADS: dict[str, tuple[str, Callable[[list[IndexEntry]], bytes]]] = {
    "csv": ("text/csv; charset=utf-8", lambda entries: as_csv(entries)),
    "parquet": ("application/vnd.apache.parquet", lambda entries: as_parquet(entries)),
}


def build_app(site_of: Callable[[Request], ResultsSite], guard: Callable[..., Any]) -> FastAPI:
    """Return the app. `site_of`: returns the site for a request; `guard`: raises HTTPException 401 without a login."""
    app = FastAPI(
        title="Faultline results", dependencies=[Depends(guard)], openapi_url=None, docs_url=None, redoc_url=None
    )

    def unknown(request: Request, error: Exception) -> Response:
        return HTMLResponse(not_found_page(site_of(request), error), 404, HEADERS)

    def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, StarletteHTTPException)
        return HTMLResponse(_plain_page(str(error.detail)), error.status_code, {**HEADERS, **(error.headers or {})})

    app.add_exception_handler(PageNotFound, unknown)
    app.add_exception_handler(StarletteHTTPException, refused)
    _add_pages(app, site_of)
    _add_comparisons(app, site_of)
    _add_redirects(app, site_of)

    @app.get("/static/{name:path}")
    def static(name: str) -> Response:
        found = asset(name)
        if found is None:
            raise PageNotFound(f"No file {name}.")
        if found.path is not None:
            return FileResponse(found.path, media_type=found.media_type, headers=ASSET_HEADERS)
        return Response(found.text, media_type=found.media_type, headers=ASSET_HEADERS)

    @app.get("/{rest:path}")
    def nothing(rest: str) -> Response:
        raise PageNotFound(f"No page {rest or '/'}.")

    return app


def _add_pages(app: FastAPI, site_of: Callable[[Request], ResultsSite]) -> None:
    @app.get("/")
    def overview(request: Request, page: str = "") -> Response:
        return _page(overview_page(site_of(request), _page_number(page)))

    @app.get("/now")
    def now(request: Request) -> Response:
        return _page(active_runs_page(site_of(request)))

    @app.get("/sweeps/{name:path}")
    def sweep(request: Request, name: str) -> Response:
        return _page(sweep_page(site_of(request), name, _sweep_query(request)))

    @app.get("/matrices/{name:path}")
    def matrix(request: Request, name: str) -> Response:
        return _page(matrix_page(site_of(request), name, _sweep_query(request)))

    @app.get("/live/{name}")
    def live(request: Request, name: str) -> Response:
        # Imported here because pandas takes half a second to import.
        from faultline.reports.pages.live import live_page

        return _page(live_page(site_of(request), name))

    @app.get("/unswept")
    def unswept(request: Request) -> Response:
        return _page(sweep_page(site_of(request), None, _sweep_query(request)))

    @app.get("/experiments/{name:path}")
    def experiment(request: Request, name: str) -> Response:
        return _page(experiment_page(site_of(request), name))


def _add_comparisons(app: FastAPI, site_of: Callable[[Request], ResultsSite]) -> None:
    @app.get("/nights")
    def nights(
        request: Request, metric: str = "", cell: str = "", page: str = "", of: str = "", by: str = ""
    ) -> Response:
        # Imported here because statistics take a second to import.
        from faultline.reports.pages.sweep import nightly_page
        from faultline.reports.views.nightly import NightlyPageQuery

        return _page(nightly_page(site_of(request), NightlyPageQuery(metric, cell, _page_number(page), of, by)))

    @app.get("/metrics")
    def metrics(request: Request) -> Response:
        from faultline.reports.prometheus import MEDIA_TYPE, prometheus_text

        return Response(prometheus_text(site_of(request)), media_type=MEDIA_TYPE, headers=HEADERS)

    @app.get("/compare")
    def compare(
        request: Request,
        a: str = "",
        b: str = "",
        build_a: str = "",
        build_b: str = "",
        metric: str = "",
        page: str = "",
    ) -> Response:
        return _page(
            compare_page(site_of(request), ComparePageQuery(a, b, build_a, build_b, metric, _page_number(page)))
        )

    @app.get("/overlay")
    def overlay(request: Request, a: str = "", b: str = "") -> Response:
        return _page(overlay_page(site_of(request), a, b))

    @app.get("/experiments.{form}")
    def download(request: Request, form: str, sweep: str = "", matrix: str = "") -> Response:
        if form not in _DOWNLOADS:
            raise PageNotFound(f"No table experiments.{form}.")
        index = site_of(request).index
        index.refresh()
        entries = index.of_sweep(sweep) if sweep else index.of_matrix(matrix) if matrix else index.all()
        if not entries:
            raise PageNotFound(f"No record of {sweep or matrix or 'this store'}.")
        media_type, made = _DOWNLOADS[form]
        name = re.sub(r"[^A-Za-z0-9_-]+", "_", sweep or matrix or "all")[:100]
        headers = {**HEADERS, "Content-Disposition": f'attachment; filename="faultline-{name}.{form}"'}
        return Response(made(entries), media_type=media_type, headers=headers)


def _add_redirects(app: FastAPI, site_of: Callable[[Request], ResultsSite]) -> None:
    """Add redirects from addresses that Airflow's UI can build."""

    @app.get("/dags/{dag_id}")
    def of_dag(request: Request, dag_id: str) -> Response:
        return RedirectResponse(address_of_dag(site_of(request), dag_id), 303, HEADERS)

    @app.get("/runs/{dag_id}/{run_id:path}")
    def of_run(request: Request, dag_id: str, run_id: str) -> Response:
        return RedirectResponse(address_of_run(site_of(request), dag_id, run_id), 303, HEADERS)


def _page(html: str) -> HTMLResponse:
    # JSON may hold lone surrogates, which UTF-8 cannot encode.
    return HTMLResponse(html.encode("utf-8", "replace"), headers=HEADERS)


def _sweep_query(request: Request) -> SweepPageQuery:
    """Return the selection on the page of a sweep; the last value of a repeated parameter counts."""
    query = request.query_params
    return SweepPageQuery(
        metric=query.get("metric", ""),
        group=query.get("build", ""),
        x=query.get("x", ""),
        view=query.get("view", ""),
        page=_page_number(query.get("page", "")),
        minimise=query.get("minimise", ""),
        limits={cost: query.get(cost, "") for cost, _, _ in COST_FIELDS},
    )


def _page_number(text: str) -> int:
    """Return the number of a page; invalid text means the first page."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 1


def _plain_page(message: str) -> str:
    from markupsafe import escape

    return f"<!doctype html><html lang=en><meta charset=utf-8><title>Faultline</title><p>{escape(message)}</p></html>"
