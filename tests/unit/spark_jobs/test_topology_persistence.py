"""Delayed persistence queue, and persistent state of stages."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.system.waiting import wait_until
from spark_jobs.stages.admission import AdmissionLimits
from spark_jobs.stages.delayed_queue import (
    MAX_QUEUED_FLUSHES,
    DelayedQueue,
    FlushRules,
    MemoryBacklog,
    QueuedBatch,
    QueueLost,
)
from spark_jobs.stages.stage_queries import Stage, StagePlan
from spark_jobs.stages.stores import SqliteStore

results = st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 100)), max_size=5)


@given(st.floats(0, 100), st.floats(0, 100), st.integers(0, 100))
def test_a_flush_is_due_by_time_or_length(now: float, last: float, length: int) -> None:
    rules = FlushRules(every_s=10, length=50)
    assert rules.due(now, last, length) == (length > 0 and (length >= 50 or now - last >= 10))


@given(st.lists(results, max_size=20), st.data())
def test_after_a_crash_the_store_holds_all_results_up_to_its_position(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[tuple[str, int]]], data: st.DataObject
) -> None:
    store = SqliteStore(str(tmp_path_factory.mktemp("store") / "x.sqlite"))
    queue = DelayedQueue(MemoryBacklog(), store, FlushRules())  # its thread is not started: the test flushes
    for number, batch in enumerate(batches, start=1):
        queue.put(batch, {"0": number})
        if data.draw(st.booleans()):
            queue.flush()
    # A crash loses the queue; a restart repeats the input after the stored position.
    position = (store.position() or {"0": 0})["0"]
    written: dict[str, int] = {}
    for batch in batches[:position]:
        for word, count in batch:
            written[word] = max(written.get(word, 0), count)
    found = store.results()
    assert all(found[word] == count for word, count in _newest(batches[:position]).items() if count == written[word])
    again = DelayedQueue(MemoryBacklog(), store, FlushRules())
    for number, batch in enumerate(batches[position:], start=position + 1):
        again.put(batch, {"0": number})
    again.flush()
    assert (store.position() or {"0": 0})["0"] == len(batches)
    assert set(store.results()) == {word for batch in batches for word, _ in batch}


def _newest(batches: list[list[tuple[str, int]]]) -> dict[str, int]:
    return {word: count for batch in batches for word, count in batch}


def test_an_older_count_never_replaces_a_newer_one(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "x.sqlite"))
    store.write([("a", 5)], {"0": 1})
    store.write([("a", 3), ("b", 1)], {"0": 2})
    assert store.results() == {"a": 5, "b": 1} and store.position() == {"0": 2}


def test_single_writes_call_back_after_each_result(tmp_path: Path) -> None:
    store, calls = SqliteStore(str(tmp_path / "x.sqlite")), []
    store.write_each([("a", 1), ("b", 2)], {"0": 7}, lambda result: calls.append((result, store.results())))
    assert calls == [(("a", 1), {"a": 1}), (("b", 2), {"a": 1, "b": 2})]
    assert store.position() == {"0": 7}


def test_put_waits_for_a_blocked_store(tmp_path: Path) -> None:
    goes_on = threading.Event()

    class Hanging(SqliteStore):
        def write(self, results: list[tuple[str, int]], position: dict[str, int]) -> None:
            assert goes_on.wait(120)
            super().write(results, position)

    store = Hanging(str(tmp_path / "x.sqlite"))
    queue = DelayedQueue(MemoryBacklog(), store, FlushRules(every_s=600, length=1))
    queue.start()
    for number in range(MAX_QUEUED_FLUSHES):
        queue.put([("a", number + 1)], {"0": number + 1})
    last = threading.Thread(target=queue.put, args=([("a", 99)], {"0": 99}))
    last.start()
    last.join(0.2)
    assert last.is_alive()
    goes_on.set()
    last.join(120)
    queue.close()
    assert store.results() == {"a": 99}


@pytest.mark.parametrize(
    ("every_s", "length", "left"),
    [(0.05, 1000, 0), (600, 2, 0), (600, 1000, 2)],
    ids=["when the time is up", "at once when the queue is long", "at the end"],
)
def test_the_thread_flushes_by_itself(tmp_path: Path, every_s: float, length: int, left: int) -> None:
    store = SqliteStore(str(tmp_path / "x.sqlite"))
    queue = DelayedQueue(MemoryBacklog(), store, FlushRules(every_s=every_s, length=length))
    queue.start()
    for number, word in enumerate("ab", start=1):
        assert every_s < 1 or store.results() == {}, "not yet"
        queue.put([(word, 1)], {"0": number})
    if not left:
        wait_until(lambda: len(store.results()) == 2, timeout_s=120, every_s=0.01, what="what was put")
    assert len(store.results()) == 2 - left
    queue.close()
    assert store.results() == {"a": 1, "b": 1}


class Leaky(MemoryBacklog):
    """Backlog that loses its entries."""

    def take(self) -> list[QueuedBatch]:
        raise QueueLost("gone")


def test_a_queue_that_lost_results_takes_no_more(tmp_path: Path) -> None:
    queue = DelayedQueue(Leaky(), SqliteStore(str(tmp_path / "x.sqlite")), FlushRules(every_s=0.01))
    queue.start()
    queue.put([("a", 1)], {"0": 1})
    with pytest.raises(QueueLost, match="gone"):
        queue.close()
    with pytest.raises(QueueLost, match="gone"):
        queue.put([("b", 1)], {"0": 2})


# Limits and parallelism of a stage over restarts of the program.


def stage(folder: Path, parallelism: int = 1) -> Stage:
    plan = StagePlan("split", "b:1", {"eden": "t"}, 2, "o", folder, 1.0, 4, None, ends_chain=False)
    return Stage(cast(Any, None), plan, parallelism, None)


def test_limits_are_reset_at_the_start(tmp_path: Path) -> None:
    orders = tmp_path / "split.orders"
    AdmissionLimits(limit=5.0, most=7, hold=True).write(orders)
    again = stage(tmp_path)
    assert AdmissionLimits.read(orders) == AdmissionLimits()
    again.limit(2.0)
    again.limit_batches(9)
    assert AdmissionLimits.read(orders) == AdmissionLimits(limit=2.0, most=9)
    again.limit(None)
    assert AdmissionLimits.read(orders) == AdmissionLimits(most=9)


def test_the_parallelism_of_a_replaced_stage_is_kept(tmp_path: Path) -> None:
    assert stage(tmp_path, 2).parallelism == 2
    (tmp_path / "split.parallelism").write_text("4")
    assert (stage(tmp_path, 2).parallelism, stage(tmp_path, 2).wanted) == (4, 4)


def test_the_running_batch_is_not_queued(tmp_path: Path) -> None:
    """The queue excludes planned batches; a restart continues after the committed ones."""
    one = stage(tmp_path)
    assert one.taken() == {} == one.progress.position
    for log, batches in (("offsets", 11), ("commits", 10)):
        (tmp_path / "split" / log).mkdir(parents=True)
        (tmp_path / "split" / log / ".12.crc").touch()
        (tmp_path / "split" / log / ".12.8a-7.tmp").touch()
        for batch in range(batches):
            (tmp_path / "split" / log / str(batch)).write_text(f'v1\n{{}}\n{{"eden": {{"0": {batch}}}, "to": "a"}}')
    again = stage(tmp_path)
    assert (again.taken(), again.progress.position) == ({"eden": {"0": 10}}, {"eden": {"0": 9}})
    (tmp_path / "split" / "offsets" / "11").write_text('v1\n{}\n{"eden": {"0": 30}, "to": "a"}')
    assert again.taken() == {"eden": {"0": 30}}


def test_fan_out_is_averaged_over_batches(tmp_path: Path) -> None:
    one = stage(tmp_path)
    assert one.progress.fan_out == 1.0
    # A late report has the tuples of two batches, and the next one has none.
    for rows, emitted in ((10, None), (10, 200), (0, 0), (10, 0), (20, 280)):
        one.reported({}, rows, emitted, 2.0, 1)
    assert (one.progress.fan_out, one.progress.batches, one.progress.rows_per_s) == (12.0, 5, 10.0)
    assert stage(tmp_path).progress.fan_out == 12.0, "known from the first batch after a death on"
