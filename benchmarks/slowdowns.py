"""Regression gate on real slowdowns: 5, 10 and 20 % of CPU time added to a query (1 hour).

Each block contains every build once, in random order: the unchanged one, and one per planted share of additional work.
A pair consists of the unchanged build and another one of the same block; pairs are judged like those of a nightly run.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

from benchmarks.blocks import measure_blocks, run_until_usable
from benchmarks.figure import BenchmarkFigure, exact_figure
from faultline.comparison.compare import metrics_named
from faultline.comparison.config_points import interval_of
from faultline.comparison.regression_gate.nightly_pairs import change_text
from faultline.comparison.regression_gate.verdict import CellVerdict, PairedRun, Pairs, judge_gate
from faultline.comparison.statistics.estimate import ValueRange
from faultline.engines.spark.conf_rules import BUSY
from faultline.experiment.matrices import MOST_MEASUREMENTS
from faultline.records.catalogue import CPU_PER_MILLION
from faultline.records.index_entry import IndexEntry
from faultline.records.record import Record
from faultline.system.errors import InfrastructureError
from faultline.system.text import Progress

# Added CPU time of the engine per record, as a share.
PLANTED = (0.05, 0.10, 0.20)
BLOCKS, QUICK_BLOCKS = 8, 1
FIGURES = {"cpu": CPU_PER_MILLION, "p50": "latency_ms.p50", "p99": "latency_ms.p99"}
# A short word count without a fault; its window has about forty batches.
PARAMETERS = ("fault=none", "checkpoint_interval_s=1", "warmup_s=20", "duration_s=45")
QUICK_PARAMETERS = ("fault=none", "checkpoint_interval_s=1", "warmup_s=5", "duration_s=15")
SEED = 2029

Block = Mapping[float, Record]


def run(progress: Progress, quick: bool) -> dict[str, BenchmarkFigure]:
    """Run eight blocks of four experiments, or a single block if `quick`, which is too few for a verdict.

    `busy_us`: CPU time per record, in microseconds, that makes ten percent more. `FIGURE_PERCENT_change`: change of the
    metric with its 95 % interval; `…_suspected`: 1 if a nightly run with these pairs suspects a regression;
    `…_visible`: minimum detectable effect within two runs at 80 % power, by the variation of these pairs.
    """
    parameters, blocks = (QUICK_PARAMETERS, QUICK_BLOCKS) if quick else (PARAMETERS, BLOCKS)
    plain = measure(parameters, 0, 0.0, progress)
    cost_us = _cost_us(plain)
    progress(f"engine CPU per record: {cost_us:,.0f} µs; ten percent: {cost_us / 10:,.1f} µs")
    found = measure_blocks(
        (0.0, *PLANTED),
        blocks,
        SEED,
        lambda share, number: measure(parameters, number, share * cost_us, progress),
        progress,
    )
    return {"busy_us": exact_figure(cost_us / 10, "µs"), **figures(found, progress)}


def figures(blocks: Sequence[Block], progress: Progress) -> dict[str, BenchmarkFigure]:
    """Return the gate's result for each metric and planted share."""
    found: dict[str, BenchmarkFigure] = {}
    for share in PLANTED:
        for name, key in FIGURES.items():
            verdict = judge_blocks(blocks, share, key)
            progress(
                f"{share:.0%} more work, {verdict.metric.name if verdict.metric else key}: {verdict_text(verdict)}"
            )
            at = f"{name}_{share * 100:.0f}"
            if (change := change_of(verdict)) is not None:
                found[f"{at}_change"] = change
            found[f"{at}_suspected"] = exact_figure(float(verdict.since is not None), "1", verdict.pairs)
            if verdict.detectable is not None and math.isfinite(verdict.detectable):
                found[f"{at}_visible"] = exact_figure(verdict.detectable, "1", verdict.pairs)
    return found


def judge_blocks(blocks: Sequence[Block], share: float, key: str) -> CellVerdict:
    """Return the verdict on one metric of a nightly run with this share of added work."""
    (metric,) = metrics_named([key])
    values: list[tuple[ValueRange, ValueRange]] = []
    for block in blocks:
        before, after = (interval_of(IndexEntry.of(block[each]), key) for each in (0.0, share))
        if before is not None and after is not None:
            values.append((before, after))
    pairs = Pairs.of("word_count", f"{share:.0%}", metric, values, len(blocks))
    (verdict,) = judge_gate([PairedRun("2026-01-01", f"{share:.0%}", "plain", (pairs,))]).cells
    return verdict


def change_of(verdict: CellVerdict) -> BenchmarkFigure | None:
    """Return the increase of a metric with its 95 % interval; None if that is infinite."""
    change = verdict.change
    if change is None or not (math.isfinite(change.low) and math.isfinite(change.high)):
        return None
    return BenchmarkFigure(change.value, "1", change.low, change.high, verdict.pairs)


def measure(parameters: Sequence[str], repetition: int, busy_us: float, progress: Progress) -> Record:
    """Return a usable record; a disturbed experiment is repeated, but not the others of its block.

    Raises InfrastructureError if the maximum number of measurements of a cell is exceeded.
    """
    build = {"settings": {BUSY: round(busy_us, 3)}} if busy_us else {}
    words = [*parameters, f"repetition={repetition}", *([f"build_spec={json.dumps(build)}"] if build else [])]
    if (record := run_until_usable(words, progress)) is None:
        raise InfrastructureError(f"bench: no usable record after {MOST_MEASUREMENTS} measurements; see their reasons")
    return record


def _cost_us(record: Record) -> float:
    """Return the engine's CPU time per record, in microseconds."""
    per_million = record.metrics.cpu_s_per_million
    if per_million is None or per_million.engine is None:
        raise InfrastructureError(f"{record.attempt}: engine CPU per record unknown; see its recorder")
    return per_million.engine


def verdict_text(verdict: CellVerdict) -> str:
    """Return a verdict as one line."""
    detectable = "unknown" if verdict.detectable is None else f"{verdict.detectable:.0%}"
    found = f"{verdict.status}, {change_text(verdict.change)}, n = {verdict.pairs} pairs, p = {verdict.p:.2g}"
    return f"{found}, detectable {detectable}"
