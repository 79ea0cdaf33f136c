"""The detached processes of an attempt, as its steps start them, look at them, and find them dead."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping
from pathlib import Path

import psutil

from fault.action import Daemon, DaemonContext
from faultline.engines.registry import engine_of_plan
from faultline.engines.supervisor_journal import exit_reason
from faultline.experiment.attempt import Attempt
from faultline.experiment.prerequisites import Companion
from faultline.experiment.run import Run
from faultline.system.errors import InfrastructureError
from faultline.system.files import read_document
from faultline.system.journal import Line, events, find_last, read_journal
from faultline.system.process_ledger import LedgerEntry, process_of, read_ledger, spawn_detached
from faultline.system.secrets import WORKLOAD, login_file
from faultline.system.settings import Settings
from faultline.system.waiting import wait_until

DAEMON_START_S = 60.0


def start_fault_daemons(run: Run) -> list[LedgerEntry]:
    """Starts what the planned actions need beside the workload, such as the proxy between it and the broker; and the
    gate of a workload that cannot log in, which comes before the proxy."""
    attempt, settings, plan = run.attempt, run.settings, run.plan
    own = settings.endpoints
    site = DaemonContext(attempt.folder, own.kafka_gated if plan.gated else own.kafka_detoured, own.kafka_detour)
    needed = dict.fromkeys(daemon for one in plan.faults for daemon in one.fault.definition.driver.prepare(site))
    gate = [_auth_proxy(attempt, settings, own.kafka_detour if plan.detours else own.kafka_gated)] if plan.gated else []
    return [_start_daemon(attempt, settings, daemon) for daemon in [*needed, *gate]]


def _auth_proxy(attempt: Attempt, settings: Settings, upstream: str) -> Daemon:
    """The gate of this attempt, as the broker's user for workloads."""
    ready = attempt.scratch / "gate"
    ends = ("--listen", settings.endpoints.kafka_gate, "--upstream", upstream)
    login = ("--login", str(login_file(settings.secrets, WORKLOAD)), "--ready", str(ready))
    return Daemon("gate", "faultline.installation.kafka_auth_proxy", (*ends, *login), ready)


def _start_daemon(attempt: Attempt, settings: Settings, daemon: Daemon) -> LedgerEntry:
    entry = spawn_process(
        attempt,
        settings,
        daemon.role,
        [*module_command(daemon.module), *daemon.arguments],
        stdout=attempt.logs / f"{daemon.role}.out",
    )
    wait_until(
        daemon.ready.exists,
        timeout_s=DAEMON_START_S,
        what=f"{daemon.role}: listening",
        alive=lambda: exit_message(attempt, entry),
    )
    return entry


def start_companion(run: Run, companion: Companion) -> LedgerEntry:
    """Starts a process of the attempt's own, where all hosts reach it, and waits until it listens."""
    attempt, settings, port = run.attempt, run.settings, run.plan.places.ports[companion.role]
    command = [part.format(host=settings.placement.conductor, port=port) for part in companion.command]
    entry = spawn_process(attempt, settings, companion.role, command, stdout=attempt.logs / f"{companion.role}.out")
    wait_until(
        lambda: _is_listening(entry, port),
        timeout_s=DAEMON_START_S,
        what=f"{companion.role}: listening",
        alive=lambda: exit_message(attempt, entry),
    )
    return entry


def _is_listening(entry: LedgerEntry, port: int) -> bool:
    """Whether it is this process that listens there: the port was free when it was drawn, and may not be any more."""
    process = process_of(entry)
    if process is None:
        return False
    with contextlib.suppress(psutil.Error):
        sockets = process.net_connections(kind="tcp")
        return any(one.status == psutil.CONN_LISTEN and one.laddr.port == port for one in sockets)
    return False


def workload_failure(run: Run, entry: LedgerEntry | None) -> str | None:
    """Why the workload will not go on, in one line with its last words; None while it may."""
    attempt = run.attempt
    exits = events(read_journal(attempt.supervisor_journal), "exit")
    for one in read_document(attempt.folder / "workload.json")["processes"] if exits else ():
        own = [line for line in exits if line["role"] == one["role"]]
        if len(own) > one["max_restarts"]:
            return f"workload: ended {len(own)} times; {_exit_reason(run, own[-1])}"
    trouble = exit_message(attempt, entry)
    if trouble and exits and exits[-1]["returncode"] == 0:
        return f"workload: ended by itself, with status 0; {_exit_reason(run, exits[-1])}"
    if trouble and exits and not attempt.gate.exists():
        return f"workload: ended before anything was measured; {_exit_reason(run, exits[-1])}"
    return trouble


def _exit_reason(run: Run, end: Line) -> str:
    log = run.attempt.engine_logs / f"{end['role']}-{end['incarnation']}.log"
    return f"exit reason in {log.name}: {exit_reason(log, engine_of_plan(run.plan).error_line)}"


def spawn_process(
    attempt: Attempt,
    settings: Settings,
    role: str,
    command: list[str],
    *,
    stdout: Path,
    environment: Mapping[str, str] | None = None,
    token: str | None = None,
) -> LedgerEntry:
    """Starts a detached process of the attempt. Raises InfrastructureError when its role has one already."""
    # The scheduler may die and have a step begun twice; what two generators send is no measurement.
    if newest_entry(attempt, role) is not None:
        raise InfrastructureError(f"{role}: was started before, its step was begun twice; the next attempt is whole")
    return spawn_detached(
        command,
        role=role,
        attempt=attempt.id,
        ledger=attempt.ledger,
        stdout=stdout,
        stderr=attempt.logs / f"{role}.err",
        cwd=settings.root,
        env=environment,
        token=token,
        for_workload=role == "supervisor",
        # Both keep a schedule, and use few cores: what they delay is small, what delays them is a wrong figure. Of a
        # generator on the cluster this is only the lead, a JVM.
        high_priority=role in ("generator", "conductor") and token is None,
    )


def module_command(name: str) -> list[str]:
    """The command of a program of this project."""
    return [sys.executable, "-m", name]


def attempt_option(attempt: Attempt) -> list[str]:
    """The option that names the attempt."""
    return ["--attempt-dir", str(attempt.folder)]


def last_line(journal: Path, **match: str | int) -> Line | None:
    """The last line whose fields are as given."""
    return find_last(read_journal(journal), **match)


def newest_entry(attempt: Attempt, role: str) -> LedgerEntry | None:
    """The newest ledger entry of a role."""
    return next((entry for entry in reversed(read_ledger(attempt.ledger)) if entry.role == role), None)


def exit_message(attempt: Attempt, entry: LedgerEntry | None) -> str | None:
    """One line on how a process ended, or None while it lives."""
    if entry is not None and process_of(entry) is not None:
        return None
    role = entry.role if entry else "process"
    log = attempt.logs / f"{role}.err"
    try:
        words = log.read_text(errors="replace").strip().splitlines()[-1][:300]
    except (OSError, IndexError):
        words = "it left no message"
    return f"{role}: ended early: {words}"
