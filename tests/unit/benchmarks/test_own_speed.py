"""Self-benchmark runs: planted slowdowns are found, and incomparable runs are not compared."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.figure import summarise
from benchmarks.own_speed import SpeedRun, as_json, judge_speed, read_runs
from faultline.comparison.compare import ComparisonVerdict

QUIET = (1.00, 1.01, 0.99, 1.02, 0.98)
MACHINE = {"cores": 2, "memory_mb": 8000, "system": "Linux", "python": "3.11.7", "load_1m": 0.1}


def make_run(
    folder: Path, day: int, figures: Mapping[str, Sequence[float]], *, build: str = "a", **machine: Any
) -> SpeedRun:
    """Return a run with figures of the benchmark `b`, stored and read again."""
    outcome = {
        "name": "b",
        "figures": {name: vars(summarise(list(values), "s")) for name, values in figures.items()},
        "machine": {**MACHINE, **machine},
    }
    date = f"2026-11-{day:02d}T05:00:00+00:00"
    kept = as_json(date, build, [outcome] if figures else [], {} if figures else {"b": "failed"})
    (folder / f"{day:02d}.json").write_text(json.dumps(kept))
    return read_runs(folder)[-1]


def scaled(factor: float) -> list[float]:
    return [one * factor for one in QUIET]


@pytest.mark.parametrize(
    ("name", "factor", "verdict"),
    [
        ("fixed_s", 1.3, ComparisonVerdict.WORSE),
        ("fixed_s", 0.7, ComparisonVerdict.BETTER),
        ("ratio_zipf", 0.7, ComparisonVerdict.WORSE),
        ("efficiency_2_processes", 1.3, ComparisonVerdict.BETTER),
        ("records_per_s", 0.7, ComparisonVerdict.WORSE),
        ("fixed_s", 1.0, ComparisonVerdict.EQUIVALENT),
    ],
)
def test_a_planted_change_is_found_by_its_direction(
    tmp_path: Path, name: str, factor: float, verdict: ComparisonVerdict
) -> None:
    for day in (1, 2, 3):
        make_run(tmp_path, day, {name: scaled(1 + day / 1000)})
    own = make_run(tmp_path, 4, {name: scaled(factor)})
    judged = judge_speed(own, read_runs(tmp_path), 7)
    assert [reason.partition(":")[0] for reason in judged.reasons] == [f"b.{name}"] * (
        verdict is ComparisonVerdict.WORSE
    )
    assert judged.summary == f"1 {verdict}; against 2026-11-01 to 2026-11-03"


def test_runs_of_other_builds_or_machines_are_not_pooled(tmp_path: Path) -> None:
    make_run(tmp_path, 1, {"fixed_s": scaled(0.5)}, build="a")
    make_run(tmp_path, 2, {"fixed_s": scaled(1.0)}, build="b")
    make_run(tmp_path, 3, {"fixed_s": scaled(0.2)}, build="b", cores=64)
    own = make_run(tmp_path, 4, {"fixed_s": scaled(1.0)}, build="c", load_1m=3.0)
    judged = judge_speed(own, read_runs(tmp_path), 7)
    assert judged.baseline == ("2026-11-02T05:00:00+00:00",)
    assert judged.summary == "1 equivalent; against 2026-11-02"


def test_a_run_without_baseline_or_figures_has_a_problem(tmp_path: Path) -> None:
    first = make_run(tmp_path, 1, {"fixed_s": QUIET})
    assert judge_speed(first, [first], 7).problem == "2026-11-01: no earlier run on an equal machine"
    broken = make_run(tmp_path, 2, {})
    judged = judge_speed(broken, read_runs(tmp_path), 7)
    assert (judged.problem, judged.summary) == ("2026-11-02: no benchmark has a figure", "nothing to compare")
    assert broken.failed == ("b",)


def test_few_repetitions_give_no_verdict(tmp_path: Path) -> None:
    make_run(tmp_path, 1, {"fixed_s": QUIET})
    own = make_run(tmp_path, 2, {"fixed_s": [5.0, 5.0]})
    assert judge_speed(own, read_runs(tmp_path), 7).summary == "1 inconclusive; against 2026-11-01"
