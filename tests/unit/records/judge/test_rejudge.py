"""Records that exist already, and errors of a record."""

from __future__ import annotations

from pathlib import Path

import pytest

from faultline.experiment.attempt import Attempt
from faultline.records.judge.rejudge import error_of, judge_attempt, require_valid, stored_record
from faultline.records.store import Store
from faultline.system.errors import ConfigError, InfrastructureError, InvalidMeasurement
from faultline.system.settings import Settings
from tests.unit.sample_records import sample
from tests.unit.synthetic import Scenario


@pytest.fixture
def attempt(killed: Path) -> Attempt:
    return Attempt(killed)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(tmp_path, tmp_path / "home", tmp_path / "results")


@pytest.mark.parametrize(
    ("status", "kept"), [("valid", True), ("invalid", True), ("cancelled", True), ("failed", False)]
)
def test_only_a_failed_record_is_replaced(attempt: Attempt, settings: Settings, status: str, kept: bool) -> None:
    config = Scenario().configuration.model_dump()
    before = sample(status=status, attempt=attempt.id, reasons=["earlier"], **config)
    Store(settings.results).write(before)
    assert stored_record(attempt, settings) == before
    found = judge_attempt(attempt, settings)
    assert (found == before) is kept
    assert stored_record(attempt, settings).reasons == (["earlier"] if kept else [])  # type: ignore[union-attr]


def test_attempt_without_record_gets_one(attempt: Attempt, settings: Settings) -> None:
    assert stored_record(attempt, settings) is None
    found = judge_attempt(attempt, settings)
    assert (found.status, found.attempt) == ("valid", attempt.id)
    assert judge_attempt(attempt, settings) == stored_record(attempt, settings) == found


def test_damaged_record_is_named(attempt: Attempt, settings: Settings) -> None:
    path = settings.records / "c0ffee000000" / f"{attempt.id}.json"
    path.parent.mkdir(parents=True)
    path.write_text("{")
    with pytest.raises(InfrastructureError, match=f"{attempt.id}.json: file: "):
        judge_attempt(attempt, settings)


@pytest.mark.parametrize(
    ("status", "reasons", "error"),
    [
        ("invalid", ["not-steady: lag", "drain: 3"], InvalidMeasurement("not-steady: lag; drain: 3")),
        ("failed", ["ConfigError: rate: too high"], ConfigError("ConfigError: rate: too high")),
        ("failed", ["the ConfigError of another"], InfrastructureError("the ConfigError of another")),
        ("cancelled", [], InfrastructureError("cancelled")),
    ],
)
def test_error_of_a_record_by_status(status: str, reasons: list[str], error: Exception) -> None:
    assert error_of(sample()) is None
    require_valid(sample())
    found = error_of(sample(status=status, reasons=reasons))
    assert (type(found), str(found)) == (type(error), str(error))
    with pytest.raises(InvalidMeasurement, match=f"-3fa9c1: {status}: {'; '.join(reasons)}$"):
        require_valid(sample(status=status, reasons=reasons))
