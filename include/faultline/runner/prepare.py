"""The step `prepare`: validate, wait for the machine and its services, and make the attempt."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from faultline.base.attempt import Attempt, new_attempt_id, write_json
from faultline.base.errors import Cancelled, ConfigError
from faultline.base.machine_lock import lock_holder
from faultline.base.settings import HOST, WORKERS, Settings, check_folders, instance
from faultline.base.waiting import wait_until
from faultline.cluster.services import kafka_ready, master_state, worker_memory_mb
from faultline.cluster.steal_time import await_quiet, longest_wait_s
from faultline.engines.spark.settings import free_port
from faultline.experiment.config import Configuration
from faultline.experiment.plan import topic_partitions
from faultline.runner.environment import default_build, describe
from faultline.runner.orphans import owner_here

MACHINE_TIMEOUT_S = 900.0
SERVICES_TIMEOUT_S = 60.0
# Spark adds this share, and at least 384 MiB, to the heap of every executor (memoryOverhead); standalone
# workers do not reserve it, so it is left free for them here.
MEMORY_OVERHEAD = 1.1
LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:+-]{0,79}")


@dataclass(frozen=True)
class Order:
    """What to measure, for whom: a configuration and the coordinates of its cell."""

    config: Configuration
    repetition: int = 0
    series: str | None = None
    build: str | None = None
    matrix: str | None = None
    sweep_id: str | None = None
    parent_run_id: str | None = None
    logical_date: str | None = None
    # The run in Airflow that measures it.
    run_id: str | None = None

    def __post_init__(self) -> None:
        for key in ("series", "build", "matrix"):
            value = getattr(self, key)
            if value is not None and not LABEL.fullmatch(value):
                raise ConfigError(f"{key}: {value!r} is not a label; use letters, digits and ._:+- (at most 80)")
        if self.repetition < 0:
            raise ConfigError(f"repetition: {self.repetition} is negative; use 0 or more")


def prepare(
    order: Order,
    settings: Settings,
    java: str,
    *,
    hosts: Mapping[str, Mapping[str, Any]] | None = None,
    cancelled: Callable[[], bool] = lambda: False,
    keep_topics: bool = False,
) -> Attempt:
    """Makes the attempt's folder and writes `attempt.json`; starts nothing.

    `hosts`: the machines whose processes are hit over SSH, by name; none when all is on this one. `keep_topics`:
    whoever closes the attempt leaves its topics.
    Raises ConfigError when the machines can never hold the executors asked for, and
    InfrastructureError naming the holder or the service when the wait runs out.
    """
    wait_s = longest_wait_s()
    check_folders(settings)
    check_here(order.config)
    await_machine(settings, cancelled=cancelled)
    await_services(settings, order.config)
    if wait_s:
        print(f"waiting until the machine's host takes nearly nothing from it, {wait_s:g} s at most")
        print(f"waited {await_quiet(wait_s, cancelled=cancelled):.0f} s")
    attempt = Attempt(settings.attempts / new_attempt_id())
    attempt.folder.mkdir(parents=True)
    ui_port = free_port()
    detour = any(planned.fault.how.detours for planned in order.config.planned_faults())
    write_json(
        attempt.folder / "attempt.json",
        {
            **describe_order(order, settings, java),
            "attempt": attempt.id,
            # Other installations may keep their results in the same folder, and leave it to this one to clean up.
            "home": str(settings.home),
            "keep_topics": keep_topics,
            "kafka": {
                "bootstrap": settings.endpoints.kafka,
                # By the detour only where the plan needs it: it is one more hop.
                "workload_bootstrap": settings.endpoints.kafka_detour if detour else settings.endpoints.kafka,
                "config": str(settings.home / "kafka" / "server.properties"),
            },
            "topics": {role: f"faultline-{attempt.id}-{role}" for role in topic_partitions(order.config)},
            "companion_ports": {one.role: free_port() for one in order.config.kind.companions(order.config.own)},
            "spark": {
                "master": settings.endpoints.engine,
                "ui": f"http://127.0.0.1:{ui_port}",
                "ui_port": ui_port,
            },
            "services": _victim_services(settings),
            "hosts": {name: dict(host) for name, host in (hosts or {}).items()},
        },
    )
    return attempt


def _victim_services(settings: Settings) -> dict[str, Any]:
    """The mark of this installation's services, and where a fault holds each of them down."""
    holds = {"kafka": settings.hold("kafka")}
    for number in range(1, WORKERS + 1):
        holds[f"{HOST}:{settings.ports[f'spark_worker_{number}']}"] = settings.hold(f"spark-worker-{number}")
    return {
        "instance": instance(settings).get("instance"),
        "holds": {node: str(path) for node, path in holds.items()},
    }


