"""Detached processes of an attempt: start, liveness and exit messages."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping, Sequence
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
    """Start the daemons that the planned actions need, such as the Kafka proxy.

    If the workload cannot log in to Kafka, also start the auth proxy; the workload connects through both, first the
    auth proxy.
    """
    attempt, settings, plan = run.attempt, run.settings, run.plan
    endpoints = settings.endpoints
    broker = endpoints.kafka_gated if plan.gated else endpoints.kafka_detoured
    site = DaemonContext(attempt.folder, broker, endpoints.kafka_detour)
    needed = dict.fromkeys(daemon for one in plan.faults for daemon in one.fault.definition.driver.prepare(site))
    upstream = endpoints.kafka_detour if plan.detours else endpoints.kafka_gated
    auth_proxies = [_auth_proxy(attempt, settings, upstream)] if plan.gated else []
    return [_start_daemon(attempt, settings, daemon) for daemon in [*needed, *auth_proxies]]


def _auth_proxy(attempt: Attempt, settings: Settings, upstream: str) -> Daemon:
    """Return the attempt's Kafka auth proxy, logged in as the broker's user for workloads."""
    ready = attempt.scratch / "gate"
    addresses = ("--listen", settings.endpoints.kafka_gate, "--upstream", upstream)
    login = ("--login", str(login_file(settings.secrets, WORKLOAD)), "--ready", str(ready))
    return Daemon("gate", "faultline.installation.kafka_auth_proxy", (*addresses, *login), ready)


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
    """Start a companion process of the attempt on a port that all hosts reach; wait until it listens."""
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
    """Return whether this process listens on the port: another process may have taken it since it was drawn."""
    process = process_of(entry)
    if process is None:
        return False
    with contextlib.suppress(psutil.Error):
        sockets = process.net_connections(kind="tcp")
        return any(one.status == psutil.CONN_LISTEN and one.laddr.port == port for one in sockets)
    return False


def workload_failure(run: Run, entry: LedgerEntry | None) -> str | None:
    """Return why the workload cannot continue, with its exit reason, in one line; None while it can."""
    attempt, lines = run.attempt, read_journal(run.attempt.supervisor_journal)
    exits = events(lines, "exit")
    for one in read_document(attempt.folder / "workload.json")["processes"] if exits else ():
        of_role = [line for line in exits if line["role"] == one["role"]]
        if len(of_role) > one["max_restarts"]:
            return f"workload: exited {len(of_role)} times; {_exit_reason(run, of_role[-1])}"
    if failure := final_failure(run):
        return failure
    trouble = exit_message(attempt, entry)
    # The supervisor ends the other processes after the one that is not restarted.
    end = next((line for line in exits if not _is_restarted(lines, line)), None)
    if trouble and end and end["returncode"] == 0:
        return f"workload: exited with status 0; {_exit_reason(run, end)}"
    if trouble and end and not attempt.gate.exists():
        return f"workload: exited before the start barrier opened; {_exit_reason(run, end)}"
    return trouble


def final_failure(run: Run) -> str | None:
    """Return why the engine gave its job up, in one line: a process ended with a final status; None if none did."""
    exits = events(read_journal(run.attempt.supervisor_journal), "exit")
    for one in read_document(run.attempt.folder / "workload.json")["processes"] if exits else ():
        meanings = one.get("final_statuses", {})
        for line in exits:
            if line["role"] == one["role"] and (meaning := meanings.get(str(line["returncode"]))):
                return f"workload: {meaning}; {_exit_reason(run, line)}"
    return None


def _is_restarted(lines: Sequence[Line], end: Line) -> bool:
    """Return whether the process that ended so was restarted."""
    restarts = (line for line in events(lines, "restart") if line["role"] == end["role"])
    return any(line["mono_ns"] >= end["mono_ns"] for line in restarts)


def _exit_reason(run: Run, end: Line) -> str:
    log = run.attempt.engine_logs / f"{end['role']}-{end['incarnation']}.log"
    return f"{log.name}: {exit_reason(log, engine_of_plan(run.plan).error_line)}"


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
    """Start a detached process of the attempt.

    Raises InfrastructureError if its role already has a process.
    """
    # After a crash Airflow's scheduler may repeat a step; two generators would invalidate the measurement.
    if newest_entry(attempt, role) is not None:
        raise InfrastructureError(f"{role}: start failed: the step already started it; fix: measure again")
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
        # Generator and fault scheduler keep a schedule on little CPU, and their delays distort figures. A generator on
        # the cluster has only its driver JVM on this machine.
        high_priority=role in ("generator", "conductor") and token is None,
    )


def module_command(name: str) -> list[str]:
    """Return the command of a program of this project."""
    return [sys.executable, "-m", name]


def attempt_option(attempt: Attempt) -> list[str]:
    """Return the command-line option that names the attempt."""
    return ["--attempt-dir", str(attempt.folder)]


def last_line(journal: Path, **match: str | int) -> Line | None:
    """Return the last journal line whose fields match; None without one."""
    return find_last(read_journal(journal), **match)


def newest_entry(attempt: Attempt, role: str) -> LedgerEntry | None:
    """Return the newest ledger entry of a role; None without one."""
    return next((entry for entry in reversed(read_ledger(attempt.ledger)) if entry.role == role), None)


def exit_message(attempt: Attempt, entry: LedgerEntry | None) -> str | None:
    """Return one line on how a process ended, or None while it runs."""
    if entry is not None and process_of(entry) is not None:
        return None
    role = entry.role if entry else "process"
    log = attempt.logs / f"{role}.err"
    try:
        message = log.read_text(errors="replace").strip().splitlines()[-1][:300]
    except (OSError, IndexError):
        message = "no message"
    return f"{role}: exited early: {message}"
