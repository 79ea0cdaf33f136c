"""What cannot be measured on a target: refused before anything is started, or null in the record with its reason."""

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

UNTAGGED = "its process does not bear the mark of this installation's services, so it cannot be told from a stranger's"
# Programs that open files of their checkpoint.
CHECKPOINT_READERS = ("nexmark", "topology")
# Roles of which an executor is one, as records name them.
_WORKER_ROLES = ("executors", "python_workers")


def check_target(settings: Settings, config: Configuration) -> None:
    """Refuses a configuration that its target cannot have, by what it says. Raises ConfigError naming the key."""
    if find_target(settings, config.target) is not None:
        for why in _refusals(config):
            raise ConfigError(f"{why}, or target=embedded")


def _refusals(config: Configuration) -> Iterator[str]:
    """What it says that no target has, each with what to say instead."""
    name = config.target
    if config.spark_build is not None:
        yield "spark_build: a build has a master of this installation; leave it out"
    if config.kind.own_client:
        yield (
            f"workload: {config.workload} comes to the broker through the gate, which only the embedded broker has; "
            "choose another"
        )
    for companion in config.kind.companions(config.own):
        yield (
            f"workload: {config.workload} needs a {companion.role} beside it, which listens for the embedded workers "
            "only; choose another"
        )
    if config.commit_mode == "none":
        yield (
            f"commit_mode: none keeps state on this machine's RAM disk, which executors of {name} do not share; use "
            "aligned"
        )
    for one in config.planned_faults():
        fault = one.fault
        if fault.definition.uses_proxy or fault.definition.targets_hosts:
            yield (
                f"fault_action: {fault.action} needs a broker or hosts that `up` made, and {name} has others; use kill"
            )
        for role in ROLES_BY_VICTIM[fault.victim]:
            if role.scope == "services":
                yield (
                    f"fault: {fault.victim}: {name}'s {role.name} is no victim: {UNTAGGED}; use executor, driver, "
                    "python_worker"
                )


def require_supported(endpoints: Endpoints, config: Configuration) -> None:
    """Refuses what the target cannot have as it is now. Raises ConfigError naming the key."""
    require_storage(endpoints, config)
    require_victims(endpoints, config)


def require_storage(endpoints: Endpoints, config: Configuration) -> None:
    """Refuses programs that look into their checkpoint themselves, where it lies in HDFS. Raises ConfigError."""
    if endpoints.storage.startswith(SCHEME) and config.workload in CHECKPOINT_READERS:
        raise ConfigError(
            f"workload: {config.workload} reads its own checkpoint as files, and that of {endpoints.target} lies in "
            "HDFS; use a target whose storage is a folder"
        )


def require_victims(endpoints: Endpoints, config: Configuration) -> None:
    """Refuses faults whose victims may be where no signal reaches. Raises ConfigError naming the hosts."""
    roles = {role.name for one in config.planned_faults() for role in ROLES_BY_VICTIM[one.fault.victim]} - {DRIVER.name}
    if not roles:
        return
    away = unreachable_hosts(endpoints)
    if away is None:
        raise ConfigError(
            f"fault: where executors of {endpoints.target} run is not known beforehand; use fault=driver or none"
        )
    if away:
        raise ConfigError(
            f"fault: executors of {endpoints.target} run on {', '.join(away)} as well, which no Connection "
            "faultline_host_NAME of the target reaches; add it with --host NAME, or use fault=driver or none"
        )


def unreachable_hosts(endpoints: Endpoints) -> list[str] | None:
    """Addresses of workers whose processes cannot be looked at; None where no master says which there are."""
    state = master_state(endpoints) if endpoints.engine_ui else None
    return None if state is None else unreachable_workers(state, endpoints.hosts)


def unavailable_figures(endpoints: Endpoints) -> dict[str, str]:
    """Figures that an experiment on the target cannot have, and why; none on the embedded."""
    if not endpoints.is_external:
        return {}
    away = unreachable_hosts(endpoints)
    missing = {"kafka": f"the broker of {endpoints.target} is not this installation's"}
    if away is None:
        missing |= dict.fromkeys(_WORKER_ROLES, f"no master of {endpoints.target} says where executors run")
    elif away:
        why = f"executors run on {', '.join(away)}, which no Connection faultline_host_NAME reaches"
        missing |= dict.fromkeys(_WORKER_ROLES, why)
    return {f"{figure}.{role}": why for role, why in missing.items() for figure in ("cpu_cores", "rss_mb")}
