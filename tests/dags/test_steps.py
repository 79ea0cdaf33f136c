"""Steps as tasks: failures, notes and Spark submission."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException
from hypothesis import given
from hypothesis import strategies as st

from faultline.engines.runtime import Program
from faultline.engines.spark.submission import SparkProgram
from faultline.experiment.attempt import Attempt
from faultline.installation.airflow import spark_connections
from faultline.lifecycle import steps
from faultline.lifecycle.context import RunContext
from faultline.lifecycle.hooks import PlainHooks
from faultline.lifecycle.steps import STEPS, Step, perform
from faultline.orchestration import experiment as subject
from faultline.orchestration.experiment import experiment_dag, judge, open_task_run, submit_workload, teardown
from faultline.orchestration.hooks import TASK_SUPERVISOR_DIED, AirflowHooks
from faultline.system.errors import InfrastructureError
from faultline.system.journal import read_journal
from faultline.system.process_ledger import (
    LedgerEntry,
    append_entry,
    end_ledger,
    process_of,
    read_ledger,
    spawn_detached,
)
from faultline.system.settings import ROOT, Settings
from faultline.system.waiting import wait_until
from tests.support.attempts import ID, prepared
from tests.unit.sample_records import sample


@pytest.fixture
def attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Attempt:
    monkeypatch.setenv("FAULTLINE_RESULTS", str(tmp_path))
    context = {"params": {}, "run_id": "r", "ti": SimpleNamespace()}
    monkeypatch.setattr(subject, "get_current_context", lambda: context)
    return prepared(tmp_path / "attempts" / ID)


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
def test_a_failed_step_notes_its_reason(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch, error: Exception, raised: type[Exception]
) -> None:
    def do(run: RunContext) -> Any:
        raise error

    monkeypatch.setitem(steps.STEPS, "submit_workload", replace(STEPS["submit_workload"], action=do))
    with pytest.raises(raised):
        submit_workload.function(ID)
    assert noted(attempt) == [("submit_workload", type(error).__name__, str(error))]


def test_the_death_of_the_supervisor_process_is_the_reported_cause(attempt: Attempt) -> None:
    reads, writes = os.pipe()

    def do(run: RunContext) -> None:
        paired = os.getppid()
        os.write(writes, b".")
        wait_until(
            lambda: os.getppid() != paired, timeout_s=120, every_s=0.01, what="the end of the supervisor process"
        )
        raise BrokenPipeError(32, "Broken pipe")

    if not (paired := os.fork()):
        if not os.fork():
            with contextlib.suppress(BrokenPipeError):
                perform(Step("wait_for_something", do), open_task_run(ID))
            os._exit(0)
        os.read(reads, 1)
        os._exit(0)
    os.waitpid(paired, 0)
    wait_until(lambda: noted(attempt) != [], timeout_s=120, every_s=0.01, what="the reason")
    assert noted(attempt) == [("wait_for_something", "InfrastructureError", TASK_SUPERVISOR_DIED)]


def test_a_closed_attempt_fails_the_task_for_good(attempt: Attempt) -> None:
    attempt.closed.touch()
    with pytest.raises(AirflowFailException, match="attempt is closed"):
        submit_workload.function(ID)
    assert noted(attempt) == []


def test_what_a_machine_left_that_went_down_is_refused_for_good(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    append_entry(attempt.ledger, LedgerEntry(1, 1.0, "recorder", ["x"], ID, "t", start_ticks=1, boot="before"))
    harvest = experiment_dag().get_task("harvest")
    harvest.attempt_id = ID
    for act in (lambda: submit_workload.function(ID), lambda: harvest.execute({}), lambda: judge.function(ID)):
        with pytest.raises(AirflowFailException, match="machine rebooted"):
            act()
    assert [name for name, _, _ in noted(attempt)] == ["submit_workload", "harvest", "judge"]
    # It had its record by then.
    monkeypatch.setattr("faultline.lifecycle.steps.has_record", lambda attempt, settings: True)
    monkeypatch.setattr("faultline.records.judge.rejudge.judge_attempt", lambda attempt, settings: sample(attempt=ID))
    monkeypatch.setattr(subject, "publish_note", lambda record: None)
    assert judge.function(ID).endswith(f"{ID}.json")


def test_a_failed_judge_notes_its_reason(attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(attempt: Attempt, settings: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("faultline.records.judge.rejudge.judge_attempt", broken)
    with pytest.raises(OSError, match="No space"):
        judge.function(ID)
    assert noted(attempt) == [("judge", "OSError", "[Errno 28] No space left on device")]


def test_of_an_attempt_whose_plan_is_damaged_the_processes_are_ended_all_the_same(
    attempt: Attempt, tmp_path: Path
) -> None:
    attempt.plan.write_text("{")
    out = tmp_path / "out"
    spawn_detached(
        [sys.executable, "-c", "import time; time.sleep(900)"],
        role="recorder", attempt=ID, ledger=attempt.ledger, stdout=out, stderr=out, cwd=tmp_path,
    )  # fmt: skip
    try:
        with pytest.raises(InfrastructureError, match="plan.json"):
            teardown.function(ID)
        assert process_of(read_ledger(attempt.ledger)[0]) is None
    finally:
        end_ledger(attempt.ledger)


SETTINGS = Settings(ROOT, Path("/home"), Path("/results"))
TEXTS = st.text(st.characters(codec="ascii", exclude_categories=("Cc",)), min_size=1, max_size=20)
SUBMISSIONS = st.builds(
    SparkProgram,
    role=st.just("driver"),
    command=st.lists(TEXTS, min_size=1, max_size=4).map(tuple),
    environment=st.just({}),
    name=TEXTS,
    settings=st.dictionaries(TEXTS.map("spark.{}".format), TEXTS, max_size=4),
    properties=st.just(Path("/home/spark.conf")),
    main_class=st.none() | st.just("com.example.Main"),
    spark_submit=st.none() | st.just("/opt/spark/bin/spark-submit"),
    master=st.none() | st.sampled_from(["spark://elsewhere:7077", "yarn", "local[2]"]),
)


@pytest.fixture(scope="module", autouse=True)
def connection() -> object:
    given = {key: value for key, value in spark_connections(SETTINGS)["spark_default"].items() if key != "extra"}
    extra = json.loads(str(spark_connections(SETTINGS)["spark_default"]["extra"]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({**given, "extra": extra}))
        yield


@given(SUBMISSIONS)
def test_both_build_the_same_command(submission: SparkProgram) -> None:
    assert PlainHooks(SETTINGS).command(submission) == AirflowHooks(SETTINGS, {}).command(submission)


def test_what_is_not_for_spark_is_run_as_it_is() -> None:
    submission = Program("other", ("sleep", "1"), {})
    for hooks in (PlainHooks(SETTINGS), AirflowHooks(SETTINGS, {})):
        assert hooks.command(submission) == ["sleep", "1"]


def test_a_connection_that_is_no_spark_master_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AIRFLOW_CONN_SPARK_DEFAULT")
    submission = SparkProgram("driver", ("x.py",), {}, name="x", settings={}, properties=Path("/p"))
    with pytest.raises(InfrastructureError, match="spark_default"):
        AirflowHooks(SETTINGS, {}).command(replace(submission))