def describe_order(order: Order, settings: Settings, java: str) -> dict[str, Any]:
    """What every attempt says of itself: configuration, cell, build and environment."""
    build = order.build or default_build(settings, java)
    return {
        "schema": 1,
        "config": order.config.model_dump(mode="json"),
        "config_id": order.config.config_id,
        "repetition": order.repetition,
        "series": order.series or build,
        "build": build,
        "matrix": order.matrix,
        "sweep_id": order.sweep_id,
        "parent_run_id": order.parent_run_id,
        "logical_date": order.logical_date,
        "run_id": order.run_id,
        # Who closes it: the tasks of its run, unless one process runs them all.
        "owner": owner_here(),
        "prepared_wall_ns": time.time_ns(),
        "environment": describe(settings, order.config, java),
    }


def check_here(config: Configuration) -> None:
    """Refuses what this machine cannot run: too large executors, a source or a store that is not there."""
    check_capacity(config)
    check_source(config)
    config.kind.check_here(config.own, config)


def check_capacity(config: Configuration) -> None:
    """Refuses executors that the workers can never hold."""
    per_worker = -(-config.executors // WORKERS)
    wanted = per_worker * config.executor_memory_mb * MEMORY_OVERHEAD
    if wanted > worker_memory_mb():
        raise ConfigError(
            f"executor_memory_mb: {per_worker} executors of {config.executor_memory_mb} MiB do not fit a worker "
            f"of {worker_memory_mb()} MiB; lower executor_memory_mb or executors"
        )


def check_source(config: Configuration) -> None:
    """Refuses a corpus or a price file that cannot be used, naming file and line."""
    from generators.errors import InputError
    from generators.prices import closes_of
    from generators.text import TextLines

    named = config.input_source()
    try:
        if "corpus" in named:
            TextLines.load(named["corpus"], 1, 0, 0)
        if "prices" in named:
            closes_of(named["prices"])
    except InputError as error:
        raise ConfigError(str(error)) from None


def await_machine(settings: Settings, *, cancelled: Callable[[], bool], timeout_s: float = MACHINE_TIMEOUT_S) -> None:
    """Waits until no experiment holds the machine; names the holder when it takes too long."""

    def free() -> bool:
        if cancelled():
            raise Cancelled("the sweep was stopped while this experiment waited for the machine")
        return lock_holder(settings.machine_lock) is None

    wait_until(
        free,
        timeout_s=timeout_s,
        every_s=1.0,
        what=lambda: f"machine: held by {lock_holder(settings.machine_lock)}; wait for it, or stop it",
    )


def await_services(settings: Settings, config: Configuration) -> None:
    """Waits until the broker answers, and the workers have the free slots and memory asked for."""

    def ready() -> bool:
        return kafka_ready(settings.endpoints.kafka) and slots_free(master_state(settings), config)

    wait_until(
        ready,
        timeout_s=SERVICES_TIMEOUT_S,
        every_s=0.3,
        what=lambda: (
            "services: "
            + ("Spark has no room for the executors" if kafka_ready(settings.endpoints.kafka) else "Kafka is away")
            + "; look at ./faultline doctor, or run ./faultline down and up"
        ),
    )


def slots_free(state: Mapping[str, Any] | None, config: Configuration) -> bool:
    """Whether the living workers have room for all executors, as the Master sees it."""
    if not state:
        return False
    room = 0
    for worker in state.get("workers", []):
        if worker.get("state") == "ALIVE":
            by_cores = int(worker["coresfree"]) // config.executor_cores
            by_memory = int(worker["memoryfree"]) // config.executor_memory_mb
            room += min(by_cores, by_memory)
    return room >= config.executors
