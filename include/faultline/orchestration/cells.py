"""Decisions about the cells of a sweep: measure, wait, skip or give up. Independent of Airflow.

A cell is one repetition of one configuration; each attempt to measure it leaves a record.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from faultline.experiment.cell import Cell
from faultline.experiment.config import Configuration, parse_configuration
from faultline.records.index import Index
from faultline.records.record import Record
from faultline.records.store import Store
from faultline.records.sweep_plan import SweepPlan, SweepPlans
from faultline.system.errors import InfrastructureError, InvalidMeasurement
from faultline.system.settings import Settings

# Name of the parameter `keep_invalid` in runs of earlier versions.
OLD_KEEP_INVALID = "keep_unsound"

# If a reference build never runs, it is given up after this number of failed attempts.
MAX_REFERENCE_FAILURES = 3
ACTIVE_STATES = frozenset({"queued", "running"})


@dataclass(frozen=True)
class CellDecision:
    """Next action for a cell, and the reason; the action `done` means that nothing is left to do."""

    action: Literal["done", "wait", "trigger", "skip", "give_up"]
    reason: str = ""


@dataclass(frozen=True)
class RunningCell:
    """Cell of a running sweep.

    `conf`: configuration and labels of its experiment. `params`: parameters of the sweep. `started_at`: when the
    sweep's run started, or was cleared last.
    """

    settings: Settings
    conf: Mapping[str, Any]
    params: Mapping[str, Any]
    started_at: datetime | None
    max_measurements: int

    @property
    def cell(self) -> Cell:
        config = parse_configuration({key: self.conf[key] for key in Configuration.model_fields if key in self.conf})
        return Cell(config.config_id, int(self.conf["repetition"]), str(self.conf["series"]))

    def own_records(self) -> list[Record]:
        """Return the cell's records of this sweep."""
        sweep = self.conf.get("sweep_id")
        return [one for one in Store(self.settings.results).of(self.cell) if one.sweep_id == sweep]

    def is_done(self) -> bool:
        """Return whether the cell has a usable record, so it needs no further measurement.

        With `only_missing`, any record of the cell counts; otherwise only this sweep's, for example from an earlier try
        of the task.
        """
        if any(record.is_usable for record in self.own_records()):
            return True
        only_missing = bool(self.params.get("only_missing", True))
        return only_missing and Store(self.settings.results).newest_usable(self.cell) is not None


def decide_before_run(cell: RunningCell, child_state: Callable[[], str | None]) -> CellDecision:
    """Return the decision on a cell before it is measured.

    `child_state`: returns the state of the DAG run that measures it; None if there is no such run.
    """
    if cell.is_done():
        return CellDecision("done", "cell skipped: already measured")
    if child_state() in ACTIVE_STATES:
        return CellDecision("wait")
    reason = skip_reason(cell)
    return CellDecision("skip", reason) if reason else CellDecision("trigger")


def decide_after_run(cell: RunningCell, known: Collection[str], tries: int, run_id: str) -> CellDecision:
    """Return the decision on a cell after its run ended.

    `known`: attempts of the sweep before this try. `tries`: number of tries, including this one, since the sweep's run
    started or was cleared. Raises the run's error unless the outcome is final.
    """
    from faultline.records.judge.rejudge import error_of

    if cell.is_done():
        return CellDecision("done")
    own = cell.own_records()
    new = [record for record in own if record.attempt not in known]
    if not new:
        raise InfrastructureError(f"{run_id}: no record; fix: see its first failed task")
    error = error_of(new[-1])
    assert error is not None, "is_done has found no usable record of this sweep"
    invalid_count = sum(record.status == "invalid" for record in own[-max(1, tries) :])
    if isinstance(error, InvalidMeasurement) and invalid_count >= cell.max_measurements:
        if cell.params.get("keep_invalid") or cell.params.get(OLD_KEEP_INVALID):
            return CellDecision("skip", f"kept as invalid after {cell.max_measurements} measurements: {error}")
        return CellDecision("give_up", f"given up after {cell.max_measurements} measurements: {error}")
    raise error


def skip_reason(cell: RunningCell) -> str | None:
    """Return why a cell need not be measured, such as decided comparisons or a failing reference build; else None."""
    settings = cell.settings
    plan = SweepPlans(settings.results).read(str(cell.conf.get("sweep_id")))
    if plan is not None and plan.baseline is not None:
        return _reference_failure(cell, plan.baseline.series)
    if plan is None or plan.decide is None:
        return None
    hours = plan.decide.hours
    if hours is not None and cell.started_at and datetime.now(UTC) - cell.started_at > timedelta(hours=hours):
        return f"budget of {hours:g} hours used up"
    return "its comparisons are decided, or the budget of experiments is used up" if _is_decided(cell, plan) else None


def _is_decided(cell: RunningCell, plan: SweepPlan) -> bool:
    # The import of the statistics is slow, and only sequential sweeps need it.
    from faultline.comparison.decisions import decided_in_plan

    index = Index(cell.settings.results, cell.settings.home)
    index.refresh()
    return cell.cell.config_id in decided_in_plan(plan, index.of_configurations(one.config_id for one in plan.cells))


def _reference_failure(cell: RunningCell, series: str) -> str | None:
    """Return the reason if a reference build failed repeatedly and never ran in this run of the sweep, else None."""
    if cell.conf.get("series") != series:
        return None
    sweep = Store(cell.settings.results).query(sweep=str(cell.conf.get("sweep_id")))
    own = _records_since([record for record in sweep if record.series == series], cell.started_at)
    if len(own) < MAX_REFERENCE_FAILURES or any(record.status != "failed" for record in own):
        return None
    return f"reference build failed {len(own)} times and never ran: {'; '.join(own[-1].reasons) or 'failed'}"


def _records_since(records: Sequence[Record], since: datetime | None) -> list[Record]:
    """Return the records of attempts that started at or after `since`; None: all."""
    # An attempt's id starts with its UTC time, to the second.
    first = f"{since.astimezone(UTC):%Y%m%dT%H%M%SZ}" if since else ""
    return [record for record in records if record.attempt >= first]
