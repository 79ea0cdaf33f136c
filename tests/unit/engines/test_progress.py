"""How often a query on Spark has begun, by what its listener told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from faultline.engines.spark.progress import CheckpointProgress
from faultline.system.journal import write_lines


def begun(run: str) -> dict[str, Any]:
    return {"event": "started", "run_id": run}


def batch(run: str) -> dict[str, Any]:
    return {"event": "progress", "run_id": run}


@pytest.mark.parametrize(
    ("lines", "runs"),
    [
        ([], 0),
        ([begun("a")], 0),
        ([begun("a"), batch("a")], 1),
        ([begun("a"), batch("a"), batch("a"), begun("b")], 1),
        ([begun("a"), begun("b"), batch("b")], 2),  # the first one was killed before it committed
        ([begun("a"), batch("a"), begun("b"), batch("b")], 2),
    ],
)
def test_the_last_time_counts_once_it_has_committed(tmp_path: Path, lines: list[dict[str, Any]], runs: int) -> None:
    listener = tmp_path / "listener.jsonl"
    write_lines(listener, lines)
    assert CheckpointProgress(tmp_path / "checkpoint", listener).runs() == runs
    assert CheckpointProgress(tmp_path / "checkpoint", tmp_path / "none.jsonl").runs() == 0
