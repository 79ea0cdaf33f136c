"""Start, state and end of the embedded services, through the `supervisor` package.

Every process of an installation inherits FAULTLINE_INSTANCE, a random mark of its `up`. So `down` finds what a crashed
supervisor left, and no process of another installation.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import xmlrpc.client
from dataclasses import replace
from pathlib import Path

import psutil

from faultline.engines.spark.distributions import Distribution, assign_ports, distributions
from faultline.experiment.attempt import open_attempts, unhealed_attempts, unhealed_text
from faultline.installation.airflow import airflow_environment, choose_database, write_airflow_home
from faultline.installation.hosts.layout import choose_hosts
from faultline.installation.hosts.namespace_host import clear_hosts, prepare_hosts
from faultline.installation.kafka import prepare_kafka
from faultline.installation.service_users import block_steps, external_experiment, foreground_process, live_runs
from faultline.installation.services import control_services, data_services
from faultline.installation.spark import prepare_spark
from faultline.installation.supervisord import Service, Supervisor, write_configuration
from faultline.system.background import restore
from faultline.system.child_environment import clean_environment
from faultline.system.errors import ConfigError, InfrastructureError
from faultline.system.files import write_json
from faultline.system.locks import FileLock
from faultline.system.process_ledger import end_ledger, end_processes, live_process, processes_with_mark
from faultline.system.process_tags import INSTANCE_MARK
from faultline.system.secrets import require_logins
from faultline.system.settings import (
    AUTH_DISABLED_TEXT,
    HOST,
    WORKERS,
    Settings,
    choose_ports,
    instance,
    is_auth_disabled,
    ports_with,
)
from faultline.system.text import Progress, suggest
from faultline.system.waiting import time_limit, wait_until

# Disables authentication, to measure its cost.
NO_AUTH = "FAULTLINE_NO_AUTH"
# Limit for the end of a process that holds the services or measures.
OWNER_TIMEOUT_S = 90.0
# Limit for the readiness of a service or the database: minutes, on a busy machine.
READY_TIMEOUT_S = 600.0


def _up_lock(settings: Settings) -> contextlib.AbstractContextManager[object]:
    """Serialize concurrent `up` and `down` of one installation."""
    settings.home.mkdir(parents=True, exist_ok=True)
    return FileLock(settings.home / "up.lock").acquire()


def up(
    settings: Settings,
    java: Path,
    java_home: Path,
    *,
    airflow: bool = True,
    explicit_ports: dict[str, int] | None = None,
    hosts: int | None = None,
    progress: Progress = lambda text: None,
) -> Settings:
    """Start the stopped services and wait until all answer. Idempotent.

    `hosts`: number of namespace hosts, 0 for none; None keeps the current number. Returns the settings with the actual
    ports. Raises InfrastructureError naming the service that did not start, with the end of its log.
    """
    explicit_ports = explicit_ports or {}
    # Claims prevent concurrent installations from choosing the same ports before their services listen.
    with _up_lock(settings), contextlib.ExitStack() as claims:
        if airflow:
            _refuse_external_conflict(settings)
        supervisor = Supervisor(settings)
        database = choose_database(settings, running=is_airflow_running(settings)) if airflow else None
        if supervisor.is_running():
            _refuse_changed_options(settings, explicit_ports, hosts)
            _require_secrets(settings)
        else:
            _end_leftovers(settings)
            settings = _claim_hosts(settings, hosts)
            settings = _claim_ports(settings, explicit_ports, progress, claims)
            write_instance(settings)
            settings.make_socket_folder()
            prepare_services(settings, java)
            _start_daemon(settings, java, java_home)
            supervisor = Supervisor(settings)
        data = data_services(settings, java, instance(settings)["instance"])
        components = control_services(settings) if airflow else []
        wanted = data + components
        if airflow:
            write_airflow_home(settings, database)
        if missing := [service for service in wanted if service.name not in supervisor.states()]:
            write_configuration(settings, wanted)
            supervisor.reload()
            progress(f"services: {', '.join(service.name for service in missing)}")
        for service in data:
            supervisor.start(service.name)
        if airflow:
            provision_airflow(settings, progress)
        for service in components:
            supervisor.start(service.name)
        for service in wanted:
            _await_ready(supervisor, service, settings)
            progress(f"{service.name}: ready")
        restore(instance(settings).get("instance"), settings.window_lock)
        report_state(settings, progress)
        return settings


def is_airflow_running(settings: Settings) -> bool:
    """Return whether this installation's own Airflow runs."""
    # One component suffices, even one that restarts: it belongs to the same Airflow.
    states = Supervisor(settings).states().items()
    return any(name.startswith("airflow-") and state not in ("STOPPED", "EXITED") for name, state in states)


def _refuse_external_conflict(settings: Settings) -> None:
    """Raise ConfigError if an external Airflow uses the services: each would close the other's experiments as dead."""
    if (process := foreground_process(settings)) is not None:
        raise ConfigError(
            f"airflow: process {process.pid} holds the services for an external Airflow (`up --foreground`); "
            "fix: end it, or use --no-airflow"
        )
    if (attempt := external_experiment(settings)) is not None:
        raise ConfigError(
            f"airflow: {attempt} of an external Airflow is running; fix: wait for its end, or `./faultline down`"
        )


