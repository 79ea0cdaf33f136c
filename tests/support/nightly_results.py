"""Ten synthetic nightly runs of two configurations, each compared with a reference build.

From the ninth run on, one configuration is 9 % slower. Records are synthetic; production code writes the sweep plans,
verdicts and pages.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from faultline.comparison.regression_gate.nightly_pairs import paired_runs_of, paired_verdict
from faultline.comparison.regression_gate.verdict import judge_gate
from faultline.comparison.slo import check_slos, parse_slos
from faultline.experiment.config import parse_configuration
from faultline.experiment.matrix import PlannedCell
from faultline.experiment.nightly_file import NIGHTLY
from faultline.records.index import Index
from faultline.records.record import Record
from faultline.records.sweep_plan import ReferenceBuild, SweepPlan, SweepPlans
from tests.unit.nightly_records import date_of
from tests.unit.pages_store import put, record
from tests.unit.sample_records import made_plan

RUNS, SLOWER_FROM, SLOWER = 10, 9, 0.09
PAIRS = 12
# Only the dates of these runs, so that none counts as missing for a year.
SCHEDULE = "0 2 1-10 11 *"
LIMITS = {"latency_ms.p50": 1200.0}
REFERENCE, CURRENT = "4f1c2a9be0", "b3d07e6a51"
# By configuration: median latency in ms, and relative slowdown of the current build.
CONFIGS = {
    parse_configuration({"fault": "none", "checkpoint_interval_s": 5}): (1020.0, SLOWER),
    parse_configuration({"fault": "none", "checkpoint_interval_s": 2}): (540.0, 0.0),
}
SLOWER_CELL = next(config.config_id for config, (_, more) in CONFIGS.items() if more)


def write_nightly_runs(results: Path) -> Path:
    """Write plans, records and verdicts of all nightly runs below `results`, and return that folder."""
    for number in range(1, RUNS + 1):
        SweepPlans(results).write(_plan(number))
        put(results, *_records(number))
    index = Index(results)
    index.refresh()
    plans, entries = SweepPlans(results).of_matrix(NIGHTLY), index.of_matrix(NIGHTLY)
    for plan in plans:
        pairs = [one for one in paired_runs_of(plans, entries) if one.date <= str(plan.logical_date)]
        own = [one for one in entries if one.series == plan.series]
        spec = plan.baseline.spec if plan.baseline else {}
        paired_verdict(judge_gate(pairs), spec, check_slos(own, parse_slos(LIMITS))).store(results, plan.sweep_id)
    return results


def _plan(number: int) -> SweepPlan:
    date = date_of(number)
    primary = {config.config_id: "latency_ms.p50" for config in CONFIGS}
    return made_plan(
        [PlannedCell(config, pair, date) for config in CONFIGS for pair in range(PAIRS)],
        sweep_id=f"202611{number:02d}T020000", matrix=NIGHTLY, run_id=f"scheduled__{date}", series=date,
        schedule=SCHEDULE, build=_build(number), logical_date=date, planned_at=date,
        baseline=ReferenceBuild(series=f"{date}.baseline", build=REFERENCE, spec={"revision": "v1.3"}, primary=primary),
    )  # fmt: skip


def _build(number: int) -> str:
    return CURRENT if number >= SLOWER_FROM else REFERENCE


def _records(number: int) -> Iterator[Record]:
    """Yield the records of both builds for every pair; all records of a nightly run share a random level."""
    rng, date = np.random.default_rng([7, number]), date_of(number)
    level = 1 + 0.04 * rng.standard_normal()
    for index, (config, (usual_ms, more)) in enumerate(CONFIGS.items()):
        for pair in range(PAIRS):
            for side, (build, series) in enumerate(((REFERENCE, f"{date}.baseline"), (_build(number), date))):
                slower = more if build == CURRENT else 0.0
                p50 = usual_ms * level * (1 + slower) * (1 + 0.025 * rng.standard_normal())
                made = record(
                    f"202611{number:02d}T{2 + index:02d}{pair:02d}{side}0Z-00000{side}",
                    sweep=f"202611{number:02d}T020000", matrix=NIGHTLY, build=build, series=series, measured_at=date,
                    repetition=pair, latency={"p50": p50, "p99": 2.1 * p50},
                    **{"fault": "none", "checkpoint_interval_s": config.checkpoint_interval_s},
                )  # fmt: skip
                commit = "9c27d1f04e33" if number >= SLOWER_FROM else "1a5be8840c72"
                environment = made.environment.model_copy(update={"git_commit": commit})
                yield made.model_copy(update={"logical_date": date, "environment": environment})
