"""Nexmark through real Kafka and Spark, with a killed executor: each result once, correct and with a latency."""

from __future__ import annotations

import json

import pandas as pd
import pytest

from tests.support.installation import BUSY_MACHINE_REASONS, Installation

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(1800)]

SHORT = ("query=q7", "source=kafka", "rate=500", "warmup_s=5", "duration_s=50", "checkpoint_interval_s=1")


def test_the_highest_bids_are_exact_under_a_kill(shared_installation: Installation) -> None:
    installation = shared_installation
    assert installation.run("up", "--no-airflow").returncode == 0
    done = installation.run("run", "nexmark", *SHORT, "fault=executor")
    assert done.returncode in (0, 1), done.stderr
    record = json.loads(done.stdout)
    assert record["status"] in ("valid", "unmet", "invalid"), record["reasons"]
    assert all(reason.startswith(BUSY_MACHINE_REASONS) for reason in record["reasons"]), record["reasons"]
    audit = record["metrics"]["audit"]
    assert (audit["lost"], audit["unexpected"], audit["unknown"]) == (0, 0, 0)
    assert record["metrics"]["recovery"]["reload_s"] is not None

    counts = pd.read_parquet(installation.results / "attempts" / record["attempt"] / "harvest" / "counts.parquet")
    # Five windows of ten seconds and that of the preload; closing events end the last one.
    assert len(counts) == audit["expected"] >= 5
    # A result appears after the watermark passes its window, at least 4 s after the last bid.
    tuples = pd.read_parquet(installation.results / "attempts" / record["attempt"] / "harvest" / "tuples.parquet")
    tuples = tuples[~tuples["primer"]]  # their event time is ahead of the clock
    # Closing events end the last window at once.
    delays = (tuples["emitted_ms"] - tuples["produced_ms"])[tuples["produced_ms"] < tuples["produced_ms"].max()]
    assert len(delays) >= 2 and delays.min() > 3900
