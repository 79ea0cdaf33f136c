"""Parameters of the workloads `topology` and `nexmark`, and the values that their programs receive."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.cli.run_command import planned_fault_lines
from faultline.engines.spark.settings import configured_settings
from faultline.experiment.attempt import Attempt
from faultline.experiment.config import Configuration, parse_configuration
from faultline.experiment.prerequisites import Prepared
from faultline.experiment.workloads import topology as topology_services
from faultline.experiment.workloads.nexmark import query_file
from faultline.experiment.workloads.nexmark_events import BATCH_EVENTS, QUERIES, Query, batch_events, pieces
from faultline.experiment.workloads.topology_rules import ALL, MECHANISMS, NONE, mechanisms_of, rules_of
from tests.support.refusals import refused


def configuration(**values: Any) -> Configuration:
    return parse_configuration({"workload": "topology", **values})


@given(st.lists(st.sampled_from(MECHANISMS), min_size=1, unique=True))
def test_mechanisms_are_independent_of_order(names: list[str]) -> None:
    first, second = (configuration(parallelism="1-1-1-1", mechanisms="+".join(order)) for order in (names, names[::-1]))
    assert first == second and mechanisms_of(first.own) == set(names)
    assert (first.mechanisms == ALL) == (len(names) == len(MECHANISMS))


def test_all_means_every_mechanism_with_a_stage() -> None:
    three, four = configuration(mechanisms=ALL), configuration(mechanisms=ALL, parallelism="1-2-4-1")
    assert mechanisms_of(three.own) == set(MECHANISMS) - {"delayed_persistence"}
    assert mechanisms_of(four.own) == set(MECHANISMS)
    assert mechanisms_of(configuration(mechanisms=NONE).own) == set()
    spelled_out = "back_pressure+replay+replacement"
    assert configuration(mechanisms=spelled_out) == three


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"mechanisms": "back_presure"}, "mechanisms"),
        ({"mechanisms": "delayed_persistence"}, "mechanisms"),
        ({"mechanisms": "replacement+rebalance"}, "mechanisms"),
        ({"mechanisms": ""}, "mechanisms"),
        ({"parallelism": "1-2"}, "parallelism"),
        ({"parallelism": "1-0-1"}, "parallelism"),
        ({"parallelism": "1-2-2-2"}, "parallelism"),
        ({"parallelism": "1-4-8"}, "parallelism"),
        ({"parallelism": "1-1-9"}, "shuffle_partitions"),
        ({"commit_mode": "none"}, "commit_mode"),
        ({"topology": {"divisor": 1}}, "topology.divisor"),
        ({"topology": {"load_factor": 0.5}}, "topology.load_factor"),
        ({"topology": {"load_factor": 1}}, "topology.load_factor"),
        ({"topology": {"window_s": 0}}, "topology.window_s"),
        ({"topology": {"windows": 1}}, "topology.windows"),
        ({"topology": {"queue": "redis"}}, "topology.queue"),
        ({"topology": {"que": "memory"}}, "topology.que"),
        ({"topology": "[]"}, "topology"),
        ({"topology": {"fail_share": 0.1}}, "topology.fail_share"),
        ({"topology": {"poison": "x"}}, "topology.poison"),
        ({"state_mb": 1}, "state_mb"),
        ({"fault": "kafka", "fault_action": "delay", "duration_s": 90}, "fault_action"),
        ({"workload": "word_count", "mechanisms": "all"}, "mechanisms"),
    ],
)  # fmt: skip
def test_invalid_topology_names_key(values: dict[str, Any], key: str) -> None:
    with refused(f"{key}: "):
        configuration(**values)


def test_default_rules_equal_none() -> None:
    assert configuration(topology={"divisor": 2, "windows": 5}).topology is None
    config = configuration(topology='{"divisor": 3}')
    assert config.topology == {"divisor": 3.0}
    assert rules_of(config.own).divisor == 3 and rules_of(config.own).windows == 5


def test_each_link_has_one_partition_per_key_group() -> None:
    config = configuration(parallelism="1-2-4-1", mechanisms="replay")
    topics = {"source": 8, "split": 8, "count": 8, "space-a": 2, "space-b": 2, "set-aside": 1, "control": 1}
    assert config.kind.topics(config.own, config) == topics
    plain = configuration()
    assert "space-a" not in plain.kind.topics(plain.own, plain)


def program_values(tmp_path: Path, **values: Any) -> dict[str, Any]:
    config = configuration(**values)
    topics = {role: f"t-{role}" for role in config.kind.topics(config.own, config)}
    prepared = Prepared(Attempt(tmp_path), topics, {"memcached": 11311}, 0)
    return dict(json.loads(json.dumps(config.kind.program_configuration(prepared, config.own, config))))


def test_program_receives_only_enabled_mechanisms(tmp_path: Path) -> None:
    program = program_values(tmp_path, parallelism="1-2-4-1")
    assert program["pressure"] is program["replacement"] is program["failing"] is None
    assert program["persistence"]["queue"] is None and not program["replay"]
    assert program["parallelism"] == {"source": 1, "split": 2, "count": 4, "persist": 1}
    assert program["topics"] == {"source": "t-source", "split": "t-split", "count": "t-count"}


def test_program_receives_all_mechanisms(tmp_path: Path) -> None:
    rules = {"tuple_timeout_s": 4, "queue": "memcached", "persist_delay_ms": 50, "queue_capacity": 100}
    program = program_values(tmp_path, parallelism="1-2-4-1", mechanisms=ALL, topology=rules)
    assert program["pressure"] == {"capacity": 100, "load_factor": 0.8, "divisor": 2.0}
    assert {"warm": True, "most": 8, "slots": 12}.items() <= program["replacement"].items()
    assert program["failing"]["timeout_s"] == 4 and program["failing"]["spaces"] == {"a": "t-space-a", "b": "t-space-b"}
    assert {"queue": "memcached", "address": ["127.0.0.1", 11311]}.items() <= program["persistence"].items()
    assert program["store"]["delay_s"] == 0.05


def test_replacement_uses_timeouts_and_rebalance_prepares_no_tasks(tmp_path: Path) -> None:
    failing = program_values(tmp_path, mechanisms="replacement", topology={"tuple_timeout_s": 4})["failing"]
    assert failing["replay"] is False and failing["timeout_s"] == 4
    assert program_values(tmp_path, mechanisms="rebalance")["replacement"]["warm"] is False


def test_dynamic_allocation_starts_with_one_executor() -> None:
    config = configuration(mechanisms="dynamic_allocation", executors=4, executor_cores=2, parallelism="1-1-1")
    settings = configured_settings(config)
    bounds = {"initialExecutors": "1", "maxExecutors": "4"}
    assert {f"spark.dynamicAllocation.{name}": value for name, value in bounds.items()}.items() <= settings.items()
    assert settings["spark.cores.max"] == "8"
    assert "spark.dynamicAllocation.enabled" not in configured_settings(configuration(executors=4))


def test_unreachable_store_or_queue_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(mechanisms: str = NONE, **own: str) -> None:
        config = configuration(parallelism="1-1-1-1", mechanisms=mechanisms, topology=own)
        config.kind.check_here(config.own, config)

    queue = partial(check, "delayed_persistence", queue="memcached")
    monkeypatch.delenv(topology_services.DATABASE, raising=False)
    with refused("topology.store: ", "FAULTLINE_TOPOLOGY_DATABASE"):
        check(store="postgresql")
    monkeypatch.setenv(topology_services.DATABASE, "postgresql://nobody:x@127.0.0.1:1/none")
    with refused("FAULTLINE_TOPOLOGY_DATABASE: "):
        check(store="postgresql")
    monkeypatch.setenv(topology_services.MEMCACHED, "127.0.0.1:1")
    words = ["parallelism=1-1-1-1", "mechanisms=delayed_persistence", 'topology={"queue": "memcached"}']
    for call in (queue, lambda: planned_fault_lines("topology", words)):  # a dry run checks it, too
        with refused("FAULTLINE_MEMCACHED: "):
            call()
    monkeypatch.setenv(topology_services.MEMCACHED, "somewhere")
    with refused("FAULTLINE_MEMCACHED: "):
        queue()
    monkeypatch.delenv(topology_services.MEMCACHED)
    monkeypatch.setattr(topology_services, "memcached_program", lambda: None)
    with refused("topology.queue: "):
        queue()
    check(queue="memcached")  # the queue is unused without the mechanism


# ---- Nexmark ----


def nexmark(**values: Any) -> Configuration:
    return parse_configuration({"workload": "nexmark", **values})


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"query": "q99"}, "query"),
        ({"events": {"shares": [2, 6, 93]}}, "events.shares"),
        ({"events": {"shares": [2, 6]}}, "events.shares"),
        ({"events": {"bytes": [200, 500, 1]}}, "events.bytes"),
        ({"events": {"share": [2, 6, 92]}}, "events.share"),
        ({"events": "{"}, "events"),
        ({"rate_curve": {"kind": "step", "at_s": 5, "to": 0}}, "rate_curve"),
        ({"rate_curve": {"kind": "recorded", "points": [[0, 5], [3, -1]]}}, "rate_curve.points.1"),
        ({"rate_curve": {"kind": "sine", "period_s": 5, "amplitude": 9}}, "rate_curve"),
        ({"state_store": "redis"}, "state_store"),
        ({"source": "files"}, "source"),
        ({"fault": "executor"}, "fault"),
        ({"commit_mode": "none"}, "commit_mode"),
        ({"state_mb": 1}, "state_mb"),
        ({"workload": "pi", "query": "q3"}, "query"),
    ],
)
def test_invalid_nexmark_names_key(values: dict[str, Any], key: str) -> None:
    with refused(f"{key}: "):
        nexmark(**values)


def test_every_query_has_a_file_and_a_missing_one_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert Query.__args__ == QUERIES and all(query_file(name) for name in QUERIES)  # type: ignore[attr-defined]
    assert not query_file("q24")
    monkeypatch.setattr("faultline.experiment.workloads.nexmark.query_file", lambda name: False)
    config = nexmark(query="q3")
    with refused("query: "):
        config.kind.check_here(config.own, config)


def test_default_events_equal_none() -> None:
    assert nexmark(events={"shares": [2, 6, 92], "hot": [2, 4, 4]}) == nexmark() == nexmark(events={})
    assert nexmark(events={"hot": [3, 4, 4]}).events == {"hot": [3, 4, 4]}
    assert nexmark(query="q0").config_id == nexmark().config_id != nexmark(query="q1").config_id


def test_program_receives_events_in_smallest_proportions() -> None:
    rules = nexmark(events={"shares": [10, 30, 60], "active": [500, 50]}, disorder=0.2, seed=3).input_source(2)["rules"]
    assert rules["proportions"] == [1, 3, 6] and (rules["active_people"], rules["in_flight"]) == (500, 50)
    assert rules["sizes"] == [200, 500, 100] and rules["disorder"] == 0.2
    assert rules["seed"] != nexmark(seed=3).input_source(1)["rules"]["seed"]

    # The batch size is the given one or the default of the query.
    assert batch_events(nexmark().own) == BATCH_EVENTS > batch_events(nexmark(query="q20").own)
    assert batch_events(nexmark(query="q20", batch_events=2000).own) == 2000


@given(at_s=st.floats(1, 50), to=st.floats(1, 1000))
def test_curve_becomes_contiguous_pieces(at_s: float, to: float) -> None:
    config = nexmark(rate=100.0, rate_curve={"kind": "ramp", "from_s": at_s, "until_s": at_s + 10, "to": to})
    if config.rate_curve is None:
        return  # a constant curve
    found = pieces(config)
    assert found[0][0] == 0 and found[0][2] == 100 and found[-1][3] == pytest.approx(to)
    assert all(before[1] == after[0] for before, after in zip(found, found[1:], strict=False))
