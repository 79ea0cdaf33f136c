"""What a judged attempt becomes: one record that stays, and an error for whoever asked for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from faultline.experiment.attempt import Attempt
from faultline.records.judge.verdict import error_of, judge_attempt, require_valid, stored_record
from faultline.records.store import Store
from faultline.system.errors import ConfigError, InfrastructureError, InvalidMeasurement
from faultline.system.settings import Settings
from tests.unit.sample_records import sample
from tests.unit.synthetic import Scenario, Synthetic


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    return Attempt(Synthetic(Scenario()).write(tmp_path))


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(tmp_path, tmp_path / "home", tmp_path / "results")


@pytest.mark.parametrize(
    ("status", "kept"), [("valid", True), ("unsound", True), ("cancelled", True), ("failed", False)]
)
def test_only_a_failed_record_gives_way(attempt: Attempt, settings: Settings, status: str, kept: bool) -> None:
    config = Scenario().configuration.model_dump()
    before = sample(status=status, attempt=attempt.id, reasons=["of before"], **config)
    Store(settings.results).write(before)
    assert stored_record(attempt, settings) == before
    judged = judge_attempt(attempt, settings)
    assert (judged == before) is kept
    assert stored_record(attempt, settings).reasons == (["of before"] if kept else [])  # type: ignore[union-attr]


def test_an_attempt_without_a_record_gets_one(attempt: Attempt, settings: Settings) -> None:
    assert stored_record(attempt, settings) is None
    judged = judge_attempt(attempt, settings)
    assert (judged.status, judged.attempt) == ("valid", attempt.id)
    assert judge_attempt(attempt, settings) == stored_record(attempt, settings) == judged


def test_a_damaged_record_is_named(attempt: Attempt, settings: Settings) -> None:
    path = settings.records / "c0ffee000000" / f"{attempt.id}.json"
    path.parent.mkdir(parents=True)
    path.write_text("{")
    with pytest.raises(InfrastructureError, match=f"{attempt.id}.json: is no whole record; move it away"):
        judge_attempt(attempt, settings)


def test_what_a_record_means_for_its_sweep() -> None:
    assert error_of(sample()) is None
    require_valid(sample())
    for status, reasons, error in (
        ("unsound", ["not-steady: lag", "drain: 3"], InvalidMeasurement("not-steady: lag; drain: 3")),
        ("failed", ["ConfigError: rate: too high"], ConfigError("ConfigError: rate: too high")),
        ("failed", ["the ConfigError of another"], InfrastructureError("the ConfigError of another")),
        ("cancelled", [], InfrastructureError("cancelled")),
    ):  # fmt: skip
        found = error_of(sample(status=status, reasons=reasons))
        assert (type(found), str(found)) == (type(error), str(error))
        with pytest.raises(InvalidMeasurement, match=f"-3fa9c1: {status}: {'; '.join(reasons)}$"):
            require_valid(sample(status=status, reasons=reasons))
