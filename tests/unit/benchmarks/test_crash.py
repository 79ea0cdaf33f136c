"""Plan, timing and counts of `bench crash`."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from benchmarks import crash
from benchmarks.broken_sweeps import BenchmarkLog, require_zero
from benchmarks.crash import RANDOM_KILLS, ROLES, STEPS, VICTIMS, Kill, Kills, figures, is_due, plan_kills
from benchmarks.figure import BenchmarkFigure, total
from benchmarks.leak_check import count_cells
from benchmarks.long_sweep import LOCKED, fixed_cost, growth, lines_with
from faultline.records.record import Record
from faultline.records.sweep_plan import SweepCell
from faultline.system.errors import ConfigError, InfrastructureError
from faultline.system.settings import ROOT, Settings
from faultline.system.text import Progress
from tests.unit.sample_records import sample

NOW = datetime(2026, 11, 22, tzinfo=UTC)


def test_the_plan_holds_every_victim_at_every_boundary_and_is_the_same_each_time() -> None:
    kills = plan_kills()
    boundaries = Counter((kill.victim, kill.after) for kill in kills if kill.after)
    assert set(boundaries.values()) == {1}
    assert len(boundaries) == 4 * len(STEPS) + sum(map(len, ROLES.values()))
    assert sum(kill.after is None for kill in kills) == RANDOM_KILLS
    assert {kill.victim for kill in kills} == set(VICTIMS)
    assert [kill.number for kill in kills] == list(range(len(kills)))
    assert plan_kills() == kills


@pytest.mark.parametrize(("given", "name"), [("", "crash"), ("postgresql://a:b@127.0.0.1/c", "crash_postgresql")])
def test_an_installation_of_its_own_lies_on_the_database_that_is_given(
    given: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Quick and full runs have separate logs."""
    begun: list[tuple[str, str]] = []

    def own_services(name: str, _: Progress, database: str) -> None:
        begun.append((name, database))
        raise InfrastructureError("as far as here")

    monkeypatch.setattr(crash, "own_services", own_services)
    monkeypatch.setenv(crash.BENCH_DATABASE, given)
    with pytest.raises(InfrastructureError, match="as far as here"):
        crash.run(print, quick=True)
    assert begun == [(name, given)]


@pytest.mark.parametrize(
    ("after", "states", "since", "due"),
    [
        *(("prepare", [ended, state], NOW, True) for ended in ("success", "failed")
          for state in (None, "scheduled", "queued", "running")),
        ("prepare", ["success", None], NOW + timedelta(seconds=1), False),  # that was an earlier one
        ("provision_topics", ["success", "running"], NOW, False),
        ("prepare", ["success", "failed"], NOW, False),  # it has passed
        ("prepare", ["running"], NOW, False),
        ("teardown", [*["success"] * len(STEPS)], NOW, True),
    ],
)  # fmt: skip
def test_a_boundary_is_due_between_two_steps(after: str, states: list[str | None], since: datetime, due: bool) -> None:
    tasks = [
        {"task_id": step, "state": state, "end_date": NOW.isoformat() if state in ("success", "failed") else None}
        for step, state in zip(STEPS, states, strict=False)
    ]
    assert is_due(tasks, after, since) == due


def record(attempt: str, repetition: int, status: str) -> Record:
    return sample(attempt=attempt, repetition=repetition, status=status, reasons=[] if status == "valid" else ["x: y"])


def cell(repetition: int) -> SweepCell:
    return SweepCell(config={}, config_id=record("0", 0, "valid").config_id, repetition=repetition)


def test_cells_are_counted_by_their_valid_records() -> None:
    cells = [cell(number) for number in range(4)]
    records = [
        record("1", 0, "failed"), record("2", 0, "valid"), record("3", 1, "unmet"), record("4", 1, "invalid"),
        record("5", 2, "valid"), record("6", 2, "valid"),
    ]  # fmt: skip
    found = count_cells(cells, "b1", [*"123456", "7"], records)
    assert (found.planned, found.once, found.lost, found.double) == (4, 2, 1, 1)
    assert found.remeasured == 2, "of the cells 1 and 2"
    assert found.attempts == 7


