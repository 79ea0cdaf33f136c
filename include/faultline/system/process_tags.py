"""Marks that identify the processes of an attempt and of an installation."""

from __future__ import annotations

# Variable in the environment of every process of an attempt, which children inherit. A token in a command line alone
# could also be that of a user's `grep`.
RUN_MARK = "FAULTLINE_RUN"
# Variable in the environment of every service, with a random name that `up` chose.
INSTANCE_MARK = "FAULTLINE_INSTANCE"
# Variable in the environment of background processes; see `faultline.system.background`.
BACKGROUND_MARK = "FAULTLINE_BACKGROUND"


def run_token(attempt: str) -> str:
    """Return the argument that identifies an attempt's process in its command line."""
    return f"faultline-run={attempt}"


def load_token(attempt: str) -> str:
    """Return the argument that replaces `run_token` for load senders.

    Load senders may run the same programs as the victims of a fault, but must not be hit.
    """
    return f"faultline-load={attempt}"


def run_option(attempt: str) -> str:
    """Return the JVM option that corresponds to `run_token`."""
    return f"-Dfaultline.run={attempt}"


def load_option(attempt: str) -> str:
    """Return the JVM option that corresponds to `load_token`."""
    return f"-Dfaultline.load={attempt}"


def instance_option(instance: str) -> str:
    """Return the JVM option that identifies a service of this installation, for the victim guard."""
    return f"-Dfaultline.instance={instance}"


# ---- Roles by which CPU and memory are counted ----


# Executors and their Python workers process records; the driver only plans.
WORKERS = ("executors", "python_workers")
ENGINE = ("driver", *WORKERS)
ROLES = (*ENGINE, "kafka", "generator")
# Airflow with its tasks, the persistent Spark session, the cluster's daemons: not part of an experiment.
SERVICES = "services"
# A service that a fault ended and that restarted during the run, such as a worker: a cost of the fault.
RESTARTED = "restarted"
# Load that a fault starts to take CPU or memory from the workload.
NEIGHBOURS = "neighbours"
