"""The presets of the dynamic topology's matrix: the chain of stages under load, at ease, and before a slow store."""

from __future__ import annotations

from typing import Any

from faultline.experiment.common import FINDINGS, REPEATED, SHORT
from faultline.experiment.workloads.topology_rules import ALL, DYNAMIC_ALLOCATION, MECHANISMS, NONE, REBALANCE
from faultline.experiment.workloads.topology_rules import DEFAULTS as TOPOLOGY_DEFAULTS

# The chain of stages, in one JVM whose slots are threads: as many tasks as the paper's largest case, and one more.
# Four queries share two cores, so what each commits is kept small.
_TOPOLOGY: dict[str, Any] = {
    **TOPOLOGY_DEFAULTS,
    "workload": "topology",
    "state_mb": 0.0,
    "commit_mode": "aligned-changelog",
}
# The fast word count: short random lines, more of them than the chain takes.
_SATURATED: dict[str, Any] = {
    "skew": 0.0,
    "vocabulary": 1000,
    "rate": 20_000.0,
    # What a chain of micro-batches holds at its capacity (two batches of the words that two cores count). Tuples do not
    # time out here: those that wait behind a limit would be sent round for ever; `overload` is where they do.
    "topology": {"queue_capacity": 400_000, "tuple_timeout_s": 120.0},
    "accept_overload": True,
    "warmup_s": 30.0,
    "duration_s": 30.0,
}

TOPOLOGY_PRESETS: dict[str, dict[str, Any]] = {
    "smoke": {**_TOPOLOGY, "mechanisms": ["all"], "parallelism": ["1-1-1"], **SHORT},
    "default": {
        **_TOPOLOGY,
        "mechanisms": [NONE, ALL],
        "parallelism": ["1-1-1", "1-4-6"],
        **_SATURATED,
        **REPEATED,
    },
    "throughput": {
        **_TOPOLOGY,
        "mechanisms": [NONE, "back_pressure", "replay", "replacement", ALL],
        "parallelism": ["1-1-1", "1-2-1", "1-2-2", "1-4-6"],
        **_SATURATED,
        "repetitions": 3,
    },
    # Of the fast word count; the presets after it ask the paper's other tests.
    FINDINGS: {
        **_TOPOLOGY,
        "mechanisms": [NONE, ALL],
        "parallelism": ["1-1-1", "1-2-1", "1-4-6"],
        **_SATURATED,
        **REPEATED,
    },
    "latency": {
        **_TOPOLOGY,
        "shuffle_partitions": 4,
        "mechanisms": [NONE, *MECHANISMS, ALL],
        "parallelism": ["1-2-4-1"],
        "rate": 50.0,
        "warmup_s": 30.0,
        "duration_s": 45.0,
        "repetitions": 3,
    },
    "slow_store": {
        **_TOPOLOGY,
        "shuffle_partitions": 4,
        "mechanisms": [NONE, "delayed_persistence", ALL],
        "parallelism": ["1-2-4-1"],
        "rate": 50.0,
        "topology": {"persist_delay_ms": 5.0},
        "accept_overload": True,
        "warmup_s": 15.0,
        "duration_s": 45.0,
        "repetitions": 3,
    },
    "overload": {
        **_TOPOLOGY,
        "mechanisms": [NONE, "replacement", REBALANCE, DYNAMIC_ALLOCATION],
        "parallelism": ["1-1-1"],
        **_SATURATED,
        "topology": {"tuple_timeout_s": 3.0, "window_s": 5.0, "windows": 3},
        "warmup_s": 15.0,
        # Dynamic allocation begins with one of them, whose two slots are too few for three stages.
        "executors": 3,
        "executor_cores": 2,
        "repetitions": 3,
    },
    "paper": {
        **_TOPOLOGY,
        "mechanisms": [NONE, ALL],
        "parallelism": ["1-1-1", "1-2-1", "1-2-2", "1-4-6"],
        **_SATURATED,
        "duration_s": 100.0,
        "repetitions": 50,
    },
}
