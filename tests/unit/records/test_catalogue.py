"""Metric catalogue: titles, groups and columns, and fault conditions in words."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fault.identity import VICTIM_PHRASES, VICTIMS
from fault.registry import ACTIONS
from faultline.records import catalogue
from faultline.records.catalogue import columns_in, metric_for, metrics_of
from faultline.records.columns import LESS, Metric, Sheet
from faultline.records.format import condition_text
from faultline.records.index_entry import IndexEntry
from faultline.reports import tables, terminal
from faultline.reports.pages import experiment
from faultline.reports.pages.sweep import sweep_page
from faultline.reports.views import runs
from faultline.system.settings import ROOT
from tests.unit.pages_store import grid, put, site
from tests.unit.sample_records import RECOVERED, sample


@pytest.mark.parametrize(
    ("key", "title", "group"),
    [
        ("latency_ms.p99", "Latency p99 (ms)", "Latency"),
        ("schedule_lag_ms.max", "Schedule lag maximum (ms)", "Generator"),
        ("audit.expected", "Expected (tuples)", "Audit"),
        ("cpu_by_host.big-1", "CPU of node big-1 (cores)", "CPU"),
        ("later_part.odd_thing_s", "Later part · odd thing (s)", "Others"),
        ("latency_late_ms.p42", "Latency late · p42 (ms)", "Others"),
        ("latency_after_ms.count", "Tuples measured after the recovery", "Latency"),
    ],
)
def test_path_has_a_readable_title_with_unit(key: str, title: str, group: str) -> None:
    assert (metric_for(key).title, metric_for(key).group) == (title, group)


def test_selectable_metrics_have_readable_titles() -> None:
    listed = metrics_of([IndexEntry.of(sample(recovery=RECOVERED))])
    assert len(listed) > 20
    assert [metric.title for metric in listed if "_" in metric.title or " · " in metric.title] == []


def test_new_column_needs_one_catalogue_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check tables, selectable metrics, the experiment page and exports."""
    new = Metric(
        "gc.share", "Memory and state", "Share of collection", "share", {Sheet.RUNS: "GC", Sheet.CELLS: ""},
        read=lambda entry: 0.25, better=LESS,
    )  # fmt: skip
    monkeypatch.setattr(catalogue, "METRICS", (*catalogue.METRICS, new))
    monkeypatch.setattr(catalogue, "KNOWN", (*catalogue.KNOWN, new))
    monkeypatch.setattr(catalogue, "BY_KEY", {**catalogue.BY_KEY, new.key: new})
    for module in (runs, tables, experiment):
        importlib.reload(module)
    try:
        put(tmp_path, *grid())
        one = site(tmp_path)
        console = Console(width=160)
        with console.capture() as printed:
            console.print(terminal.ResultTable(runs.table_rows(grid())))
        assert "GC" in printed.get() and "25 %" in printed.get()
        page = sweep_page(one, "s1")
        assert "Share of collection" in page and ">25 %</td>" in page and 'value="gc.share"' in page
        assert tables.as_csv(one.index.all()).decode().splitlines()[0].count("gc_share") == 1
        assert "Share of collection (share)" in experiment.overlay_page(one, "s1-8-2-0", "s1-8-2-1")
    finally:
        monkeypatch.undo()
        for module in (runs, tables, experiment):
            importlib.reload(module)


def test_export_columns_equal_the_keys_of_summary_tables() -> None:
    text = (ROOT / "spark_jobs" / "aggregate.py").read_text()
    names = [ast.literal_eval(found) for found in re.findall(r"^(?:KEYS|ATTEMPT_COLUMNS) = (\[.*?\])$", text, re.M)]
    assert sorted(sum(names, [])) == sorted(column.key for column in columns_in(Sheet.EXPORT))


PLAN = {
    "faults": [
        {"victim": "kafka", "action": "pause", "duration_s": 5, "at_s": 40},
        {"victim": "executor", "action": "kill", "times": 3, "count": 2, "at_s": 60},
    ]
}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, "without a fault"),
        ({"fault": "executor", "fault_action": "kill"}, "after an executor was killed"),
        ({"fault": "kafka", "fault_action": "pause"}, "with the broker paused for 10 s"),
        ({"fault": "kafka", "fault_action": "delay"}, "with the connections to Kafka delayed by 200 ms for 10 s"),
        (
            {"fault": "plan", "fault_plan": PLAN},
            "with the broker paused for 5 s and after an executor was killed (2 at once, 3 times)",
        ),
        ({"fault": "moon", "fault_action": "kill"}, "with moon kill"),
        ({"fault": "executor", "fault_action": "melt"}, "with executor melt"),
        ({"fault": "plan", "fault_plan": {"faults": [{"victim": "kafka", "action": "cut", "duration_s": "x"}]}},
         "with kafka cut"),
    ],
)  # fmt: skip
def test_fault_condition_is_described_in_words(config: dict[str, Any], expected: str) -> None:
    assert condition_text(config) == expected


def test_every_action_describes_every_victim() -> None:
    assert set(VICTIM_PHRASES) == set(VICTIMS)
    for action in ACTIONS.values():
        for victim in action.targets:
            text = action.describe(victim, {})
            assert text.startswith(("after ", "with ")) and "{" not in text
