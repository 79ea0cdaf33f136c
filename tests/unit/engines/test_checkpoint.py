"""State sizes, offsets, cycles and state epochs of checkpoints."""

from __future__ import annotations

import json
import os
import time
import zipfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.engines.spark import checkpoint, state_epochs
from faultline.engines.spark import shared_storage as throwaway
from faultline.engines.spark.checkpoint import read_offsets, state_document
from faultline.engines.spark.progress import CheckpointProgress, await_cycle
from faultline.engines.spark.state_epochs import StateEpochManager, control_files
from faultline.experiment.attempt import Attempt
from faultline.system.journal import Journal, read_journal, write_lines


def snapshot(folder: Path, version: int, table_bytes: int) -> int:
    """Write an archive that references one table file, and return the size of both."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{version}.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("metadata", "v1\n" + json.dumps({"sstFiles": [{"sizeBytes": table_bytes}]}))
    return path.stat().st_size + table_bytes


def test_state_sizes_include_all_stores(tmp_path: Path) -> None:
    state = tmp_path / "state"
    sums = snapshot(state / "0" / "0", 4, 1000)
    snapshot(state / "0" / "0", 2, 77_777)  # older
    (state / "0" / "0" / "4_x.changelog").write_bytes(b"x" * 500)  # within the snapshot
    (state / "0" / "0" / "5_x.changelog").write_bytes(b"x" * 30)
    left = snapshot(state / "1" / "0" / "left-keyWithIndexToValue", 3, 2000)
    (state / "1" / "1" / "right-keyWithIndexToValue").mkdir(parents=True)
    (state / "1" / "1" / "right-keyWithIndexToValue" / "1.changelog").write_bytes(b"x" * 4)
    (state / "0" / "_metadata").mkdir()
    found = state_document(tmp_path)
    assert (found["snapshot_bytes"], found["changelog_bytes"]) == (sums + left, 34)
    assert [(one["operator"], one["partition"], one["store"], one["version"]) for one in found["snapshots"]] == [
        (0, 0, "", 2), (0, 0, "", 4), (1, 0, "left-keyWithIndexToValue", 3),
    ]  # fmt: skip


def test_in_memory_stores_count_and_stateless_queries_have_no_state(tmp_path: Path) -> None:
    assert state_document(tmp_path) == {"snapshot_bytes": 0, "changelog_bytes": 0, "snapshots": []}
    store = tmp_path / "state" / "0" / "0"
    store.mkdir(parents=True)
    for name, size in (("1.delta", 10), ("2.delta", 20), ("2.snapshot", 300), ("3.delta", 40)):
        (store / name).write_bytes(b"x" * size)
    found = state_document(tmp_path)
    assert (found["snapshot_bytes"], found["changelog_bytes"]) == (300, 40)


RATE, DASH = '{"offset":17}', "-"
KAFKA = '{"orders":{"0":5,"1":3}}'


@pytest.mark.parametrize(
    ("sources", "topic", "ends"),
    [
        ([KAFKA], None, {"0": 5, "1": 3}),
        ([KAFKA], "orders", {"0": 5, "1": 3}),
        (["17", KAFKA], "orders", {"0": 5, "1": 3}),
        ([RATE, KAFKA], None, {"0": 5, "1": 3}),
        ([RATE], None, {"0": 17}),
        ([DASH, KAFKA], "orders", {"0": 5, "1": 3}),
        (['{"prices":{"0":900}}', KAFKA], "orders", {"0": 5, "1": 3}),
        ([KAFKA, '{"orders":{"0":4,"1":9}}'], "orders", {"0": 4, "1": 3}),  # two sources: the smaller offset counts
        ([KAFKA, '{"orders":{"0":4}}'], "orders", {"0": 4, "1": 0}),
        (['{"prices":{"0":900}}'], "orders", None),
        ([DASH], "orders", None),
        (["17"], None, None),
    ],
)
def test_offsets_are_selected_by_topic(
    tmp_path: Path, sources: list[str], topic: str | None, ends: dict[str, int] | None
) -> None:
    """Rate sources, other topics and sources that have not started are ignored, in any order."""
    file = tmp_path / "0"
    file.write_text("\n".join(["v1", "{}", *sources]))
    with nullcontext() if ends else pytest.raises(ValueError, match="no offsets"):
        assert read_offsets(file, topic) == ends


# Cycles of a checkpoint.

NS = 10**9


@given(instants=st.lists(st.integers(1, 1000), min_size=1, max_size=8, unique=True), start=st.integers(0, 1100))
def test_the_first_cycle_is_found_independent_of_file_order(
    tmp_path_factory: pytest.TempPathFactory, instants: list[int], start: int
) -> None:
    checkpoint = tmp_path_factory.mktemp("checkpoint")
    (checkpoint / "commits").mkdir()
    for number, at in enumerate(instants):
        file = checkpoint / "commits" / str(number)
        file.touch()
        os.utime(file, ns=(at * NS, at * NS))
    (checkpoint / "commits" / ".5.tmp").touch()
    later = [at * NS for at in instants if at >= start]
    found = await_cycle(checkpoint, "checkpoint", start * NS, time.monotonic_ns() + 5_000_000)
    assert found == (min(later) if later else None)


# Query starts from the listener journal.


# Capital: a run starts; small letter: it commits. Run A of "AB" was killed before a commit.
@pytest.mark.parametrize(("lines", "runs"), [("", 0), ("A", 0), ("Aa", 1), ("AaaB", 1), ("ABb", 2), ("AaBb", 2)])
def test_the_last_run_counts_once_it_has_committed(tmp_path: Path, lines: str, runs: int) -> None:
    listener = tmp_path / "listener.jsonl"
    kinds = [("started" if one.isupper() else "progress", one.lower()) for one in lines]
    write_lines(listener, [{"event": kind, "run_id": run} for kind, run in kinds])
    assert CheckpointProgress(tmp_path / "checkpoint", listener).runs() == runs
    assert CheckpointProgress(tmp_path / "checkpoint", tmp_path / "none.jsonl").runs() == 0


# State epochs of commit mode `none`.


def write_batch(folder: Path, number: int, end: int, wall_s: int) -> None:
    """Write one committed batch in Spark's format."""
    for name, text in (("offsets", "v1\n{}\n" + json.dumps({"in": {"0": end}})), ("commits", "v1\n{}")):
        (folder / name).mkdir(parents=True, exist_ok=True)
        file = folder / name / str(number)
        file.write_text(text)
        os.utime(file, (wall_s, wall_s))