def report_state(settings: Settings, progress: Progress) -> None:
    """Report disabled authentication, and the attempts whose faults could not be undone."""
    if is_auth_disabled(settings):
        progress(AUTH_DISABLED_TEXT)
    for attempt, why in unhealed_attempts(settings.attempts, settings.home).items():
        progress(unhealed_text(attempt, why))


def down(settings: Settings, progress: Progress = lambda text: None) -> list[int]:
    """End every process of this installation, even those left by a crash; remove its sockets and locks.

    Data, logs and results stay. Returns the pids that were ended outside the supervisor.
    """
    # End the foreground process before taking the lock, which it needs to end its services.
    holder = foreground_process(settings)
    if holder is not None and holder.pid != os.getpid():
        progress("stopping `up --foreground`")
        end_processes([holder], grace_s=OWNER_TIMEOUT_S)
    if owners := _owners(settings):
        progress("stopping experiments that run without Airflow")
        end_processes(owners, grace_s=OWNER_TIMEOUT_S)
    with _up_lock(settings):
        return _down(settings, progress)


def _owners(settings: Settings) -> list[psutil.Process]:
    """Return the live processes, except this one, that run an experiment without Airflow."""
    owners = [attempt.read().get("owner") for attempt in open_attempts(settings.attempts, settings.home)]
    found = [*live_runs(settings), *filter(None, (live_process(**owner) for owner in owners if owner))]
    return list({process.pid: process for process in found if process.pid != os.getpid()}.values())


def _down(settings: Settings, progress: Progress) -> list[int]:
    for attempt in open_attempts(settings.attempts, settings.home):
        end_ledger(attempt.ledger)
    supervisor = Supervisor(settings)
    if supervisor.is_running():
        daemon = psutil.Process(supervisor.call("supervisor.getPID"))
        progress("stopping the services")
        with contextlib.suppress(OSError, xmlrpc.client.Error):
            supervisor.call("supervisor.shutdown")
        psutil.wait_procs([daemon], timeout=60)
    ended = _end_leftovers(settings)
    clear_hosts(settings)
    for leftover in (settings.supervisor_socket, settings.session_socket, settings.home / "supervisord.pid"):
        leftover.unlink(missing_ok=True)
    (settings.home / "instance.json").unlink(missing_ok=True)
    block_steps(settings)
    for attempt in open_attempts(settings.attempts, settings.home):
        if attempt.over is None:
            progress(f"experiment {attempt.id}: interrupted; the next `up` closes it and cleans up")
    return ended


def marked_processes(settings: Settings) -> list[psutil.Process]:
    """Return this user's live processes with this installation's mark, except this one and its parents."""
    mark = instance(settings).get("instance")
    above = {parent.pid for parent in psutil.Process().parents()}
    return [] if mark is None else [one for one in processes_with_mark(INSTANCE_MARK, mark) if one.pid not in above]


def _refuse_changed_options(settings: Settings, explicit: dict[str, int], hosts: int | None) -> None:
    """Raise ConfigError if ports, hosts or results folder differ from those of the running services."""
    if hosts is not None and hosts != len(settings.placement.hosts):
        raise ConfigError(
            f"--hosts: got {hosts}; the services run on {_placement_text(settings)}; fix: `./faultline down` first"
        )
    for name, port in explicit.items():
        if settings.ports.get(name) != port:
            raise ConfigError(f"--port {name}={port}: the services are running; fix: `./faultline down` first")
    results = instance(settings).get("results", str(settings.results))
    if results != str(settings.results):
        raise ConfigError(f"FAULTLINE_RESULTS: the running services write to {results}; fix: `./faultline down` first")


def _placement_text(settings: Settings) -> str:
    return f"{len(settings.placement.hosts)} hosts and this machine" if settings.placement.is_spread else "this machine"


def _claim_hosts(settings: Settings, count: int | None) -> Settings:
    """Return the settings with `count` hosts (default: as before) and ports for their workers."""
    clear_hosts(settings)
    placement = choose_hosts(settings, len(settings.placement.hosts) if count is None else count)
    workers = max(WORKERS, len(placement.hosts) - 1)
    ports = {name: settings.ports.get(name, port) for name, port in ports_with(workers).items()}
    return replace(settings, placement=placement, ports=ports)


def _require_secrets(settings: Settings) -> None:
    """Raise ConfigError if files are missing that the running services were started with."""
    try:
        require_logins(settings.secrets)
    except ConfigError as error:
        raise ConfigError(f"{error} (the services are running: `./faultline down` first)") from None


def _end_leftovers(settings: Settings) -> list[int]:
    return end_processes(marked_processes(settings), grace_s=8.0)


