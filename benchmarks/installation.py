"""Separate installation for benchmarks that break it: services, ports, database and results."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from faultline.cli.service_control import bring_up
from faultline.cli.sweep_runner import await_dags
from faultline.experiment.attempt import write_json
from faultline.experiment.cell import EXPERIMENT
from faultline.installation.airflow import DATABASE
from faultline.installation.supervision import down
from faultline.orchestration.airflow_api import FINISHED, AirflowApi
from faultline.system.errors import ConfigError
from faultline.system.locks import FileLock
from faultline.system.settings import DEFAULT_PORTS, Settings, choose_ports, load_settings
from faultline.system.text import Progress
from faultline.system.waiting import wait_until

# The values of its axis are free, so a sweep may have any number of cells.
MATRIX = "input_rate"
# Outside the range of ephemeral ports.
_PORTS_ABOVE = 3000
LONGEST_SWEEP_S = 8 * 3600.0


@contextlib.contextmanager
def own_services(name: str, progress: Progress, database: str = "") -> Iterator[Settings]:
    """Run separate services under `.faultline/bench/NAME` for the block.

    `database`: address of an empty PostgreSQL for Airflow; empty: SQLite. Records stay there, so an interrupted
    benchmark resumes. Raises ConfigError while another call uses them.
    """
    with _open_home(name) as settings:
        # Set it even if empty, because this installation's environment may name another database.
        os.environ[DATABASE] = database
        try:
            settings = bring_up(progress, settings=settings)
            await_dags(AirflowApi(settings), EXPERIMENT, MATRIX)
            yield settings
        finally:
            down(settings, progress)


@contextlib.contextmanager
def own_home(name: str) -> Iterator[Settings]:
    """Use a separate installation for this process; its services start and stop with each experiment.

    Raises ConfigError while another call uses it.
    """
    with _open_home(name) as settings:
        places = {"FAULTLINE_HOME": str(settings.home), "FAULTLINE_RESULTS": str(settings.results)}
        before = {key: os.environ.get(key) for key in places}
        os.environ.update(places)
        try:
            yield settings
        finally:
            down(load_settings())
            for key, value in before.items():
                os.environ.pop(key)
                if value is not None:
                    os.environ[key] = value


def home_of(name: str) -> Path:
    """Return the state folder of the installation that a benchmark breaks."""
    return load_settings().home / "bench" / name


@contextlib.contextmanager
def exclusive(place: Path) -> Iterator[None]:
    """Lock a folder for this call; the lock file lies next to it, because a disk may be mounted there.

    Raises ConfigError while another call holds it.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(place.with_name(f"{place.name}.lock")).acquire(limit_s=0.0) as hold:
        if hold.waited_s is None:
            raise ConfigError(f"{place}: in use by another call of the benchmark; fix: wait for its end")
        yield


@contextlib.contextmanager
def _open_home(name: str) -> Iterator[Settings]:
    home = home_of(name)
    with exclusive(home):
        yield _make_settings(home)


def _make_settings(home: Path) -> Settings:
    main = load_settings()
    home.mkdir(exist_ok=True)
    if not (home / "jars").is_symlink():
        (home / "jars").symlink_to(main.jars)
    ports = home / "ports.json"
    if not ports.exists():
        # Other ports than the default ones, at which another installation may answer while these services are down.
        write_json(ports, choose_ports({service: port + _PORTS_ABOVE for service, port in DEFAULT_PORTS.items()}))
    return Settings(main.root, home, home / "results", json.loads(ports.read_text()))


def form(series: str, rates: list[float], repetitions: int) -> dict[str, Any]:
    """Return the form of a sweep of scripted experiments of 5 s each, `repetitions` at each of the `rates`."""
    return {
        "workload": "known_truth",
        "truth": {},
        "fault": "none",
        "rate": rates,
        "checkpoint_interval_s": 0.5,
        "warmup_s": 5.0,
        "duration_s": 5.0,
        "state_mb": 0.0,
        "accept_overload": False,
        "repetitions": repetitions,
        # A cell may be killed several times; it is then measured again.
        "max_measurements": 10,
        "series": series,
    }


def await_run(api: AirflowApi, run_id: str, dag_id: str = MATRIX, *, timeout_s: float = LONGEST_SWEEP_S) -> str:
    """Wait for the end of a run; return its state."""
    state = ""

    def ended() -> bool:
        nonlocal state
        state = api.run_state(dag_id, run_id)
        return state in FINISHED

    wait_until(ended, timeout_s=timeout_s, every_s=1.0, what=f"{dag_id}: the end of the run {run_id}")
    return state
