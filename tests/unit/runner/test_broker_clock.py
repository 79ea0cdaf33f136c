"""By how much outputs are moved that the broker stamped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from faultline.base.attempt import Attempt
from faultline.runner.collect import broker_ahead_ms


@pytest.mark.parametrize(
    ("readings", "ahead_ms"),
    [
        ([], 0),
        ([("worker-1", 5.0), ("worker-1", 5.0)], 0),
        ([("kafka", 0.0104)], 10),
        ([("kafka", -60.0), ("worker-1", 9.0), ("kafka", -60.002)], -60_001),
    ],
)
def test_it_is_the_brokers_clock_alone_in_whole_ms(
    tmp_path: Path, readings: list[tuple[str, float]], ahead_ms: int
) -> None:
    attempt = Attempt(tmp_path)
    lines = [{"kind": "clock", "host": host, "offset_s": ahead, "round_trip_s": 0.001} for host, ahead in readings]
    lines.append({"kind": "stop"})
    attempt.recorder_journal.write_text(
        "".join(f"{json.dumps({'wall_ns': 1, 'mono_ns': 1, **one})}\n" for one in lines)
    )
    assert broker_ahead_ms(attempt) == ahead_ms