def _claim_ports(
    settings: Settings, explicit: dict[str, int], progress: Progress, claims: contextlib.ExitStack | None = None
) -> Settings:
    for name in explicit:
        if name not in settings.ports:
            raise ConfigError(f"--port {name}: unknown service{suggest(name, settings.ports)}")
    builds = _builds(settings, progress)
    # Other builds come last, so that the default ports stay unchanged.
    of_builds = {f"{name}@{build.name}": (build, name) for build in builds for name in build.ports}
    wanted = {**settings.ports, **explicit, **{key: one.ports[name] for key, (one, name) in of_builds.items()}}
    chosen = choose_ports(wanted, frozenset(explicit), claims)
    for name, port in chosen.items():
        if port != wanted[name]:
            progress(f"{name}: using port {port} ({wanted[name]} is busy)")
    usual = {name: chosen[name] for name in settings.ports}
    write_json(settings.home / "ports.json", usual)
    moved = {build.name: {name: chosen[f"{name}@{build.name}"] for name in build.ports} for build in builds}
    if any(moved[build.name] != dict(build.ports) for build in builds):
        assign_ports(settings, moved)
    return replace(settings, ports=usual)


def _builds(settings: Settings, progress: Progress) -> list[Distribution]:
    """Return the other Spark builds to start; report an unreadable list and return none."""
    try:
        return [one for one in distributions(settings).values() if one.spark_home.is_dir()]
    except ConfigError as error:
        progress(f"spark builds: skipped: {error}")
        return []


def write_instance(settings: Settings) -> None:
    """Create the installation's mark and record its results folder and authentication mode."""
    content = {"instance": os.urandom(8).hex(), "results": str(settings.results)}
    if os.environ.get(NO_AUTH):
        content["open"] = "yes"
    write_json(settings.home / "instance.json", content)


def prepare_services(settings: Settings, java: Path) -> None:
    """Write the settings of Kafka and Spark, and format Kafka's storage."""
    settings.logs.mkdir(parents=True, exist_ok=True)
    if settings.placement.is_spread:
        prepare_hosts(settings)
    prepare_kafka(settings, java)
    prepare_spark(settings)


def _start_daemon(settings: Settings, java: Path, java_home: Path) -> None:
    write_configuration(settings, data_services(settings, java, instance(settings)["instance"]))
    environment = service_environment(settings, java_home)
    settings.supervisor_socket.unlink(missing_ok=True)
    command = [sys.executable, "-m", "supervisor.supervisord", "-c", str(settings.home / "supervisord.conf")]
    with time_limit("supervisord: start", f"see {settings.logs / 'supervisord.log'}"):
        done = subprocess.run(
            command, env=environment, cwd=settings.root, capture_output=True, text=True, timeout=120, check=False
        )
    if done.returncode:
        raise InfrastructureError(f"supervisord: start failed: {(done.stderr or done.stdout).strip()[-300:]}")
    wait_until(Supervisor(settings).is_running, timeout_s=120, what="supervisord")


def service_environment(settings: Settings, java_home: Path) -> dict[str, str]:
    """Return the environment variables that all services share."""
    placement = settings.placement
    direct = ",".join(
        dict.fromkeys((HOST, "localhost", placement.conductor, *(one.address for one in placement.hosts)))
    )
    return clean_environment(
        {
            **airflow_environment(settings),
            INSTANCE_MARK: instance(settings)["instance"],
            # Without it, setproctitle overwrites the environment that contains the mark.
            "SPT_NOENV": "1",
            "JAVA_HOME": str(java_home),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            # Loopback and hosts are never reached through a proxy.
            "NO_PROXY": direct,
            "no_proxy": direct,
        }
    )


def provision_airflow(settings: Settings, progress: Progress) -> None:
    """Migrate Airflow's database and write the Connections, if something changed."""
    progress("airflow: preparing database and Connections")
    with time_limit("airflow: database", "check that it answers, reduce the load of this machine, then `up` again"):
        done = subprocess.run(
            [sys.executable, "-m", "faultline.orchestration.provision"],
            env=clean_environment(airflow_environment(settings)),
            cwd=settings.home,
            capture_output=True,
            text=True,
            timeout=READY_TIMEOUT_S,
            check=False,
        )
    if done.returncode:
        raise InfrastructureError(f"airflow: preparing the database failed: {done.stderr.strip()[-500:]}")


def _await_ready(supervisor: Supervisor, service: Service, settings: Settings) -> None:
    def alive() -> str | None:
        state = supervisor.states().get(service.name, "UNKNOWN")
        if state == "FATAL":
            return f"{service.name}: start failed repeatedly; end of its log:\n{_log_tail(settings, service.name)}"
        return None

    wait_until(
        service.ready,
        timeout_s=READY_TIMEOUT_S,
        every_s=0.25,
        what=lambda: f"{service.name}: not ready; end of its log:\n{_log_tail(settings, service.name)}",
        alive=alive,
    )


def _log_tail(settings: Settings, name: str) -> str:
    try:
        return (settings.logs / f"{name}.log").read_text(errors="replace")[-1500:]
    except OSError:
        return "(no log)"
