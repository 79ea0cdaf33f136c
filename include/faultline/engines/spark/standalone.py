"""Spark's standalone cluster: what its Master says, and what its workers can hold."""

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
# Spark adds this share, and at least 384 MiB, to the heap of every executor (memoryOverhead); standalone
# workers do not reserve it, so it is left free for them here.
MEMORY_OVERHEAD = 1.1
# Seconds of a core that a task takes however few records it has, on two cores of 2026.
TASK_S = 0.005
# Of an executor of the generator: the least that Spark takes, since Python makes the records and sends them.
GENERATOR_MEMORY_MB = 512


def worker_memory_mb() -> int:
    """Memory that each worker offers, in MiB: FAULTLINE_WORKER_MEMORY_MB, or a share of the machine's.

    Raises ConfigError when the variable is no such number.
    """
    import psutil

    given = os.environ.get(WORKER_MEMORY)
    if given is None:
        return int(psutil.virtual_memory().total / 2**20 * WORKER_MEMORY_SHARE)
    if not given.isdecimal() or not int(given):
        raise ConfigError(f"{WORKER_MEMORY}: {given!r} is refused; give whole MiB, such as 2048")
    return int(given)


def master_state(endpoints: Endpoints) -> dict[str, Any] | None:
    """The Master's own view of workers and applications (its `/json/`), or None when it does not answer."""
    return fetch_json(f"{endpoints.engine_ui}/json/")


def check_capacity(config: Configuration) -> None:
    """Refuses executors that the workers can never hold, the generator's among them."""
    workers = len(load_settings().workers)
    per_worker = -(-config.executors // workers)
    wanted = per_worker * config.executor_memory_mb * MEMORY_OVERHEAD
    wanted += -(-_generator_executors(config) // workers) * GENERATOR_MEMORY_MB * MEMORY_OVERHEAD
    if wanted > worker_memory_mb():
        raise ConfigError(
            f"executor_memory_mb: {per_worker} executors of {config.executor_memory_mb} MiB do not fit a worker "
            f"of {worker_memory_mb()} MiB; lower executor_memory_mb or executors"
        )


def check_tasks(config: Configuration) -> None:
    """Refuses more tasks in a batch than this machine can start in an interval: it would measure the scheduler."""
    tasks = config.partitions + config.shuffle_partitions
    at_once = min(config.executors * config.executor_cores, os.cpu_count() or 1)
    needed_s = tasks * TASK_S / at_once
    if config.paced and needed_s > config.checkpoint_interval_s:
        most = int(config.checkpoint_interval_s * at_once / TASK_S)
        raise ConfigError(
            f"partitions: with shuffle_partitions {tasks:,} tasks a batch, which take {needed_s:.1f} s on {at_once} "
            f"cores, and batches come each {config.checkpoint_interval_s:g} s; use at most {most} of both together"
        )


def has_free_slots(state: Mapping[str, Any] | None, config: Configuration) -> bool:
    """Whether the living workers have room for all executors, as the Master sees it."""
    if not state:
        return False
    room = spare = 0
    for worker in state.get("workers", []):
        if worker.get("state") == "ALIVE":
            by_cores = int(worker["coresfree"]) // config.executor_cores
            by_memory = int(worker["memoryfree"]) // config.executor_memory_mb
            room += min(by_cores, by_memory)
            spare += int(worker["coresfree"])
    return room >= config.executors and spare >= config.executors * config.executor_cores + _generator_executors(config)


def _generator_executors(config: Configuration) -> int:
    """Executors of one core each that the generator takes."""
    return config.generator_processes if config.generator_on == "executors" else 0
