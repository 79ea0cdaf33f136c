"""Common parts of the results pages: store, links and rendering."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import plotly.graph_objects as go

from faultline import __version__
from faultline.records.index import Index
from faultline.records.index_entry import IndexEntry
from faultline.reports.html import asset_version, environment, figures_json
from faultline.reports.pages import PREFIX
from faultline.reports.views.sweep import PageNotFound as PageNotFound

PAGE_ROWS = 200
# Maximum number of links to experiments of one cell.
MAX_ATTEMPTS = 20
STATUSES = ("valid", "unmet", "invalid", "failed", "cancelled")


class RecordPending(PageNotFound):
    """The requested record does not exist yet; `address`: page to retry."""

    def __init__(self, message: str, address: str) -> None:
        super().__init__(message)
        self.address = address


@dataclass(frozen=True)
class AirflowRun:
    """Run of an Airflow DAG."""

    dag_id: str
    run_id: str

    @property
    def path(self) -> str:
        """Path of its page below the root of Airflow's UI."""
        return f"/dags/{quote(self.dag_id, safe='')}/runs/{quote(self.run_id, safe='')}"


# Finds existing runs of a DAG by id or prefix. Arguments: DAG id, run ids, prefixes of run ids.
FindRuns = Callable[[str, Sequence[str], Sequence[str]], Sequence[str]]


def _most_likely_run(dag_id: str, run_ids: Sequence[str], prefixes: Sequence[str]) -> Sequence[str]:
    return run_ids[:1]


@dataclass(frozen=True)
class ResultsSite:
    """Store of the results pages: `results` holds records and attempts; `prefix`: prefix of page links.

    `airflow`: prefix of links to Airflow's UI. `find_runs`: finds the Airflow runs of a record; the default assumes
    that the most likely run exists.
    """

    index: Index
    results: Path
    prefix: str = PREFIX
    airflow: str = ""
    find_runs: FindRuns = field(default=_most_likely_run)

    def link(self, *parts: str, **query: str | int | None) -> str:
        """Return the address of a page; parts are quoted, empty query values omitted."""
        given = {name: value for name, value in query.items() if value not in (None, "")}
        path = f"{self.prefix}/{'/'.join(quote(part, safe='') for part in parts)}"
        return f"{path}?{urlencode(given)}" if given else path

    def asset(self, name: str) -> str:
        """Return the address of a style sheet or script; it changes with the content, so it may be cached."""
        return self.link("static", name, v=asset_version(name))

    def run_link(self, run: AirflowRun) -> str:
        """Return the address of a run in Airflow's UI."""
        return f"{self.airflow}{run.path}"


def render(
    site: ResultsSite,
    template: str,
    *,
    title: str,
    figures: Mapping[str, go.Figure] | None = None,
    **values: Any,
) -> str:
    """Render a page from its template and the common values. `figures`: by id of their element."""
    return (
        environment()
        .get_template(f"pages/{template}.html.j2")
        .render(
            site=site,
            title=title,
            version=__version__,
            figures=figures_json(figures) if figures else None,
            heights={name: figure.layout.height for name, figure in (figures or {}).items()},
            **values,
        )
    )


def not_found_page(site: ResultsSite, why: Exception) -> str:
    """Return the page for missing content, with a retry link for pending records."""
    retry_address = why.address if isinstance(why, RecordPending) else None
    title = "Not found" if retry_address is None else "Not measured yet"
    return render(site, "not_found", title=title, message=str(why), retry=retry_address)


def attempt_links(site: ResultsSite, entries: Sequence[IndexEntry]) -> dict[str, Any]:
    """Return links to experiments, labelled by repetition: `shown`: the newest; `more`: number of older ones."""
    shown = [
        {
            "href": site.link("experiments", entry.attempt),
            "name": f"r{entry.repetition}",
            "status": entry.status,
            "title": f"{entry.attempt}: {entry.status}{': ' + entry.reasons[0] if entry.reasons else ''}",
        }
        for entry in entries[-MAX_ATTEMPTS:]
    ]
    return {"shown": shown, "more": len(entries) - len(shown)}


def paginate(number: int, rows: int, per_page: int = PAGE_ROWS) -> tuple[int, int, int]:
    """Return the page nearest to `number`, the number of pages, and the offset of the first row."""
    last = max(1, -(-rows // per_page))
    shown = min(max(1, number), last)
    return shown, last, (shown - 1) * per_page
