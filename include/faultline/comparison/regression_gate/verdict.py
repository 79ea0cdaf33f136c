"""Regression gate for a nightly run whose build and reference build were measured in pairs.

A pair is one repetition of one configuration by both builds, one directly after the other. Each configuration has one
primary metric, chosen before the measurement. Only the logarithm of the ratio of both builds counts, so neither the
level of a configuration nor the time of day matters. The mean is tested by Student's t, for each configuration and for
all pooled, at a controlled false discovery rate (Benjamini and Hochberg 1995). A significant result in one run is a
suspicion. It becomes a regression if the next run agrees, or at once if the result is certain. A run without enough
pairs fails the gate as well, because nothing was verified.

False-alarm rate and power, by which the thresholds were chosen: `./faultline bench gate`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from scipy import stats

from faultline.comparison.statistics.estimate import (
    CONFIDENCE,
    Interval,
    ValueRange,
    detectable_effect,
    false_discoveries,
    logarithm_of,
)
from faultline.comparison.statistics.estimate import share_of as share_of_ratio
from faultline.records.columns import MORE, Metric

# False discovery rates of a suspicion, which the next run must confirm, and of a certain regression. In 90 runs without
# any change, the probability of a false alarm is 3 %, see docs/explanation/comparing.md.
SUSPECTED, CERTAIN = 0.02, 0.0001
# Power that two runs have together; each of them needs more.
POWER = 0.8
# Assumed change if all pairs are infinite: a doubling.
CENSORED_SIZE = math.log(2.0)
# Name of the pooled configurations.
POOLED = "all configurations together"


class GateStatus(StrEnum):
    """Status of one configuration in one nightly run."""

    WORSE = "worse"
    SUSPECTED = "suspected"
    BETTER = "better"
    NO_CHANGE = "no change detected"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True)
class Pairs:
    """Usable pairs of one configuration in one nightly run; `planned`: number of planned pairs.

    `low`, `high`: per pair, the range of the logarithm of the ratio to the reference build, with the sign chosen so
    that more is worse; infinite if a side is censored.
    """

    config_id: str
    name: str
    metric: Metric
    low: tuple[float, ...]
    high: tuple[float, ...]
    planned: int

    @classmethod
    def of(
        cls, config_id: str, name: str, metric: Metric, values: Sequence[tuple[ValueRange, ValueRange]], planned: int
    ) -> Pairs:
        """Return the pairs from (reference, build) values in the metric's unit; values of 0 or less have no ratio."""
        usable = [(a, b) for a, b in values if a.high > 0 and b.high > 0]
        ends = [(logarithm_of(b.low, a.high), logarithm_of(b.high, a.low)) for a, b in usable]
        if metric.better == MORE:
            ends = [(-high, -low) for low, high in ends]
        return cls(config_id, name, metric, tuple(low for low, _ in ends), tuple(high for _, high in ends), planned)

    def __len__(self) -> int:
        return len(self.low)


@dataclass(frozen=True)
class PairedRun:
    """A nightly run with its date (ISO 8601), both builds and its pairs; `problem`: why it failed, or empty."""

    date: str
    build: str | None
    baseline: str | None
    cells: tuple[Pairs, ...]
    problem: str = ""


SUSPICIOUS = frozenset({GateStatus.WORSE, GateStatus.SUSPECTED})


@dataclass(frozen=True)
class CellVerdict:
    """Verdict on one configuration, or on all pooled.

    `change`: relative change of the metric from the reference build, with its 95 % interval; None without pairs. `q`:
    false discovery rate among all configurations that look at least as bad (or as good). `detectable`: deterioration
    that two runs detect with 80 % power; None if unknown. `since`: first of the consecutive runs with the suspicion;
    `nights`: their number.
    """

    name: str
    metric: Metric | None
    config_id: str
    status: GateStatus
    pairs: int
    planned: int
    change: Interval | None
    p: float
    q: float
    detectable: float | None
    since: str | None = None
    nights: int = 0

    @property
    def key(self) -> tuple[str, str]:
        """Identity of the configuration in other runs."""
        return self.config_id, self.metric.key if self.metric else ""


@dataclass(frozen=True)
class GateVerdict:
    """Verdict on a nightly run. `problems`: why the gate fails without a known regression."""

    run: PairedRun
    cells: tuple[CellVerdict, ...]
    problems: tuple[str, ...]

    def of(self, finding: GateStatus) -> list[CellVerdict]:
        """Return the cells with this status."""
        return [one for one in self.cells if one.status is finding]

    @property
    def red(self) -> bool:
        """Whether the gate fails."""
        return bool(self.problems or self.of(GateStatus.WORSE))


