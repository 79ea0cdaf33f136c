"""What a recovery would read of a checkpoint: newest snapshots and later changelogs, of all operators and stores."""

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
    """An archive that refers to one table file; its size and the table's."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{version}.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("metadata", "v1\n" + json.dumps({"sstFiles": [{"sizeBytes": table_bytes}]}))
    return path.stat().st_size + table_bytes


def test_every_store_of_every_operator_counts(tmp_path: Path) -> None:
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


def test_the_store_in_memory_counts_alike_and_a_query_without_state_has_none(tmp_path: Path) -> None:
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
        ([KAFKA, '{"orders":{"0":4,"1":9}}'], "orders", {"0": 4, "1": 3}),  # read twice: the slower reading counts
        ([KAFKA, '{"orders":{"0":4}}'], "orders", {"0": 4, "1": 0}),
        (['{"prices":{"0":900}}'], "orders", None),
        ([DASH], "orders", None),
        (["17"], None, None),
    ],
)
def test_offsets_are_found_by_their_source(
    tmp_path: Path, sources: list[str], topic: str | None, ends: dict[str, int] | None
) -> None:
    """A rate source, another topic, or one that has not begun is passed over, wherever it stands."""
    file = tmp_path / "0"
    file.write_text("\n".join(["v1", "{}", *sources]))
    with nullcontext() if ends else pytest.raises(ValueError, match="no offsets"):
        assert read_offsets(file, topic) == ends


# ---- Cycles of a checkpoint, from the files that begin them ----

NS = 10**9


@given(instants=st.lists(st.integers(1, 1000), min_size=1, max_size=8, unique=True), start=st.integers(0, 1100))
def test_the_first_cycle_from_an_instant_on_is_found_in_whatever_order_files_lie(
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


# ---- How often a query on Spark has begun, by what its listener told ----


# A run that begins, and its commits; the run A of "AB" was killed before it committed.
@pytest.mark.parametrize(("told", "runs"), [("", 0), ("A", 0), ("Aa", 1), ("AaaB", 1), ("ABb", 2), ("AaBb", 2)])
def test_the_last_run_counts_once_it_has_committed(tmp_path: Path, told: str, runs: int) -> None:
    listener = tmp_path / "listener.jsonl"
    kinds = [("started" if one.isupper() else "progress", one.lower()) for one in told]
    write_lines(listener, [{"event": kind, "run_id": run} for kind, run in kinds])
    assert CheckpointProgress(tmp_path / "checkpoint", listener).runs() == runs
    assert CheckpointProgress(tmp_path / "checkpoint", tmp_path / "none.jsonl").runs() == 0


# ---- State lineages of commit mode `none`: ended on a loss, counted on, and kept for the harvest ----


def write_batch(folder: Path, number: int, end: int, wall_s: int) -> None:
    """One committed batch in Spark's format."""
    for name, text in (("offsets", "v1\n{}\n" + json.dumps({"in": {"0": end}})), ("commits", "v1\n{}")):
        (folder / name).mkdir(parents=True, exist_ok=True)
        file = folder / name / str(number)
        file.write_text(text)
        os.utime(file, (wall_s, wall_s))


def write_start(folder: Path, start: int) -> None:
    """Where the source began, as Spark notes it."""
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
def keeper(attempt: Attempt, driver: Driver) -> StateEpochManager:
    return StateEpochManager(attempt, "http://127.0.0.1:1")


class Driver:
    """Spark's REST interface as a test wants it."""

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


def test_a_lost_executor_ends_the_lineage_once_the_query_has_stopped(
    attempt: Attempt, keeper: StateEpochManager, driver: Driver
) -> None:
    write_batch(attempt.checkpoint.resolve(), 0, 10, 100)
    with Journal(attempt.supervisor_journal) as journal:
        keeper.watch(journal)
        assert control(attempt) == {"lineage": 0, "stop": False}
        driver.lost = ["1"]
        keeper.watch(journal)
        assert control(attempt) == {"lineage": 0, "stop": True}
        keeper.watch(journal)
        assert keeper.lineage == 0, "the query has not stopped yet, its checkpoint is still in use"
        control_files(attempt)["stopped"].write_text("0")
        keeper.watch(journal)
        assert control(attempt) == {"lineage": 1, "stop": False}
        keeper.watch(journal)
        assert control(attempt) == {"lineage": 1, "stop": False}, "one loss ends one lineage"
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
    assert commits[0].planned_ns == commits[0].committed_ns == 100 * 10**9, "a copy keeps the instants"


def test_what_one_fault_took_ends_one_lineage_however_late_it_is_noticed(
    attempt: Attempt, keeper: StateEpochManager, driver: Driver
) -> None:
    with Journal(attempt.supervisor_journal) as journal:
        driver.lost = ["1"]
        keeper.watch(journal)
        driver.lost = ["1", "2"]  # noticed while the query stops
        keeper.watch(journal)
        control_files(attempt)["stopped"].write_text("0")
        driver.lost = ["1", "2", "3"]  # noticed just as the next lineage begins
        keeper.watch(journal)
        keeper.watch(journal)
    assert keeper.lineage == 1
    assert control(attempt) == {"lineage": 1, "stop": False}


def test_a_lineage_that_found_nothing_new_has_reached_its_start(attempt: Attempt, keeper: StateEpochManager) -> None:
    with Journal(attempt.supervisor_journal) as journal:
        keeper.on_driver_exit(journal)
    write_start(attempt.checkpoint.resolve(), 25)
    assert checkpoint.latest_offsets(attempt.checkpoint) == {"0": 25}
    assert CheckpointProgress(attempt.checkpoint, attempt.listener_journal).committed() == {"0": 25}


def test_a_dead_driver_ends_the_lineage_at_once(attempt: Attempt, keeper: StateEpochManager) -> None:
    with Journal(attempt.supervisor_journal) as journal:
        keeper.on_driver_exit(journal)
        keeper.on_driver_exit(journal)
    assert keeper.lineage == 2
    assert sorted(path.name for path in attempt.lineages.iterdir()) == ["0", "1"]
    assert checkpoint.commits_of(attempt.checkpoint, attempt.lineages) == []
