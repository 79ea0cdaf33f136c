"""The verdict on two sides of one figure: better, worse, the same, or nobody can tell."""

from __future__ import annotations

import math
import statistics
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from scipy import stats

from faultline.comparison.statistics import LEAST
from faultline.comparison.statistics.intervals import Interval, change_interval
from faultline.comparison.statistics.ranks import holm, needed_shift, p_value, shift
from faultline.comparison.statistics.sample import Sample

ALPHA = 0.05
# A difference smaller than this share of the figure is none that anybody minds.
NEGLIGIBLE = 0.05
# Series whose medians say how much one differs from another.
LEAST_SERIES = 3

Key = TypeVar("Key", bound=Hashable)


class Verdict(StrEnum):
    """What became of a figure."""

    BETTER = "better"
    WORSE = "worse"
    SAME = "same"
    CANNOT_TELL = "cannot tell"


@dataclass(frozen=True)
class Comparison:
    """Two sides of one figure.

    `p`: corrected for the other comparisons of the family. `change`: median after as a share of the median before,
    less 1, with its interval. `detectable`: the smallest such share that would have been seen four times in five and
    believed, None when none would. `floor`: how much runs without a fault differ anyway. `why`: what keeps it from a
    verdict.
    """

    before: Sample
    after: Sample
    verdict: Verdict
    p: float
    change: Interval | None
    detectable: float | None
    floor: float
    why: str = ""


def compare(
    pairs: Mapping[Key, tuple[Sample, Sample]], *, lower_is_better: bool, floors: Mapping[Key, float] | None = None
) -> dict[Key, Comparison]:
    """Compares one figure across cells: (before, after) by cell, corrected for their number.

    `floors`: by cell, the share by which runs differ that nothing was done to. A difference is believed when its p is
    at most 0.05 and it is larger than that and than 5 %; it is none when its whole interval lies within 5 %.
    """
    judged = {key: pair for key, pair in pairs.items() if min(map(len, pair)) >= LEAST}
    adjusted = holm({key: p_value(*pair) for key, pair in judged.items()})
    return {
        key: _compare(pair, adjusted.get(key, 1.0), len(judged), lower_is_better, (floors or {}).get(key, 0.0))
        for key, pair in pairs.items()
    }


def detectable(before: Sample, after: Sample, alpha: float = ALPHA) -> float | None:
    """The smallest change, as a share of the median before, that samples like these show in four cases of five.

    From the spread of the known values of both sides, as if they were normal. None when samples of these sizes never
    give a p as small as `alpha`, or when nothing is known of the spread.
    """
    needed = needed_shift(len(before), len(after), alpha)
    sides = [side.known for side in (before, after) if len(side.known) > 1]
    if needed is None or not sides or not before.median or math.isinf(before.median):
        return None
    freedom = sum(len(side) - 1 for side in sides)
    deviation = math.sqrt(sum(statistics.variance(side) * (len(side) - 1) for side in sides) / freedom)
    return needed * deviation / abs(before.median)


def between(series: Sequence[Sample]) -> float:
    """By which share one more series, such as a night, may differ from these although nothing changed.

    The half-width of the 95 % prediction interval of their medians: what disturbs a machine for an hour moves all
    repetitions of a night together, and no number of them shows that. 0 for fewer than LEAST_SERIES known medians.
    """
    medians = [one.median for one in series if len(one) and math.isfinite(one.median)]
    if len(medians) < LEAST_SERIES or not (mean := statistics.fmean(medians)):
        return 0.0
    quantile = stats.t.ppf(1 - ALPHA / 2, len(medians) - 1)
    return float(quantile * statistics.stdev(medians) * math.sqrt(1 + 1 / len(medians)) / abs(mean))


def _compare(pair: tuple[Sample, Sample], p: float, family: int, lower_is_better: bool, floor: float) -> Comparison:
    before, after = pair
    if (fewest := min(len(before), len(after))) < LEAST:
        why = f"{fewest} of {LEAST} repetitions"
        return Comparison(before, after, Verdict.CANNOT_TELL, p, change_interval(*pair), None, floor, why)
    change, seen = change_interval(*pair), detectable(before, after, ALPHA / max(family, 1))
    # What is seen and lies within the floor is not believed.
    seen = None if seen is None else max(seen, floor, NEGLIGIBLE)
    verdict = _verdict(pair, p, change, lower_is_better, floor)
    why = ""
    if verdict is Verdict.CANNOT_TELL and p <= ALPHA and floor > NEGLIGIBLE:
        why = f"runs without a fault, or nights, differ by {floor:.0%} anyway"
    elif verdict is Verdict.CANNOT_TELL and (not before.median or not math.isfinite(before.median)):
        why = "a change has no share of what was 0 before" if not before.median else "half of them never ended before"
    return Comparison(before, after, verdict, p, change, seen, floor, why)


def _verdict(
    pair: tuple[Sample, Sample], p: float, change: Interval | None, lower_is_better: bool, floor: float
) -> Verdict:
    before, after = pair
    if len({*before.values, *after.values}) == 1 and not any((*before.censored, *after.censored)):
        return Verdict.SAME
    # However much nights differ: what they hide nobody can tell, and it is not the same.
    if change is not None and -NEGLIGIBLE <= change.low and change.high <= NEGLIGIBLE:
        return Verdict.SAME
    larger = after.median - before.median
    if math.isnan(larger):  # of neither side half has ended, but one ended more often, or sooner
        larger = shift(before, after)
    if p > ALPHA or not larger or (change is not None and abs(change.value) <= max(NEGLIGIBLE, floor)):
        return Verdict.CANNOT_TELL
    return Verdict.BETTER if (larger < 0) == lower_is_better else Verdict.WORSE
