"""`./faultline missing --measure`: the cells that a sweep or a night lacks, measured."""

from __future__ import annotations

from collections.abc import Sequence

from faultline.cli.service_control import bring_up
from faultline.cli.sweep_progress import minutes_text
from faultline.cli.sweep_runner import SubmittedSweep, await_dags, begin, finish, follow_course, planned_in
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


def measure_gaps(gaps: Sequence[Gap], preset: str | None, say: Progress) -> int:
    """Measures what the gaps lack, but of no night that another build began; the exit code is 0 when all is there."""
    open_gaps = [gap for gap in gaps if gap.missing]
    if not open_gaps:
        say("nothing is missing")
        return 0
    settings = bring_up(say)
    api, code = AirflowApi(settings), 0
    matrix = open_gaps[0].matrix
    await_dags(api, matrix, EXPERIMENT, unpaused=False)
    if not api.has_dag(matrix):
        raise ConfigError(f"{matrix}: is switched off in Airflow, so nothing of it runs; switch it on first")
    for gap in open_gaps:
        plan = SweepPlans(settings.results).read(gap.sweep_id) if gap.sweep_id else None
        if refusal := nightly_build_mismatch(gap, plan, settings):
            say(refusal)
            code = 1
            continue
        cells = gap.cells()
        minutes = minutes_text(sum(budget_s(cell.config) for cell in cells))
        say(f"{gap.matrix}, series {gap.series}: {pluralize(len(cells), 'experiment')}, about {minutes}")
        course = _night(api, gap, plan, cells) if is_nightly(gap.matrix) else _sweep(api, gap, preset, cells)
        ended = follow_course(api, settings, course, cells, say)
        code = max(code, finish(settings, planned_in(plan) if plan else cells, say, ended=ended, course=course))
    return code


def _sweep(api: AirflowApi, gap: Gap, preset: str | None, cells: Sequence[PlannedCell]) -> SubmittedSweep:
    """A sweep of what another one left out, in its series; or of a preset that nobody has triggered."""
    if gap.sweep_id is None:
        return begin(api, gap.matrix, {"preset": preset, "series": gap.series}, cells)
    return begin(api, gap.matrix, {"resume": gap.sweep_id}, cells)


def _night(api: AirflowApi, gap: Gap, plan: SweepPlan | None, cells: Sequence[PlannedCell]) -> SubmittedSweep:
    """The night once more, under its own date; a run of it that is there is run again, as its backfill would."""
    if plan is not None:
        try:
            state = api.run_state(gap.matrix, plan.run_id)
        except ConfigError:  # its run is gone from Airflow, its plan is not
            state = None
        if state in FINISHED:
            api.clear(gap.matrix, plan.run_id)
        if state is not None:
            return SubmittedSweep(gap.matrix, plan.run_id, cells)
    run_id = api.trigger(gap.matrix, {}, logical_date=gap.series)
    return SubmittedSweep(gap.matrix, run_id, cells)
