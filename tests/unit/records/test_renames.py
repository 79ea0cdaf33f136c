"""Records of every readable schema, and the table of renamed keys."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.comparison.nightly_verdict import NightlyVerdict
from faultline.comparison.slo import parse_slos
from faultline.records.record import SCHEMA, Record
from faultline.records.renames import (
    CODES,
    EVENTS,
    KEYS,
    RENAMED_SCHEMA,
    STATUSES,
    renamed_event,
    renamed_figure,
    renamed_record,
    renamed_series,
)
from tests.unit.sample_records import RECOVERED, sample, schema_2

ROOT = Path(__file__).resolve().parents[3]
SCHEMAS = ROOT / "include" / "faultline" / "records" / "schemas"
PUBLISHED = ROOT / "docs" / "results" / "records" / "nexmark.json.gz"


# Keys that schema 2 did not have.
ADDED = re.compile(r"^metrics\.(checkpoints|cpu_by_phase|unplanned_exits|visible_delay_ms)\b|\.(restarts|durable_s)$")


def paths_of(schema: int) -> set[str]:
    """Return the dotted paths of all keys in the committed JSON Schema of records."""
    whole = json.loads((SCHEMAS / f"record-{schema}.schema.json").read_text())

    def paths_below(node: dict[str, Any], path: str) -> set[str]:
        found: set[str] = set()
        for one in [node, *node.get("anyOf", ()), node.get("items") or {}]:
            if "$ref" in one:
                found |= paths_below(whole["$defs"][one["$ref"].rpartition("/")[2]], path)
            for key, value in one.get("properties", {}).items():
                found |= {f"{path}{key}"} | paths_below(value, f"{path}{key}.")
        return found

    return paths_below(whole, "")


def renamed_path(path: str) -> str:
    """Return the path in schema 3 of a path in schema 2."""
    parent, _, key = path.rpartition(".")
    return f"{renamed_path(parent)}.{KEYS.get(path, key)}" if parent else KEYS.get(path, key)


def test_rename_table_maps_every_key_of_schema_2_to_schema_3() -> None:
    before, after = paths_of(RENAMED_SCHEMA), paths_of(SCHEMA)
    assert KEYS.keys() <= before and not KEYS.keys() & after
    renamed = {renamed_path(path) for path in before}
    assert renamed <= after and all(ADDED.search(path) for path in after - renamed)


def test_published_record_of_schema_2_is_read_as_schema_3() -> None:
    values = json.loads(gzip.decompress(PUBLISHED.read_bytes()))[0]
    assert values["schema"] == RENAMED_SCHEMA
    record = Record.model_validate(values)
    assert Record.model_validate_json(json.dumps(values)) == record
    made = record.as_dict()
    assert made["schema"] == SCHEMA and Record.model_validate(made) == record
    background, before = made["metrics"]["background_cpu"], values["metrics"]["cpu_besides"]
    assert (background["processes"], background["steal"]) == (before["others"], before["stolen"])


@given(
    st.sampled_from([*STATUSES]), st.lists(st.sampled_from([*CODES]), unique=True), st.lists(st.sampled_from([*EVENTS]))
)
def test_statuses_codes_and_events_are_renamed(status: str, codes: list[str], events: list[str]) -> None:
    timeline = {f"{EVENTS[name]}#{number}": (float(number), "x") for number, name in enumerate(events, 2)}
    part = {**RECOVERED, "note": "timeline-incomplete: missing: t3"}
    reasons = [f"{CODES[code]}: why" for code in codes]
    record = sample(status=STATUSES[status], reasons=reasons, timeline=timeline, recovery=part, recoveries=[part])
    values = schema_2(record.as_dict())
    assert values["status"] == status and values["reasons"] == [f"{code}: why" for code in codes]
    assert [event["name"].partition("#")[0] for event in values["timeline"]] == events
    assert Record.model_validate(values) == record
    assert renamed_series({"events": values["timeline"]}) == {"events": record.as_dict()["timeline"]}


@pytest.mark.parametrize("values", [{}, {"metrics": 1, "environment": [], "timeline": [1], "reasons": 2, "status": []}])
def test_malformed_records_are_left_to_model_validation(values: dict[str, Any]) -> None:
    assert renamed_record(values) == {"status": None, **values, "schema": SCHEMA}


def test_old_names_in_settings_and_verdicts_are_accepted() -> None:
    assert renamed_figure("cpu_nodes.big-1") == "cpu_by_host.big-1" and renamed_event("t0#2") == "t0#2"
    assert [limit.metric.key for limit in parse_slos({"audit.wrong": 0})] == ["audit.unexpected"]
    row = {"metric": "audit.wrong", "finding": "no change seen"}
    verdict = NightlyVerdict.model_validate({"cells": [row], "limits": {"audit.sums_differ": 1.0}})
    assert verdict.cells == ({"metric": "audit.unexpected", "finding": "no change detected"},)
    assert verdict.limits == {"audit.checksum_mismatches": 1.0}
