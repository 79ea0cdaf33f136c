"""Candidates of a recommendation: combinations of the settings that an engineer chooses, each at its worst.

A user of a stream processor chooses settings such as the checkpoint interval or the state store, but not the load, the
state size or the faults. A *candidate* is one combination of chosen settings. If load or fault vary too, each
combination of these is a *circumstance*; the figure of a candidate is then its worst over all circumstances.

Confidence is the share of random draws in which a statement holds. A draw moves each figure by its variation (Student's
t), jointly within a block, and places each recovery time within its known interval.
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
from faultline.records.format import condition_text
from faultline.system.text import sort_key

# All other parameters are load, state size or faults.
CHOICES = frozenset(
    {
        "checkpoint_interval_s", "snapshot_interval_s", "state_store", "commit_mode", "executors", "executor_cores",
        "executor_memory_mb", "partitions", "shuffle_partitions", "restart_delay_s", "mechanisms", "parallelism",
        "batch_events",
    }
)  # fmt: skip
# Cost metrics; less is better.
COSTS: Mapping[str, str] = {"cpu": CPU_TOTAL, "recovery": MACRO, "latency": P99, "latency_p50": P50}
DRAWS, SEED = 1_000, 1
_LARGEST_LOG = 700.0  # exp of it is below the largest float


@dataclass(frozen=True)
class Candidate:
    """One combination of settings; `points`: its measurements under each circumstance, in the same order.

    `label`: values of the settings without their names.
    """

    name: str
    label: str
    points: tuple[Point, ...]

    @property
    def repetitions(self) -> int:
        """Smallest number of repetitions under any circumstance."""
        return min(len({entry.repetition for entry in point.valid}) for point in self.points)

    def figure(self, key: str) -> float | None:
        """Return the median under the worst circumstance; None if unknown.

        Infinite if half of the recoveries are censored.
        """
        worst = []
        for point in self.points:
            known = repetitions_of(point, key)
            if not known or len(known) < len({entry.repetition for entry in point.valid}):
                return None
            worst.append(float(np.median([value.high for value in known.values()])))
        return max(worst)

    def lower_bound(self, key: str) -> float:
        """Return a lower bound for a figure that is infinite: the median of the repetitions' lower bounds."""
        return max(float(np.median([value.low for value in repetitions_of(p, key).values()])) for p in self.points)

    @property
    def is_sustained(self) -> bool:
        """Whether at least half of the repetitions under each circumstance sustained the load."""
        return all(
            sum(entry.metrics.get("sustained") is False for entry in point.valid) * 2 <= len(point.valid)
            for point in self.points
        )

    @cached_property
    def config_ids(self) -> tuple[str, ...]:
        """Configuration ids of the points."""
        return tuple(point.config_id for point in self.points)


@dataclass(frozen=True)
class ParetoChoice:
    """All candidates in the order of the axes.

    `axes`: axes of the settings; `circumstance_axes`: axes of the circumstances; `circumstances`: a text for each.
    Names of configurations that are not candidates: `incomplete` (not measured under all circumstances), `overloaded`
    (load not sustained, so low CPU means little), `unusable` (no usable run).
    """

    candidates: tuple[Candidate, ...]
    axes: tuple[Axis, ...]
    circumstance_axes: tuple[Axis, ...]
    circumstances: tuple[str, ...]
    incomplete: tuple[str, ...]
    overloaded: tuple[str, ...] = ()
    unusable: tuple[str, ...] = ()


