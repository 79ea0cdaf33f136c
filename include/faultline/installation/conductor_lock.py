"""One conductor serves an installation for an Airflow of others: its lock, and in the file who holds it.

It is not the process of an attempt that bears the name; see `faultline.orchestration.guest`.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
from collections.abc import Iterator

import psutil

from faultline.experiment.attempt import write_json
from faultline.system.errors import ConfigError
from faultline.system.processes import birth, live_process
from faultline.system.quiet.window_lock import taken
from faultline.system.settings import INSTANCE, Settings, instance

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
