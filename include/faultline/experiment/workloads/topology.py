"""The workload `topology`: its stages, its four mechanisms, and the rules that they follow."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fault.registry import ACTIONS
from faultline.base.errors import ConfigError

if TYPE_CHECKING:
    from faultline.base.attempt import Attempt
    from faultline.experiment.config import Configuration

STAGES = ("source", "split", "count", "persist")
MECHANISMS = ("back_pressure", "replay", "replacement", "delayed_persistence")
# What other workloads have other defaults for: one JVM, whose slots are threads as the paper's tasks are, and groups of
# keys for as many tasks as the paper has.
DEFAULTS: dict[str, Any] = {
    "fault": "none",
    "executors": 1,
    "executor_cores": 12,
    "shuffle_partitions": 8,
    "checkpoint_interval_s": 1.0,
}
# What replacement is held against: a stage stopped, changed and started, and Spark's own way, more executors in place.
REBALANCE, DYNAMIC_ALLOCATION = "rebalance", "dynamic_allocation"
BASELINES = (REBALANCE, DYNAMIC_ALLOCATION)
NONE, ALL = "none", "all"
# Where the stage `persist` writes with `store=postgresql`, and a Memcached that runs already.
DATABASE = "FAULTLINE_TOPOLOGY_DATABASE"
MEMCACHED = "FAULTLINE_MEMCACHED"
# Topics of the mechanisms; links between stages go by the stage that writes them.
SPACES = {"a": "space-a", "b": "space-b"}
SET_ASIDE, CONTROL = "set-aside", "control"

# Rules that only the stage `persist` has.
PERSIST_RULES = ("store", "persist_delay_ms", "persist_by", "queue", "flush_every_s", "flush_length")

_NAMES = "|".join((*MECHANISMS, *BASELINES))
MECHANISMS_PATTERN = rf"^({NONE}|{ALL}|({_NAMES})(\+({_NAMES}))*)$"
PARALLELISM_PATTERN = r"^[1-9][0-9]{0,3}(-[1-9][0-9]{0,3}){2,3}$"


class Rules(BaseModel):
    """What differs from these values may be given in `topology`. Queues in tuples, times in seconds."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    queue_capacity: int = Field(50_000, ge=1, le=10**9, description="Tuples that a stage's queue may hold (QML).")
    load_factor: float = Field(0.8, gt=0.5, lt=1, description="Share of the capacity above which a stage signals.")
    divisor: float = Field(2.0, gt=1, le=64, description="By which a signal divides the rate above (v').")
    tuple_timeout_s: float | None = Field(
        30.0, gt=0, le=3600, description="A tuple that waited longer in a stage's queue fails; empty: none does."
    )
    fail_share: float = Field(0.0, ge=0, lt=1, description="Share of tuples that fail by chance at split and count.")
    poison: str = Field("", max_length=100, description="Tuples that begin with it always fail.")
    max_attempts: int = Field(10, ge=1, le=1000, description="Attempts after which a tuple is set aside.")
    window_s: float = Field(5.0, gt=0, le=600, description="Length of the windows in which failures are counted.")
    windows: int = Field(5, ge=2, le=1000, description="Windows that the ring holds (A).")
    decay: float = Field(0.8, gt=0, le=1, description="By which a window weighs less than the next newer one.")
    threshold: float = Field(100.0, ge=0, description="Weighted dispersion above which a stage is replaced (C).")
    store: Literal["sqlite", "postgresql"] = Field("sqlite", description="Where persist keeps results.")
    persist_delay_ms: float = Field(0.0, ge=0, le=60_000, description="By which each call to the store is slowed.")
    persist_by: Literal["tuple", "batch"] = Field("tuple", description="A call for each result, or for each batch.")
    queue: Literal["memory", "memcached"] = Field("memory", description="Where the delayed queue lies.")
    flush_every_s: float = Field(1.0, gt=0, le=600, description="Time after which the delayed queue is flushed.")
    flush_length: int = Field(10_000, ge=1, le=10**8, description="Results at which it is flushed at once.")


