"""Experiments in blocks: each block measures every side once, in random order."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

from faultline.cli.run_command import run_single
from faultline.experiment.matrices import MOST_MEASUREMENTS
from faultline.records.record import Record
from faultline.system.text import Progress

S = TypeVar("S")
V = TypeVar("V")


def measure_blocks(
    sides: Sequence[S], blocks: int, seed: int, measure: Callable[[S, int], V], progress: Progress
) -> list[dict[S, V]]:
    """Measure every side once per block, in a reproducible random order."""
    found = []
    for number in range(blocks):
        order = list(sides)
        random.Random(f"{seed}/{number}").shuffle(order)
        found.append({side: measure(side, number) for side in order})
        progress(f"block {number + 1} of {blocks}: measured")
    return found


def run_until_usable(
    words: Sequence[str],
    progress: Progress,
    *,
    usable: Callable[[Record], bool] = lambda record: record.is_usable,
    during: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> Record | None:
    """Run a word count until its record is usable; return None if no attempt that a cell may have was.

    `during`: returns a context in which each experiment runs.
    """
    for _ in range(MOST_MEASUREMENTS):
        with during():
            record = run_single("word_count", list(words), lambda text: None, keep_topics=False)
        if usable(record):
            return record
        progress(f"{record.attempt} is {record.status}: {'; '.join(record.reasons)}; measuring again")
    return None
