"""Page that compares two sweeps: cells matched by configuration, both medians, and the verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from faultline.comparison.compare import compare_sides, row_texts
from faultline.comparison.config_points import FAULT, Figure, Point, axes_of, points_of, sort_points
from faultline.comparison.selection import RecordGroup, shared_records
from faultline.records.catalogue import by_group, metrics_of
from faultline.records.columns import Metric
from faultline.records.format import NONE
from faultline.records.index_entry import IndexEntry
from faultline.reports.pages.site import PAGE_ROWS, PageNotFound, ResultsSite, attempt_links, paginate, render
from faultline.reports.views.run import minute_text
from faultline.reports.views.sweep import select_group, select_metric

MAX_SUGGESTIONS = 200
# A verdict takes about 8 ms, and a page must respond within a second.
MAX_VERDICTS = 80


@dataclass(frozen=True)
class ComparePageQuery:
    """Selection of the user: two sweeps, their groups, and a metric; an empty value means the default."""

    a: str = ""
    b: str = ""
    group_a: str = ""
    group_b: str = ""
    metric: str = ""
    page: int = 1


def compare_page(site: ResultsSite, query: ComparePageQuery) -> str:
    """Return the page, or a form if a sweep is not given. Raises PageNotFound for an unknown sweep, group or metric."""
    site.index.refresh()
    suggestions = _suggestions(site, query)
    if not (query.a and query.b):
        return render(
            site, "compare", title="Compare two sweeps", query=query, suggestions=suggestions, sides=[], rows=[]
        )
    sides = [_side(site, query.a, query.group_a), _side(site, query.b, query.group_b)]
    entries_of_both = [entry for side in sides for entry in side["members"]]
    metrics = metrics_of(entries_of_both) or metrics_of(entries_of_both, invalid=True)
    metric = select_metric(metrics, query.metric)
    points: list[dict[str, Point]] = [side["points"] for side in sides]
    known = {**points[1], **points[0]}
    axes = axes_of(list(known.values()))
    ordered = sort_points(list(known.values()), axes)
    page, pages, offset = paginate(query.page, len(ordered))
    cell_axes = [axis for axis in axes if axis.key != FAULT]
    both = len(points[0].keys() & points[1].keys())
    verdicts = _verdicts(sides, metric) if both <= MAX_VERDICTS else {}
    rows = [
        {
            "axes": [axis.label(point) for axis in cell_axes],
            "fault": point.entries[0].fault,
            **_row_figures(site, points, point.config_id, metric),
            "verdict": verdicts.get(point.config_id),
        }
        for point in ordered[offset : offset + PAGE_ROWS]
    ]
    return render(
        site,
        "compare",
        title="Sweep comparison",
        query=query,
        suggestions=suggestions,
        sides=sides,
        metric=metric,
        metric_groups=by_group(metrics),
        cell_axes=cell_axes,
        differing=[axis.noun for axis in axes],
        rows=rows,
        has_verdicts=bool(verdicts),
        both=both,
        has_many=both > MAX_VERDICTS,
        unmatched=[len(points[0]) - both, len(points[1]) - both],
        page=page,
        pages=pages,
        page_link=lambda number: site.link("compare", **{**_query(query), "page": number}),
    )


def _suggestions(site: ResultsSite, query: ComparePageQuery) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return the available sweeps by matrix, newest first: id and label."""
    groups: dict[str, dict[str, str]] = {}
    for tally in site.index.sweeps(MAX_SUGGESTIONS):
        if tally.name:
            known = f"{tally.name} · {tally.valid} valid · {minute_text(tally.last)}"
            groups.setdefault(tally.matrix or "no matrix", {})[tally.name] = known
    listed = {name for members in groups.values() for name in members}
    others = {name: name for name in (query.a, query.b) if name and name not in listed}
    if others:
        groups["older"] = others
    return [(matrix, list(members.items())) for matrix, members in groups.items()]


def _side(site: ResultsSite, sweep_id: str, group: str) -> dict[str, Any]:
    entries: list[IndexEntry] = site.index.of_sweep(sweep_id)
    if not entries:
        raise PageNotFound(f"No record of the sweep {sweep_id}.")
    group, groups = select_group(entries, group)
    members = [entry for entry in entries if entry.group == group]
    return {
        "sweep": sweep_id,
        "href": site.link("sweeps", sweep_id),
        "group": group,
        "groups": groups,
        "members": members,
        "points": {point.config_id: point for point in points_of(members)},
        "valid": sum(entry.is_usable for entry in members),
    }


def _verdicts(sides: list[dict[str, Any]], metric: Metric | None) -> dict[str, dict[str, str]]:
    """Return the verdicts of `./faultline compare` on each common configuration, as texts.

    Empty for metrics without a better direction, and for sides that share a record.
    """
    before, after = (
        RecordGroup(side["sweep"], tuple(entry for entry in side["members"] if entry.is_usable)) for side in sides
    )
    if metric is None or metric.better is None or shared_records(before, after):
        return {}
    return {row.point.config_id: row_texts(row, ()) for row in compare_sides(before, after, [metric]).rows}


def _row_figures(
    site: ResultsSite, points: list[dict[str, Point]], config_id: str, metric: Metric | None
) -> dict[str, Any]:
    """Return both figures of one configuration and the ratio B ÷ A.

    A side without usable runs shows the figure of its invalid runs in parentheses, without a ratio.
    """
    found = [side.get(config_id) for side in points]
    figures = [point.figure(metric.key) if point and metric else Figure(0) for point in found]
    a, b = figures
    ratio = b.median / a.median if a.median and b.median is not None and not (a.bound or b.bound) else None
    return {
        "figures": [
            {
                "text": _figure_text(point, one, metric),
                "spread": one.spread(metric) if metric else "",
                "n": one.n,
                "attempts": attempt_links(site, point.entries if point else ()),
            }
            for point, one in zip(found, figures, strict=True)
        ],
        "ratio": NONE if ratio is None else f"{ratio:,.2f}",
    }


def _figure_text(point: Point | None, usable: Figure, metric: Metric | None) -> str:
    if metric is None:
        return NONE
    if point is not None and not point.valid and point.invalid:
        return f"({point.invalid_figure(metric.key).text(metric)})"
    return usable.text(metric)


def _query(query: ComparePageQuery) -> Mapping[str, str | int]:
    return {"a": query.a, "b": query.b, "build_a": query.group_a, "build_b": query.group_b, "metric": query.metric}