def take_rules(value: Mapping[str, Any]) -> dict[str, Any] | None:
    """The canonical form of the field `topology`: what differs from the defaults, or None.

    Raises ValueError with one line that names the key and the remedy.
    """
    for key in value:
        if key not in Rules.model_fields:
            near = difflib.get_close_matches(str(key), Rules.model_fields, n=1)
            raise ValueError(f"topology.{key}: unknown; use {near[0] if near else ', '.join(Rules.model_fields)}")
    try:
        rules = Rules.model_validate(dict(value))
    except ValidationError as error:
        first = error.errors()[0]
        key = str(first["loc"][0])
        default = Rules.model_fields[key].default
        told = first["msg"].removeprefix("Input should be ")
        raise ValueError(f"topology.{key}: {value[key]!r} is refused; give {told}, such as {default}") from None
    return {key: got for key, got in rules.model_dump().items() if got != Rules.model_fields[key].default} or None


def rules_of(config: Configuration) -> Rules:
    """The rules of a configuration, complete."""
    return Rules.model_validate(config.topology or {})


def parallelism(text: str) -> dict[str, int]:
    """Stage -> tasks, of three or four numbers such as 1-2-4-1. Raises ValueError for anything else."""
    if not re.match(PARALLELISM_PATTERN, text):
        raise ValueError(
            f"parallelism: {text!r} is refused; give three numbers for source-split-count, such as 1-2-2, or four with "
            "persist"
        )
    return dict(zip(STAGES, map(int, text.split("-")), strict=False))


def take_mechanisms(text: str, stages: Mapping[str, int]) -> str:
    """The canonical form of the field `mechanisms`: none, all, or names joined by +.

    Raises ValueError for a name that is not known, for one that no stage can have, and for two ways to replace.
    """
    able = [name for name in (*MECHANISMS, *BASELINES) if name != "delayed_persistence" or "persist" in stages]
    if text in (NONE, ALL):
        return text
    named = text.split("+")
    for name in named:
        if name not in (*MECHANISMS, *BASELINES):
            near = difflib.get_close_matches(name, (*MECHANISMS, *BASELINES, NONE, ALL), n=1)
            known = f"{NONE}, {ALL}, or of {', '.join((*MECHANISMS, *BASELINES))} some, joined by +"
            raise ValueError(f"mechanisms: {name!r} is unknown; use {near[0] if near else known}")
        if name not in able:
            raise ValueError(
                f"mechanisms: {name} needs the stage persist; give parallelism four numbers, such as 1-2-4-1"
            )
    ways = [name for name in ("replacement", *BASELINES) if name in named]
    if len(ways) > 1:
        raise ValueError(f"mechanisms: {' and '.join(ways)} are ways to do the same; name one of them")
    return ALL if set(named) == set(able) - set(BASELINES) else "+".join(name for name in able if name in named)


def mechanisms_of(config: Configuration) -> frozenset[str]:
    """The mechanisms at work; `all` is every one that has a stage."""
    if config.mechanisms == NONE:
        return frozenset()
    if config.mechanisms != ALL:
        return frozenset(config.mechanisms.split("+"))
    without = set() if "persist" in parallelism(config.parallelism) else {"delayed_persistence"}
    return frozenset(set(MECHANISMS) - without)


def require_topology(config: Configuration) -> None:
    """Raises ValueError naming what the chain cannot be run with."""
    tasks, rules, mechanisms = parallelism(config.parallelism), rules_of(config), mechanisms_of(config)
    _require_tasks(config, tasks)
    if config.commit_mode not in ("aligned", "aligned-changelog"):
        raise ValueError(f"commit_mode: topology keeps its state; {config.commit_mode} is refused, use aligned")
    if "replay" not in mechanisms and (rules.fail_share or rules.poison):
        key = "fail_share" if rules.fail_share else "poison"
        raise ValueError(f"topology.{key}: without replay a tuple that fails is lost; add replay to mechanisms")
    if mechanisms & {"replacement", REBALANCE} and not (rules.tuple_timeout_s or rules.fail_share or rules.poison):
        raise ValueError("topology.tuple_timeout_s: without it nothing fails, and no stage is replaced; give it, as 30")
    for key in config.topology or {}:
        if key in PERSIST_RULES and "persist" not in tasks:
            raise ValueError(f"topology.{key}: needs the stage persist; give parallelism four numbers, or leave it out")
    if any(planned.fault.how.detours for planned in config.planned_faults()):
        *most, last = (name for name, action in ACTIONS.items() if not action.detours)
        raise ValueError(f"fault_action: topology's stages talk to Kafka directly; use {', '.join(most)} or {last}")


