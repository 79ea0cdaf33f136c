"""The first page: sweeps and matrices with their counts, newest first, and the files that could not be read."""

from __future__ import annotations

from faultline.comparison.cells import label
from faultline.records.format import NONE
from faultline.records.index import Tally
from faultline.records.manifest import Manifests
from faultline.reports.experiment_view import minute
from faultline.reports.pages.site import STATUSES, Site, paged, render
from faultline.reports.table import load_of

SWEEPS_A_PAGE = 100
MAX_PROBLEMS = 100


def overview_page(site: Site, page: int = 1) -> str:
    """The list of sweeps, page `page` of it; one that does not exist shows the nearest."""
    site.index.refresh()
    total = site.index.count_sweeps()
    page, pages, offset = paged(page, total, SWEEPS_A_PAGE)
    problems = [*site.index.problems(), *Manifests(site.results).problems()]
    return render(
        site,
        "overview",
        title="Results",
        statuses=STATUSES,
        matrices=[_row(site, tally, "matrices") for tally in site.index.matrices()],
        sweeps=[_row(site, tally, "sweeps") for tally in site.index.sweeps(SWEEPS_A_PAGE, offset)],
        sweep_total=total,
        page=page,
        pages=pages,
        page_link=lambda number: site.link(page=number),
        problems=problems[:MAX_PROBLEMS],
        more_problems=max(0, len(problems) - MAX_PROBLEMS),
    )


def _row(site: Site, tally: Tally, kind: str) -> dict[str, object]:
    return {
        "name": tally.name or "without a sweep",
        "href": site.link(kind, tally.name) if tally.name else site.link("unswept"),
        "about": tally.matrix or _single(site, tally),
        "counts": [getattr(tally, status) for status in STATUSES],
        "total": tally.total,
        "first": minute(tally.first),
        "last": minute(tally.last),
    }


def _single(site: Site, tally: Tally) -> str:
    """What the one experiment of a sweep without a matrix was about, since its id does not say it."""
    if tally.name is None or tally.total != 1:
        return NONE
    # Counted before, and it may be gone since.
    entry = next(iter(site.index.of_sweep(tally.name)), None)
    if entry is None:
        return NONE
    return ", ".join([*load_of(entry.config), label(entry.fault)])
