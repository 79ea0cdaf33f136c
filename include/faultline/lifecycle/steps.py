"""The life of an experiment: the table of its steps, and `run`, which performs them one after another.

Tasks of Airflow perform the same steps, each in a process of its own.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from faultline.experiment.attempt_plan import AttemptPlan, read_plan
from faultline.experiment.cell import AGAIN_AFTER_S, TRIED_AGAIN, Cell
from faultline.installation.java import find_java
from faultline.installation.kafka import delete_topics
from faultline.installation.targets.preflight import require_preflight
from faultline.lifecycle import finish, start
from faultline.lifecycle.context import Hooks, RunContext, open_run
from faultline.lifecycle.ending.drain_limit import MAX_DRAIN_S
from faultline.lifecycle.orphans import close_orphans, unclosed_attempts
from faultline.lifecycle.prepare import Order, make_attempt, record_refusal
from faultline.lifecycle.start import CANCEL_CHECK_S, MAX_TURN_WAIT_S
from faultline.lifecycle.teardown import (
    UnfinishedError,
    has_record,
    note_failure,
    refuse_closed,
    refuse_restarted,
    refuse_unfinished,
)
from faultline.records.record import Record
from faultline.records.store import Store
from faultline.system.errors import Cancelled, FaultlineError, InfrastructureError
from faultline.system.locks import share_measurement_lock
from faultline.system.settings import Settings
from faultline.system.target_registry import find_target
from faultline.system.waiting import max_wait_s, rate_limited, wait_until

# Between two looks at another run that measures the same cell.
DUPLICATE_CHECK_S = 2.0
MINUTE_S, HOUR_S = 60.0, 3600.0


@dataclass(frozen=True)
class Step:
    """One step. `is_repeatable`: it may be begun twice on one attempt, also on one that is closed.

    `timeout_s`: by the plan, after how long it is given up. A last resort: what a step waits for has limits of its own.
    """

    name: str
    action: Callable[[RunContext], Any]
    is_repeatable: bool = False
    timeout_s: Callable[[AttemptPlan], float] = lambda plan: 2 * MINUTE_S


def preload_s(plan: AttemptPlan) -> float:
    """How long the state may take to be filled before the gate."""
    return 0.0 if plan.filling is None else plan.filling.longest_s


TEARDOWN = Step("teardown", finish.teardown, is_repeatable=True, timeout_s=lambda plan: 15 * MINUTE_S)
# In order; the last one is performed whatever became of the others. `await_end` is not tried again: by then the window
# is over, and whoever cancelled it, or made it invalid, does so again. A task that was killed in it ends the attempt.
STEPS = {
    step.name: step
    for step in (
        Step("provision_topics", start.provision_topics),
        Step(
            "start_recorder",
            start.start_recorder,
            timeout_s=lambda plan: MAX_TURN_WAIT_S + max_wait_s() + 15 * MINUTE_S,
        ),
        Step("start_generator", start.start_generator),
        Step("submit_workload", start.submit_workload, timeout_s=lambda plan: 15 * MINUTE_S + preload_s(plan)),
        Step("inject_fault", start.inject_fault, timeout_s=lambda plan: plan.window_s + 20 * MINUTE_S),
        Step("await_end", start.await_end, timeout_s=lambda plan: plan.window_s + MAX_DRAIN_S + 10 * MINUTE_S),
        Step("harvest", finish.harvest, is_repeatable=True, timeout_s=lambda plan: 2 * HOUR_S),
        Step("judge", finish.judge, is_repeatable=True, timeout_s=lambda plan: 2 * HOUR_S),
        TEARDOWN,
    )
}


class RefusedError(FaultlineError):
    """An experiment that cannot be measured here and now: why, and the record that says so."""

    def __init__(self, why: FaultlineError, record: Record) -> None:
        super().__init__(str(why))
        self.reason, self.record = why, record


class AlreadyMeasuredError(FaultlineError):
    """The cell of the order has a valid record, and only missing ones were asked for."""


def prepare(order: Order, hooks: Hooks, settings: Settings) -> RunContext:
    """Cleans up what dead attempts left, and makes the attempt's folder; starts nothing.

    Raises MeasuredError, and RefusedError for what cannot be measured.
    """
    if order.only_missing and order.series is not None:
        cell = Cell(order.config.config_id, order.repetition, order.series)
        await_duplicate_run(cell, hooks, settings)
        if Store(settings.results).sound(cell):
            raise AlreadyMeasuredError("the cell got a valid record while this run was queued")
    java = find_java(settings.home / "java.json").version
    try:
        with share_measurement_lock(settings.window_lock):
            for line in close_orphans(
                settings, hooks.is_run_active, lambda topics: delete_topics(hooks.kafka_admin(), topics)
            ):
                print(line)
            if (elsewhere := find_target(settings, order.config.target)) is not None:
                hooks.store_target(elsewhere)
                require_preflight(settings, elsewhere, print)
            attempt = make_attempt(order, settings, java, hosts=hooks.hosts())
    except FaultlineError as error:
        raise RefusedError(error, record_refusal(order, settings, java, error)) from error
    return open_run(attempt.id, hooks, settings)


def await_duplicate_run(cell: Cell, hooks: Hooks, settings: Settings) -> None:
    """Waits while another run measures the cell, perhaps of another sweep: it need not be measured twice."""

    def measured_elsewhere() -> bool:
        for attempt in unclosed_attempts(settings):
            with contextlib.suppress(FaultlineError):  # damaged: whoever cleans up says so
                if attempt.over is None and read_plan(attempt).order.cell == cell:
                    run_id = attempt.read()["run_id"]
                    if run_id and hooks.is_run_active(str(run_id)):
                        return True
        return False

    cancelled = rate_limited(hooks.is_cancelled, CANCEL_CHECK_S)
    wait_until(
        lambda: cancelled() or not measured_elsewhere(),
        timeout_s=MAX_TURN_WAIT_S,
        every_s=DUPLICATE_CHECK_S,
        what="experiment: the end of the run that measures the same cell",
    )


def perform(step: Step, run: RunContext) -> Any:
    """Performs a step, and notes why it failed. Returns what the step returns.

    Raises ConfigError for a closed attempt, InfrastructureError for one whose machine went down or whose services were
    restarted and for a step that takes too long, and what the step raises.
    """
    attempt = run.attempt
    if not step.is_repeatable:
        refuse_closed(attempt)
    try:
        if step.name != TEARDOWN.name and not (step.name == "judge" and has_record(attempt, run.settings)):
            refuse_unfinished(attempt)
        if not step.is_repeatable:
            refuse_restarted(run)
        with _time_limit(step, step.timeout_s(run.plan)):
            return step.action(run)
    except Exception as error:
        if step.name != TEARDOWN.name:
            cause = error if isinstance(error, FaultlineError) else run.hooks.cause_of(error)
            note_failure(attempt.folder, step.name, cause)
        raise


@contextlib.contextmanager
def _time_limit(step: Step, limit_s: float) -> Iterator[None]:
    """Gives a step up that takes longer; in a thread that takes no signals it has as long as it takes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def give_up(*_: object) -> None:
        raise InfrastructureError(f"{step.name}: not done within {limit_s:g} s; clear the whole run")

    before = signal.signal(signal.SIGALRM, give_up)
    timer = signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        # First, since a signal that nobody handles ends the process.
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before or signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, *timer)


