"""Experiments in blocks: each block measures every side once, in random order."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

from faultline.cli.run_one import run_single
from faultline.experiment.matrices import MOST_MEASUREMENTS
from faultline.records.record import Record
from faultline.system.text import Say

S = TypeVar("S")


def in_random_order(sides: Iterable[S], seed: int, block: int) -> list[S]:
    """Return the sides in the order of this block, which is the same each time."""
    order = list(sides)
    random.Random(f"{seed}/{block}").shuffle(order)
    return order


def measured(
    words: Sequence[str],
    say: Say,
    *,
    usable: Callable[[Record], bool] = lambda record: record.sound,
    beside: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> Record | None:
    """Run a word count until its record is usable, at most as often as a cell is measured; None if none is. `beside`:
    what goes on during each experiment."""
    for _ in range(MOST_MEASUREMENTS):
        with beside():
            record = run_single("word_count", list(words), lambda text: None, keep_topics=False)
        if usable(record):
            return record
        say(f"{record.attempt} is {record.status}: {'; '.join(record.reasons)}; measured again")
    return None
