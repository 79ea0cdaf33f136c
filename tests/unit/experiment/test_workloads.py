"""The workload `topology`: its parameters, what it refuses and what its program is told."""

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
def test_mechanisms_are_the_same_in_any_order(names: list[str]) -> None:
    first, second = (configuration(parallelism="1-1-1-1", mechanisms="+".join(order)) for order in (names, names[::-1]))
    assert first == second and mechanisms_of(first.own) == set(names)
    assert (first.mechanisms == ALL) == (len(names) == len(MECHANISMS))


def test_all_are_those_that_the_chain_has_a_stage_for() -> None:
    three, four = configuration(mechanisms=ALL), configuration(mechanisms=ALL, parallelism="1-2-4-1")
    assert mechanisms_of(three.own) == set(MECHANISMS) - {"delayed_persistence"}
    assert mechanisms_of(four.own) == set(MECHANISMS)
    assert mechanisms_of(configuration(mechanisms=NONE).own) == set()
    spelled_out = "back_pressure+replay+replacement"
    assert configuration(mechanisms=spelled_out) == three


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"mechanisms": "back_presure"}, "mechanisms: 'back_presure' is unknown; use back_pressure"),
        ({"mechanisms": "delayed_persistence"}, "mechanisms: delayed_persistence needs the stage persist"),
        ({"mechanisms": "replacement+rebalance"}, "mechanisms: replacement and rebalance are ways to do the same"),
        ({"mechanisms": ""}, "mechanisms: '' is unknown"),
        ({"parallelism": "1-2"}, "parallelism: '1-2' is refused; give three numbers"),
        ({"parallelism": "1-0-1"}, "parallelism: '1-0-1' is refused"),
        ({"parallelism": "1-2-2-2"}, "parallelism: persist has one writer"),
        ({"parallelism": "1-4-8"}, "parallelism: 1-4-8 are 13 tasks, and the cluster has 12 slots; raise"),
        ({"parallelism": "1-1-9"}, "shuffle_partitions: 8 groups of keys cannot be spread over 9 tasks; raise it"),
        ({"commit_mode": "none"}, "commit_mode: topology keeps its state"),
        ({"topology": {"divisor": 1}}, "topology.divisor: 1 is refused; give greater than 1, such as 2.0"),
        ({"topology": {"load_factor": 0.5}}, "topology.load_factor: 0.5 is refused; give greater than 0.5"),
        ({"topology": {"load_factor": 1}}, "topology.load_factor: 1 is refused; give less than 1"),
        ({"topology": {"window_s": 0}}, "topology.window_s: 0 is refused; give greater than 0"),
        ({"topology": {"windows": 1}}, "topology.windows: 1 is refused"),
        ({"topology": {"queue": "redis"}}, "topology.queue: 'redis' is refused; give 'memory' or 'memcached'"),
        ({"topology": {"que": "memory"}}, "topology.que: unknown; use queue"),
        ({"topology": "[]"}, "topology: not an object"),
        ({"topology": {"fail_share": 0.1}}, "topology.fail_share: without replay a tuple that fails is lost"),
        ({"topology": {"poison": "x"}}, "topology.poison: without replay a tuple that fails is lost"),
        ({"state_mb": 1}, "state_mb: topology keeps no words that could be preloaded"),
        ({"fault": "kafka", "fault_action": "delay", "duration_s": 90}, "fault_action: topology's stages"),
        ({"workload": "word_count", "mechanisms": "all"}, "mechanisms: only topology has it; leave it at none"),
    ],
)  # fmt: skip
def test_what_cannot_be_run_is_refused_by_name(values: dict[str, Any], says: str) -> None:
    with refused(says):
        configuration(**values)


def test_rules_at_their_defaults_are_none_at_all() -> None:
    assert configuration(topology={"divisor": 2, "windows": 5}).topology is None
    config = configuration(topology='{"divisor": 3}')
    assert config.topology == {"divisor": 3.0}
    assert rules_of(config.own).divisor == 3 and rules_of(config.own).windows == 5


def test_each_link_has_a_partition_for_every_group_of_keys() -> None:
    config = configuration(parallelism="1-2-4-1", mechanisms="replay")
    topics = {"source": 8, "split": 8, "count": 8, "space-a": 2, "space-b": 2, "set-aside": 1, "control": 1}
    assert config.kind.topics(config.own, config) == topics
    plain = configuration()
    assert "space-a" not in plain.kind.topics(plain.own, plain)


