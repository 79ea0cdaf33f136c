"""Page of one experiment, and page that overlays two experiments."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from pydantic import ValidationError

from faultline.comparison.config_points import FAULT, axes_of, label, points_of
from faultline.records.catalogue import KNOWN, MACRO, by_group, value_of
from faultline.records.columns import Metric
from faultline.records.format import NONE
from faultline.records.index_entry import IndexEntry
from faultline.records.record import Record
from faultline.reports.figures.overlay import AttemptCurves, overlay_figure
from faultline.reports.pages.airflow_links import runs_of_entry
from faultline.reports.pages.site import PageNotFound, ResultsSite, attempt_links, render
from faultline.reports.views.run import READ_ERRORS, run_view
from faultline.reports.views.runs import load_parts, rerun_command
from faultline.reports.views.series import read_curves
from faultline.system.errors import FaultlineError


def experiment_page(site: ResultsSite, attempt: str) -> str:
    """Return the page of one attempt. Raises PageNotFound if its record is missing or invalid."""
    site.index.refresh()
    entry = site.index.of_attempt(attempt)
    if entry is None:
        problem = site.index.problem_of(attempt)
        raise PageNotFound(
            f"The record of {attempt} cannot be read: {problem}" if problem else f"No attempt {attempt}."
        )
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
        figures={view.figure_id: view.figure} if view.figure is not None else {},
        runs=[(run, site.run_link(run)) for run in runs_of_entry(site, entry)],
        siblings=attempt_links(site, siblings) if siblings else None,
        overlays=overlay_options(site, entry),
        rerun=_rerun_command(record),
    )


def _read(path: Path) -> Record:
    """Return the record of an indexed file."""
    try:
        return Record.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        raise PageNotFound(f"The record {path.name} has changed; reload the page.") from None


def _rerun_command(record: Record) -> str:
    try:
        return rerun_command(record)
    except READ_ERRORS:
        return ""


MAX_SUGGESTIONS = 200
# Metric groups of results; the others describe the measurement.
_HEADINGS = ("Latency", "Throughput", "Recovery", "CPU", "Memory and state", "Audit")


def overlay_page(site: ResultsSite, a: str, b: str) -> str:
    """Return the page; unless two experiments are given, a form. Raises PageNotFound for an unknown experiment."""
    site.index.refresh()
    chosen = [_entry(site, attempt) for attempt in (a, b) if attempt]
    both = len(chosen) == 2
    figures, problems = _overlay(site, chosen) if both else ({}, [])
    return render(
        site,
        "overlay",
        title="Experiment overlay",
        given={"a": a, "b": b},
        options=_options(site, chosen),
        sides=[_side(site, entry) for entry in chosen] if both else [],
        figures=figures,
        problems=problems,
        differing=_differences(chosen) if both else [],
        groups=_figure_groups(chosen) if both else [],
    )


def experiment_label(entry: IndexEntry) -> str:
    """Return the label of an experiment and its repetition in a list."""
    return f"{', '.join([*load_parts(entry.config), label(entry.fault)])} · r{entry.repetition} · {entry.attempt}"


def overlay_options(site: ResultsSite, entry: IndexEntry) -> list[tuple[str, str]]:
    """Return (attempt, label) of the sweep's other experiments with figures, those of the same configuration first."""
    others = [
        other
        for other in (site.index.of_sweep(entry.sweep_id) if entry.sweep_id else site.index.of_sweep(None))
        if other.attempt != entry.attempt and other.metrics
    ]
    ordered = sorted(others, key=lambda other: other.config_id != entry.config_id)
    return [(other.attempt, experiment_label(other)) for other in ordered[:MAX_SUGGESTIONS]]


def _entry(site: ResultsSite, attempt: str) -> IndexEntry:
    found = site.index.of_attempt(attempt)
    if found is None:
        raise PageNotFound(f"No record of the attempt {attempt}.")
    return found


def _options(site: ResultsSite, chosen: Sequence[IndexEntry]) -> list[tuple[str, str]]:
    """Return the available experiments: those of the selected sweeps, else those of the newest sweeps."""
    sweeps = list(dict.fromkeys(entry.sweep_id for entry in chosen)) or [one.name for one in site.index.sweeps(5)]
    entries = [*chosen, *(one for sweep in sweeps for one in reversed(site.index.of_sweep(sweep)) if one.metrics)]
    return [(one.attempt, experiment_label(one)) for one in {one.attempt: one for one in entries}.values()][
        :MAX_SUGGESTIONS
    ]


def _side(site: ResultsSite, entry: IndexEntry) -> dict[str, Any]:
    return {
        "href": site.link("experiments", entry.attempt),
        "name": ", ".join([*load_parts(entry.config), label(entry.fault)]),
        "attempt": entry.attempt,
        "status": entry.status,
        "sweep": entry.sweep_id,
    }


def _overlay(site: ResultsSite, chosen: Sequence[IndexEntry]) -> tuple[dict[str, go.Figure], list[str]]:
    """Return the overlay of both experiments, and the reasons if curves are missing."""
    curves, problems = [], []
    for letter, entry in zip("AB", chosen, strict=True):
        try:
            series = read_curves(site.results / "attempts" / entry.attempt)
            recovered = value_of(entry, MACRO)
            curves.append(AttemptCurves(f"{letter}: {entry.attempt}", series, recovered))
        except (FaultlineError, OSError, KeyError, TypeError, ValueError, RecursionError) as error:
            problems.append(f"attempts/{entry.attempt}/series.json: reading failed ({type(error).__name__})")
    if problems:
        return {}, problems
    try:
        return {"overlay": overlay_figure(curves)}, []
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        return {}, [f"series.json: unexpected content ({type(error).__name__}: {error})"]


def _differences(chosen: Sequence[IndexEntry]) -> list[tuple[str, str, str]]:
    """Return the parameters and properties that differ."""
    points = [points_of([entry])[0] for entry in chosen]
    parameters = ((axis.name, [axis.label(point) for point in points]) for axis in axes_of(points) if axis.key != FAULT)
    others = (
        ("fault", [entry.fault for entry in chosen]),
        ("build", [entry.build for entry in chosen]),
        ("commit", [entry.commit or NONE for entry in chosen]),
        ("host", [entry.surroundings.get("host", NONE) for entry in chosen]),
    )
    return [(name, first, second) for name, (first, second) in (*parameters, *others) if first != second]


def _figure_groups(chosen: Sequence[IndexEntry]) -> list[tuple[str, list[tuple[str, list[str]]]]]:
    """Return the figures of either experiment by group: name, both texts, and ratio."""
    known = [(metric, [value_of(entry, metric.key) for entry in chosen]) for metric in KNOWN]
    wanted = {metric: values for metric, values in known if any(value is not None for value in values)}
    return [
        (group, [(metric.title, _texts(metric, wanted[metric])) for metric in members])
        for group, members in by_group(wanted)
        if group in _HEADINGS
    ]


def _texts(metric: Metric, values: Sequence[float | None]) -> list[str]:
    """Return both figures and the ratio B ÷ A."""
    first, second = values
    ratio = NONE if not first or second is None else f"{second / first:,.2f}"
    return [*(metric.text(value) for value in values), ratio]
