"""Where the pages find records and what they link to, and what all of them have in common."""

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
# A cell that many sweeps have measured links to its newest experiments only.
MAX_ATTEMPTS = 20
STATUSES = ("valid", "unmet", "invalid", "failed", "cancelled")


class RecordPending(PageNotFound):
    """What was asked for will exist when a run has measured it; `address` is where to look again."""

    def __init__(self, message: str, address: str) -> None:
        super().__init__(message)
        self.address = address


@dataclass(frozen=True)
class AirflowRun:
    """A run of a DAG in Airflow."""

    dag_id: str
    run_id: str

    @property
    def path(self) -> str:
        """Its page in Airflow's UI, from the UI's root on."""
        return f"/dags/{quote(self.dag_id, safe='')}/runs/{quote(self.run_id, safe='')}"


# Which runs of a DAG there are: of some ids, or whose ids begin with a text. Arguments: DAG, ids, beginnings.
FindRuns = Callable[[str, Sequence[str], Sequence[str]], Sequence[str]]


def _most_likely_run(dag_id: str, run_ids: Sequence[str], prefixes: Sequence[str]) -> Sequence[str]:
    return run_ids[:1]


@dataclass(frozen=True)
class ResultsSite:
    """The store as pages: `results` holds records and attempts; `prefix` stands before each link of a page.

    `airflow`: what stands before a link to Airflow's UI. `find_runs` says which runs there are, of those that records
    may come from; without an Airflow to ask, the likeliest is taken to exist.
    """

    index: Index
    results: Path
    prefix: str = PREFIX
    airflow: str = ""
    find_runs: FindRuns = field(default=_most_likely_run)

    def link(self, *parts: str, **query: str | int | None) -> str:
        """The address of a page; parts are quoted, query values that are None or empty are left out."""
        given = {name: value for name, value in query.items() if value not in (None, "")}
        path = f"{self.prefix}/{'/'.join(quote(part, safe='') for part in parts)}"
        return f"{path}?{urlencode(given)}" if given else path

    def asset(self, name: str) -> str:
        """The address of a style sheet or script; another one when its content changes, so that it may be cached."""
        return self.link("static", name, v=asset_version(name))

    def run_link(self, run: AirflowRun) -> str:
        """The address of a run in Airflow's UI."""
        return f"{self.airflow}{run.path}"


def render(
    site: ResultsSite,
    template: str,
    *,
    title: str,
    figures: Mapping[str, go.Figure] | None = None,
    **values: Any,
) -> str:
    """A page: the template with what every page needs. `figures`: by the name of their place in it."""
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
    """The page for whatever does not exist, with a way to look again for what may exist soon."""
    retry_address = why.address if isinstance(why, RecordPending) else None
    title = "Not found" if retry_address is None else "Nothing measured yet"
    return render(site, "not_found", title=title, message=str(why), retry=retry_address)


def attempt_links(site: ResultsSite, entries: Sequence[IndexEntry]) -> dict[str, Any]:
    """Links to single experiments, as short as their repetition: `shown`, the newest ones; `more`, how many others."""
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
    """The page that is shown for the wanted `number`, how many there are, and the first row's offset."""
    last = max(1, -(-rows // per_page))
    shown = min(max(1, number), last)
    return shown, last, (shown - 1) * per_page
