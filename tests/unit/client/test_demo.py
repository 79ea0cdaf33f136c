"""What `./faultline demo` does with what there is: measures, goes on, or only shows. Services are made up here; the
suite's sweeps and forms run the real ones."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from faultline.base.errors import InfrastructureError
from faultline.base.settings import ROOT, Settings
from faultline.client import demo
from faultline.experiment.matrix import PlannedCell
from faultline.records.record import Record
from faultline.records.store import Store
from tests.unit.sample_records import sample

BUILD = "b1"
NUMBERS = count()


class Airflow:
    """Runs of the demo that are going, and what was triggered."""

    def __init__(self) -> None:
        self.going: list[str] = []
        self.triggered: list[dict[str, Any]] = []

    def runs(self, dag_id: str, *states: str) -> list[dict[str, Any]]:
        return [{"dag_run_id": run_id} for run_id in self.going]

    def trigger(self, dag_id: str, conf: dict[str, Any], *, run_id: str) -> str:
        self.triggered.append(conf)
        return run_id


class Demo:
    """One call after the other; `follow` measures what `measures` says, and ends as `ended` says."""

    def __init__(self, settings: Settings, airflow: Airflow) -> None:
        self.settings, self.airflow = settings, airflow
        self.ended, self.measures = True, list(self.cells)
        self.said: list[str] = []

    @property
    def cells(self) -> list[PlannedCell]:
        return demo.demo_matrix().cells(BUILD)

    def follow(self, api: Any, settings: Settings, dag: str, run_id: str, *_: Any, **__: Any) -> bool:
        for number, cell in enumerate(self.measures):
            Store(settings.results).write(record_of(cell, run_id, datetime.now(UTC) + timedelta(seconds=number + 1)))
        return self.ended

    def run(self, *, again: bool = False) -> int:
        self.said.clear()
        return demo.run_demo(self.said.append, again=again, output=None)


def record_of(cell: PlannedCell, run_id: str, at: datetime) -> Record:
    made = sample(attempt=f"{at:%Y%m%dT%H%M%SZ}-{next(NUMBERS):06x}", **cell.config.model_dump(mode="json"))
    return made.model_copy(update={"series": BUILD, "sweep_id": run_id})


@pytest.fixture
def demonstration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Demo:
    settings = Settings(root=ROOT, home=tmp_path / "home", results=tmp_path / "results")
    made = Demo(settings, Airflow())
    monkeypatch.setattr(demo, "bring_up", lambda say: settings)
    monkeypatch.setattr(demo, "login_words", lambda settings, out: "user admin")
    monkeypatch.setattr(demo, "installed_build", lambda settings: BUILD)
    monkeypatch.setattr(demo, "AirflowApi", lambda settings: made.airflow)
    monkeypatch.setattr(demo, "await_dags", lambda api, *dags: None)
    monkeypatch.setattr(demo, "follow", made.follow)
    return made


def test_it_measures_and_a_second_call_only_shows(demonstration: Demo, capsys: pytest.CaptureFixture[str]) -> None:
    assert demonstration.run() == 0
    assert demonstration.said[0].endswith("user admin"), "before anything is measured"
    assert demonstration.said[1].startswith("5 of 5 experiments to measure")
    assert demonstration.airflow.triggered == [{"preset": "demo", "only_missing": True}]
    out = capsys.readouterr().out
    assert out.count("valid") == 5 and "report: " in out and "airflow: http" in out
    assert demonstration.run() == 0
    assert len(demonstration.airflow.triggered) == 1
    assert demonstration.said[1] == "all experiments have valid records; `--again` measures them anew"
    assert capsys.readouterr().out.count("valid") == 5


def test_what_lacks_a_valid_record_is_named_with_the_call_that_measures_it(demonstration: Demo) -> None:
    demonstration.measures = demonstration.cells[1:]
    assert demonstration.run() == 1
    lacking = [line for line in demonstration.said if line.startswith("no valid record")]
    assert len(lacking) == 1 and lacking[0].endswith("`./faultline demo` measures it again")
    assert demonstration.run(again=True) == 1
    lacking = [line for line in demonstration.said if line.startswith("no valid record")]
    assert len(lacking) == 1 and lacking[0].endswith("`./faultline demo --again` measures it again")


@pytest.mark.parametrize("again", [False, True])
def test_a_run_that_goes_on_is_joined_by_either_call(demonstration: Demo, again: bool) -> None:
    assert demonstration.run() == 0
    demonstration.airflow.going = ["other", "demo_20261122T000000Z"]
    assert demonstration.run(again=again) == 0
    assert "goes on with demo_20261122T000000Z" in demonstration.said
    assert len(demonstration.airflow.triggered) == 1


def test_ended_services_leave_what_was_measured_and_no_advice_that_is_wrong(
    demonstration: Demo, capsys: pytest.CaptureFixture[str]
) -> None:
    demonstration.ended, demonstration.measures = False, []
    assert demonstration.run() == 1
    assert capsys.readouterr().out == ""
    assert not [line for line in demonstration.said if "no valid record" in line or "done in" in line]
    demonstration.measures = demonstration.cells[:2]
    assert demonstration.run() == 1
    assert capsys.readouterr().out.count("valid") == 2


def test_a_sweep_that_left_no_record_at_all_is_an_error(demonstration: Demo) -> None:
    demonstration.measures = []
    with pytest.raises(InfrastructureError, match="not one experiment left a record"):
        demonstration.run()
