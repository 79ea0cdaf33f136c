"""The gate of a night whose build and baseline were measured in pairs: what changed, how sure that is, since when.

A pair is one repetition of one configuration by both builds, one directly after the other. Each configuration has one
primary figure, named before anything is measured; of its pairs only the logarithm of tonight ÷ baseline counts, so
that neither the level of a configuration nor the hour matters. Their mean is tested by Student's t, once
for each configuration and once over all of them; of what then looks worse no more than a small share is chance, however
many configurations there are (Benjamini & Hochberg 1995). One such night is a suspicion. A regression is red when the
next night agrees, or when it is certain beyond doubt at once. What cannot be told is red, too: a gate that measured
nothing has let nothing through.

How often it is wrong and what it sees: `./faultline bench gate`, by which its thresholds were chosen.
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

# Shares of false discoveries: of a suspicion, which the next night must share, and of what is certain at once. A season
# of 90 equal nights is red by mistake in 3 % of seasons: see docs/explanation/comparing.md.
SUSPECTED, CERTAIN = 0.02, 0.0001
# Of a change that is said to be seen: four times in five within two nights, so in each of them more often.
POWER = 0.8
# A change of which all pairs are without an end has at least the size of a doubling, for all that is known.
CENSORED_SIZE = math.log(2.0)
# The configurations together, among the tests of a night.
POOLED = "all configurations together"


class GateStatus(StrEnum):
    """What a night says of one configuration."""

    WORSE = "worse"
    SUSPECTED = "suspected"
    BETTER = "better"
    NO_CHANGE = "no change detected"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True)
class Pairs:
    """One configuration's pairs of one night, of `planned` ones those that both builds have a sound record of.

    `low`, `high`: the ends between which the logarithm of tonight ÷ baseline lies, infinite where one of both was not
    seen to end; more is worse, whatever the figure.
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
        """From (baseline, tonight) of each pair, in the figure's units. Values of 0 or less have no ratio: left out."""
        usable = [(a, b) for a, b in values if a.high > 0 and b.high > 0]
        ends = [(logarithm_of(b.low, a.high), logarithm_of(b.high, a.low)) for a, b in usable]
        if metric.better == MORE:
            ends = [(-high, -low) for low, high in ends]
        return cls(config_id, name, metric, tuple(low for low, _ in ends), tuple(high for _, high in ends), planned)

    def __len__(self) -> int:
        return len(self.low)


@dataclass(frozen=True)
class PairedRun:
    """A night: its date (ISO 8601), the builds of both sides, its pairs, and why it is broken, if it is."""

    date: str
    build: str | None
    baseline: str | None
    cells: tuple[Pairs, ...]
    problem: str = ""


SUSPICIOUS = frozenset({GateStatus.WORSE, GateStatus.SUSPECTED})


@dataclass(frozen=True)
class CellVerdict:
    """What a night says of one configuration, or of all together.

    `change`: tonight as a share of the baseline, less 1, in the figure's own direction, with its 95 % interval; None
    without pairs. `q`: share of false discoveries among all that look at least as bad (or as good). `detectable`: the
    change, for the worse, that would have been seen within two nights four times in five; None where nobody knows.
    `since`: the first night of the unbroken run of suspicion.
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
        """By what it is found in another night."""
        return self.config_id, self.metric.key if self.metric else ""


@dataclass(frozen=True)
class GateVerdict:
    """A night's verdict. `problems`: why the gate is red although nothing is known to be worse."""

    night: PairedRun
    cells: tuple[CellVerdict, ...]
    problems: tuple[str, ...]

    def of(self, finding: GateStatus) -> list[CellVerdict]:
        """The cells of which this is said."""
        return [one for one in self.cells if one.status is finding]

    @property
    def red(self) -> bool:
        """Whether the gate is shut."""
        return bool(self.problems or self.of(GateStatus.WORSE))


def judge_gate(nights: Sequence[PairedRun]) -> GateVerdict:
    """The verdict on the last of `nights`; those before it, the oldest first, tell whether it is the second that says
    so. Only nights with the same baseline as the last one count."""
    if not nights:
        raise ValueError("no night")
    night = nights[-1]
    found = judge_cells(night.cells)
    # What those before say is only asked for where it matters.
    doubtful = any(one.status in SUSPICIOUS for one in found)
    earlier = [one for one in reversed(nights[:-1]) if one.baseline == night.baseline] if doubtful else []
    before = {other.date: {one.key: one.status for one in judge_cells(other.cells)} for other in earlier}
    cells = tuple(_since(one, before, night.date) for one in found)
    return GateVerdict(night, cells, tuple(_problems(night, cells)))


def count_tests(cells: int) -> int:
    """How many tests a night of so many configurations makes: each, and all together where there are several."""
    return cells + 1 if cells > 1 else cells


def min_pairs(cells: int) -> int:
    """With fewer pairs of a configuration nothing could be suspected, however large the change."""
    return next(n for n in range(1, 64) if count_tests(cells) * min_p(n) <= SUSPECTED)