class Airflow:
    """Knows these runs, and ends those that it is given as `states` say."""

    def __init__(self, known: dict[str, str], states: list[str]) -> None:
        self.known, self.states, self.triggered = known, states, list[str]()

    def run(self, dag_id: str, run_id: str) -> dict[str, Any]:
        if run_id not in self.known:
            raise ConfigError(f"airflow: {run_id}: not found")
        return {"state": self.known[run_id]}

    def run_state(self, dag_id: str, run_id: str) -> str:
        return str(self.run(dag_id, run_id)["state"])

    def trigger(self, dag_id: str, form: dict[str, Any], *, run_id: str) -> str:
        assert run_id not in self.known and form["series"] == "crash-1"
        self.triggered.append(run_id)
        self.known[run_id] = self.states.pop(0)
        return run_id


@pytest.mark.parametrize(
    ("known", "states", "triggered"),
    [
        ({"crash-1-0": "success"}, [], []),
        ({"crash-1-0": "failed"}, ["success"], ["crash-1-1"]),
        ({}, ["success"], ["crash-1-0"]),
        ({}, ["failed", "success"], ["crash-1-0", "crash-1-1"]),
    ],
    ids=["it ended", "it ended red", "it never came to be", "it never came to be, and ends red"],
)
def test_a_sweep_of_an_interrupted_call_is_brought_to_its_end(
    known: dict[str, str], states: list[str], triggered: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call may have ended between the note of a run and its trigger."""
    airflow, settings = Airflow(known, states), Settings(ROOT, tmp_path / "home", tmp_path / "results")
    monkeypatch.setattr("benchmarks.broken_sweeps.AirflowApi", lambda _: airflow)
    monkeypatch.setattr("benchmarks.broken_sweeps.count_series", lambda *_: count_cells([], "b1", [], []))
    diary = BenchmarkLog(tmp_path / "crash.jsonl", "kill")
    diary.note("run", series="crash-1", run_id="crash-1-0")
    ((series, runs),) = diary.unfinished.items()
    sweep = Kills(settings, diary, print).finish(series, runs)
    assert (airflow.triggered, sweep.state) == (triggered, "success")
    assert sweep.triggers == len(airflow.known) and not diary.unfinished


class Fragile(Airflow):
    """Ends its first run red, and each after that green, once as many acts were done as are expected of it."""

    def __init__(self) -> None:
        super().__init__({}, [])
        self.done = 0

    def runs(self, dag_id: str, *states: str) -> list[dict[str, Any]]:
        return []

    def trigger(self, dag_id: str, form: dict[str, Any], *, run_id: str) -> str:
        self.triggered.append(run_id)
        self.known[run_id] = "running"
        return run_id

    def act(self, run_id: str) -> None:
        self.done += 1
        if self.done in (2, 3, 5):
            self.known[run_id] = "failed" if self.done == 2 else "success"


def test_acts_are_done_once_each_and_a_red_sweep_is_triggered_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    airflow, settings = Fragile(), Settings(ROOT, tmp_path / "home", tmp_path / "results")

    class Acts(Kills):
        per_sweep = 3

        def deliver(self, kill: Kill, run_id: str) -> bool:
            self.note(kill, run_id, pid=1)
            airflow.act(run_id)
            return True

    monkeypatch.setattr("benchmarks.broken_sweeps.AirflowApi", lambda _: airflow)
    monkeypatch.setattr("benchmarks.broken_sweeps.count_series", lambda *_: count_cells([], "b1", [], []))
    monkeypatch.setattr("benchmarks.broken_sweeps.run_undisturbed", lambda *_: None)
    monkeypatch.setattr("benchmarks.broken_sweeps.count_leftovers", lambda *_: {"orphans": total([0.0])})
    monkeypatch.setattr("benchmarks.broken_sweeps.new_series", lambda name: f"{name}-{len(airflow.triggered)}")
    diary = BenchmarkLog(tmp_path / "crash.jsonl", "kill")
    assert Acts(settings, diary, print).go_through(plan_kills()[:5])["orphans"].value == 0
    assert [line["number"] for line in diary.acts] == list(range(5)) and not diary.unfinished
    assert airflow.triggered == ["crash-0-0", "crash-0-1", "crash-2-0"], "the first sweep was red once"
    assert [(one["acts"], one["triggers"], one["state"]) for one in diary.sweeps] == [
        (3, 2, "success"),
        (2, 1, "success"),
    ]


def test_figures_are_sums_over_sweeps() -> None:
    outcome = {"planned": 4, "once": 4, "lost": 0, "double": 0, "remeasured": 0, "attempts": 6}
    sweeps = [{"outcome": outcome, "triggers": 1, "seconds": 10.0}, {"outcome": outcome, "triggers": 2, "seconds": 5.0}]
    kills = [{"victim": "kafka", "after": "judge"}, {"victim": "task", "after": None}]
    found = figures(sweeps, kills)
    values = {name: figure.value for name, figure in found.items()}
    assert values["cells"] == values["cells_once"] == 8
    assert (values["kills"], values["kills_kafka"], values["kills_at_boundaries"]) == (2, 1, 1)
    assert (values["triggers"], values["wall_s"]) == (3, 15.0)


def test_what_must_not_be_is_named() -> None:
    found: dict[str, BenchmarkFigure] = {
        name: total([0.0]) for name in ("lost_records", "duplicate_records", "remeasured", "orphan_ports", "unsaid")
    }
    require_zero("crash", found, ["unsaid"])
    found |= {"orphan_ports": total([2.0]), "unsaid": total([1.0])}
    with pytest.raises(InfrastructureError, match="^crash: orphan_ports 2, unsaid 1$"):
        require_zero("crash", found, ["unsaid"])


def test_the_diary_survives_a_crash_amid_a_line_and_knows_older_ones(tmp_path: Path) -> None:
    path = tmp_path / "crash.jsonl"
    path.write_text('{"kind": "run", "series": "s0", "run_id": "s0-0"}\n')
    BenchmarkLog(path, "kill").note("kill", number=3, victim="task")
    with path.open("a") as file:
        file.write('{"event": "swe')
    again = BenchmarkLog(path, "kill")
    again.note("sweep", series="s1")
    assert (BenchmarkLog(path, "kill").done, [line["series"] for line in BenchmarkLog(path, "kill").sweeps]) == (
        {3},
        ["s1"],
    )
    assert BenchmarkLog(path, "kill").unfinished == {"s0": ["s0-0"]}
    again.move_aside()
    assert not path.exists() and BenchmarkLog(path, "kill").acts == []


def test_fixed_cost_excludes_the_measured_time() -> None:
    figure = fixed_cost([0.0, 30.0, 62.0, 90.0], measured_s=10.0)["fixed_s"]
    assert (figure.value, figure.low, figure.high, figure.n) == (20.0, 18.0, 22.0, 3)
    assert fixed_cost([1.0], measured_s=10.0) == {}


def test_growth_compares_the_first_and_last_quarter() -> None:
    samples = [{"kafka": (float(number), 7)} for number in range(8)]
    found = growth(samples)  # type: ignore[arg-type]
    assert (found["memory_kafka"].low, found["memory_kafka"].value) == (0.5, 6.5)
    assert (found["descriptors_kafka"].low, found["descriptors_kafka"].value) == (7, 7)
    assert growth(samples[:3]) == {}  # type: ignore[arg-type]


def test_lines_of_all_logs_are_counted(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "one.log").write_text(f"x\n(sqlite3.OperationalError) {LOCKED}\n")
    (tmp_path / "two.txt").write_text(LOCKED)
    assert lines_with(LOCKED, [tmp_path, tmp_path / "none"]) == 1
