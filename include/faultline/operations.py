"""What several commands have in common: bring the services up, check requirements, select records."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast, get_args

from faultline.config import suggest
from faultline.errors import ConfigError
from faultline.jars import verify
from faultline.java import Java, find_java
from faultline.quiet import longest_wait_s
from faultline.record import Record, Status
from faultline.rehearsal import make_archive
from faultline.settings import Settings, check_folders, load_settings
from faultline.store import Store
from faultline.supervision import up

Say = Callable[[str], None]


def require(settings: Settings) -> Java:
    """Checks folders, the environment's numbers, Java and jars before anything is started; returns the Java to use.

    Raises ConfigError naming what is missing or broken, and the remedy.
    """
    check_folders(settings)
    longest_wait_s()
    java = find_java(settings.home / "java.json")
    verify(settings.home)
    return java


def bring_up(
    say: Say, *, airflow: bool = True, ports: dict[str, int] | None = None, settings: Settings | None = None
) -> Settings:
    """Starts what does not run yet of an installation, by default this one, and waits until it answers."""
    settings = settings or load_settings()
    java = require(settings)
    make_archive(settings, say)
    return up(settings, java.executable, java.home, airflow=airflow, explicit_ports=ports, progress=say)


def select_records(matrix: str | None, sweep: str | None, status: str | None) -> tuple[list[Record], tuple[str, ...]]:
    """Records by matrix, sweep and status, and a line for each file that could not be read."""
    known = get_args(Status)
    if status is not None and status not in known:
        raise ConfigError(f"--status {status}: unknown{suggest(status, known)}")
    store = Store(load_settings().results)
    return store.query(matrix, sweep, cast(Status | None, status)), store.read().problems
