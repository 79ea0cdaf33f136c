"""Two sides of runs whose recoveries resemble each other: methods that compare them, many studies at once.

A study is (side, run, recovery), known from a lower to an upper end. A method gives for each of many studies the 95 %
interval of the difference and p, of which some are not a number.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping

import numpy as np
from scipy import stats

from benchmarks.figure import BenchmarkFigure
from benchmarks.monte_carlo import Bools, Floats, Study, standard_noise

RUNS, RECOVERIES, CORRELATIONS = (2, 3, 5, 10), (1, 3, 5), (0.0, 0.4, 0.8)
NOISES, OPEN = ("normal", "heavy"), (0.0, 0.1)
# In standard deviations of one recovery.
PLANTED = 1.0
# Share of the variance that is the block's, which both runs of a pair have in common.
BLOCK = 0.5
# Five pairs cannot get below p = 0.06 by signed ranks.
LEAST_SIGNED = 6
# What is drawn anew takes so much longer that only every tenth study is judged by it.
EVERY, RESAMPLES, ORDERS = 10, 400, 999
ALPHA = 0.05


def two_sides(study: Study, draws: int, rng: np.random.Generator) -> None:
    """Both sides with equally many runs; a run's recoveries share a part of their scatter."""
    for noise, open_share, runs in itertools.product(NOISES, OPEN, RUNS):
        _studies(study, "two_sides", noise, open_share, runs, 0.0, draws, rng)


def blocks(study: Study, draws: int, rng: np.random.Generator) -> None:
    """The same of ten runs a side, where half the variance is that of the block that the runs of a pair share."""
    for open_share in OPEN:
        _studies(study, "blocks", "normal", open_share, max(RUNS), BLOCK, draws, rng)


def _studies(
    study: Study, question: str, noise: str, open_share: float, runs: int, block: float, draws: int,
    rng: np.random.Generator,
) -> None:  # fmt: skip
    """Over all correlations and numbers of recoveries; `block`: share of the variance that both runs of a pair have in
    common."""
    said: dict[str, list[tuple[float, float, float]]] = {}
    for correlation, recoveries in itertools.product(CORRELATIONS, RECOVERIES):
        between = standard_noise(noise, (draws, 2, runs, 1), rng)
        within = standard_noise(noise, (draws, 2, runs, recoveries), rng)
        values = math.sqrt(correlation) * between + math.sqrt(1 - correlation) * within
        if block:
            shared = standard_noise(noise, (draws, 1, runs, 1), rng)
            values = math.sqrt(1 - block) * values + math.sqrt(block) * shared
        watched = float(np.quantile(values, 1 - open_share)) if open_share else math.inf
        equal, other = _censor(values, watched, 0.0), _censor(values, watched, PLANTED)
        for name, (method, every) in TWO_SIDES.items():
            none, one = (method(low[::every], high[::every], rng) for low, high in (equal, other))
            said.setdefault(name, []).append(_shares(none, one))
    case = f"{noise}{'_open' if open_share else ''}_{runs}"
    for name, shares in said.items():
        for column, what in enumerate(("error", "covers", "sees")):
            each = [one[column] for one in shares]
            if not math.isnan(each[0]):
                count = draws * len(each) // TWO_SIDES[name][1]
                mean = float(np.mean(each))
                study[f"{question}_{name}_{what}_{case}"] = BenchmarkFigure(mean, "share", min(each), max(each), count)


def _censor(values: Floats, watched: float, planted: float) -> tuple[Floats, Floats]:
    """Both ends of the recoveries, as they are known when those that take longer are not seen to end."""
    values = values.copy()
    values[:, 1] += planted
    return np.minimum(values, watched), np.where(values > watched, math.inf, values)


def _shares(none: Floats, one: Floats) -> tuple[float, float, float]:
    """Error, coverage and power of what a method gave: lower end, upper end and p, of which some are not known."""

    def claims(found: Floats) -> Bools:
        beyond: Bools = (found[:, 0] > 0) | (found[:, 1] < 0)
        return np.where(np.isnan(found[:, 2]), beyond, found[:, 2] <= ALPHA)

    covers = math.nan if np.isnan(one[:, 1]).all() else ((one[:, 0] <= PLANTED) & (one[:, 1] >= PLANTED)).mean()
    return float(claims(none).mean()), float(covers), float(claims(one).mean())


