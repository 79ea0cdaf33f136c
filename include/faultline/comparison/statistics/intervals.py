"""Intervals by bootstrap: of a median, and of how much one median is more than another."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from faultline.comparison.statistics.sample import Floats, Sample, median_of

CONFIDENCE = 0.95
RESAMPLES = 2_000
SEED = 1


@dataclass(frozen=True)
class Interval:
    """A figure with its 95 % interval; an end that nobody knows is infinite."""

    value: float
    low: float
    high: float


def median_interval(sample: Sample) -> Interval | None:
    """The median with its interval: BCa (Efron 1987), or of a sample with censored values the plain percentiles.
    None for fewer than two values."""
    if len(sample) < 2:
        return None
    if any(sample.censored):
        return _percentiles(sample.median, _resampled(sample, np.random.default_rng(SEED)))
    return _bca((np.array(sample.values),), lambda x, axis: np.median(x, axis=axis), sample.median)


def change_interval(before: Sample, after: Sample) -> Interval | None:
    """The median of `after` as a share of that of `before`, less 1: 0.1 is ten percent more. With its interval.

    None for fewer than two values on a side, and where the median before is 0, infinite or unknown.
    """
    if len(before) < 2 or len(after) < 2 or not before.median or not math.isfinite(before.median):
        return None
    value = after.median / before.median - 1
    if any(before.censored) or any(after.censored):
        # One generator for both sides: resamples of one are independent of the other's.
        rng = np.random.default_rng(SEED)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = _resampled(after, rng) / _resampled(before, rng) - 1
        # Neither side ended in half of a resample: nobody knows which is more.
        return _percentiles(value, np.sort(ratios[~np.isnan(ratios)]))

    def ratio(x: Floats, y: Floats, axis: int) -> Any:
        return np.median(y, axis=axis) / np.median(x, axis=axis) - 1

    return _bca((np.array(before.values), np.array(after.values)), ratio, value)


def _bca(samples: tuple[Floats, ...], statistic: Any, value: float) -> Interval:
    options = {"vectorized": True, "confidence_level": CONFIDENCE, "n_resamples": RESAMPLES}
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        # Of values that are all the same, every resample is; BCa then divides by 0, and says so.
        warnings.simplefilter("ignore")
        for method in ("BCa", "percentile"):
            rng = np.random.default_rng(SEED)
            found = stats.bootstrap(samples, statistic, method=method, rng=rng, **options).confidence_interval
            if not (math.isnan(found.low) or math.isnan(found.high)):
                return Interval(value, float(found.low), float(found.high))
    return Interval(value, -math.inf, math.inf)


def _resampled(sample: Sample, rng: np.random.Generator) -> Floats:
    """Medians of resamples, in order of drawing."""
    values, censored = np.array(sample.values), np.array(sample.censored, dtype=np.bool_)
    drawn = rng.integers(0, len(values), (RESAMPLES, len(values)))
    return np.array([median_of(values[rows], censored[rows]) for rows in drawn])


def _percentiles(value: float, medians: Floats) -> Interval:
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(medians, (tail, 1 - tail), method="inverted_cdf")
    return Interval(value, float(low), float(high))
