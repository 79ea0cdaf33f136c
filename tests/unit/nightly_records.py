"""Synthetic nightly runs in November."""

from __future__ import annotations

from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import numpy as np

from faultline.experiment.nightly_file import NIGHTLY
from faultline.records.record import Record
from tests.unit.pages_store import record

RNG_SEED = 3


def date_of(number: int) -> str:
    """Return the logical date of a nightly run."""
    return f"2026-11-{number:02d}T02:00:00+00:00"


def scheduled(
    due: datetime, *, late_min: float = 0.0, clear_number: int = 0, run_type: str = "scheduled"
) -> SimpleNamespace:
    """Return the DAG run context of a run that was due at `due` and started `late_min` minutes later."""
    begun = due + timedelta(minutes=late_min)
    return SimpleNamespace(run_type=run_type, run_after=due, start_date=begun, clear_number=clear_number)


def nightly_records(
    number: int, p99: float, *, build: str = "b1", n: int = 5, versions: str = "4.2.0", **named: Any
) -> list[Record]:
    """Return the records of one nightly run: `n` repetitions with 2 % variation of the p99."""
    rng = np.random.default_rng([RNG_SEED, number])
    date, made = date_of(number), []
    for repetition in range(n):
        one = record(
            f"202611{number:02d}T02{repetition:02d}00Z-00000{repetition}",
            sweep=f"202611{number:02d}T020000",
            matrix=NIGHTLY,
            build=build,
            latency={"p99": p99 * (1 + 0.02 * rng.standard_normal())},
            measured_at=date,
            **named,
        )
        environment = one.environment.model_copy(update={"versions": {"pyspark": versions}})
        update = {"logical_date": date, "series": date, "repetition": repetition, "environment": environment}
        made.append(one.model_copy(update=update))
    return made