def choice_of(points: Sequence[Point]) -> ParetoChoice:
    """Return the candidates among the points with usable records; controls are not candidates."""
    measured, _ = split_controls([point for point in points if point.valid])
    axes = axes_of(measured)
    chosen = tuple(axis for axis in axes if axis.key in CHOICES or is_setting(axis.key))
    varied = tuple(axis for axis in axes if axis not in chosen)
    by_name: dict[str, dict[tuple[object, ...], Point]] = {}
    ordered = sorted(measured, key=lambda point: [sort_key(axis.of(point)) for axis in chosen])
    circumstance_texts: dict[tuple[object, ...], str] = {}
    labels: dict[str, str] = {}
    for point in ordered:
        name = ", ".join(axis.text_of(point) for axis in chosen)
        labels[name] = ", ".join(axis.value_text(point) for axis in chosen)
        circumstance = tuple(sort_key(axis.of(point)) for axis in varied)
        by_name.setdefault(name, {})[circumstance] = point
        circumstance_texts[circumstance] = ", ".join(
            condition_text(point.config) if axis.key == FAULT else axis.text_of(point) for axis in varied
        )
    judged, _ = split_controls([point for point in points if point.valid or point.invalid])
    every = axes_of(judged)
    # Without a varying setting there is no choice.
    choosable = any(axis.key in CHOICES or is_setting(axis.key) for axis in every)
    unmeasured = [point for point in judged if choosable and not point.valid]
    unusable = [", ".join(axis.text_of(point) for axis in every) for point in unmeasured]
    circumstances = sorted(circumstance_texts, key=str)
    complete = {name: rows for name, rows in by_name.items() if len(rows) == len(circumstances)}
    found = [
        Candidate(name, labels[name], tuple(rows[circumstance] for circumstance in circumstances))
        for name, rows in complete.items()
    ]
    return ParetoChoice(
        tuple(candidate for candidate in found if candidate.is_sustained),
        chosen,
        varied,
        tuple(circumstance_texts[circumstance] for circumstance in circumstances),
        tuple(name for name in by_name if name not in complete),
        tuple(candidate.name for candidate in found if not candidate.is_sustained),
        tuple(unusable),
    )


@dataclass(frozen=True)
class SampledFronts:
    """Random draws of the figures under the worst circumstance: by metric, an array of shape (draws, candidates).

    A recovery time is known as an interval: `likely` holds a value inside, `highest` the upper end, for limits.
    """

    likely: Mapping[str, Floats]
    highest: Mapping[str, Floats]


def sample_figures(
    candidates: Sequence[Candidate], keys: Sequence[str], *, repetitions: int | None = None
) -> SampledFronts:
    """Draw the figures `keys`; each must be known for all candidates.

    `repetitions`: number to assume per candidate; None: the measured number.
    """
    sampler = _Sampler(repetitions)
    found = {key: [[sampler.draw(repetitions_of(point, key)) for point in one.points] for one in candidates]
             for key in keys}  # fmt: skip
    likely, highest = (
        {key: np.stack([np.max([each[end] for each in points], axis=0) for points in all_of], axis=1)
         for key, all_of in found.items()}
        for end in (0, 1)
    )  # fmt: skip
    return SampledFronts(likely, highest)


class _Sampler:
    """Random numbers shared by all figures.

    In a draw, the measurements of one block move together, and all recovery times lie at the same relative position
    within their intervals.
    """

    def __init__(self, repetitions: int | None) -> None:
        self._rng, self._repetitions = np.random.default_rng(SEED), repetitions
        # The relative position within all intervals, by draw.
        self._position: Floats = self._rng.random(DRAWS)
        self._blocks: dict[int, Floats] = {}
        self._scales: dict[int, Floats] = {}

    def draw(self, values: Mapping[int, ValueRange]) -> tuple[Floats, Floats]:
        """Draw a figure from its `values` by block: inside its known range, and at its upper end.

        Means follow Student's t, on a log scale if all values are positive. The share of infinite draws is the
        probability that at least half of all recoveries are censored (Jeffreys prior).
        """
        known = {block: value for block, value in sorted(values.items()) if math.isfinite(value.high)}
        ends = [np.array([(value.low, value.high)[end] for value in known.values()]) for end in (0, 1)]
        if known:
            is_log = min(value.low for value in known.values()) > 0
            low, high = (self._means(list(known), np.log(end) if is_log else end) for end in ends)
            likely = low + self._position * (high - low)
            # With two blocks, Student's t has draws beyond the range of numbers.
            found = [np.exp(np.minimum(one, _LARGEST_LOG)) if is_log else one for one in (likely, high)]
        else:
            found = [np.full(DRAWS, math.inf)] * 2
        if censored := len(values) - len(known):
            infinite = stats.beta.sf(0.5, censored + 0.5, len(known) + 0.5)
            found = [np.where(self._rng.random(DRAWS) < infinite, math.inf, one) for one in found]
        return found[0], found[1]

    def _means(self, blocks: Sequence[int], values: Floats) -> Floats:
        n = len(values)
        if n < 2:
            return np.full(DRAWS, values.mean())
        for block in blocks:
            if block not in self._blocks:
                self._blocks[block] = self._rng.standard_normal(DRAWS)
        assumed = self._repetitions or n
        if assumed not in self._scales:
            self._scales[assumed] = np.sqrt((assumed - 1) / self._rng.chisquare(assumed - 1, DRAWS))
        deviation = (values - values.mean()) @ np.array([self._blocks[block] for block in blocks])
        return np.asarray(values.mean() + deviation / math.sqrt((n - 1) * assumed) * self._scales[assumed])


