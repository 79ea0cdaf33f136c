"""What a step of an attempt leaves when it fails: why, for the record that the teardown writes."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from pathlib import Path

import pytest
from airflow.sdk.exceptions import AirflowFailException

from faultline.experiment.attempt import Attempt, write_json
from faultline.system.errors import InfrastructureError
from faultline.system.journal import read_journal
from faultline.system.processes import Entry, append_entry
from faultline.system.waiting import wait_until
from faultline.experiment.config import parse_configuration
from faultline.orchestration import experiment as subject
from faultline.orchestration.experiment import experiment_dag, judge, step
from faultline.orchestration.step import ALONE
from faultline.lifecycle.prepare import Order
from tests.unit.sample_records import sample

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


def test_a_task_that_airflow_left_alone_says_that_and_not_what_broke_then(attempt: Attempt) -> None:
    reads, writes = os.pipe()

    @step
    def wait_for_something(attempt: Attempt) -> None:
        beside = os.getppid()
        os.write(writes, b".")
        wait_until(lambda: os.getppid() != beside, timeout_s=120, every_s=0.01, what="the end of the process beside")
        raise BrokenPipeError(32, "Broken pipe")

    if not (beside := os.fork()):
        if not os.fork():
            with contextlib.suppress(BrokenPipeError):
                wait_for_something(ID)
            os._exit(0)
        os.read(reads, 1)
        os._exit(0)
    os.waitpid(beside, 0)
    wait_until(lambda: noted(attempt) != [], timeout_s=120, every_s=0.01, what="the reason")
    assert noted(attempt) == [("wait_for_something", "InfrastructureError", ALONE)]


def test_a_closed_attempt_is_refused_and_keeps_its_reasons(attempt: Attempt) -> None:
    attempt.closed.touch()
    with pytest.raises(AirflowFailException, match="this attempt is closed; clear the whole run"):
        step(lambda attempt: None)(ID)
    assert noted(attempt) == []


def test_what_a_machine_left_that_went_down_is_refused_for_good(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    append_entry(attempt.ledger, Entry(1, 1.0, "recorder", ["x"], ID, "t", start_ticks=1, boot="before"))
    harvest = experiment_dag().get_task("harvest")
    harvest.attempt_id = ID
    for act in (lambda: step(lambda attempt: None)(ID), lambda: harvest.execute({}), lambda: judge.function(ID)):
        with pytest.raises(AirflowFailException, match="the machine was started anew before it was judged"):
            act()
    assert [name for name, _, _ in noted(attempt)] == ["<lambda>", "harvest", "judge"]
    # It had its record by then.
    monkeypatch.setattr("faultline.lifecycle.teardown.has_record", lambda attempt, settings: True)
    monkeypatch.setattr("faultline.records.judge.verdict.judge_attempt", lambda attempt, settings: sample(attempt=ID))
    monkeypatch.setattr(subject, "tell", lambda record: None)
    assert judge.function(ID).endswith(f"{ID}.json")


def test_a_judge_that_breaks_says_why(attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(attempt: Attempt, settings: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("faultline.records.judge.verdict.judge_attempt", broken)
    with pytest.raises(OSError, match="No space"):
        judge.function(ID)
    assert noted(attempt) == [("judge", "OSError", "[Errno 28] No space left on device")]


def test_a_run_waits_for_the_one_that_measures_its_cell(attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    order = Order(parse_configuration({"fault": "none"}), series="s1")
    told = {"config_id": order.config.config_id, "repetition": 0, "series": "s1", "run_id": "theirs"}
    write_json(attempt.folder / "attempt.json", told)
    asked: list[str] = []
    at_work = iter([True, True, False])

    def run_at_work(run_id: str) -> bool:
        asked.append(run_id)
        return next(at_work)

    monkeypatch.setattr(subject, "run_at_work", run_at_work)
    monkeypatch.setattr(subject, "parent_stopped", lambda: False)
    monkeypatch.setattr(subject, "TWIN_CHECK_S", 0.01)
    subject.await_twin(order)
    assert asked == ["theirs"] * 3
    for other in ({"repetition": 1}, {"series": "s2"}, {"config_id": "0" * 12}, {"run_id": None}):
        write_json(attempt.folder / "attempt.json", {**told, **other})
        subject.await_twin(order)
    subject.await_twin(replace(order, series=None))
    attempt.closed.touch()
    write_json(attempt.folder / "attempt.json", told)
    subject.await_twin(order)
    assert asked == ["theirs"] * 3, "of another cell, or over"
    attempt.closed.unlink()
    (attempt.folder / "attempt.json").write_text("{")
    subject.await_twin(order)


def test_a_run_that_nobody_wants_any_more_waits_for_nothing(attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    order = Order(parse_configuration({"fault": "none"}), series="s1")
    told = {"config_id": order.config.config_id, "repetition": 0, "series": "s1", "run_id": "theirs"}
    write_json(attempt.folder / "attempt.json", told)
    monkeypatch.setattr(subject, "run_at_work", lambda run_id: True)
    monkeypatch.setattr(subject, "parent_stopped", lambda: True)
    subject.await_twin(order)
