"""Shared parts of commands: check requirements, start services, select records."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import get_args

from faultline.experiment.matrices import MATRICES
from faultline.experiment.nightly_file import NIGHTLY
from faultline.installation.airflow import require_keys
from faultline.installation.cds_archive import make_archive
from faultline.installation.jars import verify
from faultline.installation.java import Java, find_java
from faultline.installation.service_users import mark_for_all, mark_for_runs, use_services
from faultline.installation.supervision import up
from faultline.installation.supervisord import Supervisor
from faultline.records.find import read_saved
from faultline.records.record import Record, Status
from faultline.records.store import Store, StoredRecords
from faultline.records.sweep_plan import SweepPlans
from faultline.system.child_environment import check_workload_variables, refuse_root, set_owner_umask, warn_root
from faultline.system.errors import ConfigError
from faultline.system.secrets import FILE, HARNESS, login_file, read_secrets
from faultline.system.settings import Settings, check_folders, load_settings
from faultline.system.ssh_hosts import ssh_hosts
from faultline.system.text import Progress, suggest
from faultline.system.waiting import max_wait_s
from generators.kafka_credentials import CREDENTIALS_ENV


def require(settings: Settings) -> Java:
    """Check folders, secrets, hosts, settings, Java and jars; return the Java. Raises ConfigError for a defect."""
    refuse_root()
    set_owner_umask()
    check_workload_variables()
    check_folders(settings)
    if (settings.secrets / FILE).exists():
        read_secrets(settings.secrets)
    require_keys(settings)
    ssh_hosts(settings)
    max_wait_s()
    java = find_java(settings.home / "java.json")
    verify(settings.home)
    warn_root()
    return java


def bring_up(
    progress: Progress,
    *,
    airflow: bool = True,
    ports: dict[str, int] | None = None,
    hosts: int | None = None,
    settings: Settings | None = None,
    for_run: bool = False,
) -> Settings:
    """Start the missing services of an installation (default: this one) and wait until they are ready.

    They run until `down`. Services started `for_run` stop with it, unless another command brings them up meanwhile.
    """
    settings = settings or load_settings()
    java = require(settings)
    make_archive(settings, progress)
    with use_services(settings):
        if for_run and not Supervisor(settings).is_running():
            mark_for_runs(settings)
        settings = up(
            settings, java.executable, java.home, airflow=airflow, explicit_ports=ports, hosts=hosts, progress=progress
        )
        if not for_run:
            mark_for_all(settings)
    # Benchmarks send and read in this process, as the user of the harness.
    os.environ[CREDENTIALS_ENV] = str(login_file(settings.secrets, HARNESS))
    return settings


def parse_ports(given: Sequence[str]) -> dict[str, int]:
    """Parse words such as airflow=18090 into ports by name. Raises ConfigError for another form."""
    ports = {}
    for item in given:
        name, separator, number = item.partition("=")
        if not separator or not number.isdigit():
            raise ConfigError(f"--port: got {item}; expected NAME=NUMBER, such as airflow=18090")
        ports[name.replace("-", "_")] = int(number)
    return ports


def close_orphans(settings: Settings, progress: Progress) -> None:
    """Close orphaned attempts of single runs, such as after a power loss, with a line for each."""
    from faultline.installation.kafka import delete_own_topics
    from faultline.lifecycle.ending.orphans import close_ownerless

    for line in close_ownerless(settings, lambda topics: delete_own_topics(settings, topics)):
        progress(line)


def select_records(
    matrix: str | None, sweeps: Sequence[str], status: str | None, saved: Sequence[Path] = ()
) -> tuple[list[Record], tuple[str, ...]]:
    """Return records by matrix, sweeps (all if empty) and status, and a line per unreadable file.

    They come from the store or from the files `saved`. Raises ConfigError for an unknown status, matrix or sweep.
    """
    _check_known("status", status, get_args(Status))
    settings = load_settings()
    contents = StoredRecords(tuple(read_saved(saved)), ()) if saved else Store(settings.results).read()
    _check_known("matrix", matrix, {*MATRICES, NIGHTLY, *(one.matrix for one in contents.records if one.matrix)})
    known = {one.sweep_id for one in contents.records if one.sweep_id} | SweepPlans(settings.results).ids()
    for sweep in sweeps:
        _check_known("sweep", sweep, known)
    return contents.matching(matrix, sweeps, status), contents.problems


def _check_known(option: str, given: str | None, known: Collection[str]) -> None:
    if given is not None and given not in known:
        raise ConfigError(f"--{option}: got {given}; expected a known {option}{suggest(given, known)}")
