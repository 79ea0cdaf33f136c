"""Sweep plan: the cells that a sweep intends to measure, in one file per sweep.

`<results>/sweeps/<sweep_id>.json`, written by the task `plan` before anything is measured. It holds all cells, also
those that already had a usable record.
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
    """One cell: its configuration as JSON, its id, and which repetition."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    config: dict[str, Any]
    config_id: str
    repetition: int


class SequentialPlan(BaseModel):
    """Question of a sequential sweep, and the bounds of its test.

    `figure` to `hours`: as requested. `comparisons`: of neighbours along the axis; they share `error`. `blocks`:
    planned ones; `horizon`: the number that the budget paid for when the series asked this first. `method`, `bounds`:
    of `comparison/statistics/sequential.py`, stored so that a later version decides alike. `fresh`: whether only
    records of this sweep count.
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
    """Reference build of a nightly run.

    It holds series and build of its records, its specification, and the judged figure of each configuration by id.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    series: str
    build: str
    spec: dict[str, Any]
    primary: dict[str, str]


class SweepPlan(BaseModel):
    """Plan of a sweep.

    `logical_date`: nightly run that it stands for; `schedule`: its cron expression, null in older plans; `planned_at`:
    UTC; `decide`: question of a sequential sweep, null otherwise; `baseline`: reference build, null without one;
    `axes`: names of the axes, empty in older plans; `since`: UTC time from which records of other sweeps count for its
    cells, null if all do.
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

    def counts(self, one: IndexEntry | Record) -> bool:
        """Return whether a record of one of its cells counts for this sweep, also if another sweep measured it."""
        if one.sweep_id == self.sweep_id:
            return True
        if self.since is not None:
            return one.measured_at >= self.since
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
    """The manifests under a results folder."""

    def __init__(self, results: Path) -> None:
        self.directory = results / "sweeps"

    def write(self, manifest: SweepPlan) -> Path:
        """Store a plan; it replaces an earlier plan of the same run.

        Raises ConfigError if another run has a sweep of this id, and for an invalid id.
        """
        require_sweep_id(manifest.sweep_id)
        path = self.directory / f"{manifest.sweep_id}.json"
        present = self.read(manifest.sweep_id)
        # A backfill of the same logical date continues it, even if Airflow has lost the run that planned it.
        is_same_run = manifest.logical_date is not None and present and present.logical_date == manifest.logical_date
        if present and (present.matrix != manifest.matrix or (present.run_id != manifest.run_id and not is_same_run)):
            raise ConfigError(
                f"run_id: the sweep {manifest.sweep_id} is the run {present.run_id} of {present.matrix} already; "
                "trigger with another run id"
            )
        make_folder(path.parent)
        write_json(path, manifest.model_dump(mode="json", by_alias=True))
        return path

    def read(self, sweep_id: str) -> SweepPlan | None:
        """Return the plan of a sweep; None when there is none, when it cannot be read, or when nothing is called so."""
        return _read(self.directory / f"{sweep_id}.json") if is_sweep_id(sweep_id) else None

    def ids(self) -> set[str]:
        """Return the ids of all planned sweeps."""
        return {path.stem for path in self.directory.glob("*.json") if is_sweep_id(path.stem)}

    def of_matrix(self, matrix: str) -> list[SweepPlan]:
        """Return the plans of a matrix, the newest last."""
        found = [manifest for path in sorted(self.directory.glob("*.json")) if (manifest := _read(path))]
        return sorted((one for one in found if one.matrix == matrix), key=lambda one: one.planned_at)

    def newest(self) -> SweepPlan | None:
        """Return the plan that was made last; None before the first."""
        plans = [manifest for path in self.directory.glob("*.json") if (manifest := _read(path))]
        return max(plans, key=lambda one: one.planned_at, default=None)

    def problems(self) -> list[tuple[str, str]]:
        """Return file and reason for each that cannot be read."""
        return [
            (str(path), "is not the plan of a sweep; move it away")
            for path in sorted(self.directory.glob("*.json"))
            if _read(path) is None
        ]


def cells_of(planned: Iterable[PlannedCell]) -> tuple[SweepCell, ...]:
    """Return planned cells as a manifest holds them."""
    return tuple(
        SweepCell(config=one.config.model_dump(mode="json"), config_id=one.config.config_id, repetition=one.repetition)
        for one in planned
    )


def missing_of(
    cells: Sequence[SweepCell],
    series: str,
    records: Iterable[tuple[Cell, str, Sequence[str]]],
    settled: Collection[str] = (),
) -> list[Missing]:
    """Return the cells without a record that counts, in order.

    `records`: cell, status and reasons of each record, in order of attempt. `settled`: ids of configurations of which
    no more need be known.
    """
    sound: set[Cell] = set()
    last: dict[Cell, str] = {}
    for cell, status, reasons in records:
        if status in USABLE:
            sound.add(cell)
        last[cell] = f"{status}: {reasons[0]}" if reasons else status
    found = [(one, Cell(one.config_id, one.repetition, series)) for one in cells]
    return [
        Missing(one, last.get(cell, "")) for one, cell in found if cell not in sound and one.config_id not in settled
    ]


def _read(path: Path) -> SweepPlan | None:
    try:
        return SweepPlan.model_validate_json(path.read_bytes())
    except (OSError, ValidationError, FaultlineError):
        return None
