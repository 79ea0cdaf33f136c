"""`./faultline demo` with simulated services: it measures, resumes or only shows results."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from faultline.cli import demo
from faultline.cli.sweep_progress import FollowResult
from faultline.experiment.common_parameters import DEMO_MEASUREMENTS
from faultline.experiment.matrix import PlannedCell
from faultline.records.record import Record
from faultline.records.store import Store
from faultline.system.errors import InfrastructureError
from faultline.system.settings import ROOT, Settings
from tests.unit.sample_records import sample

BUILD = "b1"
NUMBERS = count()


class Airflow:
    """Simulated Airflow: running demos and triggered runs."""

    def __init__(self) -> None:
        self.going: list[str] = []
        self.triggered: list[dict[str, Any]] = []

    def runs(self, dag_id: str, *states: str) -> list[dict[str, Any]]:
        return [{"dag_run_id": run_id} for run_id in self.going]

    def trigger(self, dag_id: str, conf: dict[str, Any], *, run_id: str) -> str:
        self.triggered.append(conf)
        return run_id


class Demo:
    """Demo whose `follow` writes records for `measures` with `statuses` and ends with `state`."""

    def __init__(self, settings: Settings, airflow: Airflow) -> None:
        self.settings, self.airflow = settings, airflow
        self.state, self.measures = "success", list(self.cells)
        self.statuses: dict[int, str] = {}
        self.first_recovery_s: float | None = None
        self.messages: list[str] = []

    @property
    def cells(self) -> list[PlannedCell]:
        return demo.demo_matrix().cells(BUILD)

    def follow(self, api: Any, settings: Settings, dag: str, run_id: str, *_: Any, **how: Any) -> FollowResult:
        assert how["most"] == DEMO_MEASUREMENTS and how["keep_invalid"]
        for number, cell in enumerate(self.measures):
            at, status = datetime.now(UTC) + timedelta(seconds=number + 1), self.statuses.get(number, "valid")
            Store(settings.results).write(record_of(cell, run_id, at, status))
        return FollowResult(self.state, self.first_recovery_s)

    def lines(self, begin: str) -> list[str]:
        return [line for line in self.messages if line.startswith(begin)]

    def run(self, *, rerun: bool = False) -> int:
        self.messages.clear()
        return demo.run_demo(self.messages.append, rerun=rerun, output=None)


def record_of(cell: PlannedCell, run_id: str, at: datetime, status: str = "valid") -> Record:
    made = sample(
        attempt=f"{at:%Y%m%dT%H%M%SZ}-{next(NUMBERS):06x}",
        status=status,
        reasons=[] if status == "valid" else ["not-steady: why"],
        repetition=cell.repetition,
        **cell.config.model_dump(mode="json"),
    )
    return made.model_copy(update={"series": BUILD, "sweep_id": run_id})


@pytest.fixture
def demonstration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Demo:
    settings = Settings(root=ROOT, home=tmp_path / "home", results=tmp_path / "results")
    made = Demo(settings, Airflow())
    for name, fake in {
        "bring_up": lambda say: settings,
        "login_text": lambda settings, out: "user admin",
        "installed_build": lambda settings: BUILD,
        "AirflowApi": lambda settings: made.airflow,
        "await_dags": lambda api, *dags: None,
        "follow": made.follow,
    }.items():
        monkeypatch.setattr(demo, name, fake)
    return made


def test_a_second_demo_only_shows_the_results(demonstration: Demo, capsys: pytest.CaptureFixture[str]) -> None:
    number = len(demonstration.cells)
    assert demonstration.run() == 0
    assert demonstration.messages[0].endswith("user admin"), "before anything is measured"
    assert demonstration.messages[1].startswith(f"{number} of {number} experiments to measure")
    assert demonstration.airflow.triggered == [
        {"preset": "demo", "only_missing": True, "max_measurements": DEMO_MEASUREMENTS, "keep_invalid": True}
    ]
    out = capsys.readouterr().out
    assert out.count("valid") == number and "report: " in out and "airflow: http" in out
    assert demonstration.run() == 0
    assert len(demonstration.airflow.triggered) == 1
    assert demonstration.messages[1].startswith("all experiments have usable records")
    assert capsys.readouterr().out.count("valid") == number


def test_an_invalid_record_is_kept_and_no_failure(demonstration: Demo) -> None:
    demonstration.statuses = {0: "invalid", 3: "invalid"}
    assert demonstration.run() == 0
    lacking = demonstration.lines("no usable record")
    assert lacking and all("(invalid)" in line for line in lacking)
    demonstration.statuses = {}
    demonstration.measures = [demonstration.cells[0], demonstration.cells[3]]
    assert demonstration.run() == 0
    assert demonstration.messages[1].startswith("2 of "), "a second call measures them again"
    assert not demonstration.lines("no usable record")


@pytest.mark.parametrize("rerun", [False, True])
def test_missing_and_failed_runs_fail_the_demo(demonstration: Demo, rerun: bool) -> None:
    demonstration.measures = demonstration.cells[1:]
    demonstration.statuses = {0: "failed"}
    assert demonstration.run(rerun=rerun) == 1
    lacking = demonstration.lines("no usable record")
    assert len(lacking) == 2 and any("(failed)" in line for line in lacking)
    assert all(f"`./faultline demo{' --rerun' * rerun}`" in line for line in lacking)


def test_the_time_of_the_first_recovery_is_printed(demonstration: Demo) -> None:
    assert demonstration.run() == 0
    assert not demonstration.lines("first recovery")
    demonstration.first_recovery_s = datetime.now(UTC).timestamp() + 90
    demonstration.state = "failed"
    assert demonstration.run(rerun=True) == 1, "though all records are there"
    (line,) = demonstration.lines("first recovery")
    assert line.count("1.5 min") == 2, "since the start, and since the services were up"


def test_a_sweep_without_a_record_is_an_error(demonstration: Demo) -> None:
    demonstration.measures = []
    with pytest.raises(InfrastructureError, match="^demo: "):
        demonstration.run()


@pytest.mark.parametrize("rerun", [False, True])
def test_a_running_demo_is_resumed(demonstration: Demo, rerun: bool) -> None:
    assert demonstration.run() == 0
    demonstration.airflow.going = ["other", "demo_20261122T000000Z"]
    assert demonstration.run(rerun=rerun) == 0
    assert "resuming demo_20261122T000000Z" in demonstration.messages
    assert len(demonstration.airflow.triggered) == 1


def test_stopped_services_keep_the_records(demonstration: Demo, capsys: pytest.CaptureFixture[str]) -> None:
    demonstration.state, demonstration.measures = "", []
    assert demonstration.run() == 1
    assert capsys.readouterr().out == ""
    assert not [line for line in demonstration.messages if "no usable record" in line or "done in" in line]
    demonstration.measures = demonstration.cells[:2]
    assert demonstration.run() == 1
    assert "report: " in capsys.readouterr().out
