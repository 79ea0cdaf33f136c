"""Settings of Spark that only some workloads have, by the workload's name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from faultline.experiment.config import Configuration
from faultline.experiment.workloads.topology_rules import (
    DYNAMIC_ALLOCATION,
    TopologyParameters,
    first_executors,
    mechanisms_of,
)

# Java compiles no method of more than 8,000 bytes of code, and making events would be one: above the limit Spark takes
# smaller ones. Sessions of one partition of the input are merged before they are sent to where their state is, and what
# goes to Python goes in pieces that are worth a call.
NEXMARK_SETTINGS = {
    "spark.sql.codegen.hugeMethodLimit": "8000",
    "spark.sql.streaming.sessionWindow.merge.sessions.in.local.partition": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
    # Counting rows costs a look-up for each that is written, and no figure of Nexmark is a number of rows.
    "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows": "false",
}


def workload_tuning(config: Configuration) -> Mapping[str, str]:
    """What Spark is told for this workload beside what it is for every one."""
    tuned = _TUNINGS.get(config.workload)
    return {} if tuned is None else tuned(config)


def _nexmark(config: Configuration) -> Mapping[str, str]:
    return NEXMARK_SETTINGS


def _topology(config: Configuration) -> Mapping[str, str]:
    own = config.own
    assert isinstance(own, TopologyParameters)
    settings = {"spark.scheduler.mode": "FAIR"}  # tasks of all stages take turns
    if DYNAMIC_ALLOCATION in mechanisms_of(own):
        first = str(first_executors(own, config.executors))
        settings |= {
            "spark.dynamicAllocation.enabled": "true",
            "spark.dynamicAllocation.shuffleTracking.enabled": "true",
            "spark.dynamicAllocation.minExecutors": first,
            "spark.dynamicAllocation.initialExecutors": first,
            "spark.dynamicAllocation.maxExecutors": str(config.executors),
            "spark.dynamicAllocation.schedulerBacklogTimeout": "1s",
        }
    return settings


_TUNINGS: Mapping[str, Callable[[Configuration], Mapping[str, str]]] = {"nexmark": _nexmark, "topology": _topology}
