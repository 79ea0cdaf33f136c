"""An installation for benchmarks that break it: its own services, ports, database and results."""

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

# An axis of its own, so that a sweep has as many cells as are wanted.
MATRIX = "input_rate"
# The system gives none of these to connections.
_PORTS_ABOVE = 3000
LONGEST_SWEEP_S = 8 * 3600.0


@contextlib.contextmanager
def own_services(name: str, say: Progress, database: str = "") -> Iterator[Settings]:
    """Services of their own under `.faultline/bench/NAME`, which nobody else uses, ended on the way out. `database`:
    address of an empty PostgreSQL for Airflow; none: SQLite.

    Their records stay there too, so that a benchmark which was interrupted goes on where it was. Raises ConfigError
    while another call has them.
    """
    with _open_home(name) as settings:
        # Its database is its own, too, wherever the other installation keeps its one.
        os.environ[DATABASE] = database
        try:
            settings = bring_up(say, settings=settings)
            await_dags(AirflowApi(settings), EXPERIMENT, MATRIX)
            yield settings
        finally:
            down(settings, say)


@contextlib.contextmanager
def own_home(name: str) -> Iterator[Settings]:
    """Makes such a place this process's installation, whose services come and go with each experiment. Raises
    ConfigError while another call has it."""
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
    """The state folder of the installation that a benchmark breaks."""
    return load_settings().home / "bench" / name


@contextlib.contextmanager
def exclusive(place: Path) -> Iterator[None]:
    """Keeps a place to this call; the lock lies beside it, since a disk may be mounted there. Raises ConfigError while
    another call has it."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(place.with_name(f"{place.name}.lock")).acquire(limit_s=0.0) as hold:
        if hold.waited_s is None:
            raise ConfigError(f"{place}: another call of the same benchmark is at work there; begin when it has ended")
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
        # At the usual ones another installation may answer in its place, such as while this one's services are dead.
        write_json(ports, choose_ports({service: port + _PORTS_ABOVE for service, port in DEFAULT_PORTS.items()}))
    return Settings(main.root, home, home / "results", json.loads(ports.read_text()))


def form(series: str, rates: list[float], repetitions: int) -> dict[str, Any]:
    """A sweep of experiments with known truth that measure 5 s each, `repetitions` at each of the `rates`."""
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
        # What was killed is measured again; how often is the benchmark's affair, not the form's.
        "max_measurements": 10,
        "series": series,
    }


def await_run(api: AirflowApi, run_id: str, dag_id: str = MATRIX, *, timeout_s: float = LONGEST_SWEEP_S) -> str:
    """The state in which the run ends."""
    state = ""

    def ended() -> bool:
        nonlocal state
        state = api.run_state(dag_id, run_id)
        return state in FINISHED

    wait_until(ended, timeout_s=timeout_s, every_s=1.0, what=f"{dag_id}: the end of the run {run_id}")
    return state
