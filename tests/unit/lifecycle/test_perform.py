"""Steps in one process: refusals, noted failures, and the whole sequence."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from faultline.experiment.cell import Cell
from faultline.experiment.config import parse_configuration
from faultline.experiment.prerequisites import PreloadGoal
from faultline.lifecycle import steps as subject
from faultline.lifecycle.context import RunContext
from faultline.lifecycle.prepare import Order
from faultline.lifecycle.steps import STEPS, TEARDOWN, RefusedError, Step, await_duplicate_run, perform
from faultline.lifecycle.teardown import UnfinishedError
from faultline.system.errors import Cancelled, ConfigError, InfrastructureError, InvalidMeasurement
from faultline.system.files import write_json
from faultline.system.journal import read_journal
from faultline.system.process_ledger import LedgerEntry, append_entry
from faultline.system.settings import INSTANCE, ROOT, Settings
from tests.support.attempts import ID, prepared
from tests.support.plain_hooks import TestHooks, context_of
from tests.unit.sample_records import sample

ORDER = Order(parse_configuration({"fault": "none"}), series="s1")
CELL = Cell(ORDER.config.config_id, 0, "s1")


@pytest.fixture
def run(tmp_path: Path) -> RunContext:
    settings = Settings(ROOT, tmp_path / "home", tmp_path / "results")
    return context_of(prepared(settings.attempts / ID, ORDER.config, series="s1"), settings)


def noted(run: RunContext) -> list[tuple[str, str, str]]:
    lines = read_journal(run.attempt.folder / "failures.jsonl")
    return [(line["step"], line["kind"], line["message"]) for line in lines]


def fails_with(error: BaseException) -> Callable[[RunContext], Any]:
    def do(run: RunContext) -> None:
        raise error

    return do


@pytest.mark.parametrize(
    "error", [InfrastructureError("kafka: away"), OSError(28, "No space left on device"), AssertionError("never")]
)
def test_a_failed_step_notes_its_reason(run: RunContext, error: Exception) -> None:
    with pytest.raises(type(error)):
        perform(Step("start_something", fails_with(error)), run)
    assert noted(run) == [("start_something", type(error).__name__, str(error))]


def test_a_closed_attempt_is_refused_and_keeps_its_reasons(run: RunContext) -> None:
    run.attempt.closed.touch()
    for name, step in STEPS.items():
        tried = replace(step, action=lambda run: "done")
        if step.is_repeatable:
            assert perform(tried, run) == "done", name
        else:
            with pytest.raises(ConfigError, match="attempt is closed"):
                perform(tried, run)
    assert noted(run) == []


def test_what_a_machine_left_that_went_down_is_refused(run: RunContext, monkeypatch: pytest.MonkeyPatch) -> None:
    append_entry(run.attempt.ledger, LedgerEntry(1, 1.0, "recorder", ["x"], ID, "t", start_ticks=1, boot="before"))
    names = ["await_end", "harvest", "judge"]
    for name in names:
        with pytest.raises(UnfinishedError):
            perform(replace(STEPS[name], action=lambda run: None), run)
    assert [name for name, _, _ in noted(run)] == names
    assert perform(replace(TEARDOWN, action=lambda run: 1), run) == 1
    # It had its record by then.
    monkeypatch.setattr(subject, "has_record", lambda attempt, settings: True)
    assert perform(replace(STEPS["judge"], action=lambda run: 7), run) == 7


@pytest.mark.parametrize("now", [{"instance": "of the next start"}, {}])
def test_an_attempt_before_a_restart_of_the_services_fails_and_is_noted(run: RunContext, now: dict[str, str]) -> None:
    began = replace(run, plan=replace(run.plan, places=replace(run.plan.places, background="of its start")))
    run.settings.home.mkdir()
    write_json(run.settings.home / INSTANCE, {"instance": "of its start"})
    assert perform(replace(STEPS["inject_fault"], action=lambda run: 7), began) == 7
    write_json(run.settings.home / INSTANCE, now)
    for name, step in STEPS.items():
        tried = replace(step, action=lambda run: 7)
        if step.is_repeatable:
            assert perform(tried, began) == 7, f"{name} judges and closes what is there"
        else:
            with pytest.raises(InfrastructureError, match="services restarted"):
                perform(tried, began)
    assert [name for name, _, _ in noted(run)] == [name for name, step in STEPS.items() if not step.is_repeatable]
    assert {kind for _, kind, _ in noted(run)} == {"InfrastructureError"}


def test_a_step_that_takes_too_long_is_given_up(run: RunContext) -> None:
    slow = Step("start_something", lambda run: time.sleep(60), timeout_s=lambda plan: 0.05)
    with pytest.raises(InfrastructureError, match="^start_something: timed out"):
        perform(slow, run)
    assert perform(Step("quick", lambda run: 7), run) == 7, "the limit is taken back"


def test_the_timer_of_a_step_is_stopped_before_its_signal_ends_the_process_again(
    run: RunContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[float] = []
    real = signal.signal

    def noting(number: int, handler: Any) -> Any:
        left.append(signal.getitimer(signal.ITIMER_REAL)[0])
        return real(number, handler)

    monkeypatch.setattr(signal, "signal", noting)
    perform(Step("quick", lambda run: 7), run)
    assert left[1] == 0.0


def test_limits_follow_the_plan(run: RunContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAULTLINE_STEAL_WAIT_S", "7200")
    limits = {name: step.timeout_s(run.plan) for name, step in STEPS.items()}
    assert limits["inject_fault"] == limits["await_end"] == run.plan.window_s + 1200
    filling = PreloadGoal({}, runs=1, what="it", events=1, typical_s=1.0, longest_s=500.0)
    longer = replace(run.plan, filling=filling)
    assert STEPS["submit_workload"].timeout_s(longer) == limits["submit_workload"] + 500
    assert limits["start_recorder"] > subject.MAX_TURN_WAIT_S + 7200 and limits["harvest"] == limits["judge"] == 7200


def test_a_run_waits_for_the_one_that_measures_its_cell(run: RunContext, monkeypatch: pytest.MonkeyPatch) -> None:
    def reported(run_id: str | None = "theirs", **order: Any) -> None:
        prepared(run.attempt.folder, ORDER.config, facts={"run_id": run_id}, **{"series": "s1", **order})

    reported()
    alive = iter([True, True, False])
    hooks = TestHooks(run.settings, alive=lambda: next(alive))
    monkeypatch.setattr(subject, "DUPLICATE_CHECK_S", 0.01)
    await_duplicate_run(CELL, hooks, run.settings)
    assert hooks.asked == ["theirs"] * 3
    for other in ({"repetition": 1}, {"series": "s2"}, {"config_id": "0" * 12}, {"run_id": None}):
        reported(**other)
        await_duplicate_run(CELL, hooks, run.settings)
    run.attempt.closed.touch()
    reported()
    await_duplicate_run(CELL, hooks, run.settings)
    run.attempt.closed.unlink()
    run.attempt.plan.write_text("{")
    await_duplicate_run(CELL, hooks, run.settings)
    assert hooks.asked == ["theirs"] * 3, "of another cell, over, or damaged"


def test_a_cancelled_run_does_not_wait(run: RunContext) -> None:
    prepared(run.attempt.folder, ORDER.config, facts={"run_id": "theirs"})
    await_duplicate_run(CELL, TestHooks(run.settings, alive=lambda: True, stopped=True), run.settings)


@pytest.fixture
def life(run: RunContext, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Experiment whose steps note their calls."""
    done: list[str] = []

    def noting(name: str) -> Callable[[RunContext], Any]:
        def do(run: RunContext) -> dict[str, Any]:
            done.append(name)
            return {}

        return do

    steps = {name: replace(step, action=noting(name)) for name, step in STEPS.items()}
    monkeypatch.setattr(subject, "STEPS", steps)
    monkeypatch.setattr(subject, "prepare", lambda *_: run)
    monkeypatch.setattr("faultline.records.judge.rejudge.stored_record", lambda *_: sample(attempt=ID))
    return done


