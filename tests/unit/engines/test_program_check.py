"""Startup check of user programs."""

from __future__ import annotations

import json
import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from faultline.engines.spark import program_check
from faultline.engines.spark.collect import application_settings
from faultline.engines.spark.program_check import CHECK_INTERVAL_S, GRACE_S, ProgramCheck, setting_mismatch
from faultline.experiment.attempt import Attempt
from faultline.system.errors import InfrastructureError

BATCH = {"description": "count<br/>id = 8a<br/>runId = 54<br/>batch = 0", "status": "SUCCEEDED"}
# Input before the query starts.
BEFORE = {"description": "load at prices.py:7", "status": "SUCCEEDED"}


ASKED = {"spark.master": "spark://here:7077", "spark.sql.shuffle.partitions": "2"}


class Driver:
    """Fake of the driver's REST API and of the clock."""

    def __init__(self) -> None:
        self.jobs: list[dict[str, str]] = []
        self.settings: list[list[str]] = []
        self.asked = 0
        self.now = 0.0

    def get(self, url: str, **_: float) -> Any:
        self.asked += 1
        if url.endswith("/app-1/environment"):
            return {"sparkProperties": self.settings}
        return self.jobs if url.endswith("/app-1/jobs?status=succeeded") else [{"id": "app-1"}]


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Driver()
    monkeypatch.setattr(program_check, "fetch_list", made.get)
    monkeypatch.setattr(program_check, "fetch", made.get)
    return made


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    words = [word for name, value in ASKED.items() for word in ("--conf", f"{name}={value}") if name != "spark.master"]
    command = ["spark-submit", "--master", ASKED["spark.master"], *words, str(tmp_path / "job" / "program.py")]
    command += ["--conf", "job.ini", "--master", "of its own"]
    (tmp_path / "workload.json").write_text(json.dumps({"processes": [{"command": command}]}))
    return Attempt(tmp_path)


def pass_time(driver: Driver, check: ProgramCheck, seconds: float) -> None:
    until = driver.now + seconds
    while driver.now < until:
        driver.now += CHECK_INTERVAL_S / 4
        check.check()


@pytest.fixture
def check(driver: Driver, attempt: Attempt) -> ProgramCheck:
    return ProgramCheck(attempt, "http://driver", "orders", lambda: driver.now)


def test_batches_without_a_checkpoint_are_reported(driver: Driver, check: ProgramCheck) -> None:
    pass_time(driver, check, 10 * GRACE_S)
    driver.jobs = [BEFORE]
    pass_time(driver, check, 10 * GRACE_S)
    driver.jobs = [BEFORE, BATCH]
    pass_time(driver, check, GRACE_S - CHECK_INTERVAL_S)
    with pytest.raises(InfrastructureError, match=r"^program: .*\{checkpoint\}"):
        pass_time(driver, check, 3 * CHECK_INTERVAL_S)


def test_a_correct_program_is_not_checked_again(driver: Driver, attempt: Attempt, check: ProgramCheck) -> None:
    driver.jobs = [BATCH]
    pass_time(driver, check, GRACE_S - CHECK_INTERVAL_S)  # another query of its came first
    begin(attempt, '{"orders":{"0":0}}')
    driver.settings = [[name, value] for name, value in ASKED.items()]
    pass_time(driver, check, CHECK_INTERVAL_S)
    before = driver.asked
    pass_time(driver, check, 10 * GRACE_S)
    assert driver.asked == before > 0
    assert application_settings(attempt.folder) == ASKED


def test_several_queries_in_one_checkpoint_are_named(driver: Driver, attempt: Attempt, check: ProgramCheck) -> None:
    for name in ("words", "lengths"):
        (attempt.checkpoint / name / "offsets").mkdir(parents=True)
    with pytest.raises(InfrastructureError, match="program: .*lengths, words"):
        pass_time(driver, check, GRACE_S + 2 * CHECK_INTERVAL_S)


@pytest.mark.parametrize("name", ASKED)
def test_a_reserved_setting_in_the_program_is_reported(driver: Driver, check: ProgramCheck, name: str) -> None:
    driver.settings = [[one, "other" if one == name else value] for one, value in ASKED.items()]
    with pytest.raises(InfrastructureError, match=re.escape(name)):
        pass_time(driver, check, 2 * CHECK_INTERVAL_S)
    assert setting_mismatch(ASKED, {**ASKED, name: "*****(redacted)"}) is None


def begin(attempt: Attempt, *starts: str) -> None:
    """Write a first planned batch whose sources started at these offsets."""
    (attempt.checkpoint / "offsets").mkdir(parents=True, exist_ok=True)
    (attempt.checkpoint / "offsets" / "0").touch()
    for number, start in enumerate(starts):
        (attempt.checkpoint / "sources" / str(number)).mkdir(parents=True, exist_ok=True)
        (attempt.checkpoint / "sources" / str(number) / "0").write_text(f"\0v1\n{start}")


@pytest.mark.parametrize(
    ("starts", "message"),
    [
        (['{"others":{"0":7}}', '{"orders":{"0":0,"1":0}}'], None),
        (['{"others":{"0":7}}', '{"orders":{"0":3,"1":0}}'], "program: .*offset 3.*earliest"),
        (['{"others":{"0":7}}'], "program: .*input topic orders"),
    ],
)
def test_a_program_that_skips_input_is_reported(
    driver: Driver, attempt: Attempt, check: ProgramCheck, starts: list[str], message: str | None
) -> None:
    begin(attempt, *starts)
    with nullcontext() if message is None else pytest.raises(InfrastructureError, match=message):
        pass_time(driver, check, 10 * GRACE_S)
