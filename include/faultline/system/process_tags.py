"""Marks that identify the processes of an attempt and of an installation."""

from __future__ import annotations

# In the environment of every process of an attempt, and inherited. A token in a command line could also be that of a
# user's `grep`.
RUN_MARK = "FAULTLINE_RUN"
# In the environment of every service: the random name of its `up`.
INSTANCE_MARK = "FAULTLINE_INSTANCE"
# In the environment of background processes; see `faultline.system.background`.
BACKGROUND_MARK = "FAULTLINE_BACKGROUND"


def run_token(attempt: str) -> str:
    """Return the argument that identifies an attempt's process in its command line."""
    return f"faultline-run={attempt}"


def load_token(attempt: str) -> str:
    """Return the argument that replaces `run_token` for load senders.

    Their programs may match a fault's victims, but they are not victims.
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
