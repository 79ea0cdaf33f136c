"""Workload `topology`: a chain of stages, each a streaming query, with four mechanisms between them."""

from __future__ import annotations

import getpass
import os
import shutil
from collections.abc import Mapping
from typing import Any

from fault.registry import ACTIONS
from faultline.experiment.common_parameters import Common
from faultline.experiment.prerequisites import Companion, Prepared
from faultline.experiment.workloads.protocol import Workload, primer_records
from faultline.experiment.workloads.topology_rules import (
    CONTROL,
    DEFAULTS,
    PERSIST_RULES,
    REBALANCE,
    SET_ASIDE,
    SPACES,
    TopologyParameters,
    first_executors,
    mechanisms_of,
    parallelism,
    rules_of,
    take_mechanisms,
    take_rules,
)
from faultline.system.errors import ConfigError
from faultline.system.settings import load_settings


class Topology(Workload[TopologyParameters]):
    """Count words in a chain of streaming queries linked by Kafka topics; one state row per distinct word."""

    name = "topology"
    order = 50
    section = "Dynamic topology"
    parameters = TopologyParameters
    capabilities = frozenset({"skewed", "stateful"})
    counts = "words"
    latency_method = "rank"
    program = "topology"
    warms_itself = True
    shows_steadiness = False
    # The shutdown completes a running replacement and writes all queued results.
    stop_s = 300.0

    def defaults(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        return DEFAULTS

    def take(self, values: dict[str, Any]) -> None:
        stages = parallelism(str(values.get("parallelism", "1-1-1")))
        values["mechanisms"] = take_mechanisms(str(values.get("mechanisms", "none")), stages)
        values["topology"] = take_rules(values["topology"] or {})

    def check(self, own: TopologyParameters, common: Common) -> None:
        """Raise ValueError for parameters with which the chain cannot run."""
        tasks, rules, mechanisms = parallelism(own.parallelism), rules_of(own), mechanisms_of(own)
        _require_tasks(own, common, tasks)
        if common.commit_mode not in ("aligned", "aligned-changelog"):
            raise ValueError(
                f"commit_mode: got {common.commit_mode}; expected aligned or aligned-changelog, since topology is "
                "stateful"
            )
        if "replay" not in mechanisms and (rules.fail_share or rules.poison):
            key = "fail_share" if rules.fail_share else "poison"
            raise ValueError(
                f"topology.{key}: got failing tuples without replay, which loses them; fix: add replay to mechanisms"
            )
        if mechanisms & {"replacement", REBALANCE} and not (rules.tuple_timeout_s or rules.fail_share or rules.poison):
            raise ValueError(
                "topology.tuple_timeout_s: missing; expected a value such as 30, since replacement needs failing tuples"
            )
        for key in own.topology or {}:
            if key in PERSIST_RULES and "persist" not in tasks:
                raise ValueError(
                    f"topology.{key}: got a value without the stage persist; "
                    "fix: remove it, or set parallelism to four numbers"
                )
        if any(planned.fault.definition.uses_proxy for planned in common.planned_faults()):
            *most, last = (name for name, action in ACTIONS.items() if not action.uses_proxy)
            raise ValueError(
                f"fault_action: got an action that needs the Kafka proxy, which topology does not use; expected "
                f"{', '.join(most)} or {last}"
            )

    def check_here(self, own: TopologyParameters, common: Common) -> None:
        check_services(own)

    def has_python_workers(self, own: TopologyParameters) -> bool:
        return True

    def topics(self, own: TopologyParameters, common: Common) -> dict[str, int]:
        """Return the topics between stages and those of the mechanisms, with their partitions."""
        links = list(parallelism(own.parallelism))[:-1]
        spaces = dict.fromkeys(SPACES.values(), common.partitions) if "replay" in mechanisms_of(own) else {}
        return {**dict.fromkeys(links, common.shuffle_partitions), **spaces, SET_ASIDE: 1, CONTROL: 1}

    def companions(self, own: TopologyParameters) -> tuple[Companion, ...]:
        return own_memcached(own)

    def tuples(self, own: TopologyParameters) -> dict[str, Any]:
        return {"tuples": "ranked_words"}

    def details(self, config: Mapping[str, Any]) -> list[str]:
        return [str(config.get(key, "?")) for key in ("parallelism", "mechanisms")]

    def program_configuration(self, prepared: Prepared, own: TopologyParameters, common: Common) -> dict[str, Any]:
        topics, rules, mechanisms = prepared.topics, rules_of(own), mechanisms_of(own)
        replay, tasks = "replay" in mechanisms, parallelism(own.parallelism)
        spaces = {space: topics[role] for space, role in SPACES.items()} if replay else {}
        replaced = bool(mechanisms & {"replacement", REBALANCE})
        counted = replaced and rules.tuple_timeout_s is not None
        return {
            "executors": first_executors(own, common.executors),
            "partitions": common.partitions,
            "groups": common.shuffle_partitions,
            "parallelism": tasks,
            "topics": {name: topics[name] for name in list(tasks)[:-1]},
            "control_topic": topics[CONTROL],
            "journal": str(prepared.attempt.folder / "topology.jsonl"),
            "stored": str(prepared.attempt.folder / "stored.json"),
            # Small preload batches warm up all stages before T0.
            "primer": {"records": primer_records(self, own, common), "batches": self.warm_up_batches},
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
                "most": common.shuffle_partitions,
                "slots": common.executors * common.executor_cores,
                "warm": REBALANCE not in mechanisms,
            } if replaced else None,
            "store": {
                "kind": rules.store,
                "path": str(prepared.attempt.folder / "results.sqlite"),
                "schema": f"faultline_{prepared.attempt.id.lower().replace('-', '_')}",
                "delay_s": rules.persist_delay_ms / 1000,
            },
            "persistence": {
                "queue": rules.queue if "delayed_persistence" in mechanisms else None,
                "address": _queue_address(prepared, own),
                "by_tuple": rules.persist_by == "tuple",
                "flush_every_s": rules.flush_every_s,
                "flush_length": rules.flush_length,
            },
        }  # fmt: skip


