"""Notes of DAG runs and alerts about nightly runs: order, whole links, escaped texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from faultline.comparison.nightly_verdict import NightlyVerdict
from faultline.orchestration.airflow_api import AirflowApi, write_note
from faultline.records.record import AuditPart
from faultline.reports.notes import (
    MAX_LINES,
    MAX_NOTE,
    experiment_note,
    missed_start_alert,
    nightly_alert,
    sweep_note,
    sweep_refusal_note,
)
from faultline.system.errors import ConfigError, InfrastructureError
from faultline.system.settings import Settings
from tests.unit.sample_records import CENSORED, RECOVERED, sample


def test_note_of_an_experiment() -> None:
    note = experiment_note(sample(recovery=RECOVERED))
    assert note == (
        "**valid** · word\\_count, state 1 MB, interval 2 s, executor kill · latency p50 1,607 ms, p99 8,046 ms · "
        "501 records/s, sustained before the fault · reload 6.25 s, replay 1.59 s, macro 13.8 s · "
        "0 lost, 12,345 overcounted · "
        "[Results](/plugin/faultline-results/faultline/experiments/20261121T061500Z-3fa9c1)"
    )
    assert "macro \\> 33.9 s" in experiment_note(sample(recovery=CENSORED))
    assert "macro" not in experiment_note(sample(fault="none"))
    asked = experiment_note(sample(rate=200.0, executors=1))
    assert " · rate 200.0, executors 1 · [Results]" in asked, "after parsing"


def test_note_of_a_failure_has_the_escaped_reason() -> None:
    note = experiment_note(sample(status="failed", reasons=["[x](javascript:alert) <b>*now*</b>\n# big"]))
    assert note.startswith("**failed** · ") and "latency" not in note
    assert "\\[x\\]\\(javascript:alert\\) \\<b\\>\\*now\\*\\</b\\> \\# big" in note
    long = experiment_note(sample(status="failed", reasons=["*" * 5000]))
    assert len(long) <= MAX_NOTE and long.endswith("experiments/20261121T061500Z-3fa9c1)")


def test_note_of_a_sweep() -> None:
    records = [sample(recovery=RECOVERED), sample(recovery=CENSORED, latency={"p99": 900.0}), sample(status="failed")]
    note = sweep_note(records, "s 1/x", 0)
    assert note == (
        "**3 experiments**: 2 valid, 1 failed · latency p99 4,473 ms (900 to 8,046) · macro 13.8 s · "
        "1 censored recoveries · 0 tuples lost · "
        "[Results](/plugin/faultline-results/faultline/sweeps/s%201%2Fx)"
    )
    metrics = records[0].metrics.model_copy(update={"audit": AuditPart.empty()})
    unaudited = records[0].model_copy(update={"metrics": metrics})
    assert "tuples lost" not in sweep_note([unaudited], "s1", 0)
    assert "every cell has a usable record" in sweep_note([], "s1", 0)
    asked = "3 of 4 comparisons decided, 1 open"
    assert sweep_note(records, "s1", 0, asked).startswith(f"**3 experiments**: 2 valid, 1 failed · **{asked}** · ")
    assert sweep_note([], "s1", 0, asked) == f"Nothing to measure: {asked}."
    assert "3 cells are missing" in sweep_note([], "s1", 3)
    assert "set\\[0\\]: workload" in sweep_refusal_note(ConfigError("set[0]: workload: 'x' is not known"))


def test_a_note_is_sent_through_the_api_without_raising(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(tmp_path, tmp_path, tmp_path)
    problem = write_note(settings, "experiment", "r 1", "text")
    assert problem is not None and "r 1 of experiment" in problem, "no password, no server"
    calls: list[Any] = []
    monkeypatch.setattr(AirflowApi, "_call", lambda self, *given: calls.append(given))
    assert write_note(settings, "experiment", "r/1+2", "x" * 2000) is None
    assert calls == [
        ("PATCH", "/api/v2/dags/experiment/dagRuns/r%2F1%2B2?update_mask=note", {"note": "x" * MAX_NOTE}),
    ]

    def broken(self: AirflowApi, *given: Any) -> None:
        raise InfrastructureError("airflow: does not answer")

    monkeypatch.setattr(AirflowApi, "_call", broken)
    assert "does not answer" in str(write_note(settings, "experiment", "r", "text"))


WORSE, BETTER, ROWS = ["cpu +11 %"], ["p50 -7 %"], [{"name": "a", "p": 0.01}]


DATE = "2026-11-21T02:00:00+00:00"


@pytest.mark.parametrize(
    ("verdict", "planned", "missing", "kind", "title"),
    [
        ({"reasons": [], "improvements": []}, 10, 0, None, None),
        ({"reasons": WORSE, "improvements": BETTER}, 10, 0, "worse", "1 figure worse"),
        ({"reasons": WORSE * 2}, 10, 3, "worse", "2 figures worse"),
        ({"reasons": [], "beyond": WORSE}, 10, 0, "worse", "1 figure beyond a limit"),
        ({"reasons": WORSE, "beyond": WORSE * 2}, 10, 0, "worse", "2 figures beyond a limit, 1 figure worse"),
        ({"reasons": [], "improvements": BETTER}, 10, 0, "better", "1 figure better"),
        ({"reasons": [], "improvements": BETTER}, 10, 1, "broken", "incomplete"),
        ({"reasons": [], "red": True, "problem": "too few pairs"}, 10, 0, "broken", "inconclusive"),
        ({"reasons": []}, 10, 10, "broken", "no usable record"),
        (None, 10, 0, "broken", "incomplete"),
        (None, 0, 0, "broken", "not planned"),
    ],
)
def test_an_alert_reports_regressions_first_and_nothing_if_unchanged(
    verdict: dict[str, Any] | None, planned: int, missing: int, kind: str | None, title: str | None
) -> None:
    made = NightlyVerdict(**verdict) if verdict is not None else None
    alert = nightly_alert(
        "night_weekly", DATE, "http://x", made, planned=planned, missing=missing, valid=planned - missing
    )
    assert (alert.kind, alert.title) == (kind, f"Nightly run 2026-11-21: {title}") if alert else kind is None
    if alert and missing:
        assert f"{missing} of 10 cells without a usable record" in alert.lines


def test_a_missed_start_is_broken_and_long_lists_are_cut() -> None:
    alert = missed_start_alert(DATE, "night_weekly", 30, "http://x")
    assert (
        alert.kind == "broken"
        and alert.title == "Nightly run 2026-11-21: not started"
        and "not paused" in alert.lines[0]
    )
    verdict = NightlyVerdict(reasons=tuple(f"figure {n}" for n in range(40)), comparisons=tuple(ROWS))
    cut = nightly_alert("night_weekly", DATE, "http://x", verdict, planned=10, missing=0, valid=10)
    assert cut is not None and cut.figures == tuple(ROWS), "the alert carries the figures"
    assert len(cut.lines) == MAX_LINES + 1 and cut.lines[-1] == "and 28 more"
