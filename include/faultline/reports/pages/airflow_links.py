"""Links between Airflow runs and results pages. The id of a sweep derives from its run id."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Sequence

from faultline.experiment.attempt import Attempt
from faultline.experiment.attempt_plan import read_plan
from faultline.experiment.cell import EXPERIMENT, sweep_id_of
from faultline.experiment.nightly_file import NIGHTLY, is_nightly
from faultline.records.index_entry import IndexEntry
from faultline.reports.pages.site import AirflowRun, RecordPending, ResultsSite
from faultline.system.errors import FaultlineError

# The id of a triggered run contains sweep, configuration, repetition and build; that of a search (repetition 0) a time.
_CHILD = re.compile(
    r"(?P<sweep>.+)__(?P<config_id>[0-9a-f]{12})-(?:r(?P<repetition>\d{1,6})(?:-[0-9a-f]{8})?|search-\d{6})", re.DOTALL
)
# Result of `sweep_id_of` for a run id that Airflow made from an instant.
_INSTANT = re.compile(
    r"(?P<kind>[a-z_]+__)?(?P<year>\d{4})(?P<month>\d\d)(?P<day>\d\d)T"
    r"(?P<hour>\d\d)(?P<minute>\d\d)(?P<second>\d\d)(?:-(?P<fraction>\d{1,6}))?"
)
_KINDS = ("manual__", "scheduled__", "backfill__")


def address_of_run(site: ResultsSite, dag_id: str, run_id: str) -> str:
    """Return the page of the records of a run. Raises RecordPending if there are none."""
    site.index.refresh()
    child = _CHILD.fullmatch(run_id) if dag_id == EXPERIMENT else None
    if child is not None:
        cell = (child["config_id"], int(child["repetition"] or 0))
        attempts = [one for one in site.index.of_sweep(child["sweep"]) if (one.config_id, one.repetition) == cell]
        # A search and another run of the sweep may measure the same cell.
        known = [_recorded_runs(site, one.attempt)[0] for one in attempts]
        attempts = [
            one
            for one, recorded in zip(attempts, known, strict=True)
            if recorded == (run_id if run_id in known else None)
        ]
        if attempts:
            return site.link("experiments", attempts[-1].attempt)
    for sweep_id in dict.fromkeys((run_id, sweep_id_of(run_id))):
        found = site.index.of_sweep(sweep_id) if sweep_id else []
        if found and dag_id == EXPERIMENT:
            return site.link("experiments", found[-1].attempt)
        if found:
            return site.link("sweeps", sweep_id)
    raise RecordPending(f"The run {run_id} of {dag_id} has no record yet.", site.link("runs", dag_id, run_id))


def address_of_dag(site: ResultsSite, dag_id: str) -> str:
    """Return the page of a matrix; for other DAGs the list of all sweeps."""
    site.index.refresh()
    known = any(one.name == dag_id for one in site.index.matrices())
    if is_nightly(dag_id):
        return site.link("nights", of=dag_id if known and dag_id != NIGHTLY else "")
    if not known:
        return site.link()
    return site.link("matrices", dag_id)


def runs_of_sweep(site: ResultsSite, matrix: str | None, sweep_id: str) -> list[AirflowRun]:
    """Return the Airflow run of a sweep, if it exists: a run of its matrix, or of a single experiment."""
    dag_id = matrix or EXPERIMENT
    return _existing_runs(site, dag_id, [sweep_id, *_run_id_prefixes(sweep_id)], _run_id_prefixes(sweep_id))


def runs_of_entry(site: ResultsSite, entry: IndexEntry) -> list[AirflowRun]:
    """Return the Airflow runs of an experiment and its matrix, if they exist."""
    run_id, parent = _recorded_runs(site, entry.attempt)
    if entry.matrix and entry.sweep_id:
        # Older attempts do not record their run, so its id is derived from the cell.
        own = run_id or f"{entry.sweep_id}__{entry.config_id}-r{entry.repetition}"
        runs = _existing_runs(site, EXPERIMENT, [own], ())
        if parent:
            return [*runs, *_existing_runs(site, entry.matrix, [parent], ())]
        return [*runs, *runs_of_sweep(site, entry.matrix, entry.sweep_id)]
    if run_id:
        return _existing_runs(site, EXPERIMENT, [run_id], ())
    prefixes = _run_id_prefixes(entry.sweep_id or "")
    return _existing_runs(site, EXPERIMENT, [entry.sweep_id, *prefixes] if entry.sweep_id else [], prefixes)


def _existing_runs(site: ResultsSite, dag_id: str, run_ids: Sequence[str], prefixes: Sequence[str]) -> list[AirflowRun]:
    return (
        [AirflowRun(dag_id, run_id) for run_id in dict.fromkeys(site.find_runs(dag_id, run_ids, prefixes))]
        if run_ids
        else []
    )


def _run_id_prefixes(sweep_id: str) -> list[str]:
    """Return prefixes of the run ids from which the id of this sweep may derive."""
    match = _INSTANT.fullmatch(sweep_id)
    if match is None:
        return []
    fraction = f".{match['fraction']}" if match["fraction"] else ""
    instant = "{year}-{month}-{day}T{hour}:{minute}:{second}".format(**match.groupdict()) + fraction + "+00:00"
    return [f"{kind}{instant}" for kind in _kinds(match["kind"])]


def _kinds(kind: str | None) -> Iterable[str]:
    return (kind,) if kind else _KINDS


def _recorded_runs(site: ResultsSite, attempt: str) -> tuple[str | None, str | None]:
    """Return the ids of an attempt's run and of the matrix run that triggered it, from its files; None if missing.

    The index has validated the name of the attempt.
    """
    folder, run_id, parent = Attempt(site.results / "attempts" / attempt), None, None
    with contextlib.suppress(FaultlineError, OSError, ValueError, AttributeError, RecursionError):
        run_id = _id(folder.read().get("run_id"))
        parent = _id(read_plan(folder).order.parent_run_id)
    return run_id, parent


def _id(found: object) -> str | None:
    """Return a valid id or None; addresses and databases cannot hold lone surrogates."""
    if not isinstance(found, str) or not found:
        return None
    return None if any("\ud800" <= letter <= "\udfff" for letter in found) else found
