"""The record, its committed JSON Schema and its documentation say the same."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from faultline.records.judge.evidence import AttemptFile
from faultline.records.judge.judge import failed_record
from faultline.records.judge.validity import RULES
from faultline.records.record import Metrics, Record, committed_schema, generate_schema
from tests.unit.synthetic import Scenario, Synthetic

DOCS = Path(__file__).parents[3] / "docs"
DEFINITIONS = ("reference/metrics.md", "explanation/recovery.md", "explanation/validity.md")
TOP = """schema matrix sweep_id config config_id repetition series build logical_date measured_at attempt status
reasons environment timeline metrics artifacts""".split()


def test_the_committed_schema_is_the_generated_one() -> None:
    assert committed_schema() == generate_schema()


def test_every_key_is_required_and_no_other_is_allowed() -> None:
    def walk(node: Any) -> None:
        if isinstance(node, dict):
            if node.get("type") == "object" and "properties" in node:
                assert sorted(node["required"]) == sorted(node["properties"])
                assert node["additionalProperties"] is False
            for value in node.values():
                walk(value)
        elif isinstance(node, list):
            for value in node:
                walk(value)

    walk(committed_schema())
    assert list(committed_schema()["properties"]) == TOP
    assert len(Record.model_fields) == len(TOP)


def _keys(model: type[BaseModel]) -> list[str]:
    keys = []
    for name, field in model.model_fields.items():
        keys.append(name)
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            keys += _keys(field.annotation)
    return keys


def test_the_documentation_names_every_metric_and_every_rule() -> None:
    text = "".join((DOCS / name).read_text(encoding="utf-8") for name in DEFINITIONS)
    named = set(re.findall(r"`([^`\n]+)`", text))
    missing = [key for key in [*_keys(Metrics), *RULES] if key not in named]
    assert missing == []


def test_a_record_from_before_the_newer_figures_still_reads() -> None:
    whole = failed_record(AttemptFile.model_validate(Synthetic(Scenario())._attempt()), "failed", ["driver: gone"])
    stored = whole.as_dict()
    del stored["metrics"]["recoveries"], stored["environment"]["clock_offsets"], stored["environment"]["processor"]
    for name in ("dip_depth", "silence_s", "lag_area_record_s"):
        del stored["metrics"]["recovery"][name]
    assert Record.model_validate(stored) == whole


def test_unknown_metrics_keep_every_key() -> None:
    dumped = Metrics.unknown().model_dump()
    assert set(dumped) == set(Metrics.model_fields)
    assert set(dumped["recovery"].values()) == {None}
