"""Which environment variables a child process is given: those that are named here, and nothing else of its starter's.

What a user keeps in the environment, such as passwords of databases or keys of a cloud, is no business of a broker, an
executor or a Python worker.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterator, Mapping

from faultline.system.errors import ConfigError
from faultline.system.text import progress

# Names of further ones, separated by commas: for Airflow's tasks, and for the drivers that they start.
PASSED_NAMES = "FAULTLINE_JOB_ENV"
# Hold a password, and are for the same.
WORKLOAD_SECRETS = frozenset({"FAULTLINE_TOPOLOGY_DATABASE"})
_KEPT_NAMES = frozenset({
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "TERM", "JAVA_HOME",
    "LD_LIBRARY_PATH", "SSL_CERT_FILE", "SSL_CERT_DIR", "XDG_RUNTIME_DIR", "SPARK_LOCAL_DIRS", PASSED_NAMES,
    "FAULTLINE_HOME", "FAULTLINE_RESULTS", "FAULTLINE_INSTANCE", "FAULTLINE_STEAL_WAIT_S",
    "FAULTLINE_WORKER_MEMORY_MB", "FAULTLINE_NIGHTLY_SCHEDULE", "FAULTLINE_SPEED_SCHEDULE", "FAULTLINE_NIGHTLY_DIR",
    "FAULTLINE_MEMCACHED", "FAULTLINE_REFUSE_ROOT", "FAULTLINE_SHARED_RESULTS", "FAULTLINE_PYTHON", "FAULTLINE_MACHINE",
})  # fmt: skip
_KEPT_FAMILIES = ("LC_",)
# Names that a command which brings services up later needs as they are now, beside where things lie.
SERVICE_NAMES = (
    "FAULTLINE_NIGHTLY_DIR", "FAULTLINE_NIGHTLY_SCHEDULE", "FAULTLINE_SPEED_SCHEDULE", "FAULTLINE_WORKER_MEMORY_MB",
    "FAULTLINE_STEAL_WAIT_S", "FAULTLINE_SHARED_RESULTS", "FAULTLINE_REFUSE_ROOT", "FAULTLINE_MACHINE",
    "FAULTLINE_MEMCACHED", "FAULTLINE_PYTHON", "JAVA_HOME", PASSED_NAMES,
)  # fmt: skip


def clean_environment(extra: Mapping[str, str] | None = None, *, for_workload: bool = False) -> dict[str, str]:
    """This process's environment as a child gets it, plus `extra`. `for_workload`: with what the user passes on to
    workloads."""
    keep = {name: value for name, value in os.environ.items() if name in _KEPT_NAMES or name.startswith(_KEPT_FAMILIES)}
    return {**keep, **(workload_variables() if for_workload else {}), **(extra or {})}


def check_workload_variables() -> None:
    """Raises ConfigError for a variable that cannot be handed to Airflow's tasks as it is: what keeps the services is
    told by a file, in which quotation marks and comments have a meaning."""
    for name, value in workload_variables().items():
        if not value.isprintable() or any(mark in value for mark in ('"', "'", " ;", " #")):
            raise ConfigError(
                f"{name}: holds a quotation mark, a line break, or ; or # after a space, and would be cut on its way "
                f"to jobs; put it into a file, and pass the file's path ({PASSED_NAMES})"
            )


def workload_variables() -> dict[str, str]:
    """What of this process's environment is for workloads: what the user named, and what holds a password."""
    names = {name.strip() for name in os.environ.get(PASSED_NAMES, "").split(",")} | WORKLOAD_SECRETS
    return {name: value for name, value in os.environ.items() if name in names}


# ---- What the system lets this process do, and the rights of what it makes ----


REFUSE_ROOT = "FAULTLINE_REFUSE_ROOT"
# The group may read results.
SHARED_RESULTS = "FAULTLINE_SHARED_RESULTS"


def is_allowed_in_thread(action: Callable[[], object]) -> bool:
    """Whether the system lets a thread do what it may not be able to take back: one that ends is tried on.

    A container may show a capability that the machine does not honour.
    """
    found = []

    def attempt() -> None:
        with contextlib.suppress(AttributeError, OSError):
            action()
            found.append(True)

    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join()
    return bool(found)


@functools.cache
def can_raise_priority() -> bool:
    """Whether a thread that was put behind others can be put back."""

    def lower_and_reset() -> None:
        own = threading.get_native_id()
        usual = os.getpriority(os.PRIO_PROCESS, own)
        os.setpriority(os.PRIO_PROCESS, own, usual + 1)
        os.setpriority(os.PRIO_PROCESS, own, usual)

    return is_allowed_in_thread(lower_and_reset)


def refuse_root() -> None:
    """Raise ConfigError for root where a setting refuses it."""
    if os.geteuid() == 0 and os.environ.get(REFUSE_ROOT):
        raise ConfigError(f"{REFUSE_ROOT}: got root; expected another user; fix: run it as another user, or unset it")


@functools.cache
def warn_root() -> None:
    """Say in one line, once per process, that it runs as root. Raises ConfigError as `refuse_root`."""
    refuse_root()
    if os.geteuid() == 0:
        progress("running as root: services and jobs have all rights on this machine")


def has_shared_results() -> bool:
    """Whether the group may read results."""
    return bool(os.environ.get(SHARED_RESULTS))


def file_umask() -> int:
    """The umask of whatever an installation makes: others have no right to it, nor has the group unless it was given
    one."""
    return 0o027 if has_shared_results() else 0o077


def set_private_umask() -> None:
    """From here on others can change nothing that this process makes, whatever its caller's umask."""
    os.umask(os.umask(0o077) | 0o022)


def set_owner_umask() -> None:
    """From here on this process makes files that are nobody else's business."""
    _callers[0] = os.umask(file_umask())


@contextlib.contextmanager
def caller_umask() -> Iterator[None]:
    """What is made meanwhile has the rights that the caller's own umask gives: it is for others to read."""
    before = os.umask(_callers[0])
    try:
        yield
    finally:
        os.umask(before)


_callers = [0o022]
