"""Nexmark on Flink: the folded changes of each query are the answer of DuckDB over the same JSON events."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from benchmarks.nexmark_both.flink_queries import QUERIES, script
from benchmarks.nexmark_both.flink_side import COMMON, MINI_BATCH, FlinkCluster
from benchmarks.nexmark_both.work import WATERMARK_S
from faultline.cli.build_command import add_engine
from faultline.system.errors import FaultlineError
from faultline.system.settings import load_settings
from tests.support.nexmark_oracle import answer, sort_rows
from tests.support.spark_session import local_session

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(1800)]

EVENTS = 200_000
# Key of a query whose improved results Flink may send without the removal of earlier ones.
UPSERTS = {"q9": "id"}


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the events in `json`, and in `person`, `auction` and `bid` as Spark reads them from there."""
    try:
        add_engine("flink")
    except FaultlineError as error:
        pytest.skip(f"Flink cannot be installed here: {error}")
    folder = tmp_path_factory.mktemp("nexmark-both")
    spark = local_session(folder)
    from nexmark.catalogue import parse_timed_events
    from nexmark.events import NexmarkEventSource

    from tests.support.nexmark_stream import RULES

    numbers = spark.range(0, EVENTS, 1, 1).withColumnRenamed("id", "n")
    NexmarkEventSource(numbers, RULES).as_json().select("value").write.text(str(folder / "json"))
    made = parse_timed_events(spark.read.text(str(folder / "json")))
    for stream, name in ((made.person, "person"), (made.auction, "auction"), (made.bid, "bid")):
        stream.coalesce(1).write.parquet(str(folder / name))
    return folder


def folded(folder: Path, key: str | None) -> list[dict[str, Any]]:
    """Return the rows that the changes in `folder` leave. A row replaces an earlier one with the same `key`, if any."""
    rows: Counter[str] = Counter()
    latest: dict[Any, str] = {}
    for file in (one for one in folder.rglob("*") if one.is_file()):
        for change in map(json.loads, file.read_text().splitlines()):
            row = change["after"] or change["before"]
            text = json.dumps(row)
            if key is None:
                rows[text] += 1 if change["after"] else -1
            elif change["after"]:
                latest[row[key]] = text
            else:
                assert latest.pop(row[key]) == text
    assert min(rows.values(), default=0) >= 0
    return [json.loads(row) for row in (*rows.elements(), *latest.values())]


@pytest.mark.parametrize("mini_batch", [True, False])
@pytest.mark.parametrize("query", QUERIES)
def test_changes_add_up_to_the_answer(events: Path, tmp_path: Path, query: str, mini_batch: bool) -> None:
    source = {"connector": "filesystem", "path": (events / "json").as_uri(), "format": "json"}
    sink = {"connector": "filesystem", "path": (tmp_path / "out").as_uri(), "format": "debezium-json"}
    (tmp_path / "job.sql").write_text(script(query, source, sink, WATERMARK_S))
    cluster = FlinkCluster(load_settings(), tmp_path / "cluster", f"test-{query}")
    try:
        cluster.start({**COMMON, **(MINI_BATCH if mini_batch else {})}, tmp_path / "job.sql", None)
        assert cluster.await_end() == 0, (tmp_path / "cluster" / "driver.log").read_text()[-3000:]
    finally:
        cluster.stop()
    expected = answer(events, query)
    found = pd.DataFrame(folded(tmp_path / "out", UPSERTS.get(query)))
    found.columns = expected.columns
    for name, column in expected.items():
        if str(column.dtype).startswith("datetime64"):
            found[name] = pd.to_datetime(found[name], format="ISO8601")
    assert len(expected)
    pd.testing.assert_frame_equal(sort_rows(found), expected)
