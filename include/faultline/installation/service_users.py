"""Users of an installation's services, so that a `run` does not end services in use.

Services started by a `run` are marked for runs only, until another command uses them; so are those left by `up
--foreground`. Each process that uses the services holds a shared lock meanwhile. The last one may end the services.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

from faultline.experiment.attempt import Attempt, open_attempts
from faultline.system.child_environment import SERVICE_NAMES, workload_variables
from faultline.system.errors import ConfigError
from faultline.system.files import make_folder, write_json, write_private
from faultline.system.locks import FileLock
from faultline.system.process_ledger import is_marked, live_process, this_process
from faultline.system.process_tags import INSTANCE_MARK
from faultline.system.settings import INSTANCE, Settings, instance

_LOCK, _NOTE, _RUNS = "users.lock", "for-runs", "runs"
ENVIRONMENT = "environment.json"


@contextlib.contextmanager
def use_services(settings: Settings, *, run: bool = False) -> Iterator[Callable[[], bool]]:
    """Use the services inside the block; wait while another process ends them.

    Yields a function that returns whether this is the only user; if so, others wait until the block ends. `run`: the
    caller measures without Airflow; `down` then ends it, even before it has an attempt.
    """
    settings.home.mkdir(parents=True, exist_ok=True)
    own = this_process()
    note = settings.home / _RUNS / f"{own['pid']}.json"
    with FileLock(settings.home / _LOCK).acquire(shared=True) as hold:
        if run:
            make_folder(note.parent)
            write_json(note, own)
        try:
            yield hold.take
        finally:
            if run:
                note.unlink(missing_ok=True)


def live_runs(settings: Settings) -> list[psutil.Process]:
    """Return the live processes that measure without Airflow."""
    runs = []
    for note in (settings.home / _RUNS).glob("*.json"):
        if (process := _process_in(note)) is not None:
            runs.append(process)
        else:
            note.unlink(missing_ok=True)
    return runs


def mark_for_runs(settings: Settings) -> None:
    """Mark the services that start next as used by runs only."""
    _note(settings).touch()


def mark_for_all(settings: Settings) -> None:
    """Keep the services until `down`."""
    _note(settings).unlink(missing_ok=True)


def is_for_runs(settings: Settings) -> bool:
    """Return whether only runs use the services."""
    return _note(settings).exists()


def _note(settings: Settings) -> Path:
    return settings.home / _NOTE


def _process_in(note: Path) -> psutil.Process | None:
    """Return the live process of a file; None if it ended or the file is invalid."""
    with contextlib.suppress(OSError, ValueError, TypeError):
        return live_process(**json.loads(note.read_text()))
    return None


# ---- `up --foreground` holds the services: a lock, and a file that names its process ----

FILE = "foreground.lock"
# In the folder of an attempt: its external Airflow, and the mark of the services.
OWNER = Path("steps") / "owner.json"


@contextlib.contextmanager
def hold_foreground(settings: Settings) -> Iterator[None]:
    """Hold the services in the foreground. Raises ConfigError if another process does."""
    path = settings.home / FILE
    with FileLock(path).acquire(limit_s=0.0) as hold:
        if hold.waited_s is None:
            raise ConfigError(f"--foreground: another process holds the services of {settings.home}; stop it first")
        # Written in place by the lock holder: a new file would not be locked.
        path.write_text(json.dumps(this_process()))
        try:
            yield
        finally:
            path.write_text("")


def foreground_process(settings: Settings) -> psutil.Process | None:
    """Return the live process that holds the services in the foreground, or None."""
    return _process_in(settings.home / FILE)


def mark_foreground(settings: Settings) -> None:
    """Record that a foreground process started the services: they end with it, or with the next one."""
    write_json(settings.home / INSTANCE, {**instance(settings), "by": "foreground"})


def is_foreground(settings: Settings) -> bool:
    """Return whether a foreground process started the services, even if it crashed since."""
    return instance(settings).get("by") == "foreground"


def supervisor_pid(settings: Settings) -> int | None:
    """Return the pid of this installation's supervisor; None if each service runs on its own.

    The pid file survives a power cut and may then name any process, so the process must have the instance mark.
    """
    mark = instance(settings).get("instance")
    with contextlib.suppress(OSError, ValueError, psutil.Error):
        process = psutil.Process(int((settings.home / "supervisord.pid").read_text()))
        return process.pid if mark and is_marked(process, INSTANCE_MARK, mark) else None
    return None


def external_owner(attempt: Attempt, settings: Settings) -> tuple[str, str] | None:
    """Return the external Airflow of an open experiment: its DAG file and prefix.

    None for other experiments, after the end, and after a restart of the services.
    """
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        owner = json.loads((attempt.folder / OWNER).read_text())
        if attempt.over is None and owner["instance"] == instance(settings).get("instance"):
            return str(owner["place"]), str(owner["prefix"])
    return None


def external_experiment(settings: Settings) -> str | None:
    """Return the id of an open experiment of an external Airflow, or None."""
    attempts = open_attempts(settings.attempts, settings.home)
    return next((attempt.id for attempt in attempts if external_owner(attempt, settings) is not None), None)


# ---- Steps of an external Airflow, whose tasks lack the environment of `up --foreground` ----


def admit_steps(settings: Settings) -> None:
    """Record that the services are ready for external steps, with the environment variables they need."""
    variables = {name: os.environ[name] for name in SERVICE_NAMES if name in os.environ} | workload_variables()
    content = {"instance": instance(settings).get("instance"), "environment": variables}
    write_private(settings.home / ENVIRONMENT, json.dumps(content))


def block_steps(settings: Settings) -> None:
    """Remove the record of `admit_steps`, which contains passwords."""
    (settings.home / ENVIRONMENT).unlink(missing_ok=True)


def are_steps_admitted(settings: Settings) -> bool:
    """Return whether `up --foreground` prepared the running services, and no `run` ends them."""
    if supervisor_pid(settings) is None or is_for_runs(settings):
        return False
    return _environment(settings).get("instance") == instance(settings).get("instance")


def load_environment(settings: Settings) -> None:
    """Load the variables recorded by `admit_steps` into this process's environment."""
    os.environ.update(_environment(settings).get("environment") or {})


def _environment(settings: Settings) -> dict[str, Any]:
    with contextlib.suppress(FileNotFoundError):
        return dict(json.loads((settings.home / ENVIRONMENT).read_text()))
    return {}