def test_a_life_ends_with_its_record(life: list[str], run: RunContext) -> None:
    assert subject.run(ORDER, run.hooks, run.settings).attempt == ID
    assert life == list(STEPS)


def test_what_airflow_did_to_a_task_replaces_no_finding_of_the_experiment(
    run: RunContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TestHooks, "cause_of", lambda self, error: InfrastructureError("the task was ended"))
    for error in (InvalidMeasurement("too late"), OSError("a pipe")):
        with pytest.raises(type(error)):
            perform(Step("await_end", fails_with(error)), run)
    assert [message for _, _, message in noted(run)] == ["too late", "the task was ended"]


def test_a_harvest_that_fails_is_tried_again(life: list[str], run: RunContext, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = iter([InfrastructureError("away"), OSError("away"), None])

    def harvest(run: RunContext) -> None:
        if error := next(tries):
            raise error

    monkeypatch.setattr(subject, "RETRY_DELAY_S", 0.0)
    subject.STEPS["harvest"] = replace(STEPS["harvest"], action=harvest)
    assert subject.run(ORDER, run.hooks, run.settings).attempt == ID
    assert life[-2:] == ["judge", "teardown"]


def test_a_teardown_that_fails_takes_no_record_away(life: list[str], run: RunContext) -> None:
    subject.STEPS["teardown"] = replace(STEPS["teardown"], action=fails_with(InfrastructureError("kafka: away")))
    assert subject.run(ORDER, run.hooks, run.settings).attempt == ID
    assert life[-1] == "judge"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (InfrastructureError("x"), "InfrastructureError"),
        (ValueError("x"), "ValueError"),
        (KeyboardInterrupt(), "Cancelled"),
    ],
)
def test_a_failed_run_is_torn_down_and_notes_its_reason(
    life: list[str], run: RunContext, error: BaseException, kind: str
) -> None:
    subject.STEPS["submit_workload"] = replace(STEPS["submit_workload"], action=fails_with(error))
    if isinstance(error, KeyboardInterrupt):
        with pytest.raises(KeyboardInterrupt):
            subject.run(ORDER, run.hooks, run.settings)
        assert issubclass(Cancelled, InfrastructureError)
    else:
        assert subject.run(ORDER, run.hooks, run.settings).attempt == ID
    assert life == ["provision_topics", "start_recorder", "start_generator", "teardown"]
    assert [(name, of) for name, of, _ in noted(run)] == [("submit_workload", kind)]


def test_what_is_refused_leaves_its_record(run: RunContext, monkeypatch: pytest.MonkeyPatch) -> None:
    record = sample(attempt=ID)

    def refuse(*_: object) -> RunContext:
        raise RefusedError(InfrastructureError("no room"), record)

    monkeypatch.setattr(subject, "prepare", refuse)
    assert subject.run(ORDER, run.hooks, run.settings) is record


def test_an_attempt_of_an_earlier_version_is_not_harvested_again(
    run: RunContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its plan lacks the definition of a tuple; good tables would be overwritten."""
    attempt = run.attempt
    write_json(attempt.folder / "attempt.json", {**attempt.read(), "config": run.plan.order.config})
    attempt.plan.unlink()
    monkeypatch.setattr("faultline.lifecycle.finish.collect_raw_data", lambda run: pytest.fail("was gathered"))
    with pytest.raises(ConfigError, match="fix: clear"):
        perform(STEPS["harvest"], context_of(attempt, run.settings))
