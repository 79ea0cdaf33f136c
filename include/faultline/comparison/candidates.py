"""What one can choose between: configurations by the parameters that an engineer sets, each at its worst.

Whoever runs a stream processor chooses its checkpoint interval or its state store, but not its load, its state or what
breaks. So a *candidate* is one combination of what can be chosen, and where load or fault vary too, it was measured
under several *circumstances*: a figure of it is then the worst over these, so that what holds of it holds under each.

How sure something is, is the share of draws in which it holds. A draw moves the figures as far from what was measured
as their scatter allows (Student's t), those of one block together, and a recovery anywhere in the interval in which it
is known to lie.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import stats

from faultline.comparison.config_points import FAULT, Axis, Point, axes_of, split_controls
from faultline.comparison.effects import P50, P99, repetitions_of
from faultline.comparison.statistics.estimate import MIN_REPETITIONS, Floats, ValueRange
from faultline.experiment.named_settings import is_setting
from faultline.records.catalogue import CPU_TOTAL, MACRO
from faultline.records.format import broken
from faultline.system.text import sort_key

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
DRAWS, SEED = 1_000, 1


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

    def lower_bound(self, key: str) -> float:
        """For a figure that is infinite: it is at least that much."""
        return max(float(np.median([value.low for value in repetitions_of(p, key).values()])) for p in self.points)

    @property
    def is_sustained(self) -> bool:
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
class ParetoChoice:
    """All candidates in the order of the axes; `varied` are the axes of the circumstances, which are `given`, and
    `axes` those of what is chosen.

    What is no candidate, by name: `incomplete`, not measured under all of the circumstances; `overloaded`, which did
    not keep up with the load: it uses little CPU because it does little; `unusable`, of which no run counts.
    """

    candidates: tuple[Candidate, ...]
    axes: tuple[Axis, ...]
    circumstance_axes: tuple[Axis, ...]
    circumstances: tuple[str, ...]
    incomplete: tuple[str, ...]
    overloaded: tuple[str, ...] = ()
    unusable: tuple[str, ...] = ()


def choice_of(points: Sequence[Point]) -> ParetoChoice:
    """What the valid points leave to choose; controls among faults are no candidates."""
    measured, _ = split_controls([point for point in points if point.valid])
    axes = axes_of(measured)
    chosen = tuple(axis for axis in axes if axis.key in CHOICES or is_setting(axis.key))
    varied = tuple(axis for axis in axes if axis not in chosen)
    gathered: dict[str, dict[tuple[object, ...], Point]] = {}
    ordered = sorted(measured, key=lambda point: [sort_key(axis.of(point)) for axis in chosen])
    places_text: dict[tuple[object, ...], str] = {}
    labels: dict[str, str] = {}
    for point in ordered:
        name = ", ".join(axis.text_of(point) for axis in chosen)
        labels[name] = ", ".join(axis.value_text(point) for axis in chosen)
        place = tuple(sort_key(axis.of(point)) for axis in varied)
        gathered.setdefault(name, {})[place] = point
        places_text[place] = ", ".join(
            broken(point.config) if axis.key == FAULT else axis.text_of(point) for axis in varied
        )
    judged, _ = split_controls([point for point in points if point.valid or point.invalid])
    every = axes_of(judged)
    # Only what gives something to choose.
    choosable = any(axis.key in CHOICES or is_setting(axis.key) for axis in every)
    lacking = [point for point in judged if choosable and not point.valid]
    unusable = [", ".join(axis.text_of(point) for axis in every) for point in lacking]
    places = sorted(places_text, key=str)
    whole = {name: found for name, found in gathered.items() if len(found) == len(places)}
    found = [Candidate(name, labels[name], tuple(rows[place] for place in places)) for name, rows in whole.items()]
    return ParetoChoice(
        tuple(one for one in found if one.is_sustained),
        chosen,
        varied,
        tuple(places_text[place] for place in places),
        tuple(name for name in gathered if name not in whole),
        tuple(one.name for one in found if not one.is_sustained),
        tuple(unusable),
    )


@dataclass(frozen=True)
class SampledFronts:
    """Figures as they may truly be, at their worst: by cost an array of (draw, candidate).

    `highest`: recoveries at the upper end of what is known, for what must not be exceeded.
    """

    likely: Mapping[str, Floats]
    highest: Mapping[str, Floats]


def sample_figures(
    candidates: Sequence[Candidate], keys: Sequence[str], *, repetitions: int | None = None
) -> SampledFronts:
    """Draws of the figures `keys`, which all candidates know; as if there were so many `repetitions` of each."""
    chance = _Sampler(repetitions)
    found = {key: [[chance.drawn(repetitions_of(point, key)) for point in one.points] for one in candidates]
             for key in keys}  # fmt: skip
    likely, highest = (
        {key: np.stack([np.max([each[end] for each in points], axis=0) for points in all_of], axis=1)
         for key, all_of in found.items()}
        for end in (0, 1)
    )  # fmt: skip
    return SampledFronts(likely, highest)


class _Sampler:
    """What is drawn once for all figures: a block moves all that was measured in it, and where in their intervals
    recoveries lie is taken to be the same of all."""

    def __init__(self, repetitions: int | None) -> None:
        self._rng, self._repetitions = np.random.default_rng(SEED), repetitions
        self._way: Floats = self._rng.random(DRAWS)
        self._blocks: dict[int, Floats] = {}
        self._scales: dict[int, Floats] = {}

    def drawn(self, values: Mapping[int, ValueRange]) -> tuple[Floats, Floats]:
        """A figure anywhere in what is known of it, and at its upper end: means by Student's t, on a log scale where
        all are above 0. Infinite as often as half of all may not be seen to end, by how many were not (Jeffreys)."""
        known = {number: value for number, value in sorted(values.items()) if math.isfinite(value.high)}
        ends = [np.array([(value.low, value.high)[end] for value in known.values()]) for end in (0, 1)]
        if known:
            ratio = min(value.low for value in known.values()) > 0
            low, high = (self._means(list(known), np.log(one) if ratio else one) for one in ends)
            likely = low + self._way * (high - low)
            found = [np.exp(one) if ratio else one for one in (likely, high)]
        else:
            found = [np.full(DRAWS, math.inf)] * 2
        if is_open := len(values) - len(known):
            never = stats.beta.sf(0.5, is_open + 0.5, len(known) + 0.5)
            found = [np.where(self._rng.random(DRAWS) < never, math.inf, one) for one in found]
        return found[0], found[1]

    def _means(self, numbers: Sequence[int], values: Floats) -> Floats:
        n = len(values)
        if n < 2:
            return np.full(DRAWS, values.mean())
        for number in numbers:
            if number not in self._blocks:
                self._blocks[number] = self._rng.standard_normal(DRAWS)
        wanted = self._repetitions or n
        if wanted not in self._scales:
            self._scales[wanted] = np.sqrt((wanted - 1) / self._rng.chisquare(wanted - 1, DRAWS))
        off = (values - values.mean()) @ np.array([self._blocks[number] for number in numbers])
        return np.asarray(values.mean() + off / math.sqrt((n - 1) * wanted) * self._scales[wanted])


# The front: the candidates that no other beats in CPU, recovery and latency at once.


# In the order in which they are places_text.
FRONT = (CPU_TOTAL, MACRO, P99)
# In so many of the draws a dominance must hold to be certain.
CERTAIN = 0.95


@dataclass(frozen=True)
class ParetoEntry:
    """A candidate with its figures in the order of `ParetoFront.keys`.

    `beaten_by`: the name of one that is no worse in any figure and better in one, by medians; None on the front.
    `sure`: in which share of the draws it is where it stands, on the front or behind that other one.
    """

    candidate: Candidate
    figures: tuple[float, ...]
    dominated_by: str | None
    confidence: float

    @property
    def is_certain(self) -> bool:
        """Whether where it stands is certain; with fewer than five repetitions nothing is."""
        return self.confidence >= CERTAIN and self.candidate.repetitions >= MIN_REPETITIONS


@dataclass(frozen=True)
class ParetoFront:
    """All candidates whose figures are known, those on the front first, by CPU. `keys`: the figures, of FRONT."""

    keys: tuple[str, ...]
    entries: tuple[ParetoEntry, ...]


def front_of(candidates: Sequence[Candidate]) -> ParetoFront:
    """The front by medians, and how sure it is. A figure that no candidate knows is left out, as recoveries of runs
    without a fault are; a candidate that lacks one of the others is, too."""
    keys = tuple(key for key in FRONT if any(one.figure(key) is not None for one in candidates))
    known = [one for one in candidates if keys and all(one.figure(key) is not None for key in keys)]
    if not known:
        return ParetoFront(keys, ())
    medians = np.array([[float(one.figure(key) or 0.0) for key in keys] for one in known])
    drawn = sample_figures(known, keys)
    # (draw, candidate, figure)
    draws = np.stack([drawn.likely[key] for key in keys], axis=2)
    places = [_entry_of(number, known, medians, draws) for number in range(len(known))]
    ordered = sorted(places, key=lambda place: (place.dominated_by is not None, place.figures))
    return ParetoFront(keys, tuple(ordered))


def dominates(a: Floats, b: Floats) -> np.ndarray:
    """Whether a is no worse than b in any figure and better in one; over the last axis."""
    return np.asarray((a <= b).all(axis=-1) & (a < b).any(axis=-1))


def _entry_of(number: int, known: Sequence[Candidate], medians: Floats, draws: Floats) -> ParetoEntry:
    mine = medians[number]
    better = [other for other in range(len(known)) if other != number and bool(dominates(medians[other], mine))]
    if better:
        # Of several the one that does so most often.
        shares = {other: float(dominates(draws[:, other], draws[:, number]).mean()) for other in better}
        first = max(shares, key=lambda other: shares[other])
        return ParetoEntry(known[number], tuple(map(float, mine)), known[first].name, shares[first])
    beaten = dominates(draws, draws[:, number : number + 1]).any(axis=1)
    return ParetoEntry(known[number], tuple(map(float, mine)), None, float(1 - beaten.mean()))
