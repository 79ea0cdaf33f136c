"""What marks the processes of an attempt, and those of an installation, so that nobody else's are taken for them."""

from __future__ import annotations

# In the environment of every process of an attempt: whatever it starts inherits it, and nobody else comes to have it.
# A token in a command line may be that of a person's `grep`.
RUN_MARK = "FAULTLINE_RUN"
# The same of a service of an installation: the name that its `up` made.
INSTANCE_MARK = "FAULTLINE_INSTANCE"
# The same of what only runs the experiments: it gives way while a window is measured (`faultline.system.background`).
BACKGROUND_MARK = "FAULTLINE_BACKGROUND"


def run_token(attempt: str) -> str:
    """The argument that marks every process of an attempt in its command line."""
    return f"faultline-run={attempt}"


def load_token(attempt: str) -> str:
    """The argument in the place of `run_token` for what sends the attempt's load with programs that a fault may look
    for: it is no victim."""
    return f"faultline-load={attempt}"


def run_option(attempt: str) -> str:
    """What marks a JVM of an attempt, as `run_token` marks other processes."""
    return f"-Dfaultline.run={attempt}"


def load_option(attempt: str) -> str:
    """The same of a JVM that sends the load."""
    return f"-Dfaultline.load={attempt}"


def instance_option(instance: str) -> str:
    """What marks a service's JVM as this installation's, for the guard rails of faults."""
    return f"-Dfaultline.instance={instance}"


# ---- Roles by which CPU and memory are counted: whose process it is ----


# What does the work: executors, and what they start in Python. The driver plans, whatever the number of records.
WORKERS = ("executors", "python_workers")
ENGINE = ("driver", *WORKERS)
ROLES = (*ENGINE, "kafka", "generator")
# What runs the experiments: Airflow with its tasks, the Spark that stays, the daemons of the cluster. No part of any.
SERVICES = "services"
# A service that a fault ended and that was started again within the run, such as a worker: the fault's own cost, and
# nobody else's.
RESTARTED = "restarted"
# What a fault starts beside the workload, to take its processors or memory: what was asked for, and nobody else's.
NEIGHBOURS = "neighbours"