def judge_gate(runs: Sequence[PairedRun]) -> GateVerdict:
    """Return the verdict on the last of `runs`, which are in order of date.

    A suspicion is confirmed by earlier runs with the same reference build.
    """
    if not runs:
        raise ValueError("runs: empty; expected at least one")
    run = runs[-1]
    found = judge_cells(run.cells)
    # Earlier runs matter only for a suspicion.
    doubtful = any(one.status in SUSPICIOUS for one in found)
    earlier = [one for one in reversed(runs[:-1]) if one.baseline == run.baseline] if doubtful else []
    before = {other.date: {one.key: one.status for one in judge_cells(other.cells)} for other in earlier}
    cells = tuple(_since(one, before, run.date) for one in found)
    return GateVerdict(run, cells, tuple(_problems(run, cells)))


def count_tests(cells: int) -> int:
    """Return the number of tests: one per configuration, and one for all pooled if there are several."""
    return cells + 1 if cells > 1 else cells


def min_pairs(cells: int) -> int:
    """Return the number of pairs per configuration below which no change, however large, is significant."""
    return next(n for n in range(1, 64) if count_tests(cells) * min_p(n) <= SUSPECTED)


def min_p(pairs: int) -> float:
    """Return the smallest p that this number of pairs can reach: the probability that all signs agree by chance."""
    return float(2.0**-pairs)


def p_above(differences: Sequence[float]) -> float:
    """Return the one-sided p of a positive mean; 1 without pairs.

    The test is Student's t, or Wilcoxon's signed ranks if a pair is infinite; p is never below `min_p`.
    """
    values = np.asarray(differences, dtype=np.float64)
    if len(values) < 2 or not values.any():
        return 1.0
    if not np.isfinite(values).all():
        p = float(stats.wilcoxon(values, alternative="greater", zero_method="zsplit").pvalue)
    else:
        mean, error = float(values.mean()), float(values.std(ddof=1)) / math.sqrt(len(values))
        p = float(stats.t.sf(mean / error, len(values) - 1)) if error else float(mean <= 0)
    return max(p, min_p(len(values)))


def replace_infinite(values: Sequence[float]) -> list[float]:
    """Return the values, with infinite ones replaced by the largest finite absolute value (the sign is kept)."""
    largest = max((abs(one) for one in values if math.isfinite(one)), default=0.0) or CENSORED_SIZE
    return [one if math.isfinite(one) else math.copysign(largest, one) for one in values]


def cell_p_values(cells: Sequence[Pairs]) -> list[tuple[float, float, float, float]]:
    """Return p and q of being worse and of being better, per configuration and for all pooled.

    A configuration with too few pairs has p 1. The conservative end of each pair counts: the lower one for worse, the
    upper one for better.
    """
    needed = min_pairs(len(cells))
    worse, better = [], []
    for one in cells:
        enough = len(one) >= needed
        worse.append(p_above(one.low) if enough else 1.0)
        better.append(p_above([-value for value in one.high]) if enough else 1.0)
    if len(cells) > 1:
        # Scaling gives configurations with less variation more weight. The scale must not depend on the signs, so it is
        # the size, not the standard deviation.
        sufficient = [one for one in cells if len(one) >= needed]
        scaled = [(value / _size(one) for value in one.low) for one in sufficient]
        worse.append(p_above([value for values in scaled for value in values]))
        scaled = [(-value / _size(one) for value in one.high) for one in sufficient]
        better.append(p_above([value for values in scaled for value in values]))
    return list(zip(worse, false_discoveries(worse), better, false_discoveries(better), strict=True))


def share_of(logarithm: float, metric: Metric | None) -> float:
    """Return the relative change of the metric for a deterioration given as a logarithm: 0.1 is 10 % more."""
    signed = -logarithm if metric is not None and metric.better == MORE else logarithm
    return share_of_ratio(signed)