def _require_tasks(config: Configuration, tasks: Mapping[str, int]) -> None:
    slots = config.executors * config.executor_cores
    if sum(tasks.values()) > slots:
        raise ValueError(
            f"parallelism: {config.parallelism} are {sum(tasks.values())} tasks, and the cluster has {slots} slots; "
            "raise executor_cores or executors"
        )
    if max(tasks.values()) > config.shuffle_partitions:
        raise ValueError(
            f"shuffle_partitions: {config.shuffle_partitions} groups of keys cannot be spread over "
            f"{max(tasks.values())} tasks; raise it"
        )
    if tasks["source"] > config.partitions:
        raise ValueError(
            f"parallelism: {tasks['source']} tasks of source cannot read {config.partitions} partitions at once; raise "
            "partitions, or lower the first number"
        )
    if tasks.get("persist", 1) > 1:
        raise ValueError("parallelism: persist has one writer; let the fourth number be 1")


def check_services(config: Configuration) -> None:
    """Refuses, before anything is started, a store or a queue that does not answer."""
    rules = rules_of(config)
    if "persist" not in parallelism(config.parallelism):
        return
    if rules.store == "postgresql":
        _check_database()
    if rules.queue == "memcached" and "delayed_persistence" in mechanisms_of(config):
        address = memcached_address()
        if address is not None:
            _check_memcached(*address)
        elif memcached_program() is None:
            raise ConfigError(
                "topology.queue: memcached is not installed; install the Debian package memcached, give "
                f"{MEMCACHED}=HOST:PORT, or use memory"
            )


def needs_memcached(config: Configuration) -> bool:
    """Whether the experiment has to start a Memcached of its own."""
    if config.workload != "topology" or "delayed_persistence" not in mechanisms_of(config):
        return False
    return rules_of(config).queue == "memcached" and memcached_address() is None


