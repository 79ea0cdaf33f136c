"""Cost of passwords and encryption: ten pairs of runs with and without (45 minutes).

Each experiment starts its own services, with or without authentication; the order within a pair is random. Pairs are
judged like those of a nightly run.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from benchmarks.blocks import measure_blocks
from benchmarks.figure import BenchmarkFigure
from benchmarks.installation import own_home
from benchmarks.slowdowns import (
    FIGURES,
    PARAMETERS,
    QUICK_PARAMETERS,
    Block,
    change_of,
    judge_blocks,
    measure,
    verdict_text,
)
from faultline.installation.supervision import NO_AUTH
from faultline.records.record import Record
from faultline.system.text import Progress

PAIRS, QUICK_PAIRS = 10, 1
SEED = 2031
# The two sides of a pair.
_OPEN, _CLOSED = 0.0, 1.0


def run(progress: Progress, quick: bool) -> dict[str, BenchmarkFigure]:
    """Run ten pairs, or a single one if `quick`, which is too few for a verdict.

    `FIGURE_change`: change of the metric with its 95 % interval.
    """
    parameters, pairs = (QUICK_PARAMETERS, QUICK_PAIRS) if quick else (PARAMETERS, PAIRS)

    def measure_side(side: float, number: int) -> Record:
        os.environ[NO_AUTH] = "1" if side == _OPEN else ""
        return measure(parameters, number, 0.0, progress)

    with own_home("authentication"):
        measured = measure_blocks((_OPEN, _CLOSED), pairs, SEED, measure_side, progress)
    return figures(measured, progress)


def figures(pairs: Sequence[Block], progress: Progress) -> dict[str, BenchmarkFigure]:
    """Return the increase of each metric with authentication."""
    found = {}
    for name, key in FIGURES.items():
        verdict = judge_blocks(pairs, _CLOSED, key)
        progress(f"authentication, {verdict.metric.name if verdict.metric else key}: {verdict_text(verdict)}")
        if (change := change_of(verdict)) is not None:
            found[f"{name}_change"] = change
    return found
