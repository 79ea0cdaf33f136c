"""The plan of an attempt: whole after JSON, resolved once, and made of `attempt.json` where none was written."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from faultline.experiment import config as configurations
from faultline.experiment.attempt import Attempt, write_json
from faultline.experiment.config import Configuration, parse_configuration
from faultline.experiment.plan import (
    AttemptPlan,
    configuration_of,
    faults_of,
    plan_of,
    program_of,
    resolve,
    topic_partitions,
)
from faultline.experiment.workloads.registry import WORKLOADS
from faultline.system.endpoints import Endpoints
from faultline.system.errors import InfrastructureError
from faultline.system.settings import DEFAULT_PORTS, ROOT
from generators.spec import GeneratorSpec

HOSTS = {"node1": {"host": "10.0.0.5", "port": 22, "user": "bench", "key_file": "/k", "known_hosts": "/h"}}
ENDPOINTS = replace(Endpoints.embedded(DEFAULT_PORTS), hosts=HOSTS)
FAULTS = {"faults": [
    {"victim": "executor", "action": "pause", "at_s": 45, "duration_s": 2},
    {"victim": "kafka", "action": "delay", "at_s": 60, "duration_s": 1, "delay_ms": 100},
]}  # fmt: skip
OWN: dict[str, dict[str, Any]] = {
    "query": {"job": str(ROOT / "examples" / "word_count.py")},
    "program": {
        "application": str(ROOT / "examples" / "kafka_word_count.py"),
        "reference": str(ROOT / "examples" / "word_count.py"),
    },
}
VALUES: list[dict[str, Any]] = [
    *({"workload": name, "executor_cores": 4, **OWN.get(name, {})} for name in WORKLOADS),
    {"fault_plan": FAULTS, "duration_s": 90, "commit_mode": "none", "restart_delay_s": 5},
    {"workload": "nexmark", "source": "kafka", "query": "q5"},
    {"workload": "nexmark", "preload_events": 100_000_000},
    {"workload": "topology", "parallelism": "1-1-1-1", "executor_cores": 4, "mechanisms": "all"},
]


def written(folder: Path, config: Configuration, *, plan: bool = True) -> tuple[Attempt, AttemptPlan]:
    """An attempt as `prepare` leaves it, or as one from before there were plans did."""
    attempt = Attempt(folder)
    topics = {role: f"t-{role}" for role in topic_partitions(config)}
    made = resolve(config, engine="spark", repetition=3, endpoints=ENDPOINTS, topics=topics)
    said = {
        "config": config.model_dump(mode="json"),
        "repetition": 3,
        "kafka": {"bootstrap": ENDPOINTS.kafka, "workload_bootstrap": made.workload_bootstrap},
        "topics": topics,
        "companion_ports": {one.role: 11211 for one in made.companions},
        "spark": {"master": ENDPOINTS.engine},
        "hosts": HOSTS,
    }
    write_json(folder / "attempt.json", said)
    made = replace(made, program=program_of(attempt, config, made))
    if plan:
        write_json(attempt.plan, made.as_mapping())
    return attempt, made


def values_of(plan: AttemptPlan) -> Any:
    """A plan as a file has it, which knows no tuples."""
    return json.loads(json.dumps(plan.as_mapping()))


@pytest.mark.parametrize("values", VALUES, ids=lambda values: str(values.get("workload", "faults")))
def test_a_plan_is_whole_after_json_and_what_was_before_there_were_plans_is_the_same(
    tmp_path: Path, values: dict[str, Any]
) -> None:
    config = parse_configuration(values)
    attempt, made = written(tmp_path, config)
    assert values_of(plan_of(attempt)) == values_of(made)
    assert plan_of(attempt).faults == made.faults == config.planned_faults() == faults_of(attempt, config)
    if made.generator is not None:
        assert GeneratorSpec.model_validate(made.generator).repetition == 3
    attempt.plan.unlink()
    before = plan_of(attempt)
    unsaid = {"engine": None, "program": {}, "endpoints": before.endpoints, "warmup_max_s": None}
    assert values_of(before) == values_of(replace(made, **unsaid))
    assert before.endpoints.kafka == ENDPOINTS.kafka and before.endpoints.hosts == HOSTS
    assert before.workload_bootstrap == made.workload_bootstrap


def test_one_clock_ends_latencies_where_executors_may_have_several(tmp_path: Path) -> None:
    _, spread = written(tmp_path, parse_configuration({}))
    here = replace(spread, endpoints=replace(ENDPOINTS, hosts={}))
    there = replace(spread, endpoints=replace(ENDPOINTS, hosts={}, target="lab"))
    assert [one.stamped_by_broker for one in (here, spread, there)] == [False, True, True]


def test_a_plan_that_is_there_is_not_resolved_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt, made = written(tmp_path, parse_configuration({}))

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the configuration was validated again")

    monkeypatch.setattr(configurations.Configuration, "model_validate", refuse)
    assert plan_of(attempt) == made
    with pytest.raises(AssertionError):
        configuration_of(attempt)


def test_only_a_fault_on_connections_sends_the_workload_by_the_detour(tmp_path: Path) -> None:
    _, straight = written(tmp_path, parse_configuration({}))
    _, detour = written(tmp_path, parse_configuration({"fault_plan": FAULTS, "duration_s": 90}))
    assert (straight.workload_bootstrap, detour.workload_bootstrap) == (ENDPOINTS.kafka, ENDPOINTS.kafka_detour)
    assert (straight.program["bootstrap"], detour.program["bootstrap"]) == (ENDPOINTS.kafka, ENDPOINTS.kafka_detour)
    assert detour.generator is not None and detour.generator["bootstrap"] == ENDPOINTS.kafka


@pytest.mark.parametrize("damage", ["{", "[]", "{}", '{"engine": "spark"}', "half"])
def test_a_damaged_plan_is_refused_by_its_file(tmp_path: Path, damage: str) -> None:
    attempt, made = written(tmp_path, parse_configuration({}))
    values = made.as_mapping()
    del values["faults"]
    attempt.plan.write_text(json.dumps(values) if damage == "half" else damage)
    with pytest.raises(InfrastructureError, match=r"plan\.json: .*clear the"):
        plan_of(attempt)


def test_endpoints_are_whole_after_json() -> None:
    assert Endpoints.from_mapping(json.loads(json.dumps(ENDPOINTS.as_mapping()))) == ENDPOINTS


def test_plans_outlive_an_update(tmp_path: Path) -> None:
    attempt, made = written(tmp_path, parse_configuration({}))
    values = json.loads(attempt.plan.read_text())
    assert values["schema"] == 2
    write_json(attempt.plan, {**values, "of_a_later_version": 3})
    assert values_of(plan_of(attempt)) == values_of(made)
    values["cycle_s"] = {cycle: values.pop(f"{cycle}_interval_s") for cycle in ("checkpoint", "snapshot")}
    write_json(attempt.plan, {**values, "schema": 1})
    assert values_of(plan_of(attempt)) == values_of(made)
    del values["schema"]  # as the first plans were
    write_json(attempt.plan, values)
    assert values_of(plan_of(attempt)) == values_of(made)
    write_json(attempt.plan, {**values, "schema": 3})
    with pytest.raises(InfrastructureError, match=r"plan\.json: not a plan \(schema 3, and 2 is known here\)"):
        plan_of(attempt)


@pytest.mark.parametrize(("config", "key"), [({"rate": "fast"}, "rate: 'fast' is"), ({"rpm": 78}, "rpm: unknown")])
def test_a_configuration_that_is_refused_today_is_named(tmp_path: Path, config: dict[str, Any], key: str) -> None:
    write_json(tmp_path / "attempt.json", {"config": config})
    with pytest.raises(InfrastructureError, match=f"attempt.json: {key} .*; clear the whole run$"):
        configuration_of(Attempt(tmp_path))
