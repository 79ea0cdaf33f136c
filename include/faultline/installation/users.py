"""Who uses the services of an installation, so that a `run` ends none that others have come to use.

Services that a `run` started are noted to be for runs alone, until another command brings them up, too; so are those
that a conductor leaves. Each of both shares a lock for as long as it uses them; the system frees it when its holder
dies. The last one may end them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from faultline.system.quiet.window_lock import taken
from faultline.system.settings import Settings

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
