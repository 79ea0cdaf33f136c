"""Fixed cost of an experiment by its files."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from benchmarks.speed.overhead import STEPS, figures, gate_s, steps_of
from faultline.experiment.attempt import Attempt

BEGAN_S = 1_795_241_000.0
WINDOW_S = 75.0
# Seconds of each step, in order.
TOOK = dict(zip(STEPS, (2.0, 15.0, 1.5, 1.0, 2.5, 4.0, 1.25, 0.75), strict=True))


def measured(folder: Path, *, after_s: float = 0.0, without: tuple[str, ...] = ()) -> Attempt:
    """The files of an attempt whose turn came `after_s`, with their times."""
    attempt = Attempt(folder)
    attempt.harvest.mkdir(parents=True)
    at, instant = {"start": BEGAN_S + after_s}, BEGAN_S + after_s
    for step in STEPS:
        instant += TOOK[step] + (WINDOW_S if step == "drain" else 0.0)
        at[step] = instant
    done = at["gate"] + WINDOW_S

    def line(path: Path, when: float, **what: object) -> None:
        with path.open("a") as journal:
            journal.write(json.dumps({"wall_ns": round(when * 1e9), **what}) + "\n")

    (folder / "attempt.json").write_text(json.dumps({"prepared_wall_ns": round((BEGAN_S - 100) * 1e9)}))
    line(attempt.recorder_journal, at["start"], kind="start", after=None)
    line(attempt.supervisor_journal, at["processes"], event="start")
    line(attempt.supervisor_journal, at["processes"] + 50, event="start")
    line(attempt.listener_journal, at["engine"], event="started")
    line(attempt.listener_journal, at["warm"], event="progress")
    line(attempt.listener_journal, at["warm"] + 9, event="progress")
    line(attempt.conductor_journal, at["gate"], event="gate", t0_wall_ns=round(at["gate"] * 1e9))
    line(attempt.conductor_journal, done, event="done")
    names = {"drain": "end.json", "harvest": "harvest/counts.parquet", "judge": "series.json", "close": "closed.json"}
    for step, name in names.items():
        if step not in without:
            (folder / name).touch()
            os.utime(folder / name, (at[step], at[step]))
    return attempt


def test_each_step_is_read_from_its_files(tmp_path: Path) -> None:
    assert steps_of(measured(tmp_path / "a")) == pytest.approx(TOOK, abs=1e-3)


def test_a_step_that_left_no_file_is_left_out_and_its_time_is_the_next_ones(tmp_path: Path) -> None:
    found = steps_of(measured(tmp_path / "a", without=("judge",)))
    assert "judge" not in found and found["close"] == pytest.approx(TOOK["judge"] + TOOK["close"], abs=1e-3)


def test_overlapping_steps_of_a_sweep_are_free(tmp_path: Path) -> None:
    attempts = [measured(tmp_path / f"a{number}", after_s=number * 100.0) for number in range(3)]
    found = figures(attempts, WINDOW_S)
    assert found["fixed_s"].value == pytest.approx(25.0) and found["fixed_s"].n == 2
    assert found["share"].value == pytest.approx(0.25)
    assert found["single_s"].value == pytest.approx(sum(TOOK.values()), abs=1e-3) and found["single_s"].n == 3
    assert {name: found[f"step_{name}_s"].value for name in STEPS} == pytest.approx(TOOK, abs=1e-3)


def test_an_experiment_of_another_in_between_is_nobodys_fixed_cost(tmp_path: Path) -> None:
    attempts = [measured(tmp_path / f"a{number}", after_s=number * 100.0) for number in range(3)]
    between = (gate_s(attempts[0]) or 0.0) + 10
    assert figures(attempts, WINDOW_S, [between])["fixed_s"].n == 1
    assert figures(attempts, WINDOW_S, [between - 20, between + 500])["fixed_s"].n == 2


def test_one_that_never_opened_its_gate_has_none(tmp_path: Path) -> None:
    assert gate_s(Attempt(tmp_path)) is None
