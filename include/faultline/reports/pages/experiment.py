"""The page of one experiment: the view of its run, and its ways to others."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from faultline.records.record import Record
from faultline.reports.pages.overlay import options_beside
from faultline.reports.pages.runs import runs_of_entry
from faultline.reports.pages.site import Site, Unknown, attempts, render
from faultline.reports.views.run import BROKEN, run_view
from faultline.reports.views.runs import again


def experiment_page(site: Site, attempt: str) -> str:
    """The page of one attempt. Raises Unknown when there is no such record, or it cannot be read."""
    site.index.refresh()
    entry = site.index.of_attempt(attempt)
    if entry is None:
        problem = site.index.problem_of(attempt)
        raise Unknown(f"The record of {attempt} cannot be read: {problem}" if problem else f"No attempt {attempt}.")
    record = _read(site.index.directory / entry.path)
    view = run_view(record, site.results)
    siblings = [
        other
        for other in (site.index.of_sweep(entry.sweep_id) if entry.sweep_id else [])
        if other.config_id == entry.config_id and other.attempt != entry.attempt
    ]
    return render(
        site,
        "experiment",
        title=view.name,
        entry=entry,
        view=view,
        figures={view.plot: view.figure} if view.figure is not None else {},
        runs=[(run, site.run_link(run)) for run in runs_of_entry(site, entry)],
        siblings=attempts(site, siblings) if siblings else None,
        beside=options_beside(site, entry),
        again=_again(record),
    )


def _read(path: Path) -> Record:
    """The whole record of a file that the index knows."""
    try:
        return Record.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        raise Unknown(f"The record {path.name} has just been moved or changed; load the page again.") from None


def _again(record: Record) -> str:
    try:
        return again(record)
    except BROKEN:
        return ""
