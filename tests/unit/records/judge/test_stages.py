"""What the stages of a topology did, read from their journal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from faultline.records.judge.counts import chain_work, store_was_not_read, unstored
from faultline.records.judge.work import acknowledging
from faultline.records.record import StagesPart
from faultline.system.journal import Events, by_event
from faultline.system.window import Window

WINDOW = Window.of(1_000, 0.0, 10.0, 1.0)


def journal(*lines: dict[str, Any]) -> Events:
    return by_event({"wall_ns": 2_000, **line} for line in lines)


def test_an_attempt_without_stages_has_no_such_work(tmp_path: Path) -> None:
    assert chain_work(journal(), None, tmp_path, WINDOW) is None


def test_totals_are_those_after_the_gate(tmp_path: Path) -> None:
    replaced = {"event": "replaced", "stage": "split"}
    lines = journal(
        {"event": "signal", "act": "slow", "wall_ns": 999},
        {"event": "signal", "act": "slow"},
        {"event": "signal", "act": "ease"},
        {"event": "failed", "count": 3},
        {"event": "failed", "count": 4},
        {"event": "set_aside", "count": 2},
        {**replaced, "gap_s": 0.25},
        {**replaced, "gap_s": 0.75},
        {"event": "batch", "stage": "split", "seconds": 1.5},
        {"event": "batch", "stage": "count", "seconds": 9.0},
        {"event": "queued", "stage": "split", "most": 900, "wall_ns": 999},
        {"event": "queued", "stage": "split", "most": 10},
        {"event": "queued", "stage": "count", "most": 70},
        {"event": "queued", "stage": "count", "most": 20},
    )
    assert chain_work(lines, None, tmp_path, WINDOW) == StagesPart(
        signals=1, failed=7, set_aside=2, replacements=2, gap_s=0.75, batch_s=1.5, most_queued=70, unstored=None
    )


@pytest.mark.parametrize("last", ["count", "persist"])
def test_the_batches_of_the_last_stage_are_known_by_their_times(last: str) -> None:
    assert acknowledging(journal()) is None
    lines = journal(
        {"event": "started", "parallelism": {"source": 1, "split": 1, "count": 1, last: 1}},
        {"event": "batch", "stage": last, "seconds": 1.5, "wall_ns": 9_000_000_000},
        {"event": "batch", "stage": "split", "seconds": 1.0, "wall_ns": 9_500_000_000},
        {"event": "batch", "stage": last, "seconds": 8.0, "wall_ns": 8_100_000_000},
    )
    batches = acknowledging(lines)
    assert batches is not None
    rows = list(zip(batches["start_ns"], batches["end_ns"], strict=True))
    assert rows == [(100_000_000, 8_100_000_000), (7_500_000_000, 9_000_000_000)]


def test_the_store_is_compared_with_the_last_acknowledged_counts(tmp_path: Path) -> None:
    frame = pd.DataFrame({"key": list("abce"), "final": [1, 3, 1, None]})
    frame.to_parquet(tmp_path / "counts.parquet")
    stored = {"a": 1, "b": 2, "d": 1}
    # b counts less, c is missing, no output acknowledged d
    assert unstored(stored, tmp_path / "counts.parquet") == 3
    found = chain_work(journal({"event": "queued", "most": 1}), stored, tmp_path / "counts.parquet", WINDOW)
    assert found is not None and found.unstored == 3


def test_a_store_that_was_not_read_back_is_known() -> None:
    persisting = journal({"event": "started", "parallelism": {"source": 1, "persist": 1}})
    assert store_was_not_read(persisting, None) and not store_was_not_read(persisting, {})
    assert not store_was_not_read(journal(), None)
    assert not store_was_not_read(journal({"event": "started", "parallelism": {"source": 1}}), None)
