"""Overview page: sweeps and matrices with status counts, newest first, and unreadable files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from faultline.comparison.config_points import label
from faultline.experiment.attempt import Attempt
from faultline.experiment.attempt_plan import read_plan
from faultline.experiment.cell import Cell
from faultline.lifecycle.progress import is_waiting, phase_of
from faultline.records.format import NONE, title_of
from faultline.records.index import StatusCounts
from faultline.records.sweep_plan import SweepPlan, SweepPlans
from faultline.reports.pages.site import STATUSES, ResultsSite, paginate, render
from faultline.reports.views.run import explain_reasons, minute_text, period_text
from faultline.reports.views.runs import load_parts
from faultline.system.errors import FaultlineError

SWEEPS_PER_PAGE = 100
# The summary is that of one of the newest sweeps: how many are considered, with at least how many judged records, and
# at most how many configurations.
MAX_SUMMARY_SWEEPS, MIN_SUMMARY_RECORDS, MAX_SUMMARY_CONFIGURATIONS = 5, 4, 40
MAX_SUMMARY_LINES = 6
MAX_FAILURES = 5
MAX_PROBLEMS = 100


def overview_page(site: ResultsSite, page: int = 1) -> str:
    """Return page `page` of the list of sweeps, or the nearest existing one."""
    site.index.refresh()
    total = site.index.count_sweeps()
    page, pages, offset = paginate(page, total, SWEEPS_PER_PAGE)
    problems = [*site.index.problems(), *SweepPlans(site.results).problems()]
    matrices, sweeps = site.index.matrices(), site.index.sweeps(SWEEPS_PER_PAGE, offset)
    # Columns of unused statuses are omitted, to leave space for names.
    statuses = [one for one in STATUSES if one == "valid" or any(getattr(row, one) for row in (*matrices, *sweeps))]
    return render(
        site,
        "overview",
        title="Results",
        statuses=statuses,
        matrices=[_row(site, tally, "matrices", statuses) for tally in matrices],
        sweeps=[_row(site, tally, "sweeps", statuses) for tally in sweeps],
        sweep_total=total,
        page=page,
        pages=pages,
        page_link=lambda number: site.link(page=number),
        active=active_runs(site),
        newest=newest_summary(site) if page == 1 else None,
        failed=newest_failures(site) if page == 1 else [],
        problems=problems[:MAX_PROBLEMS],
        more_problems=max(0, len(problems) - MAX_PROBLEMS),
    )


def active_runs_page(site: ResultsSite) -> str:
    """Return the active runs only, which is fast enough for polling."""
    site.index.refresh()
    return render(site, "active_runs", title="Now", active=active_runs(site))


def newest_summary(site: ResultsSite) -> dict[str, object] | None:
    """Return the first lines of the summary of the newest sweep that has one; None without a summary."""
    # Imported here because statistics take a second to import, which would delay the start of Airflow's API server.
    from faultline.comparison.selection import entries_of_sweep
    from faultline.comparison.sweep_summary import invalid_runs_of, summary_of
    from faultline.reports.views.sweep_summary import invalid_text, short_summary

    for tally in site.index.sweeps(MAX_SUMMARY_SWEEPS):
        judged = tally.valid + tally.unmet + tally.invalid
        if tally.name is None or tally.matrix is None or judged < MIN_SUMMARY_RECORDS:
            continue
        entries = entries_of_sweep(site.index, site.results, tally.name)
        if len({one.config_id for one in entries}) > MAX_SUMMARY_CONFIGURATIONS:
            continue
        answer, invalid = summary_of(entries), invalid_runs_of(entries)
        lines = short_summary(answer) if answer is not None and answer.has_content else []
        if invalid is not None and invalid.effects:
            lines = [*lines[: MAX_SUMMARY_LINES - 1], invalid_text(invalid), *lines[MAX_SUMMARY_LINES - 1 :]]
        if lines:
            return {
                "name": tally.name,
                "matrix": tally.matrix,
                "href": site.link("sweeps", tally.name),
                "lines": lines[:MAX_SUMMARY_LINES],
                "more": max(0, len(lines) - MAX_SUMMARY_LINES),
            }
    return None


def newest_failures(site: ResultsSite) -> list[dict[str, str]]:
    """Return the newest experiments without usable figures, each with its reason."""
    found = [one for one in site.index.newest_without_figures(MAX_FAILURES)]
    return [
        {
            "href": site.link("experiments", one.attempt),
            "name": ", ".join([*load_parts(one.config), label(one.fault)]),
            "status": one.status,
            "when": minute_text(one.measured_at),
            "reason": next(iter(explain_reasons(one.reasons, one.metrics)), NONE),
        }
        for one in found
    ]


def _row(site: ResultsSite, tally: StatusCounts, kind: str, statuses: Sequence[str]) -> dict[str, object]:
    return {
        "name": tally.name or "no sweep",
        "href": site.link(kind, tally.name) if tally.name else site.link("unswept"),
        "about": tally.matrix or _single_run_label(site, tally),
        "counts": [getattr(tally, status) for status in statuses],
        "total": tally.total,
        "measured": period_text(tally.first, tally.last),
    }


def _single_run_label(site: ResultsSite, tally: StatusCounts) -> str:
    """Return the label of the only experiment of a sweep without a matrix."""
    if tally.name is None or tally.total != 1:
        return NONE
    # The record may have been removed since it was counted.
    entry = next(iter(site.index.of_sweep(tally.name)), None)
    if entry is None:
        return NONE
    return ", ".join([*load_parts(entry.config), label(entry.fault)])


# Number of newest attempts to search for active ones. At most two are active; older open attempts are orphaned.
MAX_OPEN_ATTEMPTS = 6


@dataclass(frozen=True)
class ActiveRun:
    """Running or queued experiment, with its phase and the progress of its sweep."""

    attempt: str
    title: str
    phase: str
    detail: str
    href: str
    sweep: str | None
    sweep_href: str | None
    progress: str


def active_runs(site: ResultsSite) -> list[ActiveRun]:
    """Return the running and queued experiments, the running one first."""
    found = [(is_waiting(attempt), attempt) for attempt in _open_attempts(site)]
    ordered = sorted(found, key=lambda pair: (pair[0], pair[1].id))
    runs = [(is_queued, one) for is_queued, attempt in ordered if (one := _active_run(site, attempt))]
    measured = next((one for is_queued, one in runs if not is_queued), None)
    # If none is running here, the queued experiment waits for another installation.
    return [replace(one, detail=f"for {measured.title}") if is_queued and measured else one for is_queued, one in runs]


def _open_attempts(site: ResultsSite) -> Iterator[Attempt]:
    folder = site.results / "attempts"
    if not folder.is_dir():
        return
    for path in sorted(folder.iterdir(), reverse=True)[:MAX_OPEN_ATTEMPTS]:
        attempt = Attempt(path)
        if not attempt.over and (path / "attempt.json").exists():
            yield attempt


def _active_run(site: ResultsSite, attempt: Attempt) -> ActiveRun | None:
    """Return the active run of an attempt; None if its files are unreadable."""
    try:
        order, phase = read_plan(attempt).order, phase_of(attempt)
    except (FaultlineError, OSError, KeyError, ValueError):
        return None
    sweep = order.sweep_id
    plan = SweepPlans(site.results).read(sweep) if sweep else None
    return ActiveRun(
        attempt.id,
        title_of(order.config),
        phase.name,
        phase.detail,
        site.link("live", attempt.id),
        str(sweep) if plan else None,
        site.link("sweeps", str(sweep)) if plan and site.index.has_sweep(str(sweep)) else None,
        sweep_progress(site, plan) if plan else "",
    )


def sweep_progress(site: ResultsSite, plan: SweepPlan) -> str:
    """Return the number of cells of a plan with a usable record: `3 of 12`."""
    entries = site.index.of_configurations(cell.config_id for cell in plan.cells)
    usable = {Cell(one.config_id, one.repetition, one.series) for one in entries if one.is_usable}
    planned = {Cell(cell.config_id, cell.repetition, plan.series) for cell in plan.cells}
    return f"{len(usable & planned)} of {len(planned)}"
