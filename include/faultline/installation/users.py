"""Who uses the services of an installation, so that a `run` ends none that others have come to use.

Services that a `run` started are noted to be for runs alone, until another command brings them up, too; so are those
that a conductor leaves. Each of both shares a lock for as long as it uses them; the system frees it when its holder
dies. The last one may end them.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from faultline.system.errors import ConfigError
from faultline.system.files import write_json
from faultline.system.locks import taken
from faultline.system.processes import birth, live_process
from faultline.system.settings import INSTANCE, Settings, instance

_LOCK, _NOTE = "users.lock", "for-runs"


@contextlib.contextmanager
def using(settings: Settings) -> Iterator[Callable[[], bool]]:
    """Whoever is in here is one who uses the services, and comes in when nobody ends them.

    Gives what tells whether nobody else does; once that was so, others wait until this one is out.
    """
    settings.home.mkdir(parents=True, exist_ok=True)
    lock = os.open(settings.home / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_SH)
        yield lambda: taken(lock, fcntl.LOCK_EX)
    finally:
        os.close(lock)


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


# One conductor serves an installation for an Airflow of others: its lock, and in the file who holds it.


FILE = "conductor.lock"


@contextlib.contextmanager
def only_conductor(settings: Settings) -> Iterator[None]:
    """Makes this process the conductor. Raises ConfigError when another one serves this installation."""
    # Who it belongs to is written over only by whoever has got it.
    with (settings.home / FILE).open("a") as lock:
        if not taken(lock.fileno(), fcntl.LOCK_EX):
            raise ConfigError(f"{settings.conductor_socket}: a conductor serves there already; stop that one first")
        own = psutil.Process()
        ticks, boot = birth(own.pid)
        who = {"pid": own.pid, "create_time": own.create_time(), "start_ticks": ticks, "boot": boot}
        lock.truncate(0)
        lock.write(json.dumps(who))
        lock.flush()
        try:
            yield
        finally:
            lock.truncate(0)


def conductor_of(settings: Settings) -> psutil.Process | None:
    """The live process that serves an Airflow of others here; None without one."""
    with contextlib.suppress(OSError, ValueError, TypeError):
        return live_process(**json.loads((settings.home / FILE).read_text()))
    return None


def keep_services(settings: Settings) -> None:
    """Notes that a conductor started the services that run: they end with it, or with the one that comes after it."""
    write_json(settings.home / INSTANCE, {**instance(settings), "by": "conductor"})


def keeps_services(settings: Settings) -> bool:
    """Whether a conductor started the services that run, or that ran till a crash."""
    return instance(settings).get("by") == "conductor"
