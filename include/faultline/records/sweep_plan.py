"""Sweep plan: the cells that a sweep intends to measure, in one file per sweep.

The task `plan` writes `<results>/sweeps/<sweep_id>.json` before the first measurement. It holds all cells, even those
that already have a usable record.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from faultline.experiment.attempt import write_json
from faultline.experiment.cell import Cell, SweepId, is_sweep_id, require_sweep_id
from faultline.experiment.matrix import PlannedCell
from faultline.records.index_entry import IndexEntry
from faultline.records.record import USABLE, Record
from faultline.system.errors import ConfigError, FaultlineError
from faultline.system.files import make_folder

# Suffix of the series of a reference build.
BASELINE = ".baseline"


class SweepCell(BaseModel):
    """Cell of a sweep: configuration as JSON, its id, and the number of the repetition."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    config: dict[str, Any]
    config_id: str
    repetition: int


class SequentialPlan(BaseModel):
    """Question of a sequential sweep, and the bounds of its test.

    `figure` to `hours`: as requested. `comparisons`: number of comparisons of neighbouring values on the axis `along`;
    they share `error`. `blocks`: planned number of blocks (one pass over every open cell); `horizon`: number of blocks
    within the budget when a sweep of the series first asked this question. `method`, `bounds`: of
    `comparison/statistics/sequential.py`, stored so that a later version decides alike. `fresh`: whether only records
    of this sweep count.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    figure: str
    along: str
    smallest: float
    error: float
    experiments: int | None
    hours: float | None
    comparisons: int
    blocks: int
    horizon: int
    method: str
    bounds: tuple[float | None, ...]
    fresh: bool = False


class ReferenceBuild(BaseModel):
    """Reference build of a nightly run: the build it is compared with.

    `series`, `build`: of its records. `spec`: its specification. `primary`: judged figure by configuration id.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    series: str
    build: str
    spec: dict[str, Any]
    primary: dict[str, str]


class SweepPlan(BaseModel):
    """Plan of a sweep.

    `logical_date`: of the nightly run, else null; `schedule`: cron expression, null in older plans; `planned_at`: UTC;
    `decide`: null for a sweep that is not sequential; `baseline`: reference build, or null; `axes`: names of the axes,
    empty in older plans; `since`: records that other sweeps measured before this UTC time do not count, null if all do.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    schema_: Literal[1] = Field(1, alias="schema")
    sweep_id: SweepId
    matrix: str
    run_id: str
    series: str
    build: str
    logical_date: str | None
    planned_at: str
    schedule: str | None = None
    decide: SequentialPlan | None = None
    baseline: ReferenceBuild | None = None
    axes: tuple[str, ...] = ()
    since: str | None = None
    cells: tuple[SweepCell, ...]

    def counts(self, record: IndexEntry | Record) -> bool:
        """Return whether a record of one of the cells counts for this sweep; another sweep may have measured it."""
        if record.sweep_id == self.sweep_id:
            return True
        if self.since is not None:
            return record.measured_at >= self.since
        return self.decide is None or not self.decide.fresh


@dataclass(frozen=True)
class Missing:
    """Cell without a usable record.

    `last`: status and reason of its newest record, empty if it was never measured; `is_reference`: whether it belongs
    to the reference build.
    """

    cell: SweepCell
    last: str
    is_reference: bool = False


class SweepPlans:
    """Sweep plans under a results folder."""

    def __init__(self, results: Path) -> None:
        self.directory = results / "sweeps"

    def write(self, plan: SweepPlan) -> Path:
        """Store a plan; it replaces an earlier plan of the same run.

        Raises ConfigError if the id is invalid or belongs to another run.
        """
        require_sweep_id(plan.sweep_id)
        path = self.directory / f"{plan.sweep_id}.json"
        present = self.read(plan.sweep_id)
        # A backfill of the same logical date continues the sweep, even if Airflow has lost the run that planned it.
        is_same_run = plan.logical_date is not None and present and present.logical_date == plan.logical_date
        if present and (present.matrix != plan.matrix or (present.run_id != plan.run_id and not is_same_run)):
            raise ConfigError(
                f"run_id: sweep {plan.sweep_id} already belongs to the run {present.run_id} of {present.matrix}; "
                "fix: trigger with another run id"
            )
        make_folder(path.parent)
        write_json(path, plan.model_dump(mode="json", by_alias=True))
        return path

    def read(self, sweep_id: str) -> SweepPlan | None:
        """Return the plan of a sweep, or None if the id is invalid or the plan missing or unreadable."""
        return _read(self.directory / f"{sweep_id}.json") if is_sweep_id(sweep_id) else None

    def ids(self) -> set[str]:
        """Return the ids of all planned sweeps."""
        return {path.stem for path in self.directory.glob("*.json") if is_sweep_id(path.stem)}

    def of_matrix(self, matrix: str) -> list[SweepPlan]:
        """Return the plans of a matrix, the newest last."""
        plans = [plan for path in sorted(self.directory.glob("*.json")) if (plan := _read(path))]
        return sorted((plan for plan in plans if plan.matrix == matrix), key=lambda plan: plan.planned_at)

    def newest(self) -> SweepPlan | None:
        """Return the newest plan, or None if there is none."""
        plans = [plan for path in self.directory.glob("*.json") if (plan := _read(path))]
        return max(plans, key=lambda plan: plan.planned_at, default=None)

    def problems(self) -> list[tuple[str, str]]:
        """Return path and reason of every unreadable plan."""
        return [
            (str(path), "expected a sweep plan; fix: move the file out of the folder")
            for path in sorted(self.directory.glob("*.json"))
            if _read(path) is None
        ]


def cells_of(planned: Iterable[PlannedCell]) -> tuple[SweepCell, ...]:
    """Return planned cells as stored in a sweep plan."""
    return tuple(
        SweepCell(
            config=cell.config.model_dump(mode="json"), config_id=cell.config.config_id, repetition=cell.repetition
        )
        for cell in planned
    )


def missing_of(
    cells: Sequence[SweepCell],
    series: str,
    records: Iterable[tuple[Cell, str, Sequence[str]]],
    settled: Collection[str] = (),
) -> list[Missing]:
    """Return the cells without a usable record, in the order of `cells`.

    `records`: cell, status and reasons of each record, sorted by attempt. `settled`: ids of configurations that need no
    further records.
    """
    usable: set[Cell] = set()
    last: dict[Cell, str] = {}
    for cell, status, reasons in records:
        if status in USABLE:
            usable.add(cell)
        last[cell] = f"{status}: {reasons[0]}" if reasons else status
    keyed = [(planned, Cell(planned.config_id, planned.repetition, series)) for planned in cells]
    return [
        Missing(planned, last.get(cell, ""))
        for planned, cell in keyed
        if cell not in usable and planned.config_id not in settled
    ]


def _read(path: Path) -> SweepPlan | None:
    try:
        return SweepPlan.model_validate_json(path.read_bytes())
    except (OSError, ValidationError, FaultlineError):
        return None
