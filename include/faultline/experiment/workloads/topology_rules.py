"""Stages, mechanisms and rules of the workload `topology`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from faultline.experiment.common_parameters import FINDINGS, REPEATED, SHORT, expectation
from faultline.experiment.workloads.protocol import Parameters
from faultline.system.text import nearest_name

STAGES = ("source", "split", "count", "persist")
MECHANISMS = ("back_pressure", "replay", "replacement", "delayed_persistence")
# Defaults that differ from those of other workloads: one JVM, whose slots are threads like the paper's tasks, and a
# shuffle partition for each task of the paper.
DEFAULTS: dict[str, Any] = {
    "fault": "none",
    "executors": 1,
    "executor_cores": 12,
    "shuffle_partitions": 8,
    "checkpoint_interval_s": 1.0,
}
# Alternatives that replacement is compared with: restart of a stage, and Spark's dynamic allocation.
REBALANCE, DYNAMIC_ALLOCATION = "rebalance", "dynamic_allocation"
BASELINES = (REBALANCE, DYNAMIC_ALLOCATION)
NONE, ALL = "none", "all"
# Topics of the mechanisms; a link between stages has the name of its writer.
SPACES = {"a": "space-a", "b": "space-b"}
SET_ASIDE, CONTROL = "set-aside", "control"

# Rules that only the stage `persist` has.
PERSIST_RULES = ("store", "persist_delay_ms", "persist_by", "queue", "flush_every_s", "flush_length")

_NAMES = "|".join((*MECHANISMS, *BASELINES))
MECHANISMS_PATTERN = rf"^({NONE}|{ALL}|({_NAMES})(\+({_NAMES}))*)$"
PARALLELISM_PATTERN = r"^[1-9][0-9]{0,3}(-[1-9][0-9]{0,3}){2,3}$"


class TopologyParameters(Parameters):
    """Parallelism, mechanisms and changed rules of the chain."""

    mechanisms: str = Field(
        "none",
        pattern=MECHANISMS_PATTERN,
        description="Mechanisms of `topology`: `none`, `all`, or names joined by +; see docs/reference/workloads.md.",
    )
    parallelism: str = Field(
        "1-1-1",
        pattern=PARALLELISM_PATTERN,
        description="Tasks per stage of `topology`: source-split-count, or source-split-count-persist.",
    )
    topology: dict[str, Any] | None = Field(
        None,
        description='Changed rules of the stages, such as {"queue_capacity": 20000}; see docs/reference/workloads.md.',
    )


class TopologyRules(BaseModel):
    """Rules of the stages with their defaults, which the parameter `topology` overrides."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    queue_capacity: int = Field(50_000, ge=1, le=10**9, description="Queue capacity of a stage, in tuples (QML).")
    load_factor: float = Field(
        0.8, gt=0.5, lt=1, description="Share of the capacity above which a stage signals back-pressure."
    )
    divisor: float = Field(2.0, gt=1, le=64, description="Divisor of the upstream rate per signal (v').")
    tuple_timeout_s: float | None = Field(
        30.0, gt=0, le=3600, description="Seconds in a queue after which a tuple fails. Empty: never."
    )
    fail_share: float = Field(0.0, ge=0, lt=1, description="Share of tuples that fail at random in split and count.")
    poison: str = Field("", max_length=100, description="Prefix of tuples that always fail.")
    max_attempts: int = Field(10, ge=1, le=1000, description="Attempts after which a tuple is set aside.")
    window_s: float = Field(5.0, gt=0, le=600, description="Length of a failure-counting window, in seconds.")
    windows: int = Field(5, ge=2, le=1000, description="Number of windows in the ring (A).")
    decay: float = Field(0.8, gt=0, le=1, description="Weight of a window relative to the next newer one.")
    threshold: float = Field(
        100.0, ge=0, description="Weighted dispersion of failures above which a stage is replaced (C)."
    )
    store: Literal["sqlite", "postgresql"] = Field("sqlite", description="Result store of persist.")
    persist_delay_ms: float = Field(0.0, ge=0, le=60_000, description="Delay added to each call to the store.")
    persist_by: Literal["tuple", "batch"] = Field("tuple", description="One call per result, or one per batch.")
    queue: Literal["memory", "memcached"] = Field("memory", description="Location of the delayed queue.")
    flush_every_s: float = Field(
        1.0, gt=0, le=600, description="Interval between flushes of the delayed queue, in seconds."
    )
    flush_length: int = Field(10_000, ge=1, le=10**8, description="Queue length that triggers a flush.")


