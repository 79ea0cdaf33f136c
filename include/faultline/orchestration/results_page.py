"""Results pages inside the Airflow UI, for logged-in users only, and links to them.

Every process of Airflow loads its plugins, but only the API server serves pages, so heavy imports are deferred to the
first request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow.sdk import BaseOperatorLink

from faultline.reports.pages import PREFIX, UI_PAGE, UI_ROUTE

if TYPE_CHECKING:
    from fastapi import FastAPI, Request

    from faultline.records.index import Index
    from faultline.reports.pages.site import ResultsSite

_RUN_PAGE = f"{PREFIX}/runs/{{DAG_ID}}/{{RUN_ID}}"
# Frames in the UI: an entry of the navigation, and a tab of each DAG, run and task.
VIEWS = (
    {"name": "Faultline", "href": f"{PREFIX}/", "destination": "nav", "url_route": UI_ROUTE},
    {"name": "Results", "href": _RUN_PAGE, "destination": "dag_run", "url_route": "faultline-run"},
    {"name": "Results", "href": _RUN_PAGE, "destination": "task_instance", "url_route": "faultline-task"},
    {"name": "Results", "href": f"{PREFIX}/dags/{{DAG_ID}}", "destination": "dag", "url_route": "faultline-dag"},
)


class ResultsApp:
    """Sub-application of the results, built at its first request."""

    def __init__(self) -> None:
        self._made = asyncio.Lock()
        self._app: FastAPI | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async with self._made:
            if self._app is None:
                self._app = await asyncio.to_thread(results_app)
        await self._app(scope, receive, send)


class ProofApp:
    """Server proof, which shows that the server belongs to this installation; the only page without login."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        from urllib.parse import parse_qs

        from faultline.installation.server_proof import compute_proof
        from faultline.system.secrets import read_secrets
        from faultline.system.settings import load_settings

        if scope["type"] != "http":
            return
        settings = load_settings()
        challenge = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("challenge", [""])[0]
        given = compute_proof(read_secrets(settings.secrets).proof, challenge, settings.ports["airflow"])
        body = f'"{given or ""}"'.encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200 if given else 400, "headers": headers})
        await send({"type": "http.response.body", "body": body})


class ResultsLink(BaseOperatorLink):
    """Link from a task of any DAG to the results of its run."""

    name = "Results"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Return the address of the run's page in the UI."""
        return f"{UI_PAGE}/runs/{quote(ti_key.dag_id, safe='')}/{quote(ti_key.run_id, safe='')}"


def results_app() -> FastAPI:
    """Return the app with its own authentication, because Airflow does not authenticate sub-applications."""
    from airflow.api_fastapi.core_api.security import requires_authenticated

    from faultline.reports.pages.app import build_app

    return build_app(_site, requires_authenticated())


def _site(request: Request) -> ResultsSite:
    from faultline.reports.pages.site import ResultsSite
    from faultline.system.settings import load_settings

    # Mount point of the app, below Airflow's own path if its base URL has one.
    prefix = str(request.scope.get("root_path", "")).rstrip("/")
    return ResultsSite(_index(), load_settings().results, prefix, prefix.removesuffix(PREFIX), _known_runs)


@cache
def _index() -> Index:
    from faultline.records.index import Index
    from faultline.system.settings import load_settings

    settings = load_settings()
    return Index(settings.results, settings.home)


def _known_runs(dag_id: str, run_ids: Sequence[str], beginnings: Sequence[str]) -> Sequence[str]:
    """Return the newest run of a DAG in Airflow's database with one of the ids or id prefixes."""
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from sqlalchemy import or_, select
    from sqlalchemy.exc import SQLAlchemyError

    alike = [DagRun.run_id.startswith(beginning, autoescape=True) for beginning in beginnings]
    query = select(DagRun.run_id).where(DagRun.dag_id == dag_id, or_(DagRun.run_id.in_(run_ids), *alike))
    try:
        with create_session() as session:
            return list(session.scalars(query.order_by(DagRun.run_after.desc()).limit(1)))
    except SQLAlchemyError:
        return ()  # the page only lacks a link then
