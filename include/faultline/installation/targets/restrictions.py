"""Configurations and figures that a target (an external cluster) does not support, with the reasons."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from fault.identity import DRIVER
from fault.victims import ROLES_BY_VICTIM
from faultline.engines.spark.hdfs import SCHEME
from faultline.engines.spark.standalone import master_state
from faultline.installation.targets.spark_preflight import unreachable_workers
from faultline.system.endpoints import Endpoints
from faultline.system.errors import ConfigError
from faultline.system.settings import Settings
from faultline.system.target_registry import find_target

if TYPE_CHECKING:
    from faultline.experiment.config import Configuration

UNTAGGED = "its process lacks the mark of this installation, so ownership cannot be verified"
# Workloads that read files of their checkpoint.
CHECKPOINT_READERS = ("nexmark", "topology")
# Roles of executors and their Python workers in records.
_WORKER_ROLES = ("executors", "python_workers")


def check_target(settings: Settings, config: Configuration) -> None:
    """Raise ConfigError, naming the key, for a configuration that its target does not support."""
    if find_target(settings, config.target) is not None:
        for why in _refusals(config):
            raise ConfigError(f"{why}, or target=embedded")


def _refusals(config: Configuration) -> Iterator[str]:
    """Yield what no target supports, each with an alternative."""
    name = config.target
    if config.spark_build is not None:
        yield "spark_build: not supported on a target; fix: remove it"
    if config.kind.own_client:
        yield (f"workload: {config.workload} needs the Kafka auth proxy of the embedded broker; fix: choose another")
    for companion in config.kind.companions(config.own):
        yield (
            f"workload: {config.workload} needs a {companion.role}, which only embedded workers can reach; "
            "fix: choose another"
        )
    if config.commit_mode == "none":
        yield (
            f"commit_mode: none keeps state on this machine's RAM disk, which {name} does not share; fix: use aligned"
        )
    for one in config.planned_faults():
        fault = one.fault
        if fault.definition.uses_proxy or fault.definition.targets_hosts:
            yield (f"fault_action: {fault.action} needs embedded services or hosts, which {name} lacks; fix: use kill")
        for role in ROLES_BY_VICTIM[fault.victim]:
            if role.scope == "services":
                yield (
                    f"fault: {fault.victim}: {name}'s {role.name} is not a victim: {UNTAGGED}; use executor, driver, "
                    "python_worker"
                )


def require_supported(endpoints: Endpoints, config: Configuration) -> None:
    """Raise ConfigError, naming the key, for what the target does not support in its current state."""
    require_storage(endpoints, config)
    require_victims(endpoints, config)


def require_storage(endpoints: Endpoints, config: Configuration) -> None:
    """Raise ConfigError for a workload that reads its own checkpoint if it is in HDFS."""
    if endpoints.storage.startswith(SCHEME) and config.workload in CHECKPOINT_READERS:
        raise ConfigError(
            f"workload: {config.workload} reads its checkpoint as files, but that of {endpoints.target} is in "
            "HDFS; fix: use a target whose storage is a folder"
        )


def require_victims(endpoints: Endpoints, config: Configuration) -> None:
    """Raise ConfigError, naming the hosts, for faults whose victims may be unreachable."""
    roles = {role.name for one in config.planned_faults() for role in ROLES_BY_VICTIM[one.fault.victim]} - {DRIVER.name}
    if not roles:
        return
    away = unreachable_hosts(endpoints)
    if away is None:
        raise ConfigError(
            f"fault: the hosts of {endpoints.target}'s executors are unknown; fix: use fault=driver or none"
        )
    if away:
        raise ConfigError(
            f"fault: executors of {endpoints.target} also run on {', '.join(away)}, which lacks a Connection "
            "faultline_host_NAME; fix: add it with --host NAME, or use fault=driver or none"
        )


def unreachable_hosts(endpoints: Endpoints) -> list[str] | None:
    """Return addresses of workers whose processes cannot be inspected; None without a master's page."""
    state = master_state(endpoints) if endpoints.engine_ui else None
    return None if state is None else unreachable_workers(state, endpoints.hosts)


def unavailable_figures(endpoints: Endpoints) -> dict[str, str]:
    """Return the figures that the target cannot provide, with reasons; empty for the embedded one."""
    if not endpoints.is_external:
        return {}
    away = unreachable_hosts(endpoints)
    missing = {"kafka": f"the broker of {endpoints.target} is external"}
    if away is None:
        missing |= dict.fromkeys(_WORKER_ROLES, f"the executor hosts of {endpoints.target} are unknown")
    elif away:
        why = f"executors run on {', '.join(away)}, which lacks a Connection faultline_host_NAME"
        missing |= dict.fromkeys(_WORKER_ROLES, why)
    return {f"{figure}.{role}": why for role, why in missing.items() for figure in ("cpu_cores", "rss_mb")}
