"""Attempt plans: JSON round trip, older schemas and damaged files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from faultline.experiment import config as configurations
from faultline.experiment.attempt import Attempt, write_json
from faultline.experiment.attempt_plan import AttemptPlan, read_plan
from faultline.experiment.config import parse_configuration
from faultline.experiment.workloads.registry import WORKLOADS
from faultline.system.endpoints import Endpoints
from faultline.system.errors import InfrastructureError
from faultline.system.settings import DEFAULT_PORTS, ROOT
from generators.spec import GeneratorSpec
from tests.support.attempts import prepared

HOSTS = {"node1": {"host": "10.0.0.5", "port": 22, "user": "bench", "key_file": "/k", "known_hosts": "/h"}}
ENDPOINTS = replace(Endpoints.embedded(DEFAULT_PORTS), hosts=HOSTS)
FAULTS = {"faults": [
    {"victim": "executor", "action": "pause", "at_s": 45, "duration_s": 2},
    {"victim": "kafka", "action": "delay", "at_s": 60, "duration_s": 1, "delay_ms": 100},
]}  # fmt: skip
COUNT, PROGRAM = (str(ROOT / "examples" / name) for name in ("word_count.py", "kafka_word_count.py"))
OWN = {"query": {"job": COUNT}, "program": {"application": PROGRAM, "reference": COUNT}}
VALUES: list[dict[str, Any]] = [
    *({"workload": name, "executor_cores": 4, **OWN.get(name, {})} for name in WORKLOADS),
    {"fault_plan": FAULTS, "duration_s": 90, "commit_mode": "none", "restart_delay_s": 5},
    {"workload": "nexmark", "source": "kafka", "query": "q5"},
    {"workload": "nexmark", "preload_events": 100_000_000},
    {"workload": "topology", "parallelism": "1-1-1-1", "executor_cores": 4, "mechanisms": "all"},
]


def written(folder: Path, values: dict[str, Any]) -> tuple[Attempt, AttemptPlan]:
    attempt = prepared(folder, values, endpoints=ENDPOINTS, repetition=3)
    return attempt, read_plan(attempt)


def values_of(plan: AttemptPlan) -> Any:
    """Return the plan as JSON data, without tuples."""
    return json.loads(json.dumps(plan.as_mapping()))


@pytest.mark.parametrize("values", VALUES, ids=lambda values: str(values.get("workload", "faults")))
def test_plan_round_trips_through_json(tmp_path: Path, values: dict[str, Any]) -> None:
    attempt, created = written(tmp_path, values)
    config = parse_configuration(values)
    assert values_of(created) == json.loads(attempt.plan.read_text())
    assert (created.faults, created.configuration()) == (config.planned_faults(), config)
    assert (created.workload, created.warmup_s, created.order.cell.repetition) == (config.workload, config.warmup_s, 3)
    if created.generator is not None:
        assert GeneratorSpec.model_validate(created.generator).repetition == 3


def test_plan_before_schema_3_is_read_from_attempt_file(tmp_path: Path) -> None:
    config = parse_configuration({"fault_plan": FAULTS, "duration_s": 90})
    attempt, description = (
        Attempt(tmp_path),
        {"config": config.model_dump(mode="json"), "repetition": 3, "hosts": HOSTS},
    )
    write_json(tmp_path / "attempt.json", {**description, "topics": {"input": "t"}, "not_measured": {"cpu": "why"}})
    for plan in (None, {"schema": 2}, {"schema": 1, "engine": "spark"}, {"engine": "spark"}):
        if plan is not None:
            write_json(attempt.plan, plan)
        read = read_plan(attempt)
        order = (read.faults, read.order.config_id, read.order.repetition)
        assert order == (config.planned_faults(), config.config_id, 3)
        assert (read.endpoints.hosts, read.topics["input"].name, read.not_measured) == (HOSTS, "t", {"cpu": "why"})


def test_broker_timestamps_are_used_for_several_hosts(tmp_path: Path) -> None:
    _, spread = written(tmp_path, {})
    here = replace(spread, endpoints=replace(ENDPOINTS, hosts={}))
    there = replace(spread, endpoints=replace(ENDPOINTS, hosts={}, target="lab"))
    assert [one.stamped_by_broker for one in (here, spread, there)] == [False, True, True]


def test_existing_plan_is_not_resolved_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt, created = written(tmp_path, {})

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("configuration validated twice")

    monkeypatch.setattr(configurations.Configuration, "model_validate", refuse)
    again = read_plan(attempt)
    assert again == created
    with pytest.raises(AssertionError):
        again.configuration()


def test_workload_uses_kafka_proxy_only_for_connection_faults(tmp_path: Path) -> None:
    _, direct = written(tmp_path, {})
    _, proxied = written(tmp_path, {"fault_plan": FAULTS, "duration_s": 90})
    assert (direct.workload_bootstrap, proxied.workload_bootstrap) == (ENDPOINTS.kafka, ENDPOINTS.kafka_detour)
    assert (direct.program["bootstrap"], proxied.program["bootstrap"]) == (ENDPOINTS.kafka, ENDPOINTS.kafka_detour)
    assert proxied.generator is not None and proxied.generator["bootstrap"] == ENDPOINTS.kafka


@pytest.mark.parametrize("damage", ["{", "[]", "{}", '{"engine": "spark"}', "half"])
def test_damaged_plan_names_its_file(tmp_path: Path, damage: str) -> None:
    attempt, created = written(tmp_path, {})
    values = created.as_mapping()
    del values["faults"]
    attempt.plan.write_text(json.dumps(values) if damage == "half" else damage)
    with pytest.raises(InfrastructureError, match=r"plan\.json: "):
        read_plan(attempt)


def test_plan_with_unknown_keys_is_read_and_other_schemas_are_refused(tmp_path: Path) -> None:
    attempt, created = written(tmp_path, {})
    values = json.loads(attempt.plan.read_text())
    write_json(attempt.plan, {**values, "of_a_later_version": 3})
    assert read_plan(attempt) == created
    for schema in (2, 4):
        write_json(attempt.plan, {**values, "schema": schema})
        with pytest.raises(InfrastructureError, match=r"plan\.json: .*schema: "):
            read_plan(attempt)


@pytest.mark.parametrize(("config", "key"), [({"rate": "fast"}, "rate"), ({"rpm": 78}, "rpm")])
def test_configuration_invalid_today_names_key(tmp_path: Path, config: dict[str, Any], key: str) -> None:
    _, created = written(tmp_path, {})
    order = replace(created.order, config={**created.order.config, **config})
    with pytest.raises(InfrastructureError, match=rf"plan\.json: {key}: "):
        replace(created, order=order).configuration()
