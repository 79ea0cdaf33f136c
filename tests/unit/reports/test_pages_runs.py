"""From runs in Airflow to pages, and back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from faultline.reports.pages.experiment import experiment_page
from faultline.reports.pages.runs import address_of_dag, address_of_run, runs_of_entry, runs_of_sweep
from faultline.reports.pages.site import Run, Unknown
from faultline.reports.pages.sweep import sweep_page
from tests.unit.pages_store import put, record, site


def test_runs_lead_to_pages_and_pages_to_runs(tmp_path: Path) -> None:
    cell = record("a1", sweep="20261121T061500-123456", measured_at="2026-11-21T06:15:00+00:00")
    again = record("a2", sweep="20261121T061500-123456", status="unsound")
    single = record("b1", sweep="single-20261121T111350Z-c7fd", matrix=None)
    put(tmp_path, cell, again, single, record("c1", sweep="demo_5", matrix="m"))
    one = site(tmp_path)
    run_id = "manual__2026-11-21T06:15:00.123456+00:00"
    assert address_of_run(one, "m", run_id) == "/faultline/sweeps/20261121T061500-123456"
    child = f"20261121T061500-123456__{cell.config_id}-r0"
    for name in (child, f"{child}-0a1b2c3d"):
        assert address_of_run(one, "experiment", name) == "/faultline/experiments/a2", "the newest try"
    assert address_of_run(one, "experiment", "single-20261121T111350Z-c7fd") == "/faultline/experiments/b1"
    assert address_of_run(one, "m", "demo_5") == "/faultline/sweeps/demo_5"
    for dag_id, unknown in (("m", "manual__2027"), ("experiment", f"x__{'0' * 12}-r0"), ("m", ""), ("m", "../..")):
        with pytest.raises(Unknown, match="no record yet"):
            address_of_run(one, dag_id, unknown)
    assert address_of_dag(one, "m") == "/faultline/matrices/m"
    assert address_of_dag(one, "experiment") == "/faultline/"

    known = {("m", f"{run_id}_x7"), ("experiment", child), ("experiment", "single-20261121T111350Z-c7fd")}

    def find(dag_id: str, run_ids: Any, beginnings: Any) -> list[str]:
        return [run for dag, run in known if dag == dag_id and (run in run_ids or any(map(run.startswith, beginnings)))]

    asking = site(tmp_path, find_runs=find)
    assert runs_of_sweep(asking, "m", "20261121T061500-123456") == [Run("m", f"{run_id}_x7")]
    entry, alone = one.index.of_attempt("a1"), one.index.of_attempt("b1")
    assert entry is not None and alone is not None
    assert runs_of_entry(asking, entry) == [Run("experiment", child), Run("m", f"{run_id}_x7")]
    assert runs_of_entry(asking, alone) == [Run("experiment", "single-20261121T111350Z-c7fd")]
    html = experiment_page(asking, "a1")
    assert f"/dags/experiment/runs/{child}" in html
    assert "/dags/m/runs/manual__2026-11-21T06%3A15%3A00.123456%2B00%3A00_x7" in html
    assert "/dags/m/runs/" in sweep_page(asking, "20261121T061500-123456")


def test_a_run_is_noted_in_its_attempt(tmp_path: Path) -> None:
    put(tmp_path, record("a1", sweep="s1"), record("a2", sweep="s1"), record("b1", sweep="given", matrix=None))
    one = site(tmp_path)
    one.index.refresh()
    cell, entry, alone = (one.index.of_attempt(name) for name in ("a1", "a2", "b1"))
    assert cell is not None and entry is not None and alone is not None
    child, search = f"s1__{entry.config_id}-r0", f"s1__{entry.config_id}-search-061500"
    assert address_of_run(one, "experiment", search) == "/faultline/experiments/a2", "before runs were noted"
    assert runs_of_entry(one, entry)[0] == Run("experiment", child)
    for attempt, said in (("a1", {"run_id": child}), ("a2", {"run_id": search}), ("b1", {"run_id": "manual__7"})):
        folder = tmp_path / "attempts" / attempt
        folder.mkdir(parents=True)
        (folder / "attempt.json").write_text(json.dumps({**said, "parent_run_id": None}))
    assert [runs_of_entry(one, each)[0].run_id for each in (cell, entry, alone)] == [child, search, "manual__7"]
    assert address_of_run(one, "experiment", search) == "/faultline/experiments/a2"
    assert address_of_run(one, "experiment", child) == "/faultline/experiments/a1", "another run of the same cell"
    with pytest.raises(Unknown, match="no record yet"):
        address_of_run(one, "experiment", search.replace("0615", "0715"))
    for odd in ('{"run_id": 5}', '{"run_id": "\\ud800", "parent_run_id": "\\ud800"}', '{"run_id": ["x"]}'):
        (tmp_path / "attempts" / "a2" / "attempt.json").write_text(odd)
        assert runs_of_entry(one, entry)[0] == Run("experiment", child)
