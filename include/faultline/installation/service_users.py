"""Who uses the services of an installation, so that a `run` ends none that others have come to use.

Services that a `run` started are noted to be for runs alone, until another command brings them up, too; so are those
that `up --foreground` leaves. Each of both shares a lock for as long as it uses them. The last one may end them.
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
    """Whoever is in here is one who uses the services, and comes in when nobody ends them.

    Gives what tells whether nobody else does; once that was so, others wait until this one is out. `run`: it measures
    by itself, and `down` ends it, also before it has an attempt.
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
    """The live processes that measure by themselves."""
    found = []
    for note in (settings.home / _RUNS).glob("*.json"):
        if (process := _process_in(note)) is not None:
            found.append(process)
        else:
            note.unlink(missing_ok=True)
    return found


def mark_for_runs(settings: Settings) -> None:
    """The services that are about to be started are for runs alone."""
    _note(settings).touch()


def mark_for_all(settings: Settings) -> None:
    """The services stay until `down`."""
    _note(settings).unlink(missing_ok=True)


def is_for_runs(settings: Settings) -> bool:
    """Whether nothing but runs has asked for the services."""
    return _note(settings).exists()


def _note(settings: Settings) -> Path:
    return settings.home / _NOTE


def _process_in(note: Path) -> psutil.Process | None:
    """The process that a file names; None when it has ended, or the file names none."""
    with contextlib.suppress(OSError, ValueError, TypeError):
        return live_process(**json.loads(note.read_text()))
    return None


# ---- `up --foreground` holds the services: its lock, and in the file who it is ----

FILE = "foreground.lock"
# In the folder of an attempt: which external Airflow's it is, and of which start of the services.
OWNER = Path("steps") / "owner.json"


@contextlib.contextmanager
def hold_foreground(settings: Settings) -> Iterator[None]:
    """Makes this process the one that holds the services. Raises ConfigError when another one does."""
    path = settings.home / FILE
    with FileLock(path).acquire(limit_s=0.0) as hold:
        if hold.waited_s is None:
            raise ConfigError(f"--foreground: another process holds the services of {settings.home}; stop that first")
        # Who it belongs to is written over only by whoever has got it, in place: another file would have no lock.
        path.write_text(json.dumps(this_process()))
        try:
            yield
        finally:
            path.write_text("")


def foreground_process(settings: Settings) -> psutil.Process | None:
    """The live process that holds the services in the foreground; None without one."""
    return _process_in(settings.home / FILE)


def mark_foreground(settings: Settings) -> None:
    """Notes that a process in the foreground started the services: they end with it, or with the next one."""
    write_json(settings.home / INSTANCE, {**instance(settings), "by": "foreground"})


def is_foreground(settings: Settings) -> bool:
    """Whether such a process started the services that run, or that ran until a crash."""
    return instance(settings).get("by") == "foreground"


def supervisor_pid(settings: Settings) -> int | None:
    """Pid of the process that keeps the services of this installation; None where each runs by itself.

    The file survives a power cut, and may name any process then: that of these services bears their mark.
    """
    mark = instance(settings).get("instance")
    with contextlib.suppress(OSError, ValueError, psutil.Error):
        process = psutil.Process(int((settings.home / "supervisord.pid").read_text()))
        return process.pid if mark and is_marked(process, INSTANCE_MARK, mark) else None
    return None


def external_owner(attempt: Attempt, settings: Settings) -> tuple[str, str] | None:
    """The external Airflow whose experiment goes on: its file of DAGs, and their prefix; None when it is no such one,
    or over, or the services were started again since."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        found = json.loads((attempt.folder / OWNER).read_text())
        if attempt.over is None and found["instance"] == instance(settings).get("instance"):
            return str(found["place"]), str(found["prefix"])
    return None


def external_experiment(settings: Settings) -> str | None:
    """The attempt of an external Airflow's experiment that goes on here."""
    open_ones = open_attempts(settings.attempts, settings.home)
    return next((one.id for one in open_ones if external_owner(one, settings) is not None), None)


# ---- Steps of an external Airflow, whose tasks have another environment than `up --foreground` ----


def admit_steps(settings: Settings) -> None:
    """Notes that the services are up and what is left of others is closed, with what steps need of this environment."""
    found = {name: os.environ[name] for name in SERVICE_NAMES if name in os.environ} | workload_variables()
    content = {"instance": instance(settings).get("instance"), "environment": found}
    write_private(settings.home / ENVIRONMENT, json.dumps(content))


def block_steps(settings: Settings) -> None:
    """Takes that back: passwords are among it."""
    (settings.home / ENVIRONMENT).unlink(missing_ok=True)


def are_steps_admitted(settings: Settings) -> bool:
    """Whether `up --foreground` got ready the services that run, and none of them end with a `run`."""
    if supervisor_pid(settings) is None or is_for_runs(settings):
        return False
    return _environment(settings).get("instance") == instance(settings).get("instance")


def load_environment(settings: Settings) -> None:
    """Makes what steps need this process's."""
    os.environ.update(_environment(settings).get("environment") or {})


def _environment(settings: Settings) -> dict[str, Any]:
    with contextlib.suppress(FileNotFoundError):
        return dict(json.loads((settings.home / ENVIRONMENT).read_text()))
    return {}