def memcached_program() -> str | None:
    """The command, which lies where an ordinary user's PATH may not reach."""
    import shutil

    return shutil.which("memcached", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/bin", "/usr/local/bin"]))


def memcached_address() -> tuple[str, int] | None:
    """Where a Memcached runs already; None: the experiment starts one. Raises ConfigError for no address."""
    given = os.environ.get(MEMCACHED)
    if not given:
        return None
    host, _, port = given.rpartition(":")
    if not host or not port.isdigit():
        raise ConfigError(f"{MEMCACHED}: {given!r} is no address; give HOST:PORT, or leave it out")
    return host, int(port)


def _check_memcached(host: str, port: int) -> None:
    from pymemcache.client.base import Client
    from pymemcache.exceptions import MemcacheError

    try:
        client = Client((host, port), connect_timeout=5, timeout=5)
        client.version()
        client.close()
    except (OSError, MemcacheError) as error:
        raise ConfigError(f"{MEMCACHED}: {host}:{port} does not answer ({error}); start it, or leave it out") from None


def _check_database() -> None:
    import psycopg2

    address = os.environ.get(DATABASE)
    if not address:
        raise ConfigError(
            f"topology.store: postgresql needs {DATABASE}=postgresql://USER:PASSWORD@HOST:PORT/NAME; or use sqlite"
        )
    try:
        psycopg2.connect(address, connect_timeout=5).close()
    except psycopg2.Error as error:
        why = str(error).strip().splitlines()[0]
        raise ConfigError(f"{DATABASE}: the database does not answer ({why}); start it, or mend the address") from None


def first_executors(config: Configuration) -> int:
    """Executors that the chain begins with: all, or one where Spark adds the others as tasks wait."""
    return 1 if DYNAMIC_ALLOCATION in mechanisms_of(config) else config.executors


def engine_settings(config: Configuration) -> dict[str, str]:
    """What Spark is told beside what it is for every workload."""
    settings = {"spark.scheduler.mode": "FAIR"}  # tasks of all stages take turns
    if DYNAMIC_ALLOCATION in mechanisms_of(config):
        first = str(first_executors(config))
        settings |= {
            "spark.dynamicAllocation.enabled": "true",
            "spark.dynamicAllocation.shuffleTracking.enabled": "true",
            "spark.dynamicAllocation.minExecutors": first,
            "spark.dynamicAllocation.initialExecutors": first,
            "spark.dynamicAllocation.maxExecutors": str(config.executors),
            "spark.dynamicAllocation.schedulerBacklogTimeout": "1s",
        }
    return settings


def chain_topics(config: Configuration) -> dict[str, int]:
    """The chain's own topics by role, and how many partitions each has."""
    groups = config.shuffle_partitions
    links = list(parallelism(config.parallelism))[:-1]
    spaces = dict.fromkeys(SPACES.values(), config.partitions) if "replay" in mechanisms_of(config) else {}
    return {**dict.fromkeys(links, groups), **spaces, SET_ASIDE: 1, CONTROL: 1}


def program_configuration(attempt: Attempt, config: Configuration) -> dict[str, Any]:
    """What the program topology.py is told, beside what every workload is."""
    from faultline.experiment.sources import primer_records, warm_up_batches

    topics, rules, mechanisms = attempt.read()["topics"], rules_of(config), mechanisms_of(config)
    replay, tasks = "replay" in mechanisms, parallelism(config.parallelism)
    spaces = {space: topics[role] for space, role in SPACES.items()} if replay else {}
    replaced = bool(mechanisms & {"replacement", REBALANCE})
    counted = replaced and rules.tuple_timeout_s is not None
    return {
        "executors": first_executors(config),
        "partitions": config.partitions,
        "groups": config.shuffle_partitions,
        "parallelism": tasks,
        "topics": {name: topics[name] for name in list(tasks)[:-1]},
        "control_topic": topics[CONTROL],
        "journal": str(attempt.folder / "topology.jsonl"),
        "stored": str(attempt.folder / "stored.json"),
        # The primer in small batches, so that the stages are warm when the gate opens.
        "primer": {"records": primer_records(config), "batches": warm_up_batches(config)},
        "replay": replay,
        "spaces": spaces,
        "failing": {
            "control": topics[CONTROL],
            "timeout_s": rules.tuple_timeout_s,
            "share": rules.fail_share,
            "poison": rules.poison,
            "replay": replay,
            "max_attempts": rules.max_attempts,
            "spaces": spaces,
            "set_aside": topics[SET_ASIDE],
        }
        if replay or counted
        else None,
        "pressure": {
            "capacity": rules.queue_capacity, "load_factor": rules.load_factor, "divisor": rules.divisor
        } if "back_pressure" in mechanisms else None,
        "replacement": {
            "rules": {"windows": rules.windows, "decay": rules.decay, "threshold": rules.threshold},
            "window_s": rules.window_s,
            "most": config.shuffle_partitions,
            "slots": config.executors * config.executor_cores,
            "warm": REBALANCE not in mechanisms,
        } if replaced else None,
        "store": {
            "kind": rules.store,
            "path": str(attempt.folder / "results.sqlite"),
            "schema": f"faultline_{attempt.id.lower().replace('-', '_')}",
            "delay_s": rules.persist_delay_ms / 1000,
        },
        "persistence": {
            "queue": rules.queue if "delayed_persistence" in mechanisms else None,
            "address": _queue_address(attempt, config),
            "by_tuple": rules.persist_by == "tuple",
            "flush_every_s": rules.flush_every_s,
            "flush_length": rules.flush_length,
        },
    }  # fmt: skip


def _queue_address(attempt: Attempt, config: Configuration) -> list[str | int] | None:
    """Of the Memcached that is there, or of the one that the attempt starts; None when the queue lies elsewhere."""
    from faultline.base.settings import HOST

    if rules_of(config).queue != "memcached" or "delayed_persistence" not in mechanisms_of(config):
        return None
    return list(memcached_address() or (HOST, int(attempt.read()["memcached_port"])))
