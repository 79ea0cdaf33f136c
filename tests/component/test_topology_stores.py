"""Result stores of persist on real databases: both meet the requirements of the delayed queue."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import psycopg2
import pytest

from spark_jobs.stages.delayed_queue import DelayedQueue, FlushRules, MemoryBacklog
from spark_jobs.stages.persist_sink import open_store
from spark_jobs.stages.stores import Result, ResultStore
from tests.support.postgresql import Cluster


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ResultStore:
    plan = {"kind": request.param, "path": str(tmp_path / "results.sqlite"), "schema": "faultline_test", "delay_s": 0}
    if request.param == "postgresql":
        cluster: Cluster = request.getfixturevalue("cluster")
        plan["address"] = cluster.address
    return open_store(plan)


def test_a_new_store_is_empty_and_a_write_adds_results_with_their_position(store: ResultStore) -> None:
    assert store.position() is None and store.results() == {}
    store.write([("a", 5), ("b", 1)], {"0": 2, "1": 0})
    store.write([("a", 3)], {"0": 3, "1": 7})
    assert store.results() == {"a": 5, "b": 1}, "an older count never replaces a newer one"
    assert store.position() == {"0": 3, "1": 7}
    with pytest.raises((sqlite3.IntegrityError, psycopg2.IntegrityError)):
        store.write([("c", 1), ("d", None)], {"0": 9})  # type: ignore[list-item]
    assert "c" not in store.results() and store.position() == {"0": 3, "1": 7}, "all of it or nothing"


def test_single_tuples_are_written_before_the_position(store: ResultStore) -> None:
    seen: list[tuple[Result, dict[str, int], dict[str, int] | None]] = []
    store.write_each(
        [("a", 1), ("b", 2)], {"0": 2}, lambda result: seen.append((result, store.results(), store.position()))
    )
    assert seen == [(("a", 1), {"a": 1}, None), (("b", 2), {"a": 1, "b": 2}, None)]
    assert store.position() == {"0": 2}


def test_the_delayed_queue_is_flushed_at_its_end(store: ResultStore) -> None:
    queue = DelayedQueue(MemoryBacklog(), store, FlushRules(every_s=600))
    queue.start()
    for number in range(1, 101):
        queue.put([("a", number), (f"w{number}", 1)], {"0": number})
    queue.close()
    assert store.results() == {"a": 100, **{f"w{number}": 1 for number in range(1, 101)}}
    assert store.position() == {"0": 100}


def test_only_its_own_tables_are_dropped(cluster: Cluster) -> None:
    cluster.query("CREATE TABLE results (other text)")
    made = open_store({"kind": "postgresql", "address": cluster.address, "schema": "faultline_gone", "delay_s": 0})
    made.write([("a", 1)], {"0": 1})
    assert made.results() == {"a": 1}
    made.drop()
    schemas = "SELECT count(*) FROM information_schema.schemata WHERE schema_name = 'faultline_gone'"
    assert cluster.query(schemas) == "0"
    assert cluster.query("SELECT count(*) FROM results") == "0", "a foreign table is kept"
