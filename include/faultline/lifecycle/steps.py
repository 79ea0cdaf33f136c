"""Steps of an experiment, and `run`, which performs them in sequence.

Tasks of Airflow perform the same steps, each in its own process.
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
from faultline.experiment.cell import RETRY_DELAY_S, TRIED_AGAIN, Cell
from faultline.installation.java import find_java
from faultline.installation.kafka import delete_topics
from faultline.installation.targets.preflight import require_preflight
from faultline.lifecycle import finish, start
from faultline.lifecycle.context import Hooks, RunContext, open_run
from faultline.lifecycle.ending.drain_limit import MAX_DRAIN_S
from faultline.lifecycle.ending.orphans import close_orphans, unclosed_attempts
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

# Poll interval of another run that measures the same cell.
DUPLICATE_CHECK_S = 2.0
MINUTE_S, HOUR_S = 60.0, 3600.0


@dataclass(frozen=True)
class Step:
    """One step of an experiment.

    `is_repeatable`: it may run twice on one attempt, even a closed one. `timeout_s`: time limit by plan; a last resort,
    since waits within a step have their own limits.
    """

    name: str
    action: Callable[[RunContext], Any]
    is_repeatable: bool = False
    timeout_s: Callable[[AttemptPlan], float] = lambda plan: 2 * MINUTE_S


def preload_s(plan: AttemptPlan) -> float:
    """Return the time limit of the state preload, in s."""
    return 0.0 if plan.filling is None else plan.filling.longest_s


TEARDOWN = Step("teardown", finish.teardown, is_repeatable=True, timeout_s=lambda plan: 15 * MINUTE_S)
# In order; the last step always runs. `await_end` is not repeatable: the window is over by then, and the same cause
# would end it again.
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
    """Experiment that cannot be measured now, with its reason and its record."""

    def __init__(self, why: FaultlineError, record: Record) -> None:
        super().__init__(str(why))
        self.reason, self.record = why, record


class AlreadyMeasuredError(FaultlineError):
    """Order that measures only missing cells, for a cell that has a usable record."""


def prepare(order: Order, hooks: Hooks, settings: Settings) -> RunContext:
    """Close orphaned attempts, and make the attempt's folder; start nothing.

    Raises AlreadyMeasuredError, and RefusedError for an experiment that cannot be measured.
    """
    if order.only_missing and order.series is not None:
        cell = Cell(order.config.config_id, order.repetition, order.series)
        await_duplicate_run(cell, hooks, settings)
        if Store(settings.results).newest_usable(cell):
            raise AlreadyMeasuredError("cell skipped: it got a usable record while this run was queued")
    java = find_java(settings.home / "java.json").version
    try:
        with share_measurement_lock(settings.window_lock):
            for line in close_orphans(
                settings, hooks.is_run_active, lambda topics: delete_topics(hooks.kafka_admin(), topics)
            ):
                print(line)
            if (external_target := find_target(settings, order.config.target)) is not None:
                hooks.store_target(external_target)
                require_preflight(settings, external_target, print)
            attempt = make_attempt(order, settings, java, hosts=hooks.hosts())
    except FaultlineError as error:
        raise RefusedError(error, record_refusal(order, settings, java, error)) from error
    return open_run(attempt.id, hooks, settings)


def await_duplicate_run(cell: Cell, hooks: Hooks, settings: Settings) -> None:
    """Wait while another run, perhaps of another sweep, measures the same cell."""

    def measured_elsewhere() -> bool:
        for attempt in unclosed_attempts(settings):
            with contextlib.suppress(FaultlineError):  # the orphan cleanup reports damaged attempts
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
        what="experiment: the run that measures the same cell",
    )


def perform(step: Step, run: RunContext) -> Any:
    """Perform a step, note its failure, and return its value.

    Raises ConfigError for a closed attempt, and the step's errors. Raises InfrastructureError after a reboot, a restart
    of the services, or a timeout.
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
    """Raise InfrastructureError after `limit_s` s; without effect outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def give_up(*_: object) -> None:
        raise InfrastructureError(f"{step.name}: timed out after {limit_s:g} s; fix: clear the whole run")

    before = signal.signal(signal.SIGALRM, give_up)
    timer = signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        # Disarm first: an unhandled signal ends the process.
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before or signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, *timer)


def run(order: Order, hooks: Hooks, settings: Settings) -> Record:
    """Measure one experiment in this process; return its record, whatever its status.

    KeyboardInterrupt and similar are raised after all started processes have ended.
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
        pass  # noted; the record has the reason
    except Exception:
        traceback.print_exc(file=sys.stdout)
    except BaseException:
        note_failure(context.attempt.folder, step.name, Cancelled("interrupted"))
        raise
    finally:
        with _signals_ignored():
            _tear_down(context)
    record = stored_record(context.attempt, settings)
    if record is None:
        raise InfrastructureError(f"{context.attempt.id}: no record in {settings.records}")
    return record


def _perform(step: Step, run: RunContext) -> None:
    """Perform a step, with retries if it is repeatable."""
    for retries_left in reversed(range(TRIED_AGAIN + 1 if step.is_repeatable else 1)):
        try:
            perform(step, run)
            return
        except UnfinishedError:
            raise
        except Exception as error:
            if not retries_left:
                raise
            print(f"{step.name}: {type(error).__name__}: {error}; retrying in {RETRY_DELAY_S:g} s")
            time.sleep(RETRY_DELAY_S)


def _tear_down(run: RunContext) -> None:
    """Perform the teardown; a failure keeps the record and is retried by the next experiment."""
    try:
        why = perform(STEPS[TEARDOWN.name], run).get("unhealed")
    except Exception as error:
        traceback.print_exc(file=sys.stdout)
        why = f"{type(error).__name__}: {error}"
    if why:
        print(f"{run.attempt.id}: teardown failed: {why} (retried by the next experiment)")


@contextlib.contextmanager
def _signals_ignored() -> Iterator[None]:
    """Ignore SIGINT and SIGTERM inside the block."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
