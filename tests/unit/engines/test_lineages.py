"""State lineages of commit mode `none`: ended on a loss, counted on, and kept for the harvest."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from faultline.engines.spark import checkpoint, lineages
from faultline.engines.spark import shared as throwaway
from faultline.engines.spark.lineages import LineageKeeper, lineage_files
from faultline.engines.spark.progress import CheckpointProgress
from faultline.experiment.attempt import Attempt
from faultline.system.journal import Journal, read_journal


def write_batch(folder: Path, number: int, end: int, wall_s: int) -> None:
    """One committed batch in Spark's format."""
    for name, text in (
        ("offsets", "v1\n{}\n" + json.dumps({"in": {"0": end}})),
        ("commits", "v1\n{}"),
    ):
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
    monkeypatch.setattr(throwaway, "RAM", tmp_path / "ram")
    return Attempt(folder)


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
    monkeypatch.setattr(lineages, "fetch_list", driver.fetch)
    return driver


def control(attempt: Attempt) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(lineage_files(attempt)["control"].read_text())
    return value


def test_a_lost_executor_ends_the_lineage_once_the_query_has_stopped(attempt: Attempt, driver: Driver) -> None:
    keeper = LineageKeeper(attempt, "http://127.0.0.1:1")
    write_batch(attempt.checkpoint.resolve(), 0, 10, 100)
    with Journal(attempt.supervisor_journal) as journal:
        keeper.watch(journal)
        assert control(attempt) == {"lineage": 0, "stop": False}
        driver.lost = ["1"]
        keeper.watch(journal)
        assert control(attempt) == {"lineage": 0, "stop": True}
        keeper.watch(journal)
        assert keeper.lineage == 0, "the query has not stopped yet, its checkpoint is still in use"
        lineage_files(attempt)["stopped"].write_text("0")
        keeper.watch(journal)
        assert control(attempt) == {"lineage": 1, "stop": False}
        keeper.watch(journal)
        assert control(attempt) == {"lineage": 1, "stop": False}, "one loss ends one lineage"
    assert not (throwaway.make_throwaway(attempt) / "lineage-0").exists()
    assert [line["lineage"] for line in read_journal(attempt.supervisor_journal)] == [1]

    fresh = attempt.checkpoint.resolve()
    assert fresh.name == "lineage-1"
    write_start(fresh, 25)
    write_batch(fresh, 0, 40, 200)
    write_batch(fresh, 1, 50, 202)
    commits = checkpoint.commits_of(attempt.checkpoint, attempt.lineages)
    seen = [(one.epoch, one.number, one.ends, one.starts) for one in commits]
    assert seen == [(0, 0, {"0": 10}, None), (1, 0, {"0": 40}, {"0": 25}), (1, 1, {"0": 50}, None)]
    assert commits[0].committed_ns == 100 * 10**9, "a copy keeps the instants"


def test_what_one_fault_took_ends_one_lineage_however_late_it_is_noticed(attempt: Attempt, driver: Driver) -> None:
    keeper = LineageKeeper(attempt, "http://127.0.0.1:1")
    with Journal(attempt.supervisor_journal) as journal:
        driver.lost = ["1"]
        keeper.watch(journal)
        driver.lost = ["1", "2"]  # noticed while the query stops
        keeper.watch(journal)
        lineage_files(attempt)["stopped"].write_text("0")
        driver.lost = ["1", "2", "3"]  # noticed just as the next lineage begins
        keeper.watch(journal)
        keeper.watch(journal)
    assert keeper.lineage == 1
    assert control(attempt) == {"lineage": 1, "stop": False}


def test_a_lineage_that_found_nothing_new_has_reached_its_start(attempt: Attempt, driver: Driver) -> None:
    keeper = LineageKeeper(attempt, "http://127.0.0.1:1")
    with Journal(attempt.supervisor_journal) as journal:
        keeper.driver_died(journal)
    write_start(attempt.checkpoint.resolve(), 25)
    assert checkpoint.latest_offsets(attempt.checkpoint) == {"0": 25}
    assert CheckpointProgress(attempt.checkpoint, attempt.listener_journal).committed() == {"0": 25}


def test_a_dead_driver_ends_the_lineage_at_once(attempt: Attempt, driver: Driver) -> None:
    keeper = LineageKeeper(attempt, "http://127.0.0.1:1")
    with Journal(attempt.supervisor_journal) as journal:
        keeper.driver_died(journal)
        keeper.driver_died(journal)
    assert keeper.lineage == 2
    assert sorted(path.name for path in attempt.lineages.iterdir()) == ["0", "1"]
    assert checkpoint.commits_of(attempt.checkpoint, attempt.lineages) == []
