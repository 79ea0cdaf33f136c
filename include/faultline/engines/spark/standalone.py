"""Spark's standalone cluster: state of its master and capacity of its workers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from faultline.system.endpoints import Endpoints
from faultline.system.errors import ConfigError
from faultline.system.settings import load_settings
from faultline.system.socket_owner import fetch_json

if TYPE_CHECKING:
    from faultline.experiment.config import Configuration

WORKER_MEMORY = "FAULTLINE_WORKER_MEMORY_MB"
WORKER_MEMORY_SHARE = 0.35
# Spark adds this share, and at least 384 MiB, to every executor's heap (memoryOverhead). Standalone workers do not
# reserve it, so the capacity check does.
MEMORY_OVERHEAD = 1.1
# CPU seconds of a task without records, measured on two cores in 2026.
TASK_S = 0.005
# Spark's minimum for a generator's executor, because Python generates and sends the records.
GENERATOR_MEMORY_MB = 512


def worker_memory_mb() -> int:
    """Return the memory of each worker in MiB: FAULTLINE_WORKER_MEMORY_MB, or a share of the machine's.

    Raises ConfigError if the variable is not a positive integer.
    """
    import psutil

    given = os.environ.get(WORKER_MEMORY)
    if given is None:
        return int(psutil.virtual_memory().total / 2**20 * WORKER_MEMORY_SHARE)
    if not given.isdecimal() or not int(given):
        raise ConfigError(f"{WORKER_MEMORY}: got {given!r}; expected a positive number of MiB, such as 2048")
    return int(given)


def master_state(endpoints: Endpoints) -> dict[str, Any] | None:
    """Return the master's state of workers and applications (its `/json/`); None if it does not answer."""
    return fetch_json(f"{endpoints.engine_ui}/json/")


def check_capacity(config: Configuration) -> None:
    """Raise ConfigError for executors that the workers cannot hold, including the generator's."""
    workers = len(load_settings().workers)
    per_worker = -(-config.executors // workers)
    wanted = per_worker * config.executor_memory_mb * MEMORY_OVERHEAD
    wanted += -(-_generator_executors(config) // workers) * GENERATOR_MEMORY_MB * MEMORY_OVERHEAD
    if wanted > worker_memory_mb():
        raise ConfigError(
            f"executor_memory_mb: got {per_worker} executors of {config.executor_memory_mb} MiB per worker; expected "
            f"them to fit {worker_memory_mb()} MiB; fix: lower executor_memory_mb or executors"
        )


def check_tasks(config: Configuration) -> None:
    """Raise ConfigError for more tasks per batch than this machine can start in an interval."""
    tasks = config.partitions + config.shuffle_partitions
    slots = min(config.executors * config.executor_cores, os.cpu_count() or 1)
    needed_s = tasks * TASK_S / slots
    if config.paced and needed_s > config.checkpoint_interval_s:
        most = int(config.checkpoint_interval_s * slots / TASK_S)
        raise ConfigError(
            f"partitions: got {tasks:,} tasks per batch with shuffle_partitions, or {needed_s:.1f} s on {slots} cores; "
            f"expected at most {most}, to fit checkpoint_interval_s = {config.checkpoint_interval_s:g}"
        )


def has_free_slots(state: Mapping[str, Any] | None, config: Configuration) -> bool:
    """Return whether the live workers have room for all executors, by the master's state."""
    if not state:
        return False
    free = spare = 0
    for worker in state.get("workers", []):
        if worker.get("state") == "ALIVE":
            by_cores = int(worker["coresfree"]) // config.executor_cores
            by_memory = int(worker["memoryfree"]) // config.executor_memory_mb
            free += min(by_cores, by_memory)
            spare += int(worker["coresfree"])
    return free >= config.executors and spare >= config.executors * config.executor_cores + _generator_executors(config)


def _generator_executors(config: Configuration) -> int:
    """Return the number of one-core executors for the generator."""
    return config.generator_processes if config.generator_on == "executors" else 0
