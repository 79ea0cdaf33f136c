"""Bias of figures caused by background CPU, by the cores lost to it (4 hours).

Measured in blocks, each of which has every neighbour once, in random order: none, none again, and one for each kind and
share. A pair is the first one without a neighbour and another one of the same block. The limit of the rule
`background-load` is where the bias of a figure exceeds the scatter of one repetition without a neighbour.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
from scipy import stats

from benchmarks.blocks import measure_blocks, run_until_usable
from benchmarks.broken_sweeps import BenchmarkLog
from benchmarks.figure import BenchmarkFigure, summarise
from benchmarks.installation import exclusive
from benchmarks.monte_carlo import Floats
from benchmarks.neighbours.neighbour import KINDS, neighbour
from faultline.cli.service_control import bring_up
from faultline.records.catalogue import CPU_PER_MILLION, MACRO, value_of
from faultline.records.index_entry import IndexEntry
from faultline.records.judge.validity import UNMET
from faultline.records.record import Record
from faultline.system.errors import InfrastructureError
from faultline.system.text import Progress

SHARES, QUICK_SHARES = (0.1, 0.2, 0.4, 0.8), (0.4,)
BLOCKS, QUICK_BLOCKS = 10, 1
FIGURES = {"p50": "latency_ms.p50", "cpu": CPU_PER_MILLION, "recovery": MACRO}
LOST = ("waited.others", "waited.worst_5s")
# The default word count with an executor kill.
PARAMETERS = ("fault=executor", "checkpoint_interval_s=2", "warmup_s=20", "duration_s=70")
QUICK_PARAMETERS = ("fault=executor", "checkpoint_interval_s=1", "warmup_s=10", "duration_s=50")
# No experiment of these takes longer, waiting included.
LONGEST_S = 3600.0
SEED = 2031
MEASURED = "measured"


@dataclass(frozen=True)
class Neighbour:
    """A neighbour of a block; `share` 0: none. `kind` tells both without one apart."""

    kind: str
    share: float

    @property
    def name(self) -> str:
        """`steady_10`: in percent of a core."""
        return f"{self.kind}_{self.share * 100:.0f}"


QUIET, AGAIN = Neighbour("quiet", 0.0), Neighbour("again", 0.0)
# Of one experiment: figures by name, and what it lost.
Values = Mapping[str, float | None]
Block = Mapping[str, Values]


def run(say: Progress, quick: bool) -> dict[str, BenchmarkFigure]:
    """Ten blocks of ten experiments (four hours), or one of three when `quick`; resumed where it was interrupted.

    Of each NEIGHBOUR: `NEIGHBOUR_p50_bias`, `…_cpu_bias`, `…_recovery_bias`: change against the quiet run of the block,
    as a share, with its 95 % interval; `…_lost`, `…_worst_5s`: cores lost. `scatter_FIGURE`: standard deviation of one
    repetition, as a share; `limit_FIGURE`: cores lost at which the bias reaches it, by a line through the origin.
    """
    settings = bring_up(say)
    shares, blocks = (QUICK_SHARES, QUICK_BLOCKS) if quick else (SHARES, BLOCKS)
    place = settings.home / "bench" / ("disturbance-quick" if quick else "disturbance")
    with exclusive(place):
        place.mkdir(exist_ok=True)
        diary = BenchmarkLog(place / "diary.jsonl", MEASURED)
        found = measure(diary, neighbours(shares, quick), blocks, QUICK_PARAMETERS if quick else PARAMETERS, say)
        diary.move_aside()
    made = figures(found)
    for name, figure in made.items():
        say(f"{name}: {figure.value:.3f} {figure.unit} ({figure.low:.3f} to {figure.high:.3f}, n = {figure.n})")
    return made


def neighbours(shares: Sequence[float], quick: bool) -> list[Neighbour]:
    """Those of one block; when `quick` of one kind."""
    kinds = KINDS[1:] if quick else KINDS
    return [QUIET, AGAIN, *(Neighbour(kind, share) for share in shares for kind in kinds)]


def measure(
    diary: BenchmarkLog, of_block: Sequence[Neighbour], blocks: int, parameters: Sequence[str], say: Progress
) -> list[Block]:
    """The values of each block by neighbour; what the diary has is not measured again."""
    known = {(line["block"], line["neighbour"]): line for line in diary.acts}
    series = next((line["series"] for line in diary.acts), f"disturbance-{datetime.now(UTC):%Y%m%dT%H%M%SZ}")

    def values(one: Neighbour, number: int) -> Values | None:
        if (line := known.get((number, one.name))) is None:
            words = [*parameters, f"repetition={number}", f"series={series}-{one.name}"]
            record = measure_one(one, words, say)
            found = None if record is None else values_of(record)
            line = {"block": number, "neighbour": one.name, "series": series, "values": found}
            diary.note(MEASURED, number=len(diary.acts), **line)
            say(f"block {number + 1} of {blocks}, {one.name}: {_text(found)}")
        known_values: Values | None = line["values"]
        return known_values

    made = measure_blocks(of_block, blocks, SEED, values, say)
    return [{one.name: value for one, value in block.items() if value is not None} for block in made]


def measure_one(one: Neighbour, words: Sequence[str], say: Progress) -> Record | None:
    """A record in which at most the neighbour was wrong; None where there is none in as many measurements as a cell
    has."""
    return run_until_usable(words, say, usable=_usable, during=lambda: neighbour(one.kind, one.share, LONGEST_S))


def _usable(record: Record) -> bool:
    codes = {reason.partition(":")[0] for reason in record.reasons}
    return record.status in ("valid", "unmet", "invalid") and codes <= {"background-load", *UNMET}


def values_of(record: Record) -> dict[str, float | None]:
    """The figures and what was lost, by name."""
    entry = IndexEntry.of(record)
    keys = {**FIGURES, **{key.partition(".")[2]: key for key in LOST}}
    return {name: value_of(entry, key) for name, key in keys.items()}


def figures(blocks: Sequence[Block]) -> dict[str, BenchmarkFigure]:
    """The figures of all blocks. Raises InfrastructureError when no block has both without a neighbour."""
    if not any(len(pairs_of(blocks, AGAIN.name, figure)) for figure in FIGURES):
        raise InfrastructureError("no block has both experiments without a neighbour; see their records")
    names = list(dict.fromkeys(name for block in blocks for name in block if name != QUIET.name))
    return {**_biases(blocks, names), **_limits(blocks, names)}


def _biases(blocks: Sequence[Block], names: Sequence[str]) -> dict[str, BenchmarkFigure]:
    """By neighbour, what it changed and what was lost to it."""
    found: dict[str, BenchmarkFigure] = {}
    for name in names:
        for figure in FIGURES:
            if bias := bias_of(pairs_of(blocks, name, figure)[:, 1]):
                found[f"{name}_{figure}_bias"] = bias
        for key, lost in (("lost", "others"), ("worst_5s", "worst_5s")):
            values = [value for block in blocks if (value := block.get(name, {}).get(lost)) is not None]
            if values:
                found[f"{name}_{key}"] = summarise(values, "cores")
    return found


def _limits(blocks: Sequence[Block], names: Sequence[str]) -> dict[str, BenchmarkFigure]:
    """By figure, the scatter of one repetition, and the loss at which the change reaches it."""
    found: dict[str, BenchmarkFigure] = {}
    for figure in FIGURES:
        scatter = scatter_of(pairs_of(blocks, AGAIN.name, figure)[:, 1])
        if scatter is None:
            continue
        found[f"scatter_{figure}"] = scatter
        points = np.concatenate([pairs_of(blocks, name, figure) for name in names])
        if (limit := limit_of(points, scatter.value)) is not None:
            found[f"limit_{figure}"] = limit
    return found


def pairs_of(blocks: Sequence[Block], name: str, figure: str) -> Floats:
    """Of each block that has both: cores lost more than in the quiet run (NaN: unknown), and the logarithm of the
    figure with this neighbour ÷ the quiet one; shape (n, 2)."""
    found = []
    for block in blocks:
        quiet, other = block.get(QUIET.name, {}), block.get(name, {})
        if (before := quiet.get(figure)) and (after := other.get(figure)):
            lost = [one.get("others") for one in (quiet, other)]
            more = math.nan if lost[0] is None or lost[1] is None else lost[1] - lost[0]
            found.append((more, math.log(after / before)))
    return np.array(found).reshape(-1, 2)


def scatter_of(logs: Floats) -> BenchmarkFigure | None:
    """Standard deviation of one repetition, by the pairs of two without a neighbour; None with fewer than two pairs.
    `low`, `high`: its 95 % interval."""
    if len(logs) < 2:
        return None
    n = len(logs)
    # A difference has the variance of both; nothing is planted, so its mean is known to be 0.
    total = float(np.sum(np.square(logs))) / 2
    low, high = (math.sqrt(total / stats.chi2.ppf(q, n)) for q in (0.975, 0.025))
    return BenchmarkFigure(math.sqrt(total / n), "1", low, high, n)


def bias_of(logs: Floats) -> BenchmarkFigure | None:
    """The change as a share, with its 95 % interval by t; of one pair there is none, and the ends are the value."""
    if not len(logs):
        return None
    mean, half = float(np.mean(logs)), 0.0
    if len(logs) > 1:
        half = float(stats.t.ppf(0.975, len(logs) - 1) * np.std(logs, ddof=1) / math.sqrt(len(logs)))
    low, value, high = (math.expm1(one) for one in (mean - half, mean, mean + half))
    return BenchmarkFigure(value, "1", low, high, len(logs))


def limit_of(points: Floats, scatter: float) -> BenchmarkFigure | None:
    """Cores lost at which the change reaches the scatter, by the line through the origin that fits best; its ends by
    the 95 % interval of the slope. None where it is not shown that the figure grows with the loss."""
    points = points[~np.isnan(points[:, 0])]
    lost, change = points.T
    if len(points) < 3 or not np.any(lost > 0):
        return None
    squares = float(np.sum(lost**2))
    slope = float(np.sum(lost * change)) / squares
    error = math.sqrt(float(np.sum((change - slope * lost) ** 2)) / (len(points) - 1) / squares)
    half = float(stats.t.ppf(0.975, len(points) - 1)) * error
    if slope <= half or slope == 0:
        return None
    return BenchmarkFigure(scatter / slope, "cores", scatter / (slope + half), scatter / (slope - half), len(points))


def _text(values: Values | None) -> str:
    if values is None:
        return "no usable record"
    return ", ".join(f"{name} {value:.3f}" for name, value in values.items() if value is not None)
