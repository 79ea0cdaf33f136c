"""Cycles of a checkpoint, from the files that begin them."""

from __future__ import annotations

import os
import time
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from faultline.engines.spark.progress import await_cycle

NS = 10**9


@settings(deadline=None, max_examples=20)
@given(instants=st.lists(st.integers(1, 1000), min_size=1, max_size=8, unique=True), start=st.integers(0, 1100))
def test_the_first_cycle_from_an_instant_on_is_found_in_whatever_order_files_lie(
    tmp_path_factory: object, instants: list[int], start: int
) -> None:
    checkpoint: Path = tmp_path_factory.mktemp("checkpoint")  # type: ignore[attr-defined]
    (checkpoint / "commits").mkdir()
    for number, at in enumerate(instants):
        file = checkpoint / "commits" / str(number)
        file.touch()
        os.utime(file, ns=(at * NS, at * NS))
    (checkpoint / "commits" / ".5.tmp").touch()
    later = [at * NS for at in instants if at >= start]
    found = await_cycle(checkpoint, "checkpoint", start * NS, time.monotonic_ns() + 5_000_000)
    assert found == (min(later) if later else None)
