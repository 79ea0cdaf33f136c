"""Judging a sweep once more: what stands is shown beside what is found, and nothing is lost when it is replaced."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from faultline.cli.judging import judge_sweep
from faultline.records.judge.judge import judge
from faultline.records.judge.verdict import SUPERSEDED
from faultline.records.record import SCHEMA, Record
from faultline.records.store import Store
from faultline.system.errors import ConfigError
from tests.unit.synthetic import Scenario, Synthetic


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FAULTLINE_RESULTS", str(tmp_path))
    return tmp_path


@pytest.fixture
def old(results: Path) -> Record:
    """The record of an attempt as schema 1 had it: not recovered, though its raw files say otherwise."""
    record = judge(Synthetic(Scenario()).write(results))
    part = record.metrics.recovery.model_copy(update={"recovered": False, "macro_s": None, "censored_at_s": 34.0})
    metrics = record.metrics.model_copy(update={"recovery": part, "recoveries": [part], "placebo": None})
    before = record.model_copy(update={"schema_": 1, "metrics": metrics})
    path = Store(results).path(before)
    path.parent.mkdir(parents=True)
    path.write_text(before.as_json())
    return before


def test_both_are_shown_and_nothing_is_written(old: Record, results: Path) -> None:
    path = Store(results).path(old)
    judged = judge_sweep("s1", (0.1, 0.5), again=False)
    (row,) = judged.rows()
    assert row["before"]["schema"] == 1 and row["before"]["macro_s"] is None
    assert list(row["within"]) == ["0.1", "0.5"]
    tight, loose = row["within"]["0.1"], row["within"]["0.5"]
    assert tight["recovered"] and loose["recovered"]
    assert tight["latency_limit_ms"] < loose["latency_limit_ms"] and tight["lag_limit"] < loose["lag_limit"]
    assert path.read_text() == old.as_json() and not (results / SUPERSEDED).exists()


def test_what_is_replaced_is_kept_beside(old: Record, results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    judged = judge_sweep(old.attempt, (), again=True)
    judged.print()
    shown = capsys.readouterr().out
    assert "(schema 1)" in shown and "> 34.0" in shown and "1 records changed" in shown
    now = Record.model_validate_json(Store(results).path(old).read_text())
    assert now.schema_ == SCHEMA and now.metrics.recovery.recovered
    moved = results / SUPERSEDED / old.config_id / f"{old.attempt}.schema-1.json"
    assert moved.read_text() == old.as_json()
    # A second time changes nothing.
    (row,) = judge_sweep("s1", (), again=True).rows()
    assert row["moved_to"] is None and list(moved.parent.iterdir()) == [moved]


def test_an_attempt_without_raw_files_keeps_its_record(old: Record, results: Path) -> None:
    shutil.rmtree(results / "attempts")
    (row,) = judge_sweep("s1", (), again=True).rows()
    assert row["problem"] == "its raw files are gone" and row["within"] == {}
    assert json.loads(Store(results).path(old).read_text())["schema"] == 1


def test_broken_raw_files_are_named_and_the_record_stays(old: Record, results: Path) -> None:
    (results / "attempts" / old.attempt / "gate.json").write_text("{")
    (row,) = judge_sweep("s1", (), again=True).rows()
    assert "gate.json" in row["problem"]
    assert json.loads(Store(results).path(old).read_text())["schema"] == 1


@pytest.mark.parametrize("share", [0.0, -1.0, 10.1, float("nan"), float("inf")])
def test_a_share_out_of_range_is_refused(old: Record, share: float) -> None:
    with pytest.raises(ConfigError, match="--within"):
        judge_sweep("s1", (share,), again=False)


def test_an_unknown_sweep_is_refused_with_the_nearest(old: Record) -> None:
    with pytest.raises(ConfigError, match="s2: neither a sweep nor an attempt with a record; did you mean s1"):
        judge_sweep("s2", (), again=False)