def told(tmp_path: Path, **values: Any) -> dict[str, Any]:
    config = configuration(**values)
    topics = {role: f"t-{role}" for role in config.kind.topics(config.own, config)}
    prepared = Prepared(Attempt(tmp_path), topics, {"memcached": 11311}, 0)
    return dict(json.loads(json.dumps(config.kind.program_configuration(prepared, config.own, config))))


def test_the_program_is_told_of_a_mechanism_only_when_it_is_at_work(tmp_path: Path) -> None:
    program = told(tmp_path, parallelism="1-2-4-1")
    assert program["pressure"] is program["replacement"] is program["failing"] is None
    assert program["persistence"]["queue"] is None and not program["replay"]
    assert program["parallelism"] == {"source": 1, "split": 2, "count": 4, "persist": 1}
    assert program["topics"] == {"source": "t-source", "split": "t-split", "count": "t-count"}


def test_the_program_is_told_of_all_of_them(tmp_path: Path) -> None:
    rules = {"tuple_timeout_s": 4, "queue": "memcached", "persist_delay_ms": 50, "queue_capacity": 100}
    program = told(tmp_path, parallelism="1-2-4-1", mechanisms=ALL, topology=rules)
    assert program["pressure"] == {"capacity": 100, "load_factor": 0.8, "divisor": 2.0}
    assert {"warm": True, "most": 8, "slots": 12}.items() <= program["replacement"].items()
    assert program["failing"]["timeout_s"] == 4 and program["failing"]["spaces"] == {"a": "t-space-a", "b": "t-space-b"}
    assert {"queue": "memcached", "address": ["127.0.0.1", 11311]}.items() <= program["persistence"].items()
    assert program["store"]["delay_s"] == 0.05


def test_replacement_alone_counts_what_waited_too_long_and_rebalance_prepares_nothing(tmp_path: Path) -> None:
    failing = told(tmp_path, mechanisms="replacement", topology={"tuple_timeout_s": 4})["failing"]
    assert failing["replay"] is False and failing["timeout_s"] == 4
    assert told(tmp_path, mechanisms="rebalance")["replacement"]["warm"] is False


def test_spark_may_begin_with_fewer_executors_and_add_the_others() -> None:
    config = configuration(mechanisms="dynamic_allocation", executors=4, executor_cores=2, parallelism="1-1-1")
    settings = configured_settings(config)
    bounds = {"initialExecutors": "1", "maxExecutors": "4"}
    assert {f"spark.dynamicAllocation.{name}": value for name, value in bounds.items()}.items() <= settings.items()
    assert settings["spark.cores.max"] == "8"
    assert "spark.dynamicAllocation.enabled" not in configured_settings(configuration(executors=4))


def test_a_store_or_queue_that_does_not_answer_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def look(mechanisms: str = NONE, **own: str) -> None:
        config = configuration(parallelism="1-1-1-1", mechanisms=mechanisms, topology=own)
        config.kind.check_here(config.own, config)

    queue = partial(look, "delayed_persistence", queue="memcached")
    monkeypatch.delenv(topology_services.DATABASE, raising=False)
    with refused("topology.store: postgresql needs FAULTLINE_TOPOLOGY_DATABASE=postgresql://"):
        look(store="postgresql")
    monkeypatch.setenv(topology_services.DATABASE, "postgresql://nobody:x@127.0.0.1:1/none")
    with refused("FAULTLINE_TOPOLOGY_DATABASE: the database does not answer"):
        look(store="postgresql")
    monkeypatch.setenv(topology_services.MEMCACHED, "127.0.0.1:1")
    words = ["parallelism=1-1-1-1", "mechanisms=delayed_persistence", 'topology={"queue": "memcached"}']
    for ask in (queue, lambda: planned_fault_lines("topology", words)):  # nor does a dry run pass it
        with refused("FAULTLINE_MEMCACHED: 127.0.0.1:1 does not answer"):
            ask()
    monkeypatch.setenv(topology_services.MEMCACHED, "somewhere")
    with refused("FAULTLINE_MEMCACHED: 'somewhere' is no address; give HOST:PORT"):
        queue()
    monkeypatch.delenv(topology_services.MEMCACHED)
    monkeypatch.setattr(topology_services, "memcached_program", lambda: None)
    with refused("topology.queue: memcached is not installed; install the Debian package"):
        queue()
    look(queue="memcached")  # without the mechanism the queue is nobody's