WORKLOADS = (Topology(),)


def _require_tasks(own: TopologyParameters, common: Common, tasks: Mapping[str, int]) -> None:
    slots = common.executors * common.executor_cores
    if sum(tasks.values()) > slots:
        raise ValueError(
            f"parallelism: got {own.parallelism} ({sum(tasks.values())} tasks); expected at most {slots} tasks; "
            "fix: raise executor_cores or executors"
        )
    if max(tasks.values()) > common.shuffle_partitions:
        raise ValueError(
            f"shuffle_partitions: got {common.shuffle_partitions}; expected at least {max(tasks.values())}, the tasks "
            "of the largest stage"
        )
    if tasks["source"] > common.partitions:
        raise ValueError(
            f"parallelism: got {tasks['source']} tasks of source; expected at most {common.partitions}; "
            "fix: lower the first number, or raise partitions"
        )
    if tasks.get("persist", 1) > 1:
        raise ValueError(f"parallelism: got {tasks['persist']} tasks of persist; expected 1")


def _queue_address(prepared: Prepared, own: TopologyParameters) -> list[str | int] | None:
    """Return the address of the external or own Memcached, or None if the queue does not use it."""
    if not queues_in_memcached(own):
        return None
    host = load_settings().placement.conductor
    return list(memcached_address() or (host, prepared.ports["memcached"]))


# Address of the PostgreSQL database for `store=postgresql`, and of an external Memcached.
DATABASE = "FAULTLINE_TOPOLOGY_DATABASE"
MEMCACHED = "FAULTLINE_MEMCACHED"


def check_services(own: TopologyParameters) -> None:
    """Raise ConfigError for an unreachable store or queue, before anything starts."""
    if "persist" not in parallelism(own.parallelism):
        return
    if rules_of(own).store == "postgresql":
        _check_database()
    if queues_in_memcached(own):
        address = memcached_address()
        if address is not None:
            _check_memcached(*address)
        elif memcached_program() is None:
            raise ConfigError(
                "topology.queue: program memcached missing; fix: install the Debian package memcached, set "
                f"{MEMCACHED}=HOST:PORT, or use memory"
            )


def queues_in_memcached(own: TopologyParameters) -> bool:
    """Return whether the delayed queue uses Memcached."""
    return "delayed_persistence" in mechanisms_of(own) and rules_of(own).queue == "memcached"


def own_memcached(own: TopologyParameters) -> tuple[Companion, ...]:
    """Return a Memcached companion, unless the queue uses another store or an external Memcached."""
    if not queues_in_memcached(own) or memcached_address() is not None:
        return ()
    # Memcached requires -u if run as root and ignores it otherwise.
    limits = ("-U", "0", "-m", "256", "-u", getpass.getuser())
    return (Companion("memcached", (memcached_program() or "memcached", "-l", "{host}", "-p", "{port}", *limits)),)


def memcached_program() -> str | None:
    """Return the path of the program, even if the user's PATH lacks its folder; None if it is not installed."""
    return shutil.which("memcached", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/bin", "/usr/local/bin"]))


def memcached_address() -> tuple[str, int] | None:
    """Return the address of an external Memcached, or None if the experiment starts one.

    Raises ConfigError for an invalid address.
    """
    given = os.environ.get(MEMCACHED)
    if not given:
        return None
    host, _, port = given.rpartition(":")
    if not host or not port.isdigit():
        raise ConfigError(f"{MEMCACHED}: got {given!r}; expected HOST:PORT")
    return host, int(port)


def _check_memcached(host: str, port: int) -> None:
    from pymemcache.client.base import Client
    from pymemcache.exceptions import MemcacheError

    try:
        client = Client((host, port), connect_timeout=5, timeout=5)
        client.version()
        client.close()
    except (OSError, MemcacheError) as error:
        raise ConfigError(
            f"{MEMCACHED}: connecting to {host}:{port} failed: {error}; fix: start it, or unset {MEMCACHED}"
        ) from None


def _check_database() -> None:
    import psycopg2

    address = os.environ.get(DATABASE)
    if not address:
        raise ConfigError(
            f"topology.store: got postgresql without {DATABASE}; "
            "fix: set it to postgresql://USER:PASSWORD@HOST:PORT/NAME, or use sqlite"
        )
    try:
        psycopg2.connect(address, connect_timeout=5).close()
    except psycopg2.Error as error:
        why = str(error).strip().splitlines()[0]
        raise ConfigError(
            f"{DATABASE}: connecting failed: {why}; fix: start the database, or correct the address"
        ) from None