def run_values(low: Floats, high: Floats) -> tuple[Floats, Floats]:
    """The value of each run: the medians of both ends of its recoveries."""
    return np.median(low, axis=3), np.median(high, axis=3)


def paired(low: Floats, high: Floats, rng: np.random.Generator) -> Floats:
    """Student's t of the differences between run values; where one has no end, signed ranks of six pairs or more, else
    rank sums of both sides."""
    low, high = run_values(low, high)
    return _or_ranks(_student_of_pairs(low), low, high, rank_sums if low.shape[2] < LEAST_SIGNED else _signed)


def unpaired(low: Floats, high: Floats, rng: np.random.Generator) -> Floats:
    """Student's t of two samples of run values; where one has no end, rank sums."""
    low, high = run_values(low, high)
    runs, means = low.shape[2], low.mean(axis=2)
    error = np.sqrt(low.var(axis=2, ddof=1).sum(axis=1) / runs)
    return _or_ranks(_around(means[:, 1] - means[:, 0], error, 2 * runs - 2), low, high, rank_sums)


def signed_ranks(low: Floats, high: Floats, rng: np.random.Generator) -> Floats:
    """Student's t of the differences between run values; where one has no end, Wilcoxon's signed ranks of however few
    pairs."""
    low, high = run_values(low, high)
    return _or_ranks(_student_of_pairs(low), low, high, _signed)


def _or_ranks(closed: Floats, low: Floats, high: Floats, ranks: Callable[[Floats, Floats], Floats]) -> Floats:
    """What was found of studies that were all seen to end, and ranks of the others."""
    is_open = np.isinf(high).any(axis=(1, 2))
    closed[is_open] = ranks(low[is_open], high[is_open])
    return closed


def rank_sums(low: Floats, high: Floats) -> Floats:
    """Mann and Whitney's test and the shifts that it does not refuse, with all values at their lower ends and with all
    at their upper ends; equal values, and two without an end, count half. By the normal distribution."""
    runs = low.shape[2]
    equal = np.isinf(high).sum(axis=(1, 2))
    variance = runs * runs / 12 * (2 * runs + 1 - (equal**3 - equal) / (2 * runs * (2 * runs - 1)))
    reach = stats.norm.ppf(1 - ALPHA / 2) * np.sqrt(runs * runs * (2 * runs + 1) / 12) + 0.5
    ends, z = [], []
    for values in (low, high):
        with np.errstate(invalid="ignore"):
            differences = (values[:, 1, :, None] - values[:, 0, None]).reshape(len(low), runs * runs)
        unknown = np.isnan(differences)
        votes = (differences > 0).sum(axis=1) + ((differences == 0) | unknown).sum(axis=1) / 2 - runs * runs / 2
        z.append(np.sign(votes) * np.maximum(0.0, np.abs(votes) - 0.5) / np.sqrt(np.maximum(variance, 1e-9)))
        ends.append(_beyond(differences, np.ceil(runs * runs / 2 - reach - unknown.sum(axis=1) / 2)))
    tails = np.maximum(stats.norm.sf(z[0]), stats.norm.sf(z[1])), np.maximum(stats.norm.cdf(z[0]), stats.norm.cdf(z[1]))
    p = np.minimum(1.0, 2 * np.minimum(*tails))
    return np.stack((np.minimum(ends[0][0], ends[1][0]), np.maximum(ends[0][1], ends[1][1]), p), axis=1)


def _beyond(values: Floats, place: Floats) -> tuple[Floats, Floats]:
    """Of each row the value at this place (from 1) from below and from above, unknown ones last; without an end where
    the place is none."""
    places, ends = np.maximum(place.astype(int) - 1, 0)[:, None], []
    for sign in (1, -1):
        ordered = np.sort(np.where(np.isnan(values), math.inf, sign * values), axis=1)
        at = np.take_along_axis(ordered, places, axis=1)[:, 0]
        ends.append(sign * np.where(place < 1, -math.inf, at))
    return ends[0], ends[1]


