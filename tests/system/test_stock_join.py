"""The stock join on real Kafka and Spark, with a killed executor: its sums equal those of plain Python."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pandas as pd
import pytest

from faultline.experiment.attempt import Attempt
from faultline.experiment.attempt_plan import read_plan
from tests.support.installation import BUSY_MACHINE_REASONS, Installation
from tests.support.topics import Found, read_topic

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(1800)]

WINDOW_S, SLIDE_S = 6, 2
# A low rate, because pairs grow with its square.
SHORT = ("rate=60", "warmup_s=5", "duration_s=45", "checkpoint_interval_s=1", "state_mb=0", "stocks=20", "users=50",
         f"window_s={WINDOW_S}", f"slide_s={SLIDE_S}", "watermark_s=4", "disorder=0.2", "late=0.05")  # fmt: skip
# Late records are an hour old; all others are at most minutes old.
OLDEST_S = int(datetime(2013, 3, 1, 14, tzinfo=UTC).timestamp())


def windows(event_ms: int) -> Iterator[int]:
    """Return the starts (ms since 1970) of the windows of an event."""
    start = event_ms - event_ms % (SLIDE_S * 1000)
    while start > event_ms - WINDOW_S * 1000:
        yield start
        start -= SLIDE_S * 1000


def joined(records: list[Found]) -> dict[str, tuple[int, Decimal]]:
    """Return per `user|window` the number of POSITION and STOCK pairs, and the sum of lastPrice x openInterest."""
    prices: dict[tuple[str, int], list[Decimal]] = defaultdict(list)
    positions: list[tuple[str, int, dict[str, Any]]] = []
    for record in records:
        if not record.value.startswith("{"):
            continue  # the first record of each partition belongs to no stream
        event = json.loads(record.value, parse_float=Decimal)
        event_ms = round(datetime.fromisoformat(event["eventTime"]).timestamp() * 1000)
        for start in windows(event_ms) if event_ms >= OLDEST_S * 1000 else ():
            if event["stream"] == "STOCK":
                prices[event["szcode"], start].append(event["lastPrice"])
            else:
                positions.append((event["szcode"], start, event))
    sums: dict[str, tuple[int, Decimal]] = {}
    for code, start, event in positions:
        there = prices[code, start]
        if there:
            n, total = sums.get(f"{event['userID']}|{start}", (0, Decimal(0)))
            sums[f"{event['userID']}|{start}"] = n + len(there), total + sum(there) * event["openInterest"]
    return sums


def test_the_sums_are_exact_under_a_kill(shared_installation: Installation) -> None:
    installation = shared_installation
    assert installation.run("up", "--no-airflow").returncode == 0
    done = installation.run("run", "stock_join", *SHORT, "fault=executor", "--keep-topics")
    assert done.returncode in (0, 1), done.stderr
    record = json.loads(done.stdout)
    assert record["status"] in ("valid", "unmet", "invalid"), record["reasons"]
    assert all(reason.startswith(BUSY_MACHINE_REASONS) for reason in record["reasons"]), record["reasons"]
    assert {"t0", "t2", "t5"} <= {event["name"] for event in record["timeline"]}
    audit = record["metrics"]["audit"]
    assert (audit["lost"], audit["overcounted"], audit["unexpected"], audit["unknown"]) == (0, 0, 0, 0)

    folder = installation.results / "attempts" / record["attempt"]
    topics = {role: one.name for role, one in read_plan(Attempt(folder)).topics.items()}
    settings = installation.settings
    sent = read_topic(settings, topics["input"])
    late = sum('"eventTime":"2013-03-01T13:' in one.value for one in sent)
    assert late == record["metrics"]["late_records"]["sent"] > 0, "what must be left out was there"
    expected = joined(sent)
    assert audit["expected"] == sum(n for n, _ in expected.values()) > 1000
    last = {one.key: one.value for one in read_topic(settings, topics["output"])}
    assert last == {key: f"{n} {total:.2f}" for key, (n, total) in expected.items()}
    counts = pd.read_parquet(folder / "harvest" / "counts.parquet").set_index("key")
    assert counts["expected"].to_dict() == {key: n for key, (n, _) in expected.items()}