def judge_cells(cells: Sequence[Pairs]) -> list[CellVerdict]:
    """Return the verdicts of a single run, per configuration and pooled; worse only if certain."""
    need, every = min_pairs(len(cells)) if cells else 1, _with_pooled_cell(cells)
    found = []
    for cell, (p, q, p_better, q_better) in zip(every, cell_p_values(cells), strict=True):
        if len(cell) < need:
            finding = GateStatus.INCONCLUSIVE
        elif q <= SUSPECTED:
            finding = GateStatus.WORSE if q <= CERTAIN else GateStatus.SUSPECTED
        else:
            finding = GateStatus.BETTER if q_better <= SUSPECTED else GateStatus.NO_CHANGE
        metric, good = cell.metric if cell.config_id else None, finding is GateStatus.BETTER
        found.append(CellVerdict(
            cell.name, metric, cell.config_id, finding, len(cell), cell.planned, _change(cell, metric),
            p_better if good else p, q_better if good else q, _detectable(cell, metric, len(every)),
        ))  # fmt: skip
    return found


def _since(one: CellVerdict, before: Mapping[str, Mapping[tuple[str, str], GateStatus]], run_date: str) -> CellVerdict:
    """Return the verdict with `since` and `nights`. `before`: statuses of earlier runs, the newest first.

    A suspicion that the previous run shares is a regression. A run without a result is skipped.
    """
    if one.status not in SUSPICIOUS:
        return one
    since, count = run_date, 1
    for date, findings in before.items():
        finding = findings.get(one.key, GateStatus.INCONCLUSIVE)
        if finding in SUSPICIOUS:
            since, count = date, count + 1
        elif finding is not GateStatus.INCONCLUSIVE:
            break
    return replace(one, status=GateStatus.WORSE if count > 1 else one.status, since=since, nights=count)


def _with_pooled_cell(cells: Sequence[Pairs]) -> list[Pairs]:
    """Return the configurations, and one more with all their pairs if there are several."""
    if len(cells) < 2:
        return list(cells)
    low = tuple(value for cell in cells for value in cell.low)
    high = tuple(value for cell in cells for value in cell.high)
    planned = sum(cell.planned for cell in cells)
    return [*cells, Pairs("", POOLED, cells[0].metric, low, high, planned)]


def _problems(run: PairedRun, cells: Sequence[CellVerdict]) -> list[str]:
    """Return why the run or a configuration has no result."""
    if run.problem:
        return [run.problem]
    if not any(len(cell) for cell in run.cells):
        return ["no pair was measured by both builds"]
    need = min_pairs(len(run.cells))
    return [
        f"{cell.name}: {cell.pairs} of {cell.planned} pairs are usable; at least {need} are needed"
        for cell in cells
        if cell.status is GateStatus.INCONCLUSIVE and cell.config_id
    ]


def _size(cell: Pairs) -> float:
    """Return the root mean square of all lower and upper ends, a scale that does not depend on signs."""
    values = np.array([*replace_infinite(cell.low), *replace_infinite(cell.high)])
    return float(np.sqrt((values**2).mean())) or 1.0


def _change(cell: Pairs, metric: Metric | None) -> Interval | None:
    """Return the mean ratio with its 95 % interval; an infinite pair makes that end of the interval infinite."""
    if not len(cell):
        return None
    low, high = np.array(replace_infinite(cell.low)), np.array(replace_infinite(cell.high))
    middle, n = float((low + high).mean() / 2), len(low)
    reach = float(stats.t.ppf((1 + CONFIDENCE) / 2, n - 1)) / math.sqrt(n) if n > 1 else math.inf
    ends = [
        -math.inf if -math.inf in cell.low or n < 2 else min(middle, low.mean() - reach * low.std(ddof=1)),
        math.inf if math.inf in cell.high or n < 2 else max(middle, high.mean() + reach * high.std(ddof=1)),
    ]
    shares = [share_of(float(one), metric) for one in (middle, *ends)]
    return Interval(shares[0], min(shares), max(shares))


def _detectable(cell: Pairs, metric: Metric | None, tests: int) -> float | None:
    """Return the minimum detectable effect, from the variation of the lower ends; None if unknown."""
    low, high, n = replace_infinite(cell.low), replace_infinite(cell.high), len(cell)
    # Pooled configurations are scaled by their own variation, so no common share is detectable.
    if n < 2 or not cell.config_id or min_p(n) > SUSPECTED / tests:
        return None
    blur = float(np.mean(high) - np.mean(low)) / 2
    # The test is one-sided, and both of two runs must detect the change.
    seen = (
        detectable_effect(float(np.std(low, ddof=1)), 1 / math.sqrt(n), n - 1, 2 * SUSPECTED / tests, math.sqrt(POWER))
        + blur
    )
    return abs(share_of(seen, metric))
