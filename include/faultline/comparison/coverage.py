"""`./faultline missing MATRIX`: cells of a matrix without a usable record."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise
from operator import itemgetter
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from faultline.comparison.decisions import decided_in_plan
from faultline.experiment.cell import Cell
from faultline.experiment.config import parse_configuration
from faultline.experiment.matrices import MATRICES
from faultline.experiment.matrix import DEFAULT, PlannedCell
from faultline.experiment.nightly_file import due_nights, is_nightly, schedule
from faultline.lifecycle.environment import installed_build
from faultline.records.format import WIDTH, fault_of
from faultline.records.index import Index
from faultline.records.index_entry import IndexEntry
from faultline.records.sweep_plan import Missing, SweepPlan, SweepPlans, cells_of, missing_of
from faultline.system.errors import ConfigError
from faultline.system.settings import Settings
from faultline.system.text import suggest


@dataclass(frozen=True)
class Gap:
    """Missing cells of one plan: that of a sweep, or that of a preset without a sweep (`sweep_id` None)."""

    matrix: str
    sweep_id: str | None
    series: str
    planned: int
    missing: tuple[Missing, ...]
    # Axes of the sweep; empty if not recorded, in which case those of its matrix count.
    axes: tuple[str, ...] = ()

    def cells(self) -> list[PlannedCell]:
        """Return the missing cells as cells to measure in the gap's series."""
        found = [one.cell for one in self.missing]
        return [PlannedCell(parse_configuration(one.config), one.repetition, self.series) for one in found]


def gaps_of(
    matrix: str,
    settings: Settings,
    *,
    sweep: str | None = None,
    preset: str | None = None,
    series: str | None = None,
    now: datetime | None = None,
) -> list[Gap]:
    """Return the missing cells of `sweep` or of `preset` in `series`; without either, those of the newest sweep.

    The default series is the installed build. For a nightly set without either, all nightly runs up to `now` are
    included. Raises ConfigError if matrix, sweep or preset is unknown.
    """
    plans, index = SweepPlans(settings.results).of_matrix(matrix), Index(settings.results, settings.home)
    if is_nightly(matrix) and not plans:
        raise ConfigError(f"{matrix}: no nightly run planned yet; fix: enable the DAG in Airflow, or trigger it")
    if matrix not in MATRICES and not plans:
        if plan := SweepPlans(settings.results).read(matrix):
            raise ConfigError(f"{matrix}: expected a matrix, got a sweep; fix: {plan.matrix} --sweep {matrix}")
        raise ConfigError(f"{matrix}: unknown matrix{suggest(matrix, MATRICES)}")
    index.refresh()
    entries = index.all()
    if sweep is not None:
        known = {plan.sweep_id: plan for plan in plans}
        if sweep not in known:
            raise ConfigError(f"--sweep: got {sweep}; expected a planned sweep of {matrix}{suggest(sweep, known)}")
        return [gap_of(known[sweep], entries, decided_in_plan(known[sweep], entries))]
    if preset is None and plans:
        nights = [plan for plan in plans if plan.logical_date]
        found = [gap_of(plan, entries, decided_in_plan(plan, entries)) for plan in nights or plans[-1:]]
        if is_nightly(matrix):
            found = sorted([*found, *missed_runs(nights, now or datetime.now(UTC))], key=lambda gap: gap.series)
        return found
    if matrix not in MATRICES:
        raise ConfigError(f"--preset {preset}: {matrix} has no presets; fix: remove the option")
    spec = MATRICES[matrix]
    series = series or installed_build(settings)
    cells = cells_of(spec.preset_matrix(preset or DEFAULT).cells(series))
    return [Gap(matrix, None, series, len(cells), tuple(missing_of(cells, series, _record_rows(entries))))]


def _record_rows(entries: Sequence[IndexEntry]) -> list[tuple[Cell, str, Sequence[str]]]:
    """Return the records in the form that `missing_of` takes."""
    return [(Cell(one.config_id, one.repetition, one.series), one.status, one.reasons) for one in entries]


def gap_of(plan: SweepPlan, entries: Iterable[IndexEntry], settled: Collection[str] = ()) -> Gap:
    """Return the missing cells of a sweep's plan. `settled`: configurations whose comparisons are all decided."""
    records = _record_rows([one for one in entries if plan.counts(one)])
    missing = missing_of(plan.cells, plan.series, records, settled)
    planned = len(plan.cells)
    if plan.baseline is not None:
        missing += [
            replace(one, is_reference=True) for one in missing_of(plan.cells, plan.baseline.series, records, settled)
        ]
        planned *= 2
    return Gap(plan.matrix, plan.sweep_id, plan.series, planned, tuple(missing), plan.axes)


def missed_runs(nights: Sequence[SweepPlan], now: datetime) -> list[Gap]:
    """Return the nightly runs up to `now` that were due but have no plan; each lacks all cells of the newest plan.

    If the schedule changed between two runs, only dates in both schedules count, because the time of the change is
    unknown.
    """
    if not nights:
        return []
    newest, present = nights[-1], {plan.logical_date for plan in nights}
    moments = ((datetime.fromisoformat(str(plan.logical_date)), plan.schedule) for plan in nights)
    dated = sorted(moments, key=itemgetter(0))
    due: list[str] = []
    dated = [one for one in dated if one[0] <= now]  # a run with a future date does not show what was due
    if not dated:
        return []
    for (begin, cron), (end, other) in pairwise([*dated, (now, dated[-1][1])]):
        by_other = set(due_nights(other or schedule(), begin, end))
        due += [date for date in due_nights(cron or schedule(), begin, end) if date in by_other]
    every = tuple(Missing(cell, "") for cell in newest.cells)
    return [Gap(newest.matrix, None, date, len(every), every) for date in due if date not in present]


def cell_text(gap: Gap, one: Missing) -> str:
    """Return a cell as text: its values on the axes of the sweep, its fault and its repetition."""
    config = one.cell.config
    axes = gap.axes or (MATRICES[gap.matrix].axes if gap.matrix in MATRICES else ())
    texts = [f"{name} {fault_of(config) if name == 'fault' else config.get(name)}" for name in axes]
    if "fault" not in axes:
        texts.append(fault_of(config))
    return ", ".join([*texts, f"repetition {one.cell.repetition}", *(["of the baseline"] if one.is_reference else [])])


def print_gaps(gaps: Sequence[Gap]) -> None:
    """Print the missing cells as tables on standard output."""
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    for gap in gaps:
        what = f"sweep {gap.sweep_id}" if gap.sweep_id else "no sweep yet"
        console.print(Text(f"{gap.matrix}, {what}, series {gap.series}: {len(gap.missing)} of {gap.planned} missing"))
        if is_nightly(gap.matrix) and not gap.sweep_id:
            # The newest plan only shows what the run would have contained.
            console.print(Text(f"  measure it with --measure, or run an Airflow backfill of {gap.matrix}"))
            continue
        if not gap.missing:
            continue
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for heading in ("Configuration", "Cell", "Newest record"):
            table.add_column(heading, overflow="fold")
        for one in gap.missing:
            table.add_row(Text(one.cell.config_id), Text(cell_text(gap, one)), Text(one.last or "never measured"))
        console.print(table)


def as_json(gaps: Sequence[Gap]) -> list[dict[str, Any]]:
    """Return the gaps as JSON values, with their cells and newest records."""
    return [
        {
            "matrix": gap.matrix,
            "sweep_id": gap.sweep_id,
            "series": gap.series,
            "planned": gap.planned,
            "missing": [{**one.cell.model_dump(), "last": one.last or None} for one in gap.missing],
        }
        for gap in gaps
    ]
