"""Correctness of the measuring chain: 23 experiments with planted times and counts.

Each scenario is a normal experiment. Its times are compared to within time bins, its counts exactly. In addition, Spark
harvests the topics, as for other workloads; its tables must equal those of the engine's own harvest. Results are stored
in one file by scenario and hash of the code, so an interrupted benchmark resumes, and changed code is measured again.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.broken_sweeps import BenchmarkLog
from benchmarks.figure import BenchmarkFigure, exact_figure, total
from benchmarks.ground_truth.expected_values import TruthError, compare, planted_truth
from benchmarks.ground_truth.planted_end import EndWatch
from benchmarks.ground_truth.scenarios import QUICK, SCENARIOS, Scenario
from benchmarks.speed.spark_job import run_job, submit_command
from faultline.cli.run_command import run_single
from faultline.cli.service_control import bring_up
from faultline.experiment.attempt import Attempt
from faultline.experiment.attempt_plan import read_plan
from faultline.experiment.matrices import MOST_MEASUREMENTS
from faultline.installation.kafka import delete_own_topics
from faultline.records.record import Record
from faultline.system.errors import InfrastructureError
from faultline.system.hashes import list_hash
from faultline.system.settings import Settings
from faultline.system.text import Progress

TABLES = ("records", "tuples", "counts")
# Code that takes part in the measurement.
_CODE = ("include/faultline", "generators", "fault", "spark_jobs")

Outcome = dict[str, Any]


def run(progress: Progress, quick: bool) -> dict[str, BenchmarkFigure]:
    """Run the missing scenarios.

    Figures: scenarios, worst_time_error_bins, count_errors, and differing_tables (Spark's harvest and the judged one).
    Raises InfrastructureError if a scenario has no usable record.
    """
    settings = bring_up(progress)
    folder, build = settings.home / "bench", code_build(settings.root)
    folder.mkdir(exist_ok=True)
    diary = BenchmarkLog(folder / "known_truth.jsonl", "outcome")
    known = {line["key"]: line["outcome"] for line in diary.acts}
    outcomes = []
    for number, scenario in enumerate(QUICK if quick else SCENARIOS, start=1):
        key = f"{build}/{scenario.name}/{scenario.configuration.config_id}"
        if key not in known:
            known[key] = _measure(settings, scenario, progress)
            diary.note("outcome", key=key, outcome=known[key])
        outcomes.append(known[key])
        _show(progress, number, scenario, known[key])
    return figures(outcomes)


def figures(outcomes: list[Outcome]) -> dict[str, BenchmarkFigure]:
    """Return the figures; `low` and `high` are those of single scenarios."""
    n = len(outcomes)
    times = [max(float(item["error"]) for item in _of_kind(outcome, "time")) for outcome in outcomes]
    counts = [sum(float(item["error"]) for item in _of_kind(outcome, "count")) for outcome in outcomes]
    differing = [len(outcome["differing_tables"]) for outcome in outcomes]
    return {
        "scenarios": exact_figure(n, "1", n),
        "worst_time_error_bins": BenchmarkFigure(max(times), "bins", min(times), max(times), n),
        "count_errors": total(counts),
        "differing_tables": total(differing),
    }


def code_build(root: Path) -> str:
    """Return a hash of all relevant code, 12 hex digits."""
    return list_hash(path for folder in _CODE for path in sorted((root / folder).rglob("*.py")))[:12]


def judge_scenario(scenario: Scenario, record: Record) -> list[TruthError]:
    """Return every planted value of a scenario with the measured one."""
    primer, run = scenario.configuration.primer_records, scenario.run
    if scenario.configuration.injections == 1:
        return compare(planted_truth(scenario.script, run, primer=primer), record)
    # Later kills and the end of the load are not planned: the fault scheduler decides them during the run.
    at = {event.name: event.wall_ns for event in record.timeline}
    since = {name: wall_ns - at["gate"] for name, wall_ns in at.items()}
    kills = sorted(since_ns for name, since_ns in since.items() if name.partition("#")[0] == "t0")
    watch = EndWatch(since["measured_from"], since["measured_until"])
    found = planted_truth(
        scenario.script, run, primer=primer, kills_ns=kills, until_ns=since["measured_until"], watch=watch
    )
    return compare(found, record)


def _measure(settings: Settings, scenario: Scenario, progress: Progress) -> Outcome:
    """Measure one usable record of the scenario and compare it with the planted values."""
    record: Record | None = None
    for number in range(MOST_MEASUREMENTS):
        progress(f"{scenario.name}: measuring" + (f" again ({number + 1} of {MOST_MEASUREMENTS})" if number else ""))
        record = run_single("known_truth", scenario.parameters(), lambda text: None, keep_topics=True)
        attempt = Attempt(settings.attempts / record.attempt)
        try:
            if record.status == "valid":
                found = [asdict(item) for item in judge_scenario(scenario, record)]
                outcome = {"attempt": record.attempt, "measurements": number + 1, "comparisons": found}
                return {**outcome, "differing_tables": differing_tables(settings, attempt)}
        finally:
            if attempt.folder.exists():
                delete_own_topics(settings, [one.name for one in read_plan(attempt).topics.values()])
        progress(f"{scenario.name}: {record.attempt} is {record.status}: {'; '.join(record.reasons)}")
    assert record is not None
    raise InfrastructureError(
        f"{scenario.name}: no usable record after {MOST_MEASUREMENTS} measurements; last attempt "
        f"{settings.attempts / record.attempt}: {'; '.join(record.reasons)}"
    )


def differing_tables(settings: Settings, attempt: Attempt) -> list[str]:
    """Return the names of the harvest's tables that differ from Spark's."""
    with tempfile.TemporaryDirectory(prefix="faultline-harvest-") as name:
        folder = Path(name)
        config = json.loads((attempt.folder / "harvest_config.json").read_text(encoding="utf-8"))
        (folder / "config.json").write_text(json.dumps({**config, "target": str(folder / "harvest")}))
        command = submit_command(settings, "harvest", ["--config", str(folder / "config.json")])
        run_job(settings, command, folder)
        pairs = {
            table: (attempt.harvest / f"{table}.parquet", folder / "harvest" / f"{table}.parquet") for table in TABLES
        }
        return [table for table, pair in pairs.items() if not _alike(*pair)]


def _alike(first: Path, second: Path) -> bool:
    """Return whether two tables have the same rows in any order."""
    a, b = (pd.read_parquet(path) for path in (first, second))
    columns = sorted(a.columns)
    if columns != sorted(b.columns) or len(a) != len(b):
        return False
    a, b = (one[columns].sort_values(columns).reset_index(drop=True) for one in (a, b))
    return bool(a.equals(b))


def _show(progress: Progress, number: int, scenario: Scenario, outcome: Outcome) -> None:
    """Report one line, and one for each time with an error of at least a tenth of a bin and each wrong count."""
    times, counts = _of_kind(outcome, "time"), _of_kind(outcome, "count")
    worst = max(times, key=lambda item: float(item["error"]))
    wrong = sum(float(item["error"]) for item in counts)
    progress(
        f"{number}. {scenario.name} ({outcome['attempt']}): worst time error {worst['error']:.3f} bins "
        f"({worst['name']}), count errors {wrong:g}"
    )
    for table in outcome["differing_tables"]:
        progress(f"   {table}: Spark's harvest differs")
    for item in [*times, *counts]:
        if float(item["error"]) >= (0.1 if item["kind"] == "time" else 1):
            progress(f"   {item['name']}: planted {_text(item['planted'])}, measured {_text(item['measured'])}")


def _of_kind(outcome: Mapping[str, Any], kind: str) -> list[dict[str, Any]]:
    return [item for item in outcome["comparisons"] if item["kind"] == kind]


def _text(value: float | None) -> str:
    return "nothing" if value is None else f"{value:.6g}"
