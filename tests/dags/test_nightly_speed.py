"""Nightly self-benchmark: selected benchmarks, stored figures and failures."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from benchmarks.catalogue import BENCHMARKS as KNOWN
from benchmarks.figure import summarise
from benchmarks.speed.performance import SPEED as OF_SPEED
from faultline.experiment.nightly_file import SPEED, speed_schedule
from faultline.orchestration.nightly import self_benchmark_dag as subject
from faultline.orchestration.nightly.self_benchmark_dag import BENCHMARKS, MEASURING_BENCHMARKS
from faultline.system.errors import ConfigError
from faultline.system.waiting import wait_until


def test_its_benchmarks_are_those_of_speed() -> None:
    assert set(BENCHMARKS) <= set(OF_SPEED) <= set(KNOWN)
    assert set(MEASURING_BENCHMARKS) <= set(BENCHMARKS)


def test_benchmarks_run_in_sequence_and_are_judged_after_failures(bag: Any) -> None:
    dag = bag.dags[SPEED]
    assert (dag.max_active_tasks, dag.max_active_runs, dag.catchup, dag.is_paused_upon_creation) == (1, 1, False, True)
    assert dag.get_task("compare_speed").trigger_rule == "all_done"
    assert dag.get_task("no_slowdown").upstream_task_ids == {"compare_speed"}


def test_a_schedule_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAULTLINE_SPEED_SCHEDULE", "at five")
    with pytest.raises(ConfigError, match="FAULTLINE_SPEED_SCHEDULE: "):
        speed_schedule()


def answer(name: str, factor: float = 1.0) -> dict[str, Any]:
    values = [factor * one for one in (1.00, 1.01, 0.99, 1.02, 0.98)]
    machine = {"cores": 2, "memory_mb": 1, "system": "x", "python": "3"}
    return {"name": name, "figures": {"time_s": vars(summarise(values, "s"))}, "machine": machine}


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, notes: list[Any]) -> Callable[..., dict[str, Any]]:
    """Return the comparison of one day's run, with results in a temporary folder."""
    monkeypatch.setenv("FAULTLINE_RESULTS", str(tmp_path))

    def compare(day: int, measured: list[Any] | None = None) -> dict[str, Any]:
        context = {"params": {"baseline_nights": 7}, "dag": SimpleNamespace(dag_id=SPEED), "run_id": f"night_{day}"}
        monkeypatch.setattr(subject, "get_current_context", lambda: context)
        monkeypatch.setattr(subject, "nightly_date", lambda: f"2026-11-{day:02d}T05:00:00+00:00")
        return dict(subject.compare_speed.function(measured or [answer(name) for name in BENCHMARKS]))

    return compare


def test_a_slower_run_fails_and_names_the_figure(
    compared: Callable[..., dict[str, Any]], notes: list[Any], tmp_path: Path
) -> None:
    with pytest.raises(AirflowSkipException, match="no earlier run"):
        subject.no_slowdown.function(compared(1))
    subject.no_slowdown.function(compared(2))
    slow = compared(3, [answer(name, 1.5 if name == "page" else 1.0) for name in BENCHMARKS])
    with pytest.raises(AirflowFailException, match=r"page\.time_s: 1 -> 1\.5, \+50%"):
        subject.no_slowdown.function(slow)
    assert "1 worse" in notes[-1][-1] and len(list((tmp_path / "speed").glob("*.json"))) == 3


def test_a_benchmark_without_figures_is_reported_and_the_others_are_kept(
    compared: Callable[..., dict[str, Any]], notes: list[Any]
) -> None:
    compared(1)
    reported = compared(2, [*(answer(name) for name in BENCHMARKS[1:]), None])
    assert reported["failed"] == [BENCHMARKS[0]] and "equivalent" in notes[-1][-1]
    with pytest.raises(AirflowFailException, match=f"bench {BENCHMARKS[0]}: no figures"):
        subject.no_slowdown.function(reported)


def test_a_benchmark_is_run_as_a_person_would(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[list[str]] = []

    def run(command: list[str], environment: dict[str, str]) -> tuple[int, str]:
        asked.append(command)
        assert environment["FAULTLINE_RESULTS"] == str(tmp_path)
        return (0 if "page" in command else 1), json.dumps(answer("page"))

    monkeypatch.setenv("FAULTLINE_RESULTS", str(tmp_path))
    monkeypatch.setenv("FAULTLINE_HOME", str(tmp_path))
    monkeypatch.setattr(subject, "run_process_group", run)
    monkeypatch.setattr(subject, "is_idle", lambda: True)
    assert subject.measure.function("page")["name"] == "page"
    assert asked[-1][-4:] == ["bench", "page", "--quick", "--json"]
    with pytest.raises(AirflowFailException, match="bench aggregate: failed with status 1"):
        subject.measure.function("aggregate")


def test_what_a_benchmark_started_ends_with_it() -> None:
    """Also after a regular end with processes left."""
    child = "import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', 'input()'], stdin=-1).pid)"
    status, output = subject.run_process_group([sys.executable, "-c", child], {})
    assert status == 0
    wait_until(lambda: not alive(int(output)), timeout_s=120, what="the end of what it started")


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
