"""The page of the nightly runs: the view of one set, and the ways to their sweeps."""

from __future__ import annotations

from faultline.experiment.night_file import is_night
from faultline.experiment.nightly_schedule import NIGHTLY
from faultline.records.catalogue import by_group
from faultline.reports.pages.site import Site, Unknown, paged, render
from faultline.reports.views import nights
from faultline.reports.views.nights import BY, Chosen, NightView


def nights_page(site: Site, choice: Chosen | None = None) -> str:
    """The page; before the first night one that says how to set it up. Raises Unknown for nights, a cell or a metric
    that there are not."""
    choice = choice or Chosen()
    site.index.refresh()
    kinds = sorted(
        (name for tally in site.index.matrices() if (name := tally.name) and is_night(name)),
        key=lambda one: one != NIGHTLY,
    )
    if choice.of and choice.of not in kinds:
        raise Unknown(f"No night of {choice.of} has a record yet.")
    if choice.by not in ("", *BY):
        raise Unknown(f"Nights are drawn by {' or '.join(BY)}, not by {choice.by}.")
    of = choice.of or (kinds[0] if kinds else NIGHTLY)
    view = NightView(site.results, site.index.of_matrix(of), of, choice)
    if not view.nights:
        return render(site, "no_nights", title="Nights")
    page, pages, offset = paged(choice.page, len(view.dates), nights.NIGHTS_A_PAGE)
    return render(
        site,
        "nights",
        title="Nights",
        view=view,
        figures={"course": view.figure} if view.figure is not None else {},
        ways=BY,
        metric_groups=by_group(view.metrics),
        kinds=kinds,
        rows=view.rows(view.dates[offset : offset + nights.NIGHTS_A_PAGE]),
        page=page,
        pages=pages,
        page_link=lambda number: site.link(
            "nights", of=choice.of, metric=choice.metric, cell=choice.cell, by=choice.by, page=number
        ),
    )
