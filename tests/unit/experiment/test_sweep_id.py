"""Sweep ids: pattern, derivation from run ids, and rejection of paths and control characters."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from faultline.comparison.nightly_verdict import stored_verdict
from faultline.experiment.attempt import write_json
from faultline.experiment.cell import MOST, PATTERN, is_sweep_id, require_sweep_id, sweep_id_of
from faultline.experiment.config import parse_configuration
from faultline.lifecycle.prepare import Order
from faultline.records.find import read_saved
from faultline.records.judge.evidence import AttemptFile
from faultline.records.record import Record
from faultline.records.store import validator
from faultline.records.sweep_plan import SweepPlan, SweepPlans
from faultline.system.errors import ConfigError
from faultline.system.settings import ROOT
from tests.unit.pages_store import app as served
from tests.unit.pages_store import ask, put, record, site
from tests.unit.sample_records import sample

ALLOWED = ("s1", "recovery_1", "20261121T064030-722932", "single-20261123T230050Z-740f", "a.b", "_x", "x" * MOST)
REFUSED = (
    "", ".", "..", "...", "../s1", "a/b", "/etc/passwd", "a..b", ".a", "a.", "-a", "~root", "a b", "a\n", "\na", "a\0",
    "a\x1b[31m", "a\\b", "a%2e", "a*", "a?", "ä", "a\u202eb", "a'b", '"', "<b>", "=1", "@a", "$a", "a;b", "a|b",
    "x" * (MOST + 1),
)  # fmt: skip
# Parts of valid ids and of hostile ones.
PARTS = [*"./\\~-_ :+a1\n\0", "..", "manual__", "2026-11-21T06:40:30+00:00", "x" * 90]
RUNS = st.text(max_size=300) | st.lists(st.sampled_from(PARTS)).map("".join)


def test_ids_are_short_and_readable() -> None:
    assert sweep_id_of("manual__2026-11-21T06:40:30.722932+00:00") == "20261121T064030-722932"
    assert sweep_id_of("scheduled__2026-11-21T02:00:00+00:00") == "20261121T020000"
    assert sweep_id_of("backfill__2026-11-21T02:00:00Z") == "20261121T020000"
    assert sweep_id_of("manual__2026-11-21T06:40:30+00:00_aB1/x") == "20261121T064030-aB1-x"
    assert sweep_id_of("demo_20261121T064030Z") == "demo_20261121T064030Z"
    assert sweep_id_of("default-1") == "default-1"
    assert sweep_id_of("default1") == "default1"


@pytest.mark.parametrize("text", ALLOWED)
def test_allowed_id_is_kept(text: str) -> None:
    assert is_sweep_id(text) and sweep_id_of(text) == text
    require_sweep_id(text)


@pytest.mark.parametrize("text", REFUSED)
def test_invalid_id_is_refused_by_every_reader(text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="^sweep_id: ") as refused:
        Order(parse_configuration({}), sweep_id=text)
    assert "\n" not in str(refused.value) and "\x1b" not in str(refused.value), "one line, and no control characters"
    stored = {**sample().as_dict(), "sweep_id": text}
    with pytest.raises(ValidationError, match="sweep_id"):
        Record.model_validate(stored)
    with pytest.raises(jsonschema.ValidationError):
        validator().validate({**stored, "sweep_id": text.rstrip("\n") + "/"})
    with pytest.raises(ValidationError, match="sweep_id"):
        AttemptFile.model_validate({"sweep_id": text, "attempt": "a", "config": {}, "config_id": "c", "repetition": 0,
                                    "series": "s", "build": "b", "prepared_wall_ns": 1})  # fmt: skip


def test_id_cannot_leave_the_folder(tmp_path: Path) -> None:
    results = tmp_path / "results"
    facts: dict[str, Any] = {"matrix": "m", "run_id": "r", "series": "s", "build": "b", "planned_at": "x"}
    facts |= {"logical_date": None, "cells": ()}
    plan = SweepPlan(sweep_id="s1", **facts)
    manifests = SweepPlans(results)
    manifests.write(plan)
    (results / "nights").mkdir()
    content = plan.model_dump(mode="json", by_alias=True)
    write_json(tmp_path / "secret.json", content)
    write_json(results / "secret.json", content)
    for trick in ("../secret", "../../secret", f"{tmp_path}/secret", "..", "", "s1/../s1", "./s1"):
        assert manifests.read(trick) is None and stored_verdict(results, trick) is None
        with pytest.raises(ConfigError, match="^sweep_id: "):
            manifests.write(SweepPlan.model_construct(sweep_id=trick, schema_=1, **facts))
    assert manifests.read("s1") == plan
    write_json(manifests.directory / "a b.json", content)
    assert manifests.ids() == {"s1"}
    write_json(manifests.directory / "other.json", {**content, "sweep_id": "../x"})
    assert manifests.read("other") is None and any("other.json" in file for file, _ in manifests.problems())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["results", "secret.json"], "nothing was written"


def test_pages_answer_404_for_hostile_ids(tmp_path: Path) -> None:
    put(tmp_path, record("a1"))
    app = served(tmp_path)
    for trick in ("..%2f..%2fsecret", "%2e%2e", "a%00", "%1b%5b31m", "a%0ab", "/etc/passwd", "-a", "~root"):
        for address in ("/sweeps/", "/experiments.csv?sweep=", "/compare?a=s1&b=", "/runs/m/"):
            assert ask(app, address + trick).status == 404, address + trick


def test_record_with_invalid_id_is_reported_and_skipped(tmp_path: Path) -> None:
    bad = record("a2").model_copy(update={"sweep_id": "../../x"})
    put(tmp_path, record("a1"), bad)
    index = site(tmp_path).index
    index.refresh()
    assert [one.attempt for one in index.all()] == ["a1"]
    ((path, problem),) = index.problems()
    assert path.endswith("/a2.json") and problem.startswith("sweep_id: ")


@given(RUNS)
@example("manual__2026-11-21T06:40:30+00:00_/../../x")
@example("scheduled__2026-11-21T02:00:00+00:00.")
@example("x" * 300)
def test_every_run_id_gives_a_valid_sweep_id(run_id: str) -> None:
    found = sweep_id_of(run_id)
    assert is_sweep_id(found), found
    assert sweep_id_of(found) == found
    assert re.search(PATTERN, found) and "/" not in found and ".." not in found
    assert Path("sweeps", f"{found}.json").parent == Path("sweeps") and len(f"{found}.json".encode()) < 255


def test_stored_ids_are_valid_and_long_run_ids_stay_distinct() -> None:
    first, second = (sweep_id_of("x" * 220 + end) for end in "ab")
    assert first != second and len(first) == len(second) == MOST
    folder = ROOT / "docs" / "results"
    files = [*(folder / "records").glob("*.json.gz"), *(folder / "bundles").glob("*.tar.xz")]
    found = {one.sweep_id for one in read_saved(files)}
    assert len(found) > 3 and all(one is None or is_sweep_id(one) for one in found)