def _student_of_pairs(low: Floats) -> Floats:
    differences, runs = low[:, 1] - low[:, 0], low.shape[2]
    return _around(differences.mean(axis=1), differences.std(axis=1, ddof=1) / math.sqrt(runs), runs - 1)


def _signed(low: Floats, high: Floats) -> Floats:
    """Wilcoxon's interval, for what holds with all values at their lower ends and with all at their upper ends; a pair
    without an end counts as one without a difference, whatever the shift."""
    first, second = np.triu_indices(low.shape[2])
    k = int((np.cumsum(_rank_chances(low.shape[2])) <= ALPHA / 2 + 1e-12).sum())
    ends = []
    for values in (low, high):
        with np.errstate(invalid="ignore"):
            pairs = values[:, 1] - values[:, 0]
            one, other = pairs[:, first], pairs[:, second]
            averages = np.where(np.isnan(one), other, np.where(np.isnan(other), one, (one + other) / 2))
        ends.append(_beyond(averages, np.floor(k - np.isnan(averages).sum(axis=1) / 2)))
    return _interval(np.minimum(ends[0][0], ends[1][0]), np.maximum(ends[0][1], ends[1][1]))


def signs(low: Floats, high: Floats, rng: np.random.Generator) -> Floats:
    """Sign flips of the differences between run values, those without an end as large as the largest; a p alone."""
    low, high = run_values(low, high)
    with np.errstate(invalid="ignore"):
        ends = (low[:, 1] - high[:, 0], high[:, 1] - low[:, 0])
    runs = low.shape[2]
    flips = np.array(list(itertools.product((-1.0, 1.0), repeat=runs))).T
    tails = []
    for sign, values in zip((1, -1), ends, strict=True):
        finite = np.where(np.isfinite(values), np.abs(values), 0.0).max(axis=1, keepdims=True)
        values = sign * np.where(np.isfinite(values), values, np.copysign(np.maximum(finite, 0.7), values))
        tails.append((values @ flips >= values.sum(axis=1, keepdims=True) - 1e-9).mean(axis=1))
    return _p(np.minimum(1.0, 2 * np.minimum(*tails)))


def gehan(low: Floats, high: Floats, rng: np.random.Generator) -> Floats:
    """Gehan's permutation of all runs, of which one that was not seen to end is the longer one; a p alone."""
    low, high = run_values(low, high)
    runs = low.shape[2]
    at, is_open = low.reshape(len(low), -1), np.isinf(high).reshape(len(low), -1)
    longer = ~is_open[:, None, :] & (
        (at[:, :, None] > at[:, None, :]) | (is_open[:, :, None] & (at[:, :, None] >= at[:, None, :]))
    )
    score = longer.sum(axis=2, dtype=np.float64) - longer.sum(axis=1)
    if runs <= 5:
        sides = [list(one) for one in itertools.combinations(range(2 * runs), runs)]
    else:
        sides = [rng.permutation(2 * runs)[:runs].tolist() for _ in range(ORDERS)]
        sides.append(list(range(runs)))
    chosen = np.zeros((2 * runs, len(sides)))
    for column, one in enumerate(sides):
        chosen[one, column] = 1.0
    sums, mine = np.abs(score @ chosen), np.abs(score[:, :runs].sum(axis=1, keepdims=True))
    return _p((sums >= mine - 1e-9).mean(axis=1))