def take_rules(value: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the canonical form of the field `topology`: the differences from the defaults, or None.

    Raises ValueError with one line that names the key and the fix.
    """
    for key in value:
        if key not in TopologyRules.model_fields:
            near = nearest_name(str(key), TopologyRules.model_fields)
            raise ValueError(f"topology.{key}: unknown key; expected {near or ', '.join(TopologyRules.model_fields)}")
    try:
        rules = TopologyRules.model_validate(dict(value))
    except ValidationError as error:
        first = error.errors()[0]
        key = str(first["loc"][0])
        default = TopologyRules.model_fields[key].default
        raise ValueError(
            f"topology.{key}: got {value[key]!r}; {expectation(first['msg'])}, such as {default}"
        ) from None
    return {
        key: rule for key, rule in rules.model_dump().items() if rule != TopologyRules.model_fields[key].default
    } or None


def rules_of(own: TopologyParameters) -> TopologyRules:
    """Return the complete rules of a configuration."""
    return TopologyRules.model_validate(own.topology or {})


def parallelism(text: str) -> dict[str, int]:
    """Return the tasks by stage from three or four numbers, such as 1-2-4-1. Raises ValueError for other text."""
    if not re.match(PARALLELISM_PATTERN, text):
        raise ValueError(
            f"parallelism: got {text!r}; expected three numbers for source-split-count, such as 1-2-2, or four with "
            "persist"
        )
    return dict(zip(STAGES, map(int, text.split("-")), strict=False))


def take_mechanisms(text: str, stages: Mapping[str, int]) -> str:
    """Return the canonical form of the field `mechanisms`: none, all, or names joined by +.

    Raises ValueError for an unknown name, for a mechanism without its stage, and for two alternatives of replacement.
    """
    able = [name for name in (*MECHANISMS, *BASELINES) if name != "delayed_persistence" or "persist" in stages]
    if text in (NONE, ALL):
        return text
    names = text.split("+")
    for name in names:
        if name in (NONE, ALL):
            raise ValueError(f"mechanisms: got {text!r}; expected {name} alone, or names joined by +")
        if name not in (*MECHANISMS, *BASELINES):
            near = nearest_name(name, (*MECHANISMS, *BASELINES, NONE, ALL))
            known = f"{NONE}, {ALL}, or some of {', '.join((*MECHANISMS, *BASELINES))}, joined by +"
            raise ValueError(f"mechanisms: got {name!r}; expected {near or known}")
        if name not in able:
            raise ValueError(
                f"mechanisms: got {name} without the stage persist; fix: set parallelism to four numbers, as 1-2-4-1"
            )
    alternatives = [name for name in ("replacement", *BASELINES) if name in names]
    if len(alternatives) > 1:
        raise ValueError(f"mechanisms: got {' and '.join(alternatives)}; expected at most one of them")
    return ALL if set(names) == set(able) - set(BASELINES) else "+".join(name for name in able if name in names)


def mechanisms_of(own: TopologyParameters) -> frozenset[str]:
    """Return the active mechanisms; `all` omits delayed persistence if there is no stage `persist`."""
    if own.mechanisms == NONE:
        return frozenset()
    if own.mechanisms != ALL:
        return frozenset(own.mechanisms.split("+"))
    without = set() if "persist" in parallelism(own.parallelism) else {"delayed_persistence"}
    return frozenset(set(MECHANISMS) - without)


def first_executors(own: TopologyParameters, executors: int) -> int:
    """Return the executors at the start: all, or one if dynamic allocation adds the others as tasks wait."""
    return 1 if DYNAMIC_ALLOCATION in mechanisms_of(own) else executors


# Presets of the topology matrix.

# Four queries share two cores, so each commit is kept small.
_TOPOLOGY: dict[str, Any] = {
    **DEFAULTS,
    "workload": "topology",
    "state_mb": 0.0,
    "commit_mode": "aligned-changelog",
}
# Fast word count: more short random lines than the chain can process.
_SATURATED: dict[str, Any] = {
    "skew": 0.0,
    "vocabulary": 1000,
    "rate": 20_000.0,
    # Capacity of the chain: two batches of the words that two cores count. Tuples do not time out here, since queued
    # ones would be replayed without end; the preset `overload` has timeouts.
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
    # Fast word count; the following presets cover the paper's other tests.
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
        # Dynamic allocation starts with one executor, whose two slots are too few for three stages.
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
