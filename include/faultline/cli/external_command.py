"""`./faultline airflow install` and `uninstall`, `step`, and `up --foreground`: Faultline in an external Airflow."""

from __future__ import annotations

import json
import shutil
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from faultline.system.errors import ConfigError
from faultline.system.settings import Settings, load_settings
from faultline.system.text import progress

app = typer.Typer(help="Run Faultline's DAGs in an external Airflow.", no_args_is_help=True)
Into = Annotated[Path, typer.Option("--into", help="DAG folder of the external Airflow.")]
Prefix = Annotated[str, typer.Option(help="Prefix of the ids of DAGs, pool and Connections.")]
Command = Annotated[str | None, typer.Option(help="Its `airflow` command (default: the one in PATH).")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the changes; make none.")]
DEFAULT_PREFIX, DEFAULT_QUEUE = "faultline_", "faultline"


@app.command()
def install(
    into: Into,
    prefix: Prefix = DEFAULT_PREFIX,
    queue: Annotated[
        str, typer.Option(help="Queue of its tasks, served only by the worker on this host.")
    ] = DEFAULT_QUEUE,
    airflow: Command = None,
    dry_run: DryRun = False,
) -> None:
    """Install Faultline's DAGs in an external Airflow, and create its pool and Connections if missing.

    The tasks need `./faultline up --no-airflow --foreground` on the host that runs them. Nothing else in that Airflow
    changes.
    """
    from faultline.installation.airflow import connections
    from faultline.orchestration.external import dag_installer
    from faultline.orchestration.external.dag_export import describe_dag, exported_dags

    settings, guest = load_settings(), dag_installer.ExternalInstall(into.absolute(), prefix, queue)
    if not settings.secrets.is_dir() and not dry_run:
        raise ConfigError(
            f"{settings.home}: has no services yet; start ./faultline up --no-airflow --foreground first, on this host"
        )
    wanted = connections(settings)
    dags = [describe_dag(one, list(wanted)) for one in exported_dags()]
    dag_installer.install(
        guest, dag_installer.AirflowCli(_command(airflow)), settings, wanted, dags, progress, dry_run=dry_run
    )


@app.command()
def uninstall(into: Into, prefix: Prefix = DEFAULT_PREFIX, airflow: Command = None, dry_run: DryRun = False) -> None:
    """Remove from an external Airflow exactly what was installed. Records are kept."""
    from faultline.orchestration.external import dag_installer

    guest = dag_installer.ExternalInstall(into.absolute(), prefix, DEFAULT_QUEUE)
    dag_installer.uninstall(guest, dag_installer.AirflowCli(_command(airflow)), progress, dry_run=dry_run)


def step(
    name: Annotated[str, typer.Argument(help="The task, such as await_end.")],
    attempt: Annotated[str | None, typer.Argument(help="The attempt that it is a step of.")] = None,
) -> None:
    """For tasks of an external Airflow: do the work of one, or find it, and print what it prints until it has ended.

    What the task knows of its run comes by standard input, as JSON; each line on standard output is JSON, too.
    """
    from faultline.installation.service_users import load_environment
    from faultline.orchestration.external.steps import serve_task

    settings = load_settings()
    load_environment(settings)
    serve_task(name, attempt, json.load(sys.stdin), settings, lambda word: print(json.dumps(word), flush=True))


def hold_services(ports: dict[str, int] | None = None, hosts: int | None = None) -> None:
    """Keeps Kafka and Spark running until this process is ended; then those that it started end, too, or with the last
    `run` that uses them."""
    from faultline.cli.service_control import bring_up, close_what_ended, require
    from faultline.installation import service_users
    from faultline.installation.supervision import down, is_airflow_running
    from faultline.installation.supervisord import Supervisor

    settings = load_settings()
    require(settings)
    with service_users.hold_foreground(settings), service_users.use_services(settings) as alone:
        _refuse_airflow(settings)
        # Also those of a process that was killed.
        ours = service_users.is_foreground(settings) or not Supervisor(settings).is_running()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _stop)
        service_users.block_steps(settings)
        try:
            settings = bring_up(progress, airflow=False, ports=ports, hosts=hosts, settings=settings)
            # One that was on its way up while this one came.
            _refuse_airflow(settings)
            if ours:
                service_users.mark_foreground(settings)
            close_what_ended(settings, progress)
            service_users.admit_steps(settings)
            progress("services: ready; they end with this process")
            while True:
                signal.pause()
        finally:
            if ours and not is_airflow_running(settings):
                # Before the look at who else there is, so that a `run` that ends meanwhile ends them.
                service_users.mark_for_runs(settings)
                if alone():
                    down(settings, progress)
                else:
                    progress("services: a run uses them, too, so they go on until its end")


def _refuse_airflow(settings: Settings) -> None:
    from faultline.installation.supervision import is_airflow_running

    if is_airflow_running(settings):
        raise ConfigError(
            "--foreground: Faultline's own Airflow runs here, and either would close the other's experiments; "
            "./faultline down first"
        )


def _stop(number: int, frame: object) -> None:
    # A second signal, as of a terminal that is closed, must not end the ending.
    for one in (signal.SIGTERM, signal.SIGINT):
        signal.signal(one, signal.SIG_IGN)
    raise SystemExit(0)


def _command(given: str | None) -> str:
    found = given or shutil.which("airflow")
    if not found:
        raise ConfigError("--airflow: there is no airflow in PATH; give the path of that Airflow's command")
    return found