# Pareto front over CPU, recovery time and latency


# In display order.
FRONT = (CPU_TOTAL, MACRO, P99)
# Share of the draws that makes a position certain.
CERTAIN = 0.95


@dataclass(frozen=True)
class ParetoEntry:
    """A candidate with its figures in the order of `ParetoFront.keys`.

    `dominated_by`: name of a candidate that is no worse in any median and better in at least one; None for an entry on
    the front. `confidence`: share of the draws that agree with that.
    """

    candidate: Candidate
    figures: tuple[float, ...]
    dominated_by: str | None
    confidence: float

    @property
    def is_certain(self) -> bool:
        """Whether the position is certain; never with fewer than five repetitions."""
        return self.confidence >= CERTAIN and self.candidate.repetitions >= MIN_REPETITIONS


@dataclass(frozen=True)
class ParetoFront:
    """Pareto front over `keys`; `entries`: all candidates with known figures, those on the front first, by CPU."""

    keys: tuple[str, ...]
    entries: tuple[ParetoEntry, ...]


def front_of(candidates: Sequence[Candidate]) -> ParetoFront:
    """Return the Pareto front by medians, with the confidence of each position.

    A metric that is unknown for all candidates is omitted, such as recovery time without faults. A candidate that lacks
    one of the remaining metrics is omitted as well.
    """
    keys = tuple(key for key in FRONT if any(one.figure(key) is not None for one in candidates))
    known = [one for one in candidates if keys and all(one.figure(key) is not None for key in keys)]
    if not known:
        return ParetoFront(keys, ())
    medians = np.array([[float(one.figure(key) or 0.0) for key in keys] for one in known])
    drawn = sample_figures(known, keys)
    # Shape (draws, candidates, figures).
    draws = np.stack([drawn.likely[key] for key in keys], axis=2)
    entries = [_entry_of(index, known, medians, draws) for index in range(len(known))]
    ordered = sorted(entries, key=lambda entry: (entry.dominated_by is not None, entry.figures))
    return ParetoFront(keys, tuple(ordered))


def dominates(a: Floats, b: Floats) -> np.ndarray:
    """Return whether `a` is no worse than `b` in any figure and better in one; figures lie on the last axis."""
    return np.asarray((a <= b).all(axis=-1) & (a < b).any(axis=-1))


def _entry_of(index: int, known: Sequence[Candidate], medians: Floats, draws: Floats) -> ParetoEntry:
    figures = medians[index]
    better = [other for other in range(len(known)) if other != index and bool(dominates(medians[other], figures))]
    if better:
        # If several candidates dominate this one, the entry names the one that does so in most draws.
        shares = {other: float(dominates(draws[:, other], draws[:, index]).mean()) for other in better}
        first = max(shares, key=lambda other: shares[other])
        return ParetoEntry(known[index], tuple(map(float, figures)), known[first].name, shares[first])
    is_dominated = dominates(draws, draws[:, index : index + 1]).any(axis=1)
    return ParetoEntry(known[index], tuple(map(float, figures)), None, float(1 - is_dominated.mean()))
