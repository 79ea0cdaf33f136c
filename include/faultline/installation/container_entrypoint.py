"""One service of the embedded system in the foreground, as each container of docker-compose.yaml runs it.

    python -m faultline.installation.container_entrypoint prepare    write settings, Kafka's storage, the database
    python -m faultline.installation.container_entrypoint NAME       become the service NAME

Programs, ports and settings equal those of `./faultline up`. Repeating `prepare` changes nothing that a running service
depends on.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from faultline.installation.airflow import choose_database, write_airflow_home
from faultline.installation.cds_archive import make_archive
from faultline.installation.java import Java, find_java
from faultline.installation.services import control_services, data_services
from faultline.installation.supervision import (
    prepare_services,
    provision_airflow,
    service_environment,
    write_instance,
)
from faultline.installation.supervisord import Service, environment_of, start_command
from faultline.system.child_environment import can_raise_priority, set_owner_umask
from faultline.system.errors import ConfigError, FaultlineError
from faultline.system.former_names import adopt_renamed_variables
from faultline.system.settings import Settings, check_folders, instance, load_settings
from faultline.system.text import suggest

PREPARE = "prepare"


def services(settings: Settings, java: Java) -> dict[str, Service]:
    """Return every service by name. Raises ConfigError before `prepare`."""
    mark = instance(settings).get("instance")
    if mark is None:
        raise ConfigError(
            f"{settings.home}: not prepared; fix: `python -m faultline.installation.container_entrypoint {PREPARE}`"
        )
    return {one.name: one for one in [*data_services(settings, java.executable, mark), *control_services(settings)]}


def prepare(settings: Settings, java: Java) -> None:
    """Prepare a state directory for the services. Idempotent.

    Raises ConfigError for a folder or database that cannot be used.
    """
    check_folders(settings)
    database = choose_database(settings, running=False)
    if not instance(settings):
        write_instance(settings)
    prepare_services(settings, java.executable)
    make_archive(settings, print)
    write_airflow_home(settings, database)
    provision_airflow(settings, print)
    if not can_raise_priority():
        print("generator: raising its priority is not allowed (may send late on busy cores); fix: set ulimits.nice")


def command_of(settings: Settings, java: Java, name: str) -> tuple[Sequence[str], dict[str, str]]:
    """Return a service's command and environment. Raises ConfigError for an unknown name."""
    known = services(settings, java)
    if name not in known:
        raise ConfigError(f"{name}: unknown service{suggest(name, [*known, PREPARE])}")
    service = known[name]
    environment = {**service_environment(settings, java.home), **environment_of(settings, service)}
    return start_command(settings, service), environment


def main(arguments: Sequence[str]) -> None:
    if len(arguments) != 1:
        raise ConfigError(f"arguments: got {len(arguments)}; expected one service name, or {PREPARE}")
    set_owner_umask()
    adopt_renamed_variables()
    settings = load_settings()
    java = find_java(settings.home / "java.json")
    if arguments[0] == PREPARE:
        prepare(settings, java)
        return
    command, environment = command_of(settings, java, arguments[0])
    os.chdir(settings.home)
    os.execvpe(command[0], list(command), environment)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except FaultlineError as error:
        raise SystemExit(f"faultline: {error}") from None
