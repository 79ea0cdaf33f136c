"""Calibration of two-level statistics: error rate and coverage where recoveries of one run resemble each other.

Two sides of `runs` runs with `recoveries` recoveries each are drawn with a known intraclass correlation (share of the
variance that lies between runs), normal or heavy-tailed (t with 3 degrees of freedom at both levels), all recoveries
seen to end or the longest tenth not. Three analyses are compared:

- `run_values`: that of the product. The value of a run is the median of its recoveries, and runs are compared by
  Student's t, by signed ranks where an end is open.
- `resampled`: percentile bootstrap of runs, then of recoveries within runs.
- `pooled`: recoveries taken for repetitions, as though they were independent.

Pure computing: the same figures on each machine. The A/A test on real runs, which takes runs of one configuration for
two sides at random:

    python -m benchmarks.truth.levels RESULTS
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from benchmarks.figure import Figure
from faultline.comparison.statistics.intervals import CONFIDENCE
from faultline.comparison.statistics.pairs import Between, Row, estimate
from faultline.comparison.statistics.sample import Floats
from faultline.records.recoveries import Bounds, value_of_run
from faultline.records.store import Store
from faultline.records.summary import Entry
from faultline.system.text import Say

CORRELATIONS = (0.0, 0.2, 0.4, 0.6, 0.8)
RUNS = (2, 3, 5, 10)
RECOVERIES = (1, 2, 3, 5)
NOISES = ("normal", "heavy")
CENSORED = (0.0, 0.1)
# Difference for coverage and power, in standard deviations of one recovery.
PLANTED = 1.0
DRAWS, QUICK_DRAWS = 1000, 20
# Resampling one draw takes a hundred times as long as a t.
RESAMPLED_EVERY, RESAMPLES = 5, 400
# Fewer runs of a configuration make no two sides of an A/A test.
LEAST_RUNS, SPLITS = 4, 1000
ALPHA = 1 - CONFIDENCE
SEED = 2044
_METHODS = ("run_values", "resampled", "pooled")


@dataclass(frozen=True)
class Design:
    """One cell of the calibration. `watched`: longest recovery that is seen to end."""

    correlation: float
    runs: int
    recoveries: int
    noise: str
    censored: float

    def draw(self, draws: int, shift: float, rng: np.random.Generator) -> tuple[Floats, Floats]:
        """Lower and upper ends of the recoveries, each of shape (draw, side, run, recovery); the second side is `shift`
        longer."""
        watched = self.watched()
        between = standard(self.noise, (draws, 2, self.runs, 1), rng)
        within = standard(self.noise, (draws, 2, self.runs, self.recoveries), rng)
        values = math.sqrt(self.correlation) * between + math.sqrt(1 - self.correlation) * within
        values[:, 1] += shift
        return np.minimum(values, watched), np.where(values > watched, math.inf, values)

    def watched(self) -> float:
        """The quantile beyond which a recovery of the first side is not seen to end."""
        if not self.censored:
            return math.inf
        rng = np.random.default_rng(SEED)
        parts = [standard(self.noise, (100_000,), rng) for _ in range(2)]
        whole = math.sqrt(self.correlation) * parts[0] + math.sqrt(1 - self.correlation) * parts[1]
        return float(np.quantile(whole, 1 - self.censored))


@dataclass(frozen=True)
class Outcome:
    """Draws of one design under one method: claims without a difference, intervals that hold the planted difference,
    and claims with it, of `draws` each."""

    errors: int
    covered: int
    seen: int
    draws: int


def standard(noise: str, shape: tuple[int, ...], rng: np.random.Generator) -> Floats:
    """Values of mean 0 and variance 1."""
    if noise == "normal":
        return rng.standard_normal(shape)
    return rng.standard_t(3, shape) / math.sqrt(3.0)


def run(say: Say, quick: bool) -> dict[str, dict[str, Any]]:
    """1,000 draws of each design without and with a difference, 200 of them resampled 400 times; 20 and 4 if `quick`.

    `METHOD_error_NOISE[_censored]_RUNS`: draws without a difference that are called different, over all correlations
    and numbers of recoveries; `low` and `high` are the least and the largest of these designs. `…_coverage_…`:
    intervals that hold a planted difference of one standard deviation; `…_seen_…`: such draws called different.
    `pooled_error_at_CORRELATION_RECOVERIES`: the error of pooling, over all numbers of runs, without censoring.
    """
    draws = QUICK_DRAWS if quick else DRAWS
    found: dict[Design, dict[str, Outcome]] = {}
    for noise, censored, runs in itertools.product(NOISES, CENSORED, RUNS):
        for correlation, recoveries in itertools.product(CORRELATIONS, RECOVERIES):
            design = Design(correlation, runs, recoveries, noise, censored)
            found[design] = calibrate(design, draws)
        same = [one for design, one in found.items() if (design.noise, design.censored, design.runs) ==
                (noise, censored, runs)]  # fmt: skip
        rates = [f"{name} {_rate([one[name] for one in same], 'errors').value:.1%}" for name in _METHODS]
        say(f"{noise}, {censored:.0%} not seen to end, {runs} runs a side: error {', '.join(rates)}")
    return {name: asdict(figure) for name, figure in _figures(found).items()}


def calibrate(design: Design, draws: int) -> dict[str, Outcome]:
    """Error, coverage and power of each method in `draws` draws of a design."""
    shares = (round(100 * one) for one in (design.correlation, design.censored))
    rng = np.random.default_rng([SEED, *shares, design.runs, design.recoveries, NOISES.index(design.noise)])
    equal, planted = (design.draw(draws, shift, rng) for shift in (0.0, PLANTED))
    found = {}
    for name in _METHODS:
        some = slice(None, None, RESAMPLED_EVERY if name == "resampled" else 1)
        none, one = (intervals(name, low[some], high[some], rng) for low, high in (equal, planted))
        found[name] = Outcome(
            errors=int(((none[:, 0] > 0) | (none[:, 1] < 0)).sum()),
            covered=int(((one[:, 0] <= PLANTED) & (PLANTED <= one[:, 1])).sum()),
            seen=int(((one[:, 0] > 0) | (one[:, 1] < 0)).sum()),
            draws=len(none),
        )
    return found


def intervals(method: str, low: Floats, high: Floats, rng: np.random.Generator) -> Floats:
    """The 95 % intervals of how much longer the second side is, of shape (draw, end). `low`, `high`: ends of shape
    (draw, side, run, recovery)."""
    if method == "resampled":
        return np.array([resampled(*one, rng) for one in zip(low, high, strict=True)])
    if method == "run_values":
        low, high = np.median(low, axis=3), np.median(high, axis=3)
    low, high = low.reshape(len(low), 2, -1), high.reshape(len(high), 2, -1)
    # What `estimate` computes where all values are known; it takes a hundred times as long.
    differences = low[:, 1] - low[:, 0]
    mean, pairs = differences.mean(axis=1), differences.shape[1]
    reach = stats.t.ppf(1 - ALPHA / 2, pairs - 1) * differences.std(axis=1, ddof=1) / math.sqrt(pairs)
    found = np.stack((mean - reach, mean + reach), axis=1)
    for number in np.flatnonzero((low != high).any(axis=(1, 2))):
        change = estimate([row(low[number], high[number])]).change
        found[number] = change.low, change.high
    return found


def row(low: Floats, high: Floats) -> Row:
    """Values of shape (side, number) as the product compares them."""
    sides = [{number: Between(float(a), float(b)) for number, (a, b) in enumerate(zip(*each, strict=True))}
             for each in zip(low, high, strict=True)]  # fmt: skip
    return Row(sides[0], sides[1])


def resampled(low: Floats, high: Floats, rng: np.random.Generator) -> tuple[float, float]:
    """Percentiles of the mean difference of run values, over resamples of runs and then of recoveries within them."""
    _, runs, recoveries = low.shape
    chosen = rng.integers(0, runs, (RESAMPLES, 1, runs, 1))
    within = rng.integers(0, recoveries, (RESAMPLES, 2, runs, recoveries))
    side = np.arange(2).reshape(1, 2, 1, 1)
    found = []
    for ends in (low, high):
        values = np.median(ends[side, chosen, within], axis=3)
        with np.errstate(invalid="ignore"):
            found.append((values[:, 1] - values[:, 0]).mean(axis=1))
    tail = ALPHA / 2
    lows = [np.quantile(np.where(np.isnan(one), -math.inf, one), tail, method="inverted_cdf") for one in found]
    highs = [np.quantile(np.where(np.isnan(one), math.inf, one), 1 - tail, method="inverted_cdf") for one in found]
    return float(min(lows)), float(max(highs))


def _figures(found: Mapping[Design, Mapping[str, Outcome]]) -> dict[str, Figure]:
    figures = {}
    for noise, censored, method in itertools.product(NOISES, CENSORED, _METHODS):
        for runs in RUNS:
            same = [each[method] for one, each in found.items() if (one.noise, one.censored, one.runs) ==
                    (noise, censored, runs)]  # fmt: skip
            place = f"{noise}{'_censored' if censored else ''}_{runs}"
            for figure, counted in (("error", "errors"), ("coverage", "covered"), ("seen", "seen")):
                figures[f"{method}_{figure}_{place}"] = _rate(same, counted)
    for correlation, recoveries in itertools.product(CORRELATIONS, RECOVERIES):
        same = [each["pooled"] for one, each in found.items() if (one.correlation, one.recoveries, one.censored) ==
                (correlation, recoveries, 0.0)]  # fmt: skip
        figures[f"pooled_error_at_{correlation:g}_{recoveries}"] = _rate(same, "errors")
    return figures


def _rate(outcomes: Sequence[Outcome], counted: str) -> Figure:
    """A share over all designs; its ends are those of single designs, which scatter by chance, too."""
    each = [getattr(one, counted) / one.draws for one in outcomes]
    draws = sum(one.draws for one in outcomes)
    return Figure(sum(getattr(one, counted) for one in outcomes) / draws, "share", min(each), max(each), draws)


@dataclass(frozen=True)
class Split:
    """A/A test of one configuration: share of `SPLITS` random splits of its runs that are called different, by run
    values and with recoveries pooled. Splits share runs, so their number makes the share no more exact."""

    config_id: str
    runs: int
    recoveries: int
    run_values: float
    pooled: float


def split_runs(config_id: str, runs: Sequence[Sequence[Bounds]], splits: int = SPLITS, seed: int = SEED) -> Split:
    """Split the runs of one configuration at random into two equal sides, `splits` times. `runs`: recoveries of each,
    LEAST_RUNS at least; of an odd number one is left out, another one each time."""
    rng, half, alarms = np.random.default_rng(seed), len(runs) // 2, {"run_values": 0, "pooled": 0}
    each = [[Between(one.low, math.inf if one.high is None else one.high) for one in run] for run in runs]
    ends = [value_of_run([(one.low, one.high) for one in run]) for run in runs]
    values = [Between(low, math.inf if high is None else high) for low, high in ends]
    for _ in range(splits):
        order = rng.permutation(len(runs))[: 2 * half].tolist()
        sides = order[:half], order[half:]
        paired = Row(*({n: values[one] for n, one in enumerate(side)} for side in sides))
        # Numbers that both sides share would make pairs.
        pools = [[one for number in side for one in each[number]] for side in sides]
        pooled = Row(dict(enumerate(pools[0])), dict(enumerate(pools[1], start=len(pools[0]))))
        for name, one in (("run_values", paired), ("pooled", pooled)):
            alarms[name] += estimate([one]).p <= ALPHA
    total = sum(map(len, runs))
    return Split(config_id, len(runs), total, alarms["run_values"] / splits, alarms["pooled"] / splits)


def splits_of(entries: Sequence[Entry], splits: int = SPLITS) -> list[Split]:
    """The A/A test of each configuration of each series of which LEAST_RUNS valid runs have recoveries."""
    groups: dict[tuple[str, str], list[tuple[Bounds, ...]]] = {}
    for one in entries:
        if one.status == "valid" and one.recoveries:
            groups.setdefault((one.config_id, one.group), []).append(one.recoveries)
    return [split_runs(name, runs, splits) for (name, _), runs in groups.items() if len(runs) >= LEAST_RUNS]


def _main(results: Path) -> None:
    for one in splits_of([Entry.of(record) for record in Store(results).query(status="valid")]):
        print(
            f"{one.config_id}: {one.runs} runs, {one.recoveries} recoveries: called different {one.run_values:.1%} by "
            f"run values, {one.pooled:.1%} with recoveries pooled"
        )


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