def run(order: Order, hooks: Hooks, settings: Settings) -> Record:
    """Measures one experiment in this process; returns its record, whatever its status.

    What asks this process to end, such as KeyboardInterrupt, is raised once all is ended that it started.
    """
    from faultline.records.judge.rejudge import stored_record

    try:
        context = prepare(order, hooks, settings)
    except RefusedError as refused:
        return refused.record
    step = TEARDOWN
    try:
        for step in STEPS.values():
            if step.name != TEARDOWN.name:
                _perform(step, context)
    except FaultlineError:
        pass  # noted, and the record says why
    except Exception:
        traceback.print_exc(file=sys.stdout)
    except BaseException:
        note_failure(context.attempt.folder, step.name, Cancelled("it was interrupted"))
        raise
    finally:
        with _signals_ignored():
            _tear_down(context)
    record = stored_record(context.attempt, settings)
    if record is None:
        raise InfrastructureError(f"{context.attempt.id}: left no record in {settings.records}")
    return record


def _perform(step: Step, run: RunContext) -> None:
    """Performs a step, and again where that may help."""
    for left in reversed(range(TRIED_AGAIN + 1 if step.is_repeatable else 1)):
        try:
            perform(step, run)
            return
        except UnfinishedError:
            raise
        except Exception as error:
            if not left:
                raise
            print(f"{step.name}: {type(error).__name__}: {error}; tried again in {AGAIN_AFTER_S:g} s")
            time.sleep(AGAIN_AFTER_S)


def _tear_down(run: RunContext) -> None:
    """Performs the teardown; what fails of it takes away no record, and the next experiment tries again."""
    try:
        why = perform(STEPS[TEARDOWN.name], run).get("unhealed")
    except Exception as error:
        traceback.print_exc(file=sys.stdout)
        why = f"{type(error).__name__}: {error}"
    if why:
        print(f"{run.attempt.id} stays open, and the next experiment tries again: {why}")


@contextlib.contextmanager
def _signals_ignored() -> Iterator[None]:
    """Signals that ask for the end do not end what ends everything."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
