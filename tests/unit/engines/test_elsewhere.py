"""A user's program that keeps its progress where nobody looks is told so."""

from __future__ import annotations

from pathlib import Path

import pytest

from faultline.base.errors import InfrastructureError
from faultline.engines.spark import elsewhere
from faultline.engines.spark.elsewhere import LOOK_S, PATIENCE_S, OwnCheckpoint

BATCH = {"description": "count<br/>id = 8a<br/>runId = 54<br/>batch = 0", "status": "SUCCEEDED"}
# What it reads before its query begins.
BEFORE = {"description": "load at prices.py:7", "status": "SUCCEEDED"}


class Driver:
    """What its REST says, and the time."""

    def __init__(self) -> None:
        self.jobs: list[dict[str, str]] = []
        self.asked = 0
        self.now = 0.0

    def get(self, url: str) -> list[dict[str, str]]:
        self.asked += 1
        return self.jobs if url.endswith("/app-1/jobs?status=succeeded") else [{"id": "app-1"}]


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Driver()
    monkeypatch.setattr(elsewhere, "fetch_list", made.get)
    return made


def pass_time(driver: Driver, own: OwnCheckpoint, seconds: float) -> None:
    until = driver.now + seconds
    while driver.now < until:
        driver.now += LOOK_S / 4
        own.look()


def test_batches_without_a_checkpoint_are_told_and_nothing_else_is(driver: Driver, tmp_path: Path) -> None:
    own = OwnCheckpoint(tmp_path / "checkpoint", "http://driver", lambda: driver.now)
    pass_time(driver, own, 10 * PATIENCE_S)
    driver.jobs = [BEFORE]
    pass_time(driver, own, 10 * PATIENCE_S)
    driver.jobs = [BEFORE, BATCH]
    pass_time(driver, own, PATIENCE_S - LOOK_S)
    with pytest.raises(InfrastructureError, match=r"^program: .*; have its query use \{checkpoint\}"):
        pass_time(driver, own, 3 * LOOK_S)


def test_one_that_uses_it_is_asked_no_more(driver: Driver, tmp_path: Path) -> None:
    driver.jobs = [BATCH]
    own = OwnCheckpoint(tmp_path, "http://driver", lambda: driver.now)
    pass_time(driver, own, PATIENCE_S - LOOK_S)  # another query of its came first
    (tmp_path / "metadata").touch()
    pass_time(driver, own, LOOK_S)
    before = driver.asked
    pass_time(driver, own, 10 * PATIENCE_S)
    assert driver.asked == before > 0
