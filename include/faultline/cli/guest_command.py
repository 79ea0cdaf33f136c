"""`./faultline conductor`, `install` and `uninstall`: Faultline in an Airflow that others use."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Annotated

import typer

from faultline.system.errors import ConfigError
from faultline.system.settings import Settings, load_settings
from faultline.system.text import say

Into = Annotated[Path, typer.Option("--into", help="The folder of DAGs of that Airflow.")]
Prefix = Annotated[str, typer.Option(help="What the ids of DAGs, pool and Connections begin with.")]
Command = Annotated[str | None, typer.Option(help="The `airflow` command of that Airflow. Empty: the one in PATH.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done; do nothing.")]
DEFAULT_PREFIX, DEFAULT_QUEUE = "faultline_", "faultline"


def install(
    into: Into,
    prefix: Prefix = DEFAULT_PREFIX,
    queue: Annotated[
        str, typer.Option(help="The queue of its tasks, which only this host's worker takes.")
    ] = DEFAULT_QUEUE,
    airflow: Command = None,
    dry_run: DryRun = False,
) -> None:
    """Write a folder of DAGs for an Airflow that others use, and make its pool and Connections when missing.

    Their tasks need `./faultline conductor` on the host that runs them. Nothing else of that Airflow is changed.
    """
    from faultline.installation.airflow import connections
    from faultline.orchestration.guest import folder
    from faultline.orchestration.guest.description import describe, guest_dags
    from faultline.orchestration.guest.other_airflow import OtherAirflow

    settings, guest = load_settings(), folder.Guest(into.absolute(), prefix, queue)
    if not settings.secrets.is_dir() and not dry_run:
        raise ConfigError(f"{settings.home}: has no services yet; start ./faultline conductor first, on this host")
    wanted = connections(settings)
    dags = [describe(one, list(wanted)) for one in guest_dags()]
    folder.install(guest, OtherAirflow(_command(airflow)), settings, wanted, dags, say, dry_run=dry_run)


def uninstall(into: Into, prefix: Prefix = DEFAULT_PREFIX, airflow: Command = None, dry_run: DryRun = False) -> None:
    """Remove from an Airflow that others use exactly what `install` made there. Records stay."""
    from faultline.orchestration.guest import folder
    from faultline.orchestration.guest.other_airflow import OtherAirflow

    guest = folder.Guest(into.absolute(), prefix, DEFAULT_QUEUE)
    folder.uninstall(guest, OtherAirflow(_command(airflow)), say, dry_run=dry_run)


def conductor() -> None:
    """Keep Kafka and Spark running and do the work of the tasks of an Airflow that others use, until it is ended.

    Stays in the foreground, for systemd or supervisord. At its end the services that it started end too, or with the
    last `run` that uses them.
    """
    from faultline.cli.operations import bring_up, close_what_ended, require
    from faultline.installation.supervision import airflow_runs, down
    from faultline.installation.supervisord import Supervisor
    from faultline.installation.users import keep_services, keeps_services, note_for_runs, using
    from faultline.orchestration.guest.conductor import listening

    settings = load_settings()
    require(settings)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stop)
    settings.make_place_for_sockets()
    with listening(settings) as (server, _), using(settings) as alone:
        _refuse_airflow(settings)
        # Also those of a conductor that was killed.
        ours = keeps_services(settings) or not Supervisor(settings).running()
        try:
            settings = bring_up(say, airflow=False, settings=settings)
            # One that was on its way up while this one came to listen.
            _refuse_airflow(settings)
            if ours:
                keep_services(settings)
            close_what_ended(settings, say)
            _become_service(settings)
            say(f"conductor: ready at {settings.conductor_socket}")
            server.serve_forever()
        finally:
            if ours and not airflow_runs(settings):
                # Before the look at who else there is, so that a `run` that ends meanwhile ends them.
                note_for_runs(settings)
                if alone():
                    down(settings, say)
                else:
                    say("services: a run uses them, too, so they go on until its end")


def _refuse_airflow(settings: Settings) -> None:
    from faultline.installation.supervision import airflow_runs

    if airflow_runs(settings):
        raise ConfigError(
            "conductor: Faultline's own Airflow runs here, and either would close the other's experiments; ./faultline "
            "down first"
        )


def _stop(number: int, frame: object) -> None:
    # A second signal, as of a terminal that is closed, must not end the ending.
    for one in (signal.SIGTERM, signal.SIGINT):
        signal.signal(one, signal.SIG_IGN)
    raise SystemExit(0)


def _become_service(settings: Settings) -> None:
    """Gives what this process starts the environment that the tasks of Faultline's own Airflow have."""
    from faultline.installation.airflow import write_airflow_home
    from faultline.installation.java import find_java
    from faultline.installation.supervision import service_environment
    from faultline.system.environment import passed_on

    if not (settings.airflow_home / "airflow.cfg").exists():
        write_airflow_home(settings)
    wanted = {**service_environment(settings, find_java(settings.home / "java.json").home), **passed_on()}
    os.environ.clear()
    os.environ.update(wanted)


def _command(given: str | None) -> str:
    found = given or shutil.which("airflow")
    if not found:
        raise ConfigError("--airflow: there is no airflow in PATH; give the path of that Airflow's command")
    return found
