"""Which environment variables a child process is given: those that are named here, and nothing else of its starter's.

What a user keeps in the environment, such as passwords of databases or keys of a cloud, is no business of a broker, an
executor or a Python worker.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from faultline.system.errors import ConfigError

# Names of further ones, separated by commas: for Airflow's tasks, and for the drivers that they start.
PASSED = "FAULTLINE_PASS"
# Hold a password, and are for the same.
FOR_WORKLOADS = frozenset({"FAULTLINE_TOPOLOGY_DATABASE"})
_KEPT = frozenset({
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "TERM", "JAVA_HOME",
    "LD_LIBRARY_PATH", "SSL_CERT_FILE", "SSL_CERT_DIR", "XDG_RUNTIME_DIR", "SPARK_LOCAL_DIRS", PASSED,
    "FAULTLINE_HOME", "FAULTLINE_RESULTS", "FAULTLINE_INSTANCE", "FAULTLINE_QUIET_S",
    "FAULTLINE_WORKER_MEMORY_MB", "FAULTLINE_NIGHTLY_SCHEDULE", "FAULTLINE_SPEED_SCHEDULE", "FAULTLINE_NIGHTS",
    "FAULTLINE_MEMCACHED", "FAULTLINE_REFUSE_ROOT", "FAULTLINE_SHARED_RESULTS", "FAULTLINE_PYTHON", "FAULTLINE_MACHINE",
})  # fmt: skip
_KEPT_FAMILIES = ("LC_",)


def clean_environment(extra: Mapping[str, str] | None = None, *, for_workload: bool = False) -> dict[str, str]:
    """This process's environment as a child gets it, plus `extra`. `for_workload`: with what the user passes on to
    workloads."""
    keep = {name: value for name, value in os.environ.items() if name in _KEPT or name.startswith(_KEPT_FAMILIES)}
    return {**keep, **(passed_on() if for_workload else {}), **(extra or {})}


def check_passed() -> None:
    """Raises ConfigError for a variable that cannot be handed to Airflow's tasks as it is: what keeps the services is
    told by a file, in which quotation marks and comments have a meaning."""
    for name, value in passed_on().items():
        if not value.isprintable() or any(mark in value for mark in ('"', "'", " ;", " #")):
            raise ConfigError(
                f"{name}: holds a quotation mark, a line break, or ; or # after a space, and would be cut on its way "
                f"to jobs; put it into a file, and pass the file's path ({PASSED})"
            )


def passed_on() -> dict[str, str]:
    """What of this process's environment is for workloads: what the user named, and what holds a password."""
    names = {name.strip() for name in os.environ.get(PASSED, "").split(",")} | FOR_WORKLOADS
    return {name: value for name, value in os.environ.items() if name in names}
