"""Bias of figures caused by background CPU, by the cores lost to it (4 hours).

A *neighbour* is a process that uses CPU next to an experiment. Each block consists of two runs without a neighbour and
one run for each kind and share of a neighbour, in random order. A pair is the first run without a neighbour and another
run of the same block. The limit of the rule `background-load` is the loss of cores at which the bias of a figure
exceeds the variation of one repetition.
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
# Default word count with an executor kill.
PARAMETERS = ("fault=executor", "checkpoint_interval_s=2", "warmup_s=20", "duration_s=70")
QUICK_PARAMETERS = ("fault=executor", "checkpoint_interval_s=1", "warmup_s=10", "duration_s=50")
# Longest duration of an experiment, including the wait for its start.
LONGEST_S = 3600.0
SEED = 2031
MEASURED = "measured"


@dataclass(frozen=True)
class Neighbour:
    """Neighbour of one run; `share` 0: none, in which case `kind` distinguishes the two runs of a block."""

    kind: str
    share: float

    @property
    def name(self) -> str:
        """Name with the share in percent of a core: `steady_10`."""
        return f"{self.kind}_{self.share * 100:.0f}"


QUIET, AGAIN = Neighbour("quiet", 0.0), Neighbour("again", 0.0)
# Figures and lost cores of one experiment by name.
Values = Mapping[str, float | None]
Block = Mapping[str, Values]


def run(progress: Progress, quick: bool) -> dict[str, BenchmarkFigure]:
    """Run ten blocks of ten experiments (four hours), or one of three if `quick`; an interrupted call resumes.

    For each NEIGHBOUR: `NEIGHBOUR_p50_bias`, `…_cpu_bias`, `…_recovery_bias`: relative change from the quiet run of the
    block, with its 95 % interval; `…_lost`, `…_worst_5s`: cores lost. `scatter_FIGURE`: relative standard deviation of
    one repetition; `limit_FIGURE`: cores lost at which the bias reaches it, by a line through the origin.
    """
    settings = bring_up(progress)
    shares, blocks = (QUICK_SHARES, QUICK_BLOCKS) if quick else (SHARES, BLOCKS)
    folder = settings.home / "bench" / ("disturbance-quick" if quick else "disturbance")
    with exclusive(folder):
        folder.mkdir(exist_ok=True)
        diary = BenchmarkLog(folder / "diary.jsonl", MEASURED)
        found = measure(diary, neighbours(shares, quick), blocks, QUICK_PARAMETERS if quick else PARAMETERS, progress)
        diary.move_aside()
    made = figures(found)
    for name, figure in made.items():
        progress(f"{name}: {figure.value:.3f} {figure.unit} ({figure.low:.3f} to {figure.high:.3f}, n = {figure.n})")
    return made


def neighbours(shares: Sequence[float], quick: bool) -> list[Neighbour]:
    """Return the neighbours of one block; only one kind if `quick`."""
    kinds = KINDS[1:] if quick else KINDS
    return [QUIET, AGAIN, *(Neighbour(kind, share) for share in shares for kind in kinds)]


def measure(
    diary: BenchmarkLog, of_block: Sequence[Neighbour], blocks: int, parameters: Sequence[str], progress: Progress
) -> list[Block]:
    """Return the values of each block by neighbour; logged ones are not measured again."""
    known = {(line["block"], line["neighbour"]): line for line in diary.acts}
    series = next((line["series"] for line in diary.acts), f"disturbance-{datetime.now(UTC):%Y%m%dT%H%M%SZ}")

    def values(one: Neighbour, number: int) -> Values | None:
        if (line := known.get((number, one.name))) is None:
            words = [*parameters, f"repetition={number}", f"series={series}-{one.name}"]
            record = measure_one(one, words, progress)
            found = None if record is None else values_of(record)
            line = {"block": number, "neighbour": one.name, "series": series, "values": found}
            diary.note(MEASURED, number=len(diary.acts), **line)
            progress(f"block {number + 1} of {blocks}, {one.name}: {_text(found)}")
        known_values: Values | None = line["values"]
        return known_values

    made = measure_blocks(of_block, blocks, SEED, values, progress)
    return [{one.name: value for one, value in block.items() if value is not None} for block in made]


def measure_one(one: Neighbour, words: Sequence[str], progress: Progress) -> Record | None:
    """Return a record with no problem other than the neighbour; None after the maximum number of measurements."""
    return run_until_usable(words, progress, usable=_usable, during=lambda: neighbour(one.kind, one.share, LONGEST_S))


def _usable(record: Record) -> bool:
    codes = {reason.partition(":")[0] for reason in record.reasons}
    return record.status in ("valid", "unmet", "invalid") and codes <= {"background-load", *UNMET}


def values_of(record: Record) -> dict[str, float | None]:
    """Return figures and lost cores by name."""
    entry = IndexEntry.of(record)
    keys = {**FIGURES, **{key.partition(".")[2]: key for key in LOST}}
    return {name: value_of(entry, key) for name, key in keys.items()}


def figures(blocks: Sequence[Block]) -> dict[str, BenchmarkFigure]:
    """Return the figures of all blocks. Raises InfrastructureError if no block has both quiet runs."""
    if not any(len(pairs_of(blocks, AGAIN.name, figure)) for figure in FIGURES):
        raise InfrastructureError("bench disturbance: no block has both quiet runs; see their records")
    names = list(dict.fromkeys(name for block in blocks for name in block if name != QUIET.name))
    return {**_biases(blocks, names), **_limits(blocks, names)}


def _biases(blocks: Sequence[Block], names: Sequence[str]) -> dict[str, BenchmarkFigure]:
    """Return the bias and the lost cores by neighbour."""
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
    """Return the variation of one repetition by figure, and the loss at which the bias reaches it."""
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
    """Return for each block with both runs the extra cores lost (NaN: unknown) and the log ratio of the figure.

    Shape (n, 2).
    """
    found = []
    for block in blocks:
        quiet, other = block.get(QUIET.name, {}), block.get(name, {})
        if (before := quiet.get(figure)) and (after := other.get(figure)):
            lost = [one.get("others") for one in (quiet, other)]
            more = math.nan if lost[0] is None or lost[1] is None else lost[1] - lost[0]
            found.append((more, math.log(after / before)))
    return np.array(found).reshape(-1, 2)


def scatter_of(logs: Floats) -> BenchmarkFigure | None:
    """Return the standard deviation of one repetition by the quiet pairs; None with fewer than two pairs.

    `low`, `high`: its 95 % interval.
    """
    if len(logs) < 2:
        return None
    n = len(logs)
    # A difference has the variances of both runs; both are quiet, so its mean is known to be 0.
    total = float(np.sum(np.square(logs))) / 2
    low, high = (math.sqrt(total / stats.chi2.ppf(q, n)) for q in (0.975, 0.025))
    return BenchmarkFigure(math.sqrt(total / n), "1", low, high, n)


def bias_of(logs: Floats) -> BenchmarkFigure | None:
    """Return the relative change with its 95 % interval by t; for a single pair, without interval."""
    if not len(logs):
        return None
    mean, half = float(np.mean(logs)), 0.0
    if len(logs) > 1:
        half = float(stats.t.ppf(0.975, len(logs) - 1) * np.std(logs, ddof=1) / math.sqrt(len(logs)))
    low, value, high = (math.expm1(one) for one in (mean - half, mean, mean + half))
    return BenchmarkFigure(value, "1", low, high, len(logs))


def limit_of(points: Floats, scatter: float) -> BenchmarkFigure | None:
    """Return the cores lost at which the bias reaches the variation, by the best line through the origin.

    `low` and `high` follow from the 95 % interval of the slope. None if the figure does not increase significantly with
    the loss.
    """
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
