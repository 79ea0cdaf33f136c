"""What a sweep set out to measure: one file for each sweep, so that what is missing can be told.

`<results>/sweeps/<sweep_id>.json`, written by the task `plan` before anything is measured. All cells stand in it, also
those that had a valid record already.
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

# What the series of a night's baseline ends in, after the night.
BASELINE = ".baseline"


class SweepCell(BaseModel):
    """One cell: its configuration as JSON, its id, and which repetition."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    config: dict[str, Any]
    config_id: str
    repetition: int


class SequentialPlan(BaseModel):
    """What a sweep is to decide, and by which bounds.

    `figure` to `hours`: as asked. `comparisons`: of neighbours along the axis, among which `error` is divided.
    `blocks`: that are planned; `horizon`: as many as the budget paid for when this was asked first in the series.
    `method`, `bounds`: of `comparison/statistics/sequential.py`, so that what is said does not change with it.
    `fresh`: whether only what the sweep measured itself counts.
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
    """What a night is measured beside, in pairs: its records' series and build, the build as the form names it, and the
    figure that each configuration is judged by, by its id."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    series: str
    build: str
    spec: dict[str, Any]
    primary: dict[str, str]


class SweepPlan(BaseModel):
    """A sweep's plan. `logical_date`: the night that it stands for, `schedule`: the cron expression that it was due by
    (null in plans from before that was noted); `planned_at`: when it was made, UTC; `decide`: what it is to find out,
    null where it is to measure all of its cells; `baseline`: what measures them as well, null where nothing does;
    `axes`: names of what it varies, none in plans from before that was noted; `since`: from when on records of others
    count for its cells, UTC; null where all of them do."""

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
        """Return whether a record of one of its cells counts for it, whoever measured it."""
        if one.sweep_id == self.sweep_id:
            return True
        if self.since is not None:
            return one.measured_at >= self.since
        return self.decide is None or not self.decide.fresh


@dataclass(frozen=True)
class Missing:
    """A cell without a valid record; `last`: what its newest record says instead, empty when it was never measured;
    `is_reference`: whether it belongs to the reference build."""

    cell: SweepCell
    last: str
    is_reference: bool = False


class SweepPlans:
    """The manifests under a results folder."""

    def __init__(self, results: Path) -> None:
        self.directory = results / "sweeps"

    def write(self, manifest: SweepPlan) -> Path:
        """Store a plan; that of the same run, planned again, takes the place of the earlier one.

        Raises ConfigError when another run has a sweep of this id, and for what is no id.
        """
        require_sweep_id(manifest.sweep_id)
        path = self.directory / f"{manifest.sweep_id}.json"
        present = self.read(manifest.sweep_id)
        # A night's backfill goes on with it, also when the run that planned it is gone from Airflow.
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
