"""Methods that compare two sides of runs with correlated recoveries, over many simulated studies.

A study has the axes (side, run, recovery), each value with a lower and an upper end. A method returns for each study
the 95 % interval of the difference and p; either may be NaN.
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
# Planted difference, in standard deviations of one recovery.
PLANTED = 1.0
# Share of the variance that both runs of a pair have in common.
BLOCK = 0.5
# Five pairs cannot reach p below 0.06 by signed ranks.
LEAST_SIGNED = 6
# Resampling is slow, so it judges only every tenth study.
EVERY, RESAMPLES, ORDERS = 10, 400, 999
ALPHA = 0.05


def two_sides(study: Study, draws: int, rng: np.random.Generator) -> None:
    """Compare sides with equal numbers of runs; recoveries of a run share part of their variance."""
    for noise, open_share, runs in itertools.product(NOISES, OPEN, RUNS):
        _studies(study, "two_sides", noise, open_share, runs, 0.0, draws, rng)


def blocks(study: Study, draws: int, rng: np.random.Generator) -> None:
    """Compare ten runs per side, with half of the variance shared within pairs."""
    for open_share in OPEN:
        _studies(study, "blocks", "normal", open_share, max(RUNS), BLOCK, draws, rng)


def _studies(
    study: Study, question: str, noise: str, open_share: float, runs: int, block: float, draws: int,
    rng: np.random.Generator,
) -> None:  # fmt: skip
    """Run all correlations and numbers of recoveries; `block`: share of the variance that both runs of a pair share."""
    found: dict[str, list[tuple[float, float, float]]] = {}
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
            found.setdefault(name, []).append(_shares(none, one))
    case = f"{noise}{'_open' if open_share else ''}_{runs}"
    for name, shares in found.items():
        for column, what in enumerate(("error", "covers", "sees")):
            each = [one[column] for one in shares]
            if not math.isnan(each[0]):
                count = draws * len(each) // TWO_SIDES[name][1]
                mean = float(np.mean(each))
                study[f"{question}_{name}_{what}_{case}"] = BenchmarkFigure(mean, "share", min(each), max(each), count)


def _censor(values: Floats, watched: float, planted: float) -> tuple[Floats, Floats]:
    """Return both ends of the recoveries, with those longer than `watched` censored."""
    values = values.copy()
    values[:, 1] += planted
    return np.minimum(values, watched), np.where(values > watched, math.inf, values)


def _shares(none: Floats, one: Floats) -> tuple[float, float, float]:
    """Return error, coverage and power of a method, from its lower ends, upper ends and p, some of which are NaN."""

    def claims(found: Floats) -> Bools:
        beyond: Bools = (found[:, 0] > 0) | (found[:, 1] < 0)
        return np.where(np.isnan(found[:, 2]), beyond, found[:, 2] <= ALPHA)

    covers = math.nan if np.isnan(one[:, 1]).all() else ((one[:, 0] <= PLANTED) & (one[:, 1] >= PLANTED)).mean()
    return float(claims(none).mean()), float(covers), float(claims(one).mean())


def run_values(low: Floats, high: Floats) -> tuple[Floats, Floats]:
    """Return the value of each run: medians of both ends of its recoveries."""
    return np.median(low, axis=3), np.median(high, axis=3)


def paired(low: Floats, high: Floats, rng: np.random.Generator) -> Floats:
    """Student's t of paired differences; with censored values, signed ranks of six pairs or more, else rank sums."""
    low, high = run_values(low, high)
    return _or_ranks(_student_of_pairs(low), low, high, rank_sums if low.shape[2] < LEAST_SIGNED else _signed)


def unpaired(low: Floats, high: Floats, rng: np.random.Generator) -> Floats:
    """Student's t of two samples of run values; with censored values, rank sums."""
    low, high = run_values(low, high)
    runs, means = low.shape[2], low.mean(axis=2)
    error = np.sqrt(low.var(axis=2, ddof=1).sum(axis=1) / runs)
    return _or_ranks(_around(means[:, 1] - means[:, 0], error, 2 * runs - 2), low, high, rank_sums)


def signed_ranks(low: Floats, high: Floats, rng: np.random.Generator) -> Floats:
    """Student's t of paired differences; with censored values, Wilcoxon's signed ranks for any number of pairs."""
    low, high = run_values(low, high)
    return _or_ranks(_student_of_pairs(low), low, high, _signed)


def _or_ranks(closed: Floats, low: Floats, high: Floats, ranks: Callable[[Floats, Floats], Floats]) -> Floats:
    """Return the result for studies without censored values, and ranks for the others."""
    is_open = np.isinf(high).any(axis=(1, 2))
    closed[is_open] = ranks(low[is_open], high[is_open])
    return closed


def rank_sums(low: Floats, high: Floats) -> Floats:
    """Mann and Whitney's test and its interval of shifts, at both ends of the values.

    Ties, and pairs of infinite values, count half. p follows from the normal distribution.
    """
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
    """Return the values of each row at this rank (from 1) from both sides, NaN last; infinite for rank below 1."""
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
    """Wilcoxon's interval over both ends of the values; a pair of infinite values counts as a zero difference."""
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
    """Test by sign flips of paired differences; infinite ones count like the largest finite one. Gives p only."""
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
    """Gehan's permutation test of all runs, in which a censored run counts as the longer one. Gives p only."""
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
    """Bias-corrected bootstrap of the difference of medians; plain percentiles with infinite values."""
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
        deviation = np.concatenate([left[0] - left[0].mean(axis=1, keepdims=True),
                              left[1].mean(axis=1, keepdims=True) - left[1]], axis=1)  # fmt: skip
        speed = np.nan_to_num((deviation**3).sum(axis=1) / (6 * (deviation**2).sum(axis=1) ** 1.5 + 1e-300))
    bias = np.where(np.isinf(value).any(axis=(1, 2)), 0.0, bias)
    z = stats.norm.ppf([ALPHA / 2, 1 - ALPHA / 2])
    moved = bias[:, None] + z
    at = stats.norm.cdf(bias[:, None] + moved / (1 - speed[:, None] * moved))
    places = np.clip((at * RESAMPLES).astype(int), 0, RESAMPLES - 1)
    return _interval(*drawn[np.arange(draws)[:, None], places].T)


def resampled(low: Floats, high: Floats, rng: np.random.Generator) -> Floats:
    """Percentiles of the mean difference, with runs resampled and then recoveries within each."""
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
    """Treat recoveries as independent runs."""
    shape = (len(low), 2, low.shape[2] * low.shape[3], 1)
    return paired(low.reshape(shape), high.reshape(shape), rng)


Method = Callable[[Floats, Floats, np.random.Generator], Floats]
# Methods, those in use first, each with the stride of the studies that it judges.
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
    """Return the probability of each sum of positive ranks among `runs` differences."""
    chances = np.ones(1)
    for rank in range(1, runs + 1):
        chances = (np.pad(chances, (0, rank)) + np.pad(chances, (rank, 0))) / 2
    return chances
