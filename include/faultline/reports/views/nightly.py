"""View of the nightly runs of one DAG: one metric over all of them, and the outcome of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache, cached_property
from pathlib import Path

import plotly.graph_objects as go

from faultline.comparison.config_points import axes_of, names_of, points_of, sort_points
from faultline.comparison.coverage import gap_of, missed_runs
from faultline.comparison.nightly_history import (
    MetricHistory,
    NightlyRun,
    commit_history_of,
    environment_changes,
    history_of,
    nightly_runs_of,
)
from faultline.comparison.nightly_verdict import NightlyVerdict, stored_verdict
from faultline.comparison.slo import SLO
from faultline.records.catalogue import metrics_of
from faultline.records.columns import Metric
from faultline.records.format import NONE
from faultline.records.index_entry import IndexEntry
from faultline.records.sweep_plan import SweepPlan, SweepPlans
from faultline.reports.figures.nightly import history_figure
from faultline.reports.views.sweep import PageNotFound, select_metric

RUNS_PER_PAGE = 60
AXES = ("night", "commit")
_NOT_MEASURED = "not measured; run ./faultline missing {} --measure, or backfill the DAG"


@dataclass(frozen=True)
class NightlyPageQuery:
    """Selection of the user; an empty value means the default.

    `cell`: id of a configuration; `dag_id`: DAG whose runs are shown; `axis`: horizontal axis of the figure.
    """

    metric: str = ""
    cell: str = ""
    page: int = 1
    dag_id: str = ""
    axis: str = ""


@dataclass(frozen=True)
class NightlyRow:
    """One nightly run, or several consecutive runs that were not measured, back to the date `until`."""

    day: str
    verdict: NightlyVerdict
    missing: int | None
    sweep: str | None = None
    until: str = ""
    valid: int = 0
    total: int = 0
    build: str = NONE
    value: str = NONE
    is_new_level: bool = False
    changed: str = ""


@dataclass(frozen=True)
class NightlyView:
    """Nightly runs of one DAG and the selection of the user.

    The properties raise PageNotFound for an unknown configuration or metric.
    """

    results: Path
    entries: Sequence[IndexEntry]
    dag_id: str
    choice: NightlyPageQuery

    @cached_property
    def runs(self) -> list[NightlyRun]:
        """Runs with a record, oldest first."""
        return nightly_runs_of(self.entries)

    @cached_property
    def cells(self) -> dict[str, str]:
        """Names of the configurations by id."""
        points = points_of(self.entries)
        names = names_of(points)
        return {point.config_id: names[point.config_id] for point in sort_points(points, axes_of(points))}

    @cached_property
    def cell(self) -> str:
        """Configuration of the figure."""
        cell = self.choice.cell or next(iter(self.cells))
        if cell not in self.cells:
            raise PageNotFound(f"No nightly run measured the configuration {cell}.")
        return cell

    @cached_property
    def metrics(self) -> list[Metric]:
        """Metrics of the configuration."""
        return metrics_of([entry for entry in self.entries if entry.config_id == self.cell])

    @cached_property
    def metric(self) -> Metric | None:
        """Metric of the figure."""
        return select_metric(self.metrics, self.choice.metric)

    @property
    def axis(self) -> str:
        """Horizontal axis of the figure."""
        return self.choice.axis or AXES[0]

    @cached_property
    def environment_changes(self) -> Mapping[str, str]:
        """Changes of the environment, by date."""
        return environment_changes(self.runs)

    @cached_property
    def history(self) -> MetricHistory | None:
        """Metric over the nightly runs."""
        return history_of(self.runs, self.cell, self.metric) if self.metric else None

    @cached_property
    def _verdict_of(self) -> Callable[[str | None], NightlyVerdict]:
        # Verdicts are read on demand, because a year of runs has many.
        return cache(lambda sweep_id: stored_verdict(self.results, sweep_id) or NightlyVerdict(summary="not compared"))

    @cached_property
    def limit(self) -> SLO | None:
        """Limit of the metric in the newest nightly run with limits."""
        kept = (self._verdict_of(run.entries[-1].sweep_id) for run in reversed(self.runs[-RUNS_PER_PAGE:]))
        bounds = next((one.limits for one in kept if one.limits), {})
        return SLO(self.metric, bounds[self.metric.key]) if self.metric and self.metric.key in bounds else None

    @cached_property
    def figure(self) -> go.Figure | None:
        """Metric over nightly runs or commits; None without values."""
        by_commit = self.axis == "commit"
        drawn = commit_history_of(self.runs, self.cell, self.metric) if self.metric and by_commit else self.history
        if drawn is None or not any(drawn.values):
            return None
        return history_figure(drawn, self.environment_changes, by_commit=by_commit, limit=self.limit)

    @cached_property
    def _plans(self) -> list[SweepPlan]:
        return [plan for plan in SweepPlans(self.results).of_matrix(self.dag_id) if plan.logical_date]

    @cached_property
    def _unmeasured(self) -> dict[str, NightlyRow]:
        """Return rows of the runs without a record, by date."""
        measured = {run.date for run in self.runs}
        waiting = [plan for plan in self._plans if plan.logical_date not in measured]
        rows = [(str(plan.logical_date), "nothing measured yet", gap_of(plan, ()).planned) for plan in waiting]
        missed = missed_runs(self._plans, datetime.now(UTC))
        rows += [(gap.series, _NOT_MEASURED.format(self.dag_id), gap.planned) for gap in missed]
        return {date: NightlyRow(date[:10], NightlyVerdict(summary=why), planned) for date, why, planned in rows}

    @cached_property
    def dates(self) -> list[str]:
        """Dates of all runs, newest first."""
        return sorted({*(run.date for run in self.runs), *self._unmeasured}, reverse=True)

    def rows(self, dates: Iterable[str]) -> list[NightlyRow]:
        """Return the rows of these dates; consecutive unmeasured runs share a row."""
        measured = {run.date: run for run in self.runs}
        found: list[NightlyRow] = []
        for date in dates:
            row = self._row(measured[date]) if date in measured else self._unmeasured[date]
            last = found[-1] if found else row
            alike = (last.sweep, last.verdict, last.missing) == (row.sweep, row.verdict, row.missing)
            if found and row.sweep is None and not row.total and alike:
                found[-1] = replace(row, until=last.until or last.day)
            else:
                found.append(row)
        return found

    def _row(self, run: NightlyRun) -> NightlyRow:
        sweep = run.entries[-1].sweep_id
        plan = next((plan for plan in self._plans if plan.logical_date == run.date), None)
        every = [entry for entry in self.entries if str(entry.logical_date) == run.date]
        position = self.history.positions.index(run.date) if self.history else -1
        value = self.history.values[position] if self.history else None
        return NightlyRow(
            day=run.day,
            sweep=sweep,
            valid=len(run.valid),
            total=len(run.entries),
            missing=None if plan is None else len(gap_of(plan, every).missing),
            build=run.build or NONE,
            value=self.history.metric.text(value.value) if self.history and value is not None else NONE,
            is_new_level=self.history is not None and position in self.history.changes,
            verdict=self._verdict_of(sweep),
            changed=self.environment_changes.get(run.date, ""),
        )