def min_p(pairs: int) -> float:
    """The smallest p that so many pairs give: that of all signs being one way by chance."""
    return float(2.0**-pairs)


def p_above(differences: Sequence[float]) -> float:
    """One-sided: how often a mean as large as this one comes by chance alone. 1 of no pairs.

    Student's t, and where a pair has no end Wilcoxon's signed ranks; never less than the signs alone could give.
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
    """With what has no end as large as the largest that has one."""
    largest = max((abs(one) for one in values if math.isfinite(one)), default=0.0) or CENSORED_SIZE
    return [one if math.isfinite(one) else math.copysign(largest, one) for one in values]


def cell_p_values(cells: Sequence[Pairs]) -> list[tuple[float, float, float, float]]:
    """Of each configuration, and then of all together where there are several: p and q of its being worse, and of its
    being better. Those with too few pairs to tell count as 1.

    The end that proves least of each pair is taken: the lower one for worse, the upper one for better.
    """
    need = min_pairs(len(cells))
    worse, better = [], []
    for one in cells:
        enough = len(one) >= need
        worse.append(p_above(one.low) if enough else 1.0)
        better.append(p_above([-value for value in one.high]) if enough else 1.0)
    if len(cells) > 1:
        # What scatters less says more; a scale by size alone is the same whatever the signs.
        told = [one for one in cells if len(one) >= need]
        scaled = [(value / _size(one) for value in one.low) for one in told]
        worse.append(p_above([value for values in scaled for value in values]))
        scaled = [(-value / _size(one) for value in one.high) for one in told]
        better.append(p_above([value for values in scaled for value in values]))
    return list(zip(worse, false_discoveries(worse), better, false_discoveries(better), strict=True))


def share_of(logarithm: float, metric: Metric | None) -> float:
    """A change for the worse, by its logarithm, as a share in the figure's own direction: 0.1 is ten percent more."""
    signed = -logarithm if metric is not None and metric.better == MORE else logarithm
    return share_of_ratio(signed)


def judge_cells(cells: Sequence[Pairs]) -> list[CellVerdict]:
    """What a night says by itself of each configuration, and then of all together; worse is only what is certain."""
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


def _since(one: CellVerdict, before: Mapping[str, Mapping[tuple[str, str], GateStatus]], night: str) -> CellVerdict:
    """With since when. `before`: findings of earlier nights, the newest first.

    A suspicion that the night before shares is a regression. Nights that could not tell neither share nor end it.
    """
    if one.status not in SUSPICIOUS:
        return one
    since, nights = night, 1
    for date, findings in before.items():
        finding = findings.get(one.key, GateStatus.INCONCLUSIVE)
        if finding in SUSPICIOUS:
            since, nights = date, nights + 1
        elif finding is not GateStatus.INCONCLUSIVE:
            break
    return replace(one, status=GateStatus.WORSE if nights > 1 else one.status, since=since, nights=nights)


def _with_pooled_cell(cells: Sequence[Pairs]) -> list[Pairs]:
    """The configurations, and all their pairs as those of one more where there are several."""
    if len(cells) < 2:
        return list(cells)
    low = tuple(value for cell in cells for value in cell.low)
    high = tuple(value for cell in cells for value in cell.high)
    planned = sum(cell.planned for cell in cells)
    return [*cells, Pairs("", POOLED, cells[0].metric, low, high, planned)]


def _problems(night: PairedRun, cells: Sequence[CellVerdict]) -> list[str]:
    """Why nothing that is said of this night, or of a configuration, lets anything through."""
    if night.problem:
        return [night.problem]
    if not any(len(cell) for cell in night.cells):
        return ["nothing was measured by both builds"]
    need = min_pairs(len(night.cells))
    return [
        f"{cell.name}: {cell.pairs} of {cell.planned} pairs are usable; at least {need} are needed"
        for cell in cells
        if cell.status is GateStatus.INCONCLUSIVE and cell.config_id
    ]


def _size(cell: Pairs) -> float:
    """Root of the mean square of both ends: what it scatters, whatever the signs."""
    values = np.array([*replace_infinite(cell.low), *replace_infinite(cell.high)])
    return float(np.sqrt((values**2).mean())) or 1.0


def _change(cell: Pairs, metric: Metric | None) -> Interval | None:
    """The mean ratio with its 95 % interval; the end of a pair that has none is no end of the mean either."""
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
    """By the scatter of the ends that count for worse, and how far they lie below the middle."""
    low, high, n = replace_infinite(cell.low), replace_infinite(cell.high), len(cell)
    # Of all together each is scaled by its own scatter, so that no one share would be seen in all of them.
    if n < 2 or not cell.config_id or min_p(n) > SUSPECTED / tests:
        return None
    blur = float(np.mean(high) - np.mean(low)) / 2
    # One-sided, and in both of two nights.
    seen = (
        detectable_effect(float(np.std(low, ddof=1)), 1 / math.sqrt(n), n - 1, 2 * SUSPECTED / tests, math.sqrt(POWER))
        + blur
    )
    return abs(share_of(seen, metric))
