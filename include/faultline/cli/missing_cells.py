"""`./faultline missing --measure`: measure the missing cells of a sweep or nightly run."""

from __future__ import annotations

from collections.abc import Sequence

from faultline.cli.service_control import bring_up
from faultline.cli.sweep_progress import minutes_text
from faultline.cli.sweep_runner import (
    SubmittedSweep,
    await_dags,
    cells_in,
    follow_submitted,
    report_result,
    trigger_sweep,
)
from faultline.comparison.coverage import Gap
from faultline.experiment.cell import EXPERIMENT
from faultline.experiment.matrix import PlannedCell
from faultline.experiment.nightly_file import is_nightly
from faultline.lifecycle.progress import budget_s
from faultline.orchestration.airflow_api import FINISHED, AirflowApi
from faultline.orchestration.nightly.nightly_plan import nightly_build_mismatch
from faultline.records.sweep_plan import SweepPlan, SweepPlans
from faultline.system.errors import ConfigError
from faultline.system.text import Progress, pluralize


def measure_gaps(gaps: Sequence[Gap], preset: str | None, progress: Progress) -> int:
    """Measure the missing cells (see `missing`); return 0 if none is left, else 1.

    Nightly runs of another build are skipped.
    """
    open_gaps = [gap for gap in gaps if gap.missing]
    if not open_gaps:
        progress("nothing is missing")
        return 0
    settings = bring_up(progress)
    api, code = AirflowApi(settings), 0
    matrix = open_gaps[0].matrix
    await_dags(api, matrix, EXPERIMENT, unpaused=False)
    if not api.has_dag(matrix):
        raise ConfigError(f"{matrix}: DAG is paused in Airflow; fix: unpause it")
    for gap in open_gaps:
        plan = SweepPlans(settings.results).read(gap.sweep_id) if gap.sweep_id else None
        if refusal := nightly_build_mismatch(gap, plan, settings):
            progress(refusal)
            code = 1
            continue
        cells = gap.cells()
        minutes = minutes_text(sum(budget_s(cell.config) for cell in cells))
        progress(f"{gap.matrix}, series {gap.series}: {pluralize(len(cells), 'experiment')}, about {minutes}")
        submitted = (
            _rerun_nightly(api, gap, plan, cells) if is_nightly(gap.matrix) else _submit_sweep(api, gap, preset, cells)
        )
        ended = follow_submitted(api, settings, submitted, cells, progress)
        code = max(
            code, report_result(settings, cells_in(plan) if plan else cells, progress, ended=ended, submitted=submitted)
        )
    return code


def _submit_sweep(api: AirflowApi, gap: Gap, preset: str | None, cells: Sequence[PlannedCell]) -> SubmittedSweep:
    """Submit a sweep of the missing cells in the same series, or the sweep of a preset that was never started."""
    if gap.sweep_id is None:
        return trigger_sweep(api, gap.matrix, {"preset": preset, "series": gap.series}, cells)
    return trigger_sweep(api, gap.matrix, {"resume": gap.sweep_id}, cells)


def _rerun_nightly(api: AirflowApi, gap: Gap, plan: SweepPlan | None, cells: Sequence[PlannedCell]) -> SubmittedSweep:
    """Run a nightly run again under its logical date; an existing run is cleared, as a backfill does."""
    if plan is not None:
        try:
            state = api.run_state(gap.matrix, plan.run_id)
        except ConfigError:  # Airflow has deleted the run
            state = None
        if state in FINISHED:
            api.clear(gap.matrix, plan.run_id)
        if state is not None:
            return SubmittedSweep(gap.matrix, plan.run_id, cells)
    run_id = api.trigger(gap.matrix, {}, logical_date=gap.series)
    return SubmittedSweep(gap.matrix, run_id, cells)
