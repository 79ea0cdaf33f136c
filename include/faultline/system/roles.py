"""The roles by which CPU and memory are counted: whose process it is."""

from __future__ import annotations

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
