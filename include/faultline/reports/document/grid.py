"""The records of a page as points on axes, as the results page in Airflow has them, but without a store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from faultline.comparison.cells import FAULT, Axis, Point, apart, axes_of, in_order, is_number, points_of
from faultline.records.format import CONTROL, NONE
from faultline.records.record import Record
from faultline.records.summary import Entry
from faultline.system.text import natural


def grid(records: Sequence[Record], named: Sequence[str]) -> tuple[list[Point], list[Axis]]:
    """The points in order, and the axes in which they differ, those that are `named` first; at least one of these."""
    points = points_of([Entry.of(record) for record in records])
    breaking, controls = apart(points)
    # Where both are there, each group may differ in something that the other does not.
    found: dict[str, Axis] = {}
    for axis in (*axes_of(breaking), *axes_of(controls)):
        found.setdefault(axis.key, axis)
    wanted = [*named, *(key for key in found if key not in named)]
    if breaking and controls and FAULT not in wanted:
        wanted.append(FAULT)
    # A sweep of one configuration varies nothing; it needs a name for its one row all the same.
    axes = [_axis(key, points) for key in wanted or ["checkpoint_interval_s"]]
    axes = [axis for axis in axes if len(axis.values) > 1] or axes[:1]
    return in_order(points, axes), axes


def _axis(key: str, points: Iterable[Point]) -> Axis:
    """The axis with every value that the points have on it, in order; controls come last."""
    empty = Axis(key, False, ())
    values = {empty.label(point): empty.of(point) for point in points if empty.label(point) != NONE}
    if all(is_number(value) for value in values.values()):
        return Axis(key, True, tuple(sorted(values.values())))
    return Axis(
        key, False, tuple(values[text] for text in sorted(values, key=lambda text: (text == CONTROL, natural(text))))
    )