def write_start(folder: Path, start: int) -> None:
    """Write the source's start in Spark's format."""
    (folder / "sources" / "0").mkdir(parents=True)
    (folder / "sources" / "0" / "0").write_text("\0v1\n" + json.dumps({"in": {"0": start}}))


@pytest.fixture
def attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Attempt:
    folder = tmp_path / "20261121T061500Z-3fa9c1"
    folder.mkdir()
    (tmp_path / "ram").mkdir()
    monkeypatch.setattr(throwaway, "RAM_DISK", tmp_path / "ram")
    return Attempt(folder)


@pytest.fixture
def manager(attempt: Attempt, driver: Driver) -> StateEpochManager:
    return StateEpochManager(attempt, "http://127.0.0.1:1")


class Driver:
    """Fake of Spark's REST API."""

    def __init__(self) -> None:
        self.lost: list[str] = []

    def fetch(self, url: str) -> list[dict[str, Any]]:
        if url.endswith("/applications"):
            return [{"id": "app-1"}]
        executors = [{"id": "driver", "isActive": True}, {"id": "0", "isActive": True}]
        return executors + [{"id": name, "isActive": False} for name in self.lost]


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    driver = Driver()
    monkeypatch.setattr(state_epochs, "fetch_list", driver.fetch)
    return driver


def control(attempt: Attempt) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(control_files(attempt)["control"].read_text())
    return value


def test_a_lost_executor_ends_the_epoch_once_the_query_has_stopped(
    attempt: Attempt, manager: StateEpochManager, driver: Driver
) -> None:
    write_batch(attempt.checkpoint.resolve(), 0, 10, 100)
    with Journal(attempt.supervisor_journal) as journal:
        manager.watch(journal)
        assert control(attempt) == {"lineage": 0, "stop": False}
        driver.lost = ["1"]
        manager.watch(journal)
        assert control(attempt) == {"lineage": 0, "stop": True}
        manager.watch(journal)
        assert manager.epoch == 0, "the query has not stopped yet, its checkpoint is still in use"
        control_files(attempt)["stopped"].write_text("0")
        manager.watch(journal)
        assert control(attempt) == {"lineage": 1, "stop": False}
        manager.watch(journal)
        assert control(attempt) == {"lineage": 1, "stop": False}, "one loss ends one epoch"
    assert not (throwaway.make_ephemeral_checkpoint(attempt) / "lineage-0").exists()
    assert [line["lineage"] for line in read_journal(attempt.supervisor_journal)] == [1]

    fresh = attempt.checkpoint.resolve()
    assert fresh.name == "lineage-1"
    write_start(fresh, 25)
    write_batch(fresh, 0, 40, 200)
    write_batch(fresh, 1, 50, 202)
    commits = checkpoint.commits_of(attempt.checkpoint, attempt.lineages)
    seen = [(one.epoch, one.number, one.ends, one.starts) for one in commits]
    assert seen == [(0, 0, {"0": 10}, None), (1, 0, {"0": 40}, {"0": 25}), (1, 1, {"0": 50}, None)]
    assert commits[0].planned_ns == commits[0].committed_ns == 100 * 10**9, "copies preserve file times"


def test_losses_of_one_fault_end_one_epoch(attempt: Attempt, manager: StateEpochManager, driver: Driver) -> None:
    with Journal(attempt.supervisor_journal) as journal:
        driver.lost = ["1"]
        manager.watch(journal)
        driver.lost = ["1", "2"]  # detected while the query stops
        manager.watch(journal)
        control_files(attempt)["stopped"].write_text("0")
        driver.lost = ["1", "2", "3"]  # detected when the next epoch starts
        manager.watch(journal)
        manager.watch(journal)
    assert manager.epoch == 1
    assert control(attempt) == {"lineage": 1, "stop": False}


def test_an_epoch_without_commits_has_reached_its_start(attempt: Attempt, manager: StateEpochManager) -> None:
    with Journal(attempt.supervisor_journal) as journal:
        manager.on_driver_exit(journal)
    write_start(attempt.checkpoint.resolve(), 25)
    assert checkpoint.latest_offsets(attempt.checkpoint) == {"0": 25}
    assert CheckpointProgress(attempt.checkpoint, attempt.listener_journal).committed() == {"0": 25}


def test_a_driver_exit_ends_the_epoch(attempt: Attempt, manager: StateEpochManager) -> None:
    with Journal(attempt.supervisor_journal) as journal:
        manager.on_driver_exit(journal)
        manager.on_driver_exit(journal)
    assert manager.epoch == 2
    assert sorted(path.name for path in attempt.lineages.iterdir()) == ["0", "1"]
    assert checkpoint.commits_of(attempt.checkpoint, attempt.lineages) == []
