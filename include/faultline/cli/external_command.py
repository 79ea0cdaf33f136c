"""Faultline in an external Airflow: `airflow install`, `airflow uninstall`, `step` and `up --foreground`."""

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

app = typer.Typer(name="airflow", help="Run Faultline's DAGs in an external Airflow.", no_args_is_help=True)
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
    """Install the DAGs in an external Airflow. Create its pool and Connections if missing.

    The tasks need `./faultline up --no-airflow --foreground` on the host that runs them. Nothing else in that Airflow
    changes.
    """
    from faultline.installation.airflow import connections
    from faultline.orchestration.external import dag_installer
    from faultline.orchestration.external.dag_export import describe_dag, exported_dags

    settings, install_at = load_settings(), dag_installer.ExternalInstall(into.absolute(), prefix, queue)
    if not settings.secrets.is_dir() and not dry_run:
        raise ConfigError(
            f"{settings.home}: no services; fix: start ./faultline up --no-airflow --foreground on this host"
        )
    wanted = connections(settings)
    dags = [describe_dag(one, list(wanted)) for one in exported_dags()]
    cli = dag_installer.AirflowCli(_airflow_command(airflow))
    dag_installer.install(install_at, cli, settings, wanted, dags, progress, dry_run=dry_run)


@app.command()
def uninstall(into: Into, prefix: Prefix = DEFAULT_PREFIX, airflow: Command = None, dry_run: DryRun = False) -> None:
    """Remove from an external Airflow what was installed. Records are kept."""
    from faultline.orchestration.external import dag_installer

    install_at = dag_installer.ExternalInstall(into.absolute(), prefix, DEFAULT_QUEUE)
    dag_installer.uninstall(install_at, dag_installer.AirflowCli(_airflow_command(airflow)), progress, dry_run=dry_run)


def step(
    name: Annotated[str, typer.Argument(help="Task, such as await_end.")],
    attempt: Annotated[str | None, typer.Argument(help="Attempt that the task belongs to.")] = None,
) -> None:
    """Run the work of an external Airflow's task, or attach to it, and print its output until it ends.

    Reads the context of the task as JSON from standard input; prints JSON lines.
    """
    from faultline.installation.service_users import load_environment
    from faultline.orchestration.external.steps import serve_task

    settings = load_settings()
    load_environment(settings)
    serve_task(name, attempt, json.load(sys.stdin), settings, lambda word: print(json.dumps(word), flush=True))


def run_in_foreground(ports: dict[str, int] | None = None, hosts: int | None = None) -> None:
    """Keep Kafka and Spark running until a signal, then stop those started here.

    If a `run` still uses them at that time, they stop at the end of that run.
    """
    from faultline.cli.service_control import bring_up, close_orphans, require
    from faultline.installation import service_users
    from faultline.installation.supervision import down, is_airflow_running
    from faultline.installation.supervisord import Supervisor

    settings = load_settings()
    require(settings)
    with service_users.hold_foreground(settings), service_users.use_services(settings) as alone:
        _refuse_airflow(settings)
        # This process also owns services that a killed foreground process left running.
        is_owner = service_users.is_foreground(settings) or not Supervisor(settings).is_running()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _stop)
        service_users.block_steps(settings)
        try:
            settings = bring_up(progress, airflow=False, ports=ports, hosts=hosts, settings=settings)
            # Another `up` may have started Airflow meanwhile.
            _refuse_airflow(settings)
            if is_owner:
                service_users.mark_foreground(settings)
            close_orphans(settings, progress)
            service_users.admit_steps(settings)
            progress("services: ready; they stop with this process")
            while True:
                signal.pause()
        finally:
            if is_owner and not is_airflow_running(settings):
                # Marked before the call of `alone()`, so that a `run` that ends in between stops them.
                service_users.mark_for_runs(settings)
                if alone():
                    down(settings, progress)
                else:
                    progress("services: kept until the end of a run that uses them")


def _refuse_airflow(settings: Settings) -> None:
    from faultline.installation.supervision import is_airflow_running

    if is_airflow_running(settings):
        raise ConfigError(
            "--foreground: start failed: the embedded Airflow is running and would close these experiments; "
            "fix: ./faultline down"
        )


def _stop(number: int, frame: object) -> None:
    # A second signal, as from a closed terminal, must not interrupt the shutdown.
    for one in (signal.SIGTERM, signal.SIGINT):
        signal.signal(one, signal.SIG_IGN)
    raise SystemExit(0)


def _airflow_command(given: str | None) -> str:
    found = given or shutil.which("airflow")
    if not found:
        raise ConfigError(
            "--airflow: missing, and no `airflow` in PATH; expected the path of the external `airflow` command"
        )
    return found
