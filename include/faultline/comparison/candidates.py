"""What one can choose between: configurations by the parameters that an engineer sets, each at its worst.

Whoever runs a stream processor chooses its checkpoint interval or its state store, but not its load, its state or what
breaks. So a *candidate* is one combination of what can be chosen, and where load or fault vary too, it was measured
under several *circumstances*: a figure of it is then the worst over these, so that what holds of it holds under each.

How sure something is, is the share of resamples in which it holds. A resample draws repetitions with replacement, the
same ones of all configurations where they have the same (they were measured as blocks), and a recovery anywhere in the
interval in which it is known to lie.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from faultline.comparison.cells import FAULT, Axis, Point, apart, axes_of
from faultline.comparison.effects import P50, P99, repetitions_of
from faultline.comparison.statistics.intervals import SEED
from faultline.comparison.statistics.pairs import Between
from faultline.comparison.statistics.sample import Floats
from faultline.experiment.named_settings import is_setting
from faultline.records.catalogue import CPU_TOTAL, MACRO
from faultline.records.format import broken
from faultline.system.text import sortable

# All else is load, state, or what breaks, and given.
CHOICES = frozenset(
    {
        "checkpoint_interval_s", "snapshot_interval_s", "state_store", "commit_mode", "executors", "executor_cores",
        "executor_memory_mb", "partitions", "shuffle_partitions", "restart_delay_s", "mechanisms", "parallelism",
        "batch_events",
    }
)  # fmt: skip
# What a choice is made by; less of each is better.
COSTS: Mapping[str, str] = {"cpu": CPU_TOTAL, "recovery": MACRO, "latency": P99, "latency_p50": P50}
RESAMPLES = 1_000


@dataclass(frozen=True)
class Candidate:
    """One combination of what can be chosen; `points`: it under each of the circumstances, in the same order.

    `label`: its values alone, for where the axes are named.
    """

    name: str
    label: str
    points: tuple[Point, ...]

    @property
    def repetitions(self) -> int:
        """The fewest of any circumstance."""
        return min(len({entry.repetition for entry in point.valid}) for point in self.points)

    def figure(self, key: str) -> float | None:
        """The median at its worst; infinite for a recovery of which half were not seen to end. None if unknown."""
        worst = []
        for point in self.points:
            known = repetitions_of(point, key)
            if not known or len(known) < len({entry.repetition for entry in point.valid}):
                return None
            worst.append(float(np.median([value.high for value in known.values()])))
        return max(worst)

    def known_over(self, key: str) -> float:
        """For a figure that is infinite: it is at least that much."""
        return max(float(np.median([value.low for value in repetitions_of(p, key).values()])) for p in self.points)

    @property
    def keeps_up(self) -> bool:
        """Whether it kept up with the load, in half of its repetitions or more under each of the circumstances."""
        return all(
            sum(entry.metrics.get("sustained") is False for entry in point.valid) * 2 <= len(point.valid)
            for point in self.points
        )

    @cached_property
    def config_ids(self) -> tuple[str, ...]:
        """Of its points."""
        return tuple(point.config_id for point in self.points)


@dataclass(frozen=True)
class Choice:
    """All candidates in the order of the axes; `varied` are the axes of the circumstances, which are `given`, and
    `axes` those of what is chosen.

    What is no candidate, by name: `incomplete`, not measured under all of the circumstances; `overloaded`, which did
    not keep up with the load: it uses little CPU because it does little; `unusable`, of which no run counts.
    """

    candidates: tuple[Candidate, ...]
    axes: tuple[Axis, ...]
    varied: tuple[Axis, ...]
    given: tuple[str, ...]
    incomplete: tuple[str, ...]
    overloaded: tuple[str, ...] = ()
    unusable: tuple[str, ...] = ()


def choice_of(points: Sequence[Point]) -> Choice:
    """What the valid points leave to choose; controls among faults are no candidates."""
    measured, _ = apart([point for point in points if point.valid])
    axes = axes_of(measured)
    chosen = tuple(axis for axis in axes if axis.key in CHOICES or is_setting(axis.key))
    varied = tuple(axis for axis in axes if axis not in chosen)
    gathered: dict[str, dict[tuple[object, ...], Point]] = {}
    ordered = sorted(measured, key=lambda point: [sortable(axis.of(point)) for axis in chosen])
    told: dict[tuple[object, ...], str] = {}
    labels: dict[str, str] = {}
    for point in ordered:
        name = ", ".join(axis.said(point) for axis in chosen)
        labels[name] = ", ".join(axis.told(point) for axis in chosen)
        place = tuple(sortable(axis.of(point)) for axis in varied)
        gathered.setdefault(name, {})[place] = point
        told[place] = ", ".join(broken(point.config) if axis.key == FAULT else axis.said(point) for axis in varied)
    judged, _ = apart([point for point in points if point.valid or point.unsound])
    every = axes_of(judged)
    # Only what gives something to choose.
    choosable = any(axis.key in CHOICES or is_setting(axis.key) for axis in every)
    lacking = [point for point in judged if choosable and not point.valid]
    unusable = [", ".join(axis.said(point) for axis in every) for point in lacking]
    places = sorted(told, key=str)
    whole = {name: found for name, found in gathered.items() if len(found) == len(places)}
    found = [Candidate(name, labels[name], tuple(rows[place] for place in places)) for name, rows in whole.items()]
    return Choice(
        tuple(one for one in found if one.keeps_up),
        chosen,
        varied,
        tuple(told[place] for place in places),
        tuple(name for name in gathered if name not in whole),
        tuple(one.name for one in found if not one.keeps_up),
        tuple(unusable),
    )


@dataclass(frozen=True)
class Drawn:
    """Resampled figures of candidates, at their worst: by cost an array of (resample, candidate).

    `highest`: recoveries at the upper end of what is known, for what must not be exceeded.
    """

    likely: Mapping[str, Floats]
    highest: Mapping[str, Floats]


def draw(candidates: Sequence[Candidate], keys: Sequence[str], *, repetitions: int | None = None) -> Drawn:
    """Resamples of the figures `keys`, which all candidates know; as if there were so many `repetitions` of each."""
    rng = np.random.default_rng(SEED)
    rows: dict[tuple[int, ...], np.ndarray] = {}
    likely = {key: np.empty((RESAMPLES, len(candidates))) for key in keys}
    highest = {key: np.empty((RESAMPLES, len(candidates))) for key in keys}
    for column, candidate in enumerate(candidates):
        for key in keys:
            draws = []
            for point in candidate.points:
                known = repetitions_of(point, key)
                numbers = tuple(sorted(known))
                if numbers not in rows:
                    rows[numbers] = rng.integers(0, len(numbers), (RESAMPLES, repetitions or len(numbers)))
                draws.append(_medians([known[number] for number in numbers], rows[numbers], rng))
            likely[key][:, column] = np.max([one for one, _ in draws], axis=0)
            highest[key][:, column] = np.max([one for _, one in draws], axis=0)
    return Drawn(likely, highest)


def _medians(values: Sequence[Between], rows: np.ndarray, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Medians of each resample: of values anywhere in their intervals, and of their upper ends."""
    low, high = np.array([value.low for value in values])[rows], np.array([value.high for value in values])[rows]
    top = np.median(high, axis=1)
    if (low == high).all():
        return top, top
    width = np.where(np.isfinite(high), high - low, 0.0)
    inside = np.where(np.isfinite(high), low + rng.random(low.shape) * width, math.inf)
    return np.median(inside, axis=1), top
