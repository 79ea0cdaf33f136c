"""Environment variables of child processes: an explicit list, so that secrets of the user are not inherited."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterator, Mapping

from faultline.system.errors import ConfigError
from faultline.system.text import progress

# Variable with the names of further variables to pass, separated by commas, to Airflow's tasks and the drivers that
# they start.
PASSED_NAMES = "FAULTLINE_JOB_ENV"
# Variables that contain a password and are passed to the same processes.
WORKLOAD_SECRETS = frozenset({"FAULTLINE_TOPOLOGY_DATABASE"})
_KEPT_NAMES = frozenset({
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "TERM", "JAVA_HOME",
    "LD_LIBRARY_PATH", "SSL_CERT_FILE", "SSL_CERT_DIR", "XDG_RUNTIME_DIR", "SPARK_LOCAL_DIRS", PASSED_NAMES,
    "FAULTLINE_HOME", "FAULTLINE_RESULTS", "FAULTLINE_INSTANCE", "FAULTLINE_STEAL_WAIT_S",
    "FAULTLINE_WORKER_MEMORY_MB", "FAULTLINE_NIGHTLY_SCHEDULE", "FAULTLINE_SPEED_SCHEDULE", "FAULTLINE_NIGHTLY_DIR",
    "FAULTLINE_MEMCACHED", "FAULTLINE_REFUSE_ROOT", "FAULTLINE_SHARED_RESULTS", "FAULTLINE_PYTHON", "FAULTLINE_MACHINE",
})  # fmt: skip
_KEPT_FAMILIES = ("LC_",)
# Variables that a service unit keeps for a later `up`, in addition to the folders.
SERVICE_NAMES = (
    "FAULTLINE_NIGHTLY_DIR", "FAULTLINE_NIGHTLY_SCHEDULE", "FAULTLINE_SPEED_SCHEDULE", "FAULTLINE_WORKER_MEMORY_MB",
    "FAULTLINE_STEAL_WAIT_S", "FAULTLINE_SHARED_RESULTS", "FAULTLINE_REFUSE_ROOT", "FAULTLINE_MACHINE",
    "FAULTLINE_MEMCACHED", "FAULTLINE_PYTHON", "JAVA_HOME", PASSED_NAMES,
)  # fmt: skip


def clean_environment(extra: Mapping[str, str] | None = None, *, for_workload: bool = False) -> dict[str, str]:
    """Return the environment of a child process: the allowed variables plus `extra`.

    `for_workload`: include the variables that the user passes to workloads.
    """
    keep = {name: value for name, value in os.environ.items() if name in _KEPT_NAMES or name.startswith(_KEPT_FAMILIES)}
    return {**keep, **(workload_variables() if for_workload else {}), **(extra or {})}


def check_workload_variables() -> None:
    """Raise ConfigError for a value that the supervisor's configuration file cannot hold.

    Quotation marks and comment signs have a meaning in that file.
    """
    for name, value in workload_variables().items():
        if not value.isprintable() or any(mark in value for mark in ('"', "'", " ;", " #")):
            raise ConfigError(
                f"{name}: holds a quotation mark, a line break, or ; or # after a space, and would be cut on its way "
                f"to jobs; put it into a file, and pass the file's path ({PASSED_NAMES})"
            )


def workload_variables() -> dict[str, str]:
    """Return the variables for workloads: those that the user named, and those with passwords."""
    names = {name.strip() for name in os.environ.get(PASSED_NAMES, "").split(",")} | WORKLOAD_SECRETS
    return {name: value for name, value in os.environ.items() if name in names}


# ---- What the system lets this process do, and the rights of what it makes ----


REFUSE_ROOT = "FAULTLINE_REFUSE_ROOT"
# The group may read results.
SHARED_RESULTS = "FAULTLINE_SHARED_RESULTS"


def is_allowed_in_thread(action: Callable[[], object]) -> bool:
    """Return whether the system allows an action, by trying it on a short-lived thread.

    Trying is necessary because a container may show a capability that the host does not honour; a thread, because the
    action may be irreversible.
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
    """Return whether this user can restore a lowered thread priority."""

    def lower_and_reset() -> None:
        own = threading.get_native_id()
        usual = os.getpriority(os.PRIO_PROCESS, own)
        os.setpriority(os.PRIO_PROCESS, own, usual + 1)
        os.setpriority(os.PRIO_PROCESS, own, usual)

    return is_allowed_in_thread(lower_and_reset)


def refuse_root() -> None:
    """Raise ConfigError if this process runs as root and the variable REFUSE_ROOT is set."""
    if os.geteuid() == 0 and os.environ.get(REFUSE_ROOT):
        raise ConfigError(f"{REFUSE_ROOT}: got root; expected another user; fix: run it as another user, or unset it")


@functools.cache
def warn_root() -> None:
    """If this process runs as root, print a warning once. Raises ConfigError as `refuse_root` does."""
    refuse_root()
    if os.geteuid() == 0:
        progress("running as root: services and jobs have all rights on this machine")


def has_shared_results() -> bool:
    """Return whether the group may read results."""
    return bool(os.environ.get(SHARED_RESULTS))


def file_umask() -> int:
    """Return the umask for files of an installation: no rights for others, group rights only if configured."""
    return 0o027 if has_shared_results() else 0o077


def set_private_umask() -> None:
    """Set a umask that removes write access for group and others."""
    os.umask(os.umask(0o077) | 0o022)


def set_owner_umask() -> None:
    """Set the installation's umask and remember the caller's."""
    _callers[0] = os.umask(file_umask())


@contextlib.contextmanager
def caller_umask() -> Iterator[None]:
    """Restore the caller's umask within the block, for files that other users may read."""
    before = os.umask(_callers[0])
    try:
        yield
    finally:
        os.umask(before)


_callers = [0o022]
