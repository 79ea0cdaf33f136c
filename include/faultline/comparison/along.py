"""Neighbours along an axis: two configurations that differ in one parameter, and in nothing else that was chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from faultline.comparison.cells import Axis, Point, apart
from faultline.system.text import sortable


@dataclass(frozen=True)
class Step:
    """From one value of an axis to the next that was measured with the same values on every other axis."""

    axis: Axis
    before: Point
    after: Point

    @property
    def label(self) -> str:
        """Both values in words, such as `5 instead of 2`."""
        return f"{self.axis.label(self.after)} instead of {self.axis.label(self.before)}"


def steps_along(points: Sequence[Point], axis: Axis, axes: Sequence[Axis]) -> list[Step]:
    """The steps between neighbours along `axis`, where the other ones of `axes` stay; in the order of those, then of
    this one. Controls among faults are in none."""
    breaking, _ = apart(points)
    rest = [other for other in axes if other.key != axis.key]
    rows: dict[tuple[object, ...], list[Point]] = {}
    for point in breaking:
        rows.setdefault(tuple(sortable(other.of(point)) for other in rest), []).append(point)
    return [
        Step(axis, before, after)
        for place in sorted(rows)
        for before, after in pairwise(sorted(rows[place], key=lambda point: sortable(axis.of(point))))
        if sortable(axis.of(before)) != sortable(axis.of(after))
    ]
