"""The results inside the Airflow UI: a list of sweeps, and the report of each; for logged-in users only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.api_fastapi.core_api.security import requires_authenticated
from fastapi import Depends, FastAPI, HTTPException
from fastapi.responses import HTMLResponse

from faultline.settings import load_settings

if TYPE_CHECKING:
    from faultline.record import Record

PREFIX = "/faultline"

INDEX = """\
<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Faultline results</title>
<style>
  :root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif }
  body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
  table { border-collapse: collapse; width: 100% }
  th, td { text-align: left; padding: .35rem .8rem .35rem 0; border-bottom: 1px solid #8884 }
  td.n { text-align: right; font-variant-numeric: tabular-nums }
</style>
<h1>Faultline results</h1>
{% if sweeps %}
<table>
  <thead><tr><th>Sweep</th><th>Matrix</th><th>Last measured</th><th>Valid</th><th>Other</th></tr></thead>
  <tbody>
  {% for sweep in sweeps %}
    <tr><td><a href="{{ prefix }}/sweeps/{{ sweep.id | urlencode }}">{{ sweep.id }}</a></td>
    <td>{{ sweep.matrix or "—" }}</td>
    <td>{{ sweep.last }}</td><td class="n">{{ sweep.valid }}</td><td class="n">{{ sweep.other }}</td></tr>
  {% endfor %}
  </tbody>
</table>
{% else %}
<p>No records yet. Trigger <code>experiment</code> or a matrix, or run <code>./faultline demo</code>.</p>
{% endif %}
</html>
"""


def results_app() -> FastAPI:
    """The sub-application. Airflow does not authenticate sub-applications, so it does so itself."""
    app = FastAPI(title="Faultline results", dependencies=[Depends(requires_authenticated())], openapi_url=None)

    @app.get("/", response_class=HTMLResponse)
    def index() -> str:
        from jinja2 import Environment

        page = Environment(autoescape=True).from_string(INDEX)
        return page.render(sweeps=sweeps(_records()), prefix=PREFIX)

    @app.get("/sweeps/{sweep_id}", response_class=HTMLResponse)
    def sweep(sweep_id: str) -> str:
        from faultline.report import render

        chosen = [record for record in _records() if record.sweep_id == sweep_id]
        if not chosen:
            raise HTTPException(404, "no sweep of that name has a record")
        return render(chosen, load_settings().results, title=chosen[-1].matrix or "One experiment")

    return app


def sweeps(records: Sequence[Record]) -> list[dict[str, Any]]:
    """One row a sweep, newest first."""
    rows: dict[str, dict[str, Any]] = {}
    for record in records:
        row = rows.setdefault(record.sweep_id or "", {"id": record.sweep_id, "valid": 0, "other": 0})
        row["matrix"], row["last"] = record.matrix, record.measured_at[:16].replace("T", " ")
        row["valid" if record.status == "valid" else "other"] += 1
    rows.pop("", None)
    return sorted(rows.values(), key=lambda row: str(row["last"]), reverse=True)


def _records() -> tuple[Record, ...]:
    from faultline.store import Store

    return Store(load_settings().results).read().records
