"""Nexmark with engine-generated events on real services: preloaded state, a restart, and figures."""

from __future__ import annotations

import json

import pytest

from benchmarks.nexmark import READ, REPETITIONS, source_per_core
from tests.support.installation import BUSY_MACHINE_REASONS, Installation

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(1800)]

FILLED, BATCH = 2_000_000, 100_000


def test_a_query_is_measured_with_its_state_filled(shared_installation: Installation) -> None:
    installation = shared_installation
    assert installation.run("up", "--no-airflow").returncode == 0
    filling = (f"preload_events={FILLED}", f"batch_events={BATCH}")
    done = installation.run("run", "nexmark", "query=q18", "warmup_s=5", "duration_s=20", *filling)
    assert done.returncode in (0, 1), done.stderr
    record = json.loads(done.stdout)
    assert record["status"] in ("valid", "unmet", "invalid"), record["reasons"]
    assert all(reason.startswith(BUSY_MACHINE_REASONS) for reason in record["reasons"]), record["reasons"]
    metrics = record["metrics"]
    assert metrics["throughput_rps"] > 0 and metrics["rps_per_core"] > 0

    attempt = installation.results / "attempts" / record["attempt"]
    batches = json.loads((attempt / "batches.json").read_text())["batches"]
    numbers = [one["batch"] for one in batches]
    # The first preload batches are gone with their state versions; later ones are complete.
    assert FILLED // BATCH - 10 < numbers[0] < FILLED // BATCH
    assert numbers == list(range(numbers[0], numbers[-1] + 1))
    assert batches[-1]["end_offsets"]["0"] >= FILLED + BATCH
    # The newest bid of each bidder on each auction: a growing state, preloaded with two million events.
    runs = {json.loads(line)["run_id"] for line in (attempt / "listener.jsonl").read_text().splitlines()}
    assert len(runs) == 2, "the query was started again"
    assert metrics["state_bytes"]["checkpoint"] > 20e6


def test_event_generation_alone_is_measured(shared_installation: Installation) -> None:
    assert shared_installation.run("up", "--no-airflow").returncode == 0
    found = source_per_core(shared_installation.settings, quick=True)
    assert set(found) == set(READ) and all(len(values) == REPETITIONS and min(values) > 0 for values in found.values())
