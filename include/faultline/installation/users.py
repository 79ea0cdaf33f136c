"""Who uses the services of an installation, so that a `run` ends none that others have come to use.

Services that a `run` started are noted to be for runs alone, until another command brings them up, too; so are those
that a conductor leaves. Each of both shares a lock for as long as it uses them. The last one may end them.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from faultline.system.errors import ConfigError
from faultline.system.files import make_folder, write_json
from faultline.system.locks import FileLock
from faultline.system.processes import live_process, this_process
from faultline.system.settings import INSTANCE, Settings, instance

_LOCK, _NOTE, _RUNS = "users.lock", "for-runs", "runs"


@contextlib.contextmanager
def using(settings: Settings, *, run: bool = False) -> Iterator[Callable[[], bool]]:
    """Whoever is in here is one who uses the services, and comes in when nobody ends them.

    Gives what tells whether nobody else does; once that was so, others wait until this one is out. `run`: it measures
    by itself, and `down` ends it, also before it has an attempt.
    """
    settings.home.mkdir(parents=True, exist_ok=True)
    own = this_process()
    note = settings.home / _RUNS / f"{own['pid']}.json"
    with FileLock(settings.home / _LOCK).held(shared=True) as hold:
        if run:
            make_folder(note.parent)
            write_json(note, own)
        try:
            yield hold.take
        finally:
            if run:
                note.unlink(missing_ok=True)


def runs(settings: Settings) -> list[psutil.Process]:
    """The live processes that measure by themselves."""
    found = []
    for note in (settings.home / _RUNS).glob("*.json"):
        if (process := _live(note)) is not None:
            found.append(process)
        else:
            note.unlink(missing_ok=True)
    return found


def note_for_runs(settings: Settings) -> None:
    """The services that are about to be started are for runs alone."""
    _note(settings).touch()


def note_for_all(settings: Settings) -> None:
    """The services stay until `down`."""
    _note(settings).unlink(missing_ok=True)


def are_for_runs(settings: Settings) -> bool:
    """Whether nothing but runs has asked for the services."""
    return _note(settings).exists()


def _note(settings: Settings) -> Path:
    return settings.home / _NOTE


def _live(note: Path) -> psutil.Process | None:
    """The process that a file names; None when it has ended, or the file names none."""
    with contextlib.suppress(OSError, ValueError, TypeError):
        return live_process(**json.loads(note.read_text()))
    return None


# ---- One conductor serves an installation for an Airflow of others: its lock, and in the file who holds it ----

FILE = "conductor.lock"


@contextlib.contextmanager
def only_conductor(settings: Settings) -> Iterator[None]:
    """Makes this process the conductor. Raises ConfigError when another one serves this installation."""
    path = settings.home / FILE
    with FileLock(path).held(limit_s=0.0) as hold:
        if hold.waited_s is None:
            raise ConfigError(f"{settings.conductor_socket}: a conductor serves there already; stop that one first")
        # Who it belongs to is written over only by whoever has got it, in place: another file would have no lock.
        path.write_text(json.dumps(this_process()))
        try:
            yield
        finally:
            path.write_text("")


def conductor_of(settings: Settings) -> psutil.Process | None:
    """The live process that serves an Airflow of others here; None without one."""
    return _live(settings.home / FILE)


def keep_services(settings: Settings) -> None:
    """Notes that a conductor started the services that run: they end with it, or with the one that comes after it."""
    write_json(settings.home / INSTANCE, {**instance(settings), "by": "conductor"})


def keeps_services(settings: Settings) -> bool:
    """Whether a conductor started the services that run, or that ran till a crash."""
    return instance(settings).get("by") == "conductor"
