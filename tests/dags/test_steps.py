"""What a step of an attempt leaves when it fails: why, for the record that the teardown writes."""

from __future__ import annotations

from pathlib import Path

import pytest
from airflow.sdk.exceptions import AirflowFailException

from faultline.base.attempt import Attempt
from faultline.base.errors import InfrastructureError
from faultline.base.journal import read_journal
from faultline.orchestration.experiment import judge, step

ID = "20261121T061500Z-3fa9c1"


@pytest.fixture
def attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Attempt:
    monkeypatch.setenv("FAULTLINE_RESULTS", str(tmp_path))
    made = Attempt(tmp_path / "attempts" / ID)
    made.folder.mkdir(parents=True)
    return made


def noted(attempt: Attempt) -> list[tuple[str, str, str]]:
    lines = read_journal(attempt.folder / "failures.jsonl")
    return [(line["step"], line["kind"], line["message"]) for line in lines]


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (InfrastructureError("kafka: away"), AirflowFailException),
        (OSError(28, "No space left on device"), OSError),
        (AssertionError("never"), AssertionError),
    ],
)
def test_a_step_that_fails_says_why(attempt: Attempt, error: Exception, raised: type[Exception]) -> None:
    @step
    def start_something(attempt: Attempt) -> None:
        raise error

    with pytest.raises(raised):
        start_something(ID)
    assert noted(attempt) == [("start_something", type(error).__name__, str(error))]


def test_a_closed_attempt_is_refused_and_keeps_its_reasons(attempt: Attempt) -> None:
    attempt.closed.touch()
    with pytest.raises(AirflowFailException, match="this attempt is closed; clear the whole run"):
        step(lambda attempt: None)(ID)
    assert noted(attempt) == []


def test_a_judge_that_breaks_says_why(attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(attempt: Attempt, settings: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("faultline.analysis.verdict.judge_attempt", broken)
    with pytest.raises(OSError, match="No space"):
        judge.function(ID)
    assert noted(attempt) == [("judge", "OSError", "[Errno 28] No space left on device")]
