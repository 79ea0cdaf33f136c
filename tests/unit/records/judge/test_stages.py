"""What the stages of a topology did, read from their journal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from faultline.records.judge.stages import acknowledging, chain_work, store_was_not_read, unstored
from faultline.records.record import StagesPart
from faultline.system.errors import InfrastructureError
from faultline.system.window import Window

WINDOW = Window.of(1_000, 0.0, 10.0, 1.0)


def journal(*lines: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"wall_ns": 2_000, **line} for line in lines]


def counts(folder: Path, **final: int | None) -> None:
    (folder / "harvest").mkdir()
    frame = pd.DataFrame({"key": list(final), "final": list(final.values())})
    frame.to_parquet(folder / "harvest" / "counts.parquet")


def test_an_attempt_without_stages_has_no_such_work(tmp_path: Path) -> None:
    assert chain_work([], tmp_path, WINDOW) is None


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
    assert chain_work(lines, tmp_path, WINDOW) == StagesPart(
        signals=1, failed=7, set_aside=2, replacements=2, gap_s=0.75, batch_s=1.5, most_queued=70, unstored=None
    )


@pytest.mark.parametrize("last", ["count", "persist"])
def test_the_batches_of_the_last_stage_are_known_by_their_times(last: str) -> None:
    assert acknowledging([]) is None
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


def test_the_store_is_held_against_the_last_acknowledged_counts(tmp_path: Path) -> None:
    (tmp_path / "stored.json").write_text(json.dumps({"a": 1, "b": 2, "d": 1}))
    counts(tmp_path, a=1, b=3, c=1, e=None)
    assert unstored(tmp_path) == 3  # b counts less, c is missing, nobody acknowledged d


def test_a_store_that_was_not_read_back_is_known(tmp_path: Path) -> None:
    assert not store_was_not_read([], tmp_path) and unstored(tmp_path) is None
    assert not store_was_not_read(journal({"event": "started", "parallelism": {"source": 1}}), tmp_path)
    persisting = journal({"event": "started", "parallelism": {"source": 1, "persist": 1}})
    assert store_was_not_read(persisting, tmp_path)
    (tmp_path / "stored.json").write_text("{}")
    assert not store_was_not_read(persisting, tmp_path)


def test_a_broken_store_is_said(tmp_path: Path) -> None:
    (tmp_path / "stored.json").write_text("{")
    with pytest.raises(InfrastructureError, match="stored.json: cannot be read"):
        unstored(tmp_path)