def bca(low: Floats, high: Floats, rng: np.random.Generator) -> Floats:
    """Bias-corrected bootstrap of the difference of medians of run values; plain percentiles where some have no end."""
    low, high = run_values(low, high)
    draws, _, runs = low.shape
    value = np.where(np.isinf(high), np.inf, low)
    rows = rng.integers(0, runs, (2, RESAMPLES, runs))
    medians = [np.median(value[:, side][:, rows[side]], axis=2) for side in range(2)]
    with np.errstate(invalid="ignore"):
        drawn = np.sort(np.where(np.isnan(found := medians[1] - medians[0]), np.inf, found), axis=1)
        mine = np.median(value[:, 1], axis=1) - np.median(value[:, 0], axis=1)
        left = [np.stack([np.median(np.delete(value[:, side], one, axis=1), axis=1) for one in range(runs)], axis=1)
                for side in range(2)]  # fmt: skip
        bias = stats.norm.ppf(np.clip((drawn < mine[:, None]).mean(axis=1), 1 / RESAMPLES, 1 - 1 / RESAMPLES))
        off = np.concatenate([left[0] - left[0].mean(axis=1, keepdims=True),
                              left[1].mean(axis=1, keepdims=True) - left[1]], axis=1)  # fmt: skip
        speed = np.nan_to_num((off**3).sum(axis=1) / (6 * (off**2).sum(axis=1) ** 1.5 + 1e-300))
    bias = np.where(np.isinf(value).any(axis=(1, 2)), 0.0, bias)
    z = stats.norm.ppf([ALPHA / 2, 1 - ALPHA / 2])
    moved = bias[:, None] + z
    at = stats.norm.cdf(bias[:, None] + moved / (1 - speed[:, None] * moved))
    places = np.clip((at * RESAMPLES).astype(int), 0, RESAMPLES - 1)
    return _interval(*drawn[np.arange(draws)[:, None], places].T)


def resampled(low: Floats, high: Floats, rng: np.random.Generator) -> Floats:
    """Percentiles of the mean difference of run values, runs drawn anew and then recoveries within each."""
    draws, _, runs, recoveries = low.shape
    chosen = rng.integers(0, runs, (RESAMPLES, 1, runs, 1))
    within = rng.integers(0, recoveries, (RESAMPLES, 2, runs, recoveries))
    side, found = np.arange(2).reshape(1, 2, 1, 1), np.empty((draws, 2))
    for number in range(draws):
        with np.errstate(invalid="ignore"):
            values = [np.median(one[number][side, chosen, within], axis=3) for one in (low, high)]
            drawn = [(one[:, 1] - one[:, 0]).mean(axis=1) for one in values]
        found[number, 0] = min(np.quantile(np.where(np.isnan(one), -np.inf, one), ALPHA / 2, method="lower")
                               for one in drawn)  # fmt: skip
        found[number, 1] = max(np.quantile(np.where(np.isnan(one), np.inf, one), 1 - ALPHA / 2, method="higher")
                               for one in drawn)  # fmt: skip
    return _interval(*found.T)


def pooled(low: Floats, high: Floats, rng: np.random.Generator) -> Floats:
    """Recoveries taken for runs, as though they were independent."""
    shape = (len(low), 2, low.shape[2] * low.shape[3], 1)
    return paired(low.reshape(shape), high.reshape(shape), rng)


Method = Callable[[Floats, Floats, np.random.Generator], Floats]
# Those of the product first; by how many draws each is tried.
TWO_SIDES: Mapping[str, tuple[Method, int]] = {
    "paired": (paired, 1), "apart": (unpaired, 1), "signed_ranks": (signed_ranks, 1),
    "signs": (signs, 1), "gehan": (gehan, 1), "bca": (bca, EVERY),
    "resampled": (resampled, EVERY), "pooled": (pooled, 1),
}  # fmt: skip


def _around(mean: Floats, error: Floats, freedom: int) -> Floats:
    reach = stats.t.ppf(1 - ALPHA / 2, freedom) * error
    return _interval(mean - reach, mean + reach)


def _interval(low: Floats, high: Floats) -> Floats:
    return np.stack((low, high, np.full(len(low), math.nan)), axis=1)


def _p(values: Floats) -> Floats:
    return np.stack((*[np.full(len(values), math.nan)] * 2, values), axis=1)


def _rank_chances(runs: int) -> Floats:
    """Chances of each sum of ranks of the positive ones among so many differences."""
    chances = np.ones(1)
    for rank in range(1, runs + 1):
        chances = (np.pad(chances, (0, rank)) + np.pad(chances, (rank, 0))) / 2
    return chances
