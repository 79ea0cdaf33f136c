"""The plan of an attempt: whole after JSON, resolved once, and read from `attempt.json` where that said everything."""

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
    """A plan as a file has it, which knows no tuples."""
    return json.loads(json.dumps(plan.as_mapping()))


@pytest.mark.parametrize("values", VALUES, ids=lambda values: str(values.get("workload", "faults")))
def test_a_plan_is_whole_after_json(tmp_path: Path, values: dict[str, Any]) -> None:
    attempt, made = written(tmp_path, values)
    config = parse_configuration(values)
    assert values_of(made) == json.loads(attempt.plan.read_text())
    assert (made.faults, made.configuration()) == (config.planned_faults(), config)
    assert (made.workload, made.warmup_s, made.order.cell.repetition) == (config.workload, config.warmup_s, 3)
    if made.generator is not None:
        assert GeneratorSpec.model_validate(made.generator).repetition == 3


def test_what_was_before_schema_3_is_read_from_the_attempts_own_file(tmp_path: Path) -> None:
    config = parse_configuration({"fault_plan": FAULTS, "duration_s": 90})
    attempt, said = Attempt(tmp_path), {"config": config.model_dump(mode="json"), "repetition": 3, "hosts": HOSTS}
    write_json(tmp_path / "attempt.json", {**said, "topics": {"input": "t"}, "not_measured": {"cpu": "why"}})
    for plan in (None, {"schema": 2}, {"schema": 1, "engine": "spark"}, {"engine": "spark"}):
        if plan is not None:
            write_json(attempt.plan, plan)
        read = read_plan(attempt)
        order = (read.faults, read.order.config_id, read.order.repetition)
        assert order == (config.planned_faults(), config.config_id, 3)
        assert (read.endpoints.hosts, read.topics["input"].name, read.not_measured) == (HOSTS, "t", {"cpu": "why"})


def test_one_clock_ends_latencies_where_executors_may_have_several(tmp_path: Path) -> None:
    _, spread = written(tmp_path, {})
    here = replace(spread, endpoints=replace(ENDPOINTS, hosts={}))
    there = replace(spread, endpoints=replace(ENDPOINTS, hosts={}, target="lab"))
    assert [one.stamped_by_broker for one in (here, spread, there)] == [False, True, True]


def test_a_plan_that_is_there_is_not_resolved_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt, made = written(tmp_path, {})

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the configuration was validated again")

    monkeypatch.setattr(configurations.Configuration, "model_validate", refuse)
    again = read_plan(attempt)
    assert again == made
    with pytest.raises(AssertionError):
        again.configuration()


def test_only_a_fault_on_connections_sends_the_workload_by_the_detour(tmp_path: Path) -> None:
    _, straight = written(tmp_path, {})
    _, detour = written(tmp_path, {"fault_plan": FAULTS, "duration_s": 90})
    assert (straight.workload_bootstrap, detour.workload_bootstrap) == (ENDPOINTS.kafka, ENDPOINTS.kafka_detour)
    assert (straight.program["bootstrap"], detour.program["bootstrap"]) == (ENDPOINTS.kafka, ENDPOINTS.kafka_detour)
    assert detour.generator is not None and detour.generator["bootstrap"] == ENDPOINTS.kafka


@pytest.mark.parametrize("damage", ["{", "[]", "{}", '{"engine": "spark"}', "half"])
def test_a_damaged_plan_is_refused_by_its_file(tmp_path: Path, damage: str) -> None:
    attempt, made = written(tmp_path, {})
    values = made.as_mapping()
    del values["faults"]
    attempt.plan.write_text(json.dumps(values) if damage == "half" else damage)
    with pytest.raises(InfrastructureError, match=r"plan\.json: .*clear the"):
        read_plan(attempt)


def test_plans_outlive_an_update(tmp_path: Path) -> None:
    attempt, made = written(tmp_path, {})
    values = json.loads(attempt.plan.read_text())
    write_json(attempt.plan, {**values, "of_a_later_version": 3})
    assert read_plan(attempt) == made
    for schema in (2, 4):
        write_json(attempt.plan, {**values, "schema": schema})
        with pytest.raises(InfrastructureError, match=rf"plan\.json: not a plan \(schema {schema}, and 3 is"):
            read_plan(attempt)


@pytest.mark.parametrize(("config", "key"), [({"rate": "fast"}, "rate: 'fast' is"), ({"rpm": 78}, "rpm: unknown")])
def test_a_configuration_that_is_refused_today_is_named(tmp_path: Path, config: dict[str, Any], key: str) -> None:
    _, made = written(tmp_path, {})
    order = replace(made.order, config={**made.order.config, **config})
    with pytest.raises(InfrastructureError, match=f"plan.json: {key} .*; clear the whole run$"):
        replace(made, order=order).configuration()
