"""Steps of one experiment, from its topics to the end of its processes.

The started processes outlive the step and its process. Only the fault scheduler, never a step, does what needs exact
timing.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping
from typing import Any

from faultline.experiment.attempt import Attempt, write_json
from faultline.experiment.attempt_plan import AttemptPlan
from faultline.experiment.prerequisites import PreloadGoal
from faultline.installation.kafka import TIMEOUTS, admin_client, grant_workload_rights, kafka_ready
from faultline.installation.supervisord import Supervisor
from faultline.lifecycle.attempt_processes import (
    attempt_option,
    exit_message,
    final_failure,
    last_line,
    module_command,
    newest_entry,
    spawn_process,
    start_companion,
    start_fault_daemons,
    workload_failure,
)
from faultline.lifecycle.context import RunContext
from faultline.lifecycle.ending.drain_limit import await_drained, await_last_batch, is_idle
from faultline.lifecycle.progress import holder_text
from faultline.lifecycle.teardown import undo_leftovers
from faultline.lifecycle.window.measured_window import MAX_BARRIER_WAIT_S
from faultline.lifecycle.window.schedule_check import ScheduleCheck
from faultline.system.errors import Cancelled, InfrastructureError
from faultline.system.files import read_document
from faultline.system.locks import RECORDER
from faultline.system.process_ledger import LedgerEntry, process_of, send_signals, victim_of
from faultline.system.process_tags import load_token
from faultline.system.secrets import HARNESS, login_file
from faultline.system.settings import Settings, is_auth_disabled
from faultline.system.waiting import await_low_steal, max_wait_s, rate_limited, wait_until
from generators.kafka_credentials import CREDENTIALS_ENV

RECORDER_START_S = 15.0
# Interval of cancellation checks, each of which is an API call to Airflow.
CANCEL_CHECK_S = 5.0
# The same while an experiment waits for the machine during the measured window of another one.
QUEUE_CANCEL_CHECK_S = 10.0
# Longest wait for the previous experiment, whose window may last hours.
MAX_TURN_WAIT_S = 6 * 3600.0
# Includes the end of the previous experiment's processes.
SERVICES_TIMEOUT_S = 120.0
PRIMER_TIMEOUT_S = 300.0
CONDUCTOR_START_S = 60.0
SETTLE_S = 30.0
STOP_S = 60.0
# Poll interval during the engine's start; each poll takes some ms of CPU.
STARTUP_POLL_S = 0.25
# Poll intervals of the journals.
WINDOW_POLL_S = 1.0
END_POLL_S = 0.1


def provision_topics(run: RunContext) -> None:
    """Create the topics of the plan.

    Raises InfrastructureError for an existing topic.
    """
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

    plan, target_settings = run.plan, run.there
    overrides = run.config.topic_conf or {}
    # Records stay until the teardown deletes their topic.
    retention = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
    # A target's broker sets its own replication factor and access rules.
    copies = -1 if target_settings.target else 1

    def conf(role: str) -> dict[str, str]:
        # CreateTime keeps intended send times, which may lie in the past.
        by_broker = plan.stamped_by_broker and role == "output"
        return {"message.timestamp.type": "LogAppendTime" if by_broker else "CreateTime", **retention, **overrides}

    topics = [
        NewTopic(topic.name, num_partitions=topic.partitions, replication_factor=copies, config=conf(role))
        for role, topic in plan.topics.items()
    ]
    client = admin_client(target_settings) if target_settings.target else run.hooks.kafka_admin()
    if target_settings.target is None and not is_auth_disabled(target_settings):
        grant_workload_rights(client)
    for name, future in client.create_topics(topics, **TIMEOUTS).items():
        try:
            future.result()
        except KafkaException as error:
            raise InfrastructureError(f"topic {name}: creation failed: {error.args[0].str()}") from None


def start_recorder(run: RunContext) -> LedgerEntry:
    """Start the recorder, and wait until it holds the machine and the services have room.

    If requested, also wait until the CPU steal of the machine is low. The recorder waits for the end of the previous
    recording only: this attempt's start may overlap the previous harvest.
    """
    attempt, settings, cancelled = run.attempt, run.settings, run.hooks.is_cancelled
    if holder := holder_text(settings):
        print(f"recorder: waiting for {holder}")
    entry = spawn_process(
        attempt,
        settings,
        "recorder",
        [
            *(*module_command(RECORDER), *attempt_option(attempt)),
            *("--machine", settings.machine, "--turn", str(settings.turn), "--wait", f"{MAX_TURN_WAIT_S:g}"),
        ],
        stdout=attempt.logs / "recorder.out",
    )
    cancelled_sparsely = rate_limited(cancelled, QUEUE_CANCEL_CHECK_S)
    wait_until(
        lambda: last_line(attempt.recorder_journal, kind="start") or _raise_if_cancelled(cancelled_sparsely),
        timeout_s=MAX_TURN_WAIT_S + RECORDER_START_S,
        what="recorder: the first sample",
        alive=lambda: exit_message(attempt, entry),
    )
    # The previous experiment may have ended because the sweep was cancelled.
    _raise_if_cancelled(cancelled)
    await_services(run)
    if wait_s := max_wait_s():
        print(f"recorder: waiting for low CPU steal (at most {wait_s:g} s)")
        print(f"recorder: waited {await_low_steal(wait_s, cancelled=cancelled):.0f} s")
    return entry


def await_services(run: RunContext) -> None:
    """Wait until the broker replies and the engine has the requested room; restart failed services."""
    endpoints, logins, supervisor = run.plan.endpoints, run.there.logins, Supervisor(run.settings)
    missing: str | None = None

    def ready() -> bool:
        nonlocal missing
        supervisor.start_failed()
        missing = (
            run.engine.startup_blocker(endpoints, run.config)
            if kafka_ready(endpoints.kafka, logins)
            else "Kafka is unreachable"
        )
        return missing is None

    wait_until(
        ready,
        timeout_s=SERVICES_TIMEOUT_S,
        every_s=0.3,
        what=lambda: f"services: {missing}; fix: see ./faultline doctor, or run ./faultline down, then up",
    )


def start_generator(run: RunContext) -> LedgerEntry | None:
    """Start the generator: it prepares its data, sends the primer (warm-up records) and waits at the start barrier.

    Returns None if the engine generates the events.
    """
    attempt, settings, plan = run.attempt, run.settings, run.plan
    if plan.generator is None:
        return None
    specification = attempt.folder / "generator_config.json"
    write_json(specification, plan.generator)
    arguments = ["--config", str(specification), "--gate", str(attempt.gate)]
    arguments += ["--histogram", str(attempt.folder / "schedule_lag.hlog")]
    command: list[str] = [*module_command("generators"), *arguments]
    environment: Mapping[str, str] = {CREDENTIALS_ENV: str(login_file(run.there.logins, HARNESS))}
    token = None
    if run.config.generator_on != "host":
        job = run.engine.generator(run, run.runtime, arguments)
        command, environment, token = run.hooks.command(job), job.environment, load_token(attempt.id)
    journal = attempt.generator_journal
    return spawn_process(attempt, settings, "generator", command, stdout=journal, environment=environment, token=token)


def submit_workload(run: RunContext) -> LedgerEntry:
    """Start the workload and its companions; return once the primer or preload is committed.

    A query with event time must also have set its watermark by then, so that it drops late records of the schedule.
    Raises Cancelled if the parent sweep was stopped.
    """
    attempt, plan = run.attempt, run.plan
    attempt.scratch.mkdir(exist_ok=True)
    submission = run.engine.submit(run, run.runtime)
    write_json(
        attempt.folder / "workload.json",
        {
            "processes": [
                {
                    "role": one.program.role,
                    "command": run.hooks.command(one.program),
                    "env": dict(one.program.environment),
                    "restart_delay_s": one.restart_delay_s,
                    "max_restarts": one.max_restarts,
                    "final_statuses": dict(one.final_statuses),
                }
                for one in submission.processes
            ],
            "ends_itself": submission.stops_on_request,
        },
    )
    start_fault_daemons(run)
    for companion in plan.companions:
        start_companion(run, companion)
    entry = _start_with_preload(run, plan.filling) if plan.filling else _start_with_primer(run)
    run.engine.on_ready(run, run.runtime)
    return entry


def _start_with_primer(run: RunContext) -> LedgerEntry:
    """Start a workload; wait until it has committed the primer."""
    attempt, progress = run.attempt, run.progress
    cancelled = rate_limited(run.hooks.is_cancelled, CANCEL_CHECK_S)

    def sent() -> dict[str, Any] | None:
        _raise_if_cancelled(cancelled)
        return last_line(attempt.generator_journal, event="primed")

    primed = wait_until(
        sent,
        timeout_s=PRIMER_TIMEOUT_S,
        what="generator: the primer",
        alive=lambda: exit_message(attempt, newest_entry(attempt, "generator")),
    )
    entry = _start_supervisor(attempt, run.settings)

    def is_committed() -> bool:
        batches = progress.covering(primed["end_offsets"])
        return batches >= run.plan.primed_batches or (batches > 0 and is_idle(progress, run.plan.checkpoint_interval_s))

    _await_commit(run, entry, "its input", is_committed)
    return entry


def _start_with_preload(run: RunContext, filling: PreloadGoal) -> LedgerEntry:
    """Start a workload without a generator; wait for the preload of its state."""
    entry, progress = _start_supervisor(run.attempt, run.settings), run.progress

    def filled_and_begun() -> bool:
        return progress.covering(filling.offsets) >= 1 and progress.runs() >= filling.runs

    _await_commit(run, entry, filling.what, filled_and_begun, PRIMER_TIMEOUT_S + filling.longest_s)
    return entry


def _start_supervisor(attempt: Attempt, settings: Settings) -> LedgerEntry:
    command = [*module_command("faultline.lifecycle.workload_supervisor"), *attempt_option(attempt)]
    return spawn_process(attempt, settings, "supervisor", command, stdout=attempt.logs / "supervisor.out")


def _await_commit(
    run: RunContext, entry: LedgerEntry, what: str, committed: Callable[[], bool], limit_s: float = PRIMER_TIMEOUT_S
) -> None:
    attempt, starting = run.attempt, run.engine.while_starting(run)
    cancelled = rate_limited(run.hooks.is_cancelled, CANCEL_CHECK_S)

    def look() -> bool:
        starting()
        return committed() or _raise_if_cancelled(cancelled)

    wait_until(
        look,
        timeout_s=limit_s,
        every_s=STARTUP_POLL_S,
        what=lambda: f"workload: the commit of {what} in its checkpoint; see {attempt.engine_logs / 'driver-0.log'}",
        alive=lambda: workload_failure(run, entry),
    )


def inject_fault(run: RunContext) -> dict[str, Any]:
    """Start the fault scheduler, and wait until the outcome of every fault is journalled ("settled").

    Returns the journal line of the last outcome; for a control run, the line of the start barrier.
    """
    attempt, settings, plan = run.attempt, run.settings, run.plan
    entry = spawn_process(
        attempt,
        settings,
        "conductor",
        [*module_command("faultline.lifecycle.fault_scheduler"), *attempt_option(attempt)],
        stdout=attempt.logs / "conductor.out",
    )

    schedule = ScheduleCheck(attempt)

    def alive() -> str | None:
        schedule.require_on_time(plan)
        failed = last_line(attempt.conductor_journal, event="failed")
        return f"conductor: {failed['message']}" if failed else final_failure(run) or exit_message(attempt, entry)

    gate = wait_until(
        lambda: last_line(attempt.conductor_journal, event="gate"),
        timeout_s=CONDUCTOR_START_S + MAX_BARRIER_WAIT_S,
        what="conductor: the start barrier",
        alive=alive,
    )
    line = gate
    for one in plan.faults:
        line = wait_until(
            lambda index=one.index: (  # type: ignore[misc]
                last_line(attempt.conductor_journal, event="settled", fault=index)
                or last_line(attempt.conductor_journal, event="not_normal")
            ),
            timeout_s=plan.over_s(one) + SETTLE_S,
            every_s=WINDOW_POLL_S,
            what=f"conductor: the outcome of fault {one.index}",
            alive=alive,
        )
    return line


def await_end(run: RunContext) -> dict[str, Any]:
    """Wait for the end of the schedule and the drain, then stop workload and recorder.

    A dead process is noted, not raised: the measurement is kept and judged as invalid. Raises Cancelled if the parent
    sweep was stopped, InvalidMeasurement for an unreachable rate, InfrastructureError if the engine gave its job up.
    """
    attempt, plan = run.attempt, run.plan
    cancelled = rate_limited(run.hooks.is_cancelled, CANCEL_CHECK_S)
    problems: list[str] = []

    schedule = ScheduleCheck(attempt)

    def alive(role: str) -> str | None:
        schedule.require_on_time(plan)
        return final_failure(run) or exit_message(attempt, newest_entry(attempt, role))

    scheduled = [("conductor", attempt.conductor_journal)]
    scheduled += [("generator", attempt.generator_journal)] if plan.paced else []
    for role, journal in scheduled:
        try:
            wait_until(
                lambda journal=journal: last_line(journal, event="done") or _raise_if_cancelled(cancelled),  # type: ignore[misc]
                timeout_s=plan.window_s + SETTLE_S,
                every_s=_poll_interval(attempt, plan),
                what=f"{role}: the end of its schedule",
                alive=lambda role=role: alive(role),  # type: ignore[misc]
            )
        except InfrastructureError as error:
            if isinstance(error, Cancelled) or final_failure(run):
                raise
            problems.append(str(error))
            undo_leftovers(run)  # a pause that a dead scheduler left would block the drain
    drained = await_drained(run, problems) if plan.paced else await_last_batch(run, problems)
    if not drained and (failure := final_failure(run)):
        raise InfrastructureError(failure)
    attempt.stop_file.touch()
    # The next experiment need not wait for the end of this one's processes.
    _stop_recorder(attempt, problems)
    _await_exit(attempt, "supervisor", problems, plan.stop_s)
    outcome = {"drained": drained, "problems": problems, "wall_ns": time.time_ns(), "mono_ns": time.monotonic_ns()}
    write_json(attempt.folder / "end.json", outcome)
    return outcome


def _poll_interval(attempt: Attempt, plan: AttemptPlan) -> Callable[[], float]:
    """Return the function for the poll interval, in s: long during a window, short around its end."""
    gate = last_line(attempt.conductor_journal, event="gate")
    longest_ns = gate["t0_mono_ns"] + round(plan.window_s * 1e9) if gate else 0

    def pace_s() -> float:
        ends_ns = read_document(attempt.load_end)["end_mono_ns"] if attempt.load_end.exists() else longest_ns
        return WINDOW_POLL_S if time.monotonic_ns() < ends_ns - round(WINDOW_POLL_S * 1e9) else END_POLL_S

    return pace_s


def _await_exit(attempt: Attempt, role: str, problems: list[str], timeout_s: float = STOP_S) -> None:
    entry = newest_entry(attempt, role)
    if entry is None:
        return
    try:
        wait_until(lambda: process_of(entry) is None, timeout_s=timeout_s, what=f"{role}: the exit")
    except InfrastructureError as error:
        problems.append(str(error))


def _stop_recorder(attempt: Attempt, problems: list[str]) -> None:
    entry = newest_entry(attempt, "recorder")
    process = victim_of(entry) if entry else None
    if process is None:
        # A repeated step finds the recorder stopped.
        if not last_line(attempt.recorder_journal, kind="stop"):
            problems.append("recorder: died before the end")
        return
    send_signals(process, signal.SIGTERM)
    _await_exit(attempt, "recorder", problems)


def _raise_if_cancelled(cancelled: Callable[[], bool]) -> bool:
    """Return False; raise Cancelled if the sweep was stopped."""
    if cancelled():
        raise Cancelled("the sweep was stopped")
    return False