# ---- Nexmark's parameters: what is refused by name, what is one configuration, and what the program is told ----


def nexmark(**values: Any) -> Configuration:
    return parse_configuration({"workload": "nexmark", **values})


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"query": "q99"}, "query: 'q99' is not known; did you mean q9?"),
        ({"events": {"shares": [2, 6, 93]}}, "events.shares: [2, 6, 93] add up to 101; let them add up to 100"),
        ({"events": {"shares": [2, 6]}}, "events.shares: [2, 6] is refused; give 3 whole numbers"),
        ({"events": {"bytes": [200, 500, 1]}}, "events.bytes: [200, 500, 1] is refused; give 3 whole numbers from ["),
        ({"events": {"share": [2, 6, 92]}}, "events.share: unknown; known: shares, bytes, hot, active"),
        ({"events": "{"}, "events: not JSON"),
        ({"rate_curve": {"kind": "step", "at_s": 5, "to": 0}}, "rate_curve: a rate of 0 leaves a gap in event time"),
        ({"rate_curve": {"kind": "recorded", "points": [[0, 5], [3, -1]]}}, "rate_curve.points.1: "),
        ({"rate_curve": {"kind": "sine", "period_s": 5, "amplitude": 9}}, "rate_curve: with source=engine a curve has"),
        ({"state_store": "redis"}, "state_store: 'redis' is not known; known: memory, rocksdb"),
        ({"source": "files"}, "source: 'files' is not known"),
        ({"fault": "executor"}, "fault: events from the engine keep no schedule"),
        ({"commit_mode": "none"}, "commit_mode: nexmark keeps its state; none is refused"),
        ({"state_mb": 1}, "state_mb: nexmark keeps no words"),
        ({"workload": "pi", "query": "q3"}, "query: only nexmark has it; leave it at q0"),
    ],
)
def test_bad_input_is_refused_by_name(values: dict[str, Any], said: str) -> None:
    with refused(said):
        nexmark(**values)


def test_every_query_has_a_file_and_one_without_is_refused_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert Query.__args__ == QUERIES and all(query_file(name) for name in QUERIES)  # type: ignore[attr-defined]
    assert not query_file("q24")
    monkeypatch.setattr("faultline.experiment.workloads.nexmark.query_file", lambda name: False)
    config = nexmark(query="q3")
    with refused("query: q3 has no file in spark_jobs/nexmark/queries; restore it"):
        config.kind.check_here(config.own, config)


def test_the_suites_own_events_are_no_choice() -> None:
    assert nexmark(events={"shares": [2, 6, 92], "hot": [2, 4, 4]}) == nexmark() == nexmark(events={})
    assert nexmark(events={"hot": [3, 4, 4]}).events == {"hot": [3, 4, 4]}
    assert nexmark(query="q0").config_id == nexmark().config_id != nexmark(query="q1").config_id


def test_the_program_is_told_of_events_in_their_smallest_proportions() -> None:
    told = nexmark(events={"shares": [10, 30, 60], "active": [500, 50]}, disorder=0.2, seed=3).input_source(2)["rules"]
    assert told["proportions"] == [1, 3, 6] and (told["active_people"], told["in_flight"]) == (500, 50)
    assert told["sizes"] == [200, 500, 100] and told["disorder"] == 0.2
    assert told["seed"] != nexmark(seed=3).input_source(1)["rules"]["seed"]

    # A batch is as large as asked for, or as suits the query.
    assert batch_events(nexmark().own) == BATCH_EVENTS > batch_events(nexmark(query="q20").own)
    assert batch_events(nexmark(query="q20", batch_events=2000).own) == 2000


@given(at_s=st.floats(1, 50), to=st.floats(1, 1000))
def test_a_curve_becomes_pieces_that_follow_each_other(at_s: float, to: float) -> None:
    config = nexmark(rate=100.0, rate_curve={"kind": "ramp", "from_s": at_s, "until_s": at_s + 10, "to": to})
    if config.rate_curve is None:
        return  # it leads to where it begins
    found = pieces(config)
    assert found[0][0] == 0 and found[0][2] == 100 and found[-1][3] == pytest.approx(to)
    assert all(before[1] == after[0] for before, after in zip(found, found[1:], strict=False))
