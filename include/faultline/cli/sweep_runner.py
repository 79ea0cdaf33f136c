"""`./faultline sweep`: run a matrix through Airflow and report its summary."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from faultline.cli.service_control import bring_up
from faultline.cli.sweep_arguments import SweepRequest, parse_sweep
from faultline.cli.sweep_progress import follow, minutes_text
from faultline.experiment.attempt import Attempt
from faultline.experiment.attempt_plan import read_plan
from faultline.experiment.cell import EXPERIMENT, Cell, sweep_id_of
from faultline.experiment.config import parse_configuration
from faultline.experiment.matrices import MATRICES
from faultline.experiment.matrix import PlannedCell
from faultline.installation.airflow import login_text
from faultline.lifecycle.ending.orphans import unclosed_attempts
from faultline.lifecycle.environment import installed_build
from faultline.lifecycle.progress import budget_s, experiment_title, phase_durations
from faultline.orchestration.airflow_api import FINISHED, AirflowApi
from faultline.orchestration.connections import check_targets, preflight_targets
from faultline.records.record import Record
from faultline.records.store import Store
from faultline.records.sweep_plan import SweepPlan, SweepPlans
from faultline.reports.notes import STOPPED_PREFIX
from faultline.reports.pages import UI_PAGE
from faultline.system.errors import ConfigError, InfrastructureError
from faultline.system.settings import Settings, load_settings
from faultline.system.text import Progress, pluralize, suggest
from faultline.system.waiting import wait_until

# Final state of a stopped DAG run.
STOPPED_STATE = "failed"
PARSE_TIMEOUT_S = 120.0
# Timeout for a cancelled experiment, which stops its processes and writes its record.
STOP_TIMEOUT_S = 180.0


@dataclass(frozen=True)
class SubmittedSweep:
    """Sweep in Airflow: its DAG, DAG run and cells."""

    dag_id: str
    run_id: str
    cells: Sequence[PlannedCell]

    @property
    def sweep_id(self) -> str:
        return sweep_id_of(self.run_id)


def run_sweep(words: Sequence[str], progress: Progress, *, dry_run: bool, rerun: bool) -> int:
    """Run the command; return 0 if every cell has a usable record or for a dry run, else 1."""
    request = parse_sweep(words)
    if dry_run:
        print("\n".join(dry_run_lines(request, rerun=rerun)))
        return 0
    return run_request(request, progress, rerun=rerun)


def dry_run_lines(request: SweepRequest, *, rerun: bool = False) -> list[str]:
    """Return the lines of a dry run: cells and estimated duration."""
    settings = load_settings()
    cells = cells_of(request, settings)
    check_targets(settings, sorted({cell.config.target for cell in cells}))
    return outline(request, cells, cells_to_measure(settings, cells, rerun=rerun))


def run_request(
    request: SweepRequest,
    progress: Progress,
    *,
    rerun: bool = False,
    show: Callable[[list[Record]], None] | None = None,
) -> int:
    """Measure the cells without a usable record and print all with `show`; return the exit code."""
    settings = bring_up(progress)
    cells = cells_of(request, settings)
    missing = cells_to_measure(settings, cells, rerun=rerun)
    for line in outline(request, cells, missing):
        progress(line)
    api = AirflowApi(settings)
    await_dags(api, request.spec.name, EXPERIMENT)
    submitted = running_sweep(api, settings, request.spec.name, cells)
    if submitted:
        progress(f"resuming {submitted.sweep_id}")
    elif missing:
        preflight_targets(settings, sorted({cell.config.target for cell in missing}), progress)
        submitted = trigger_sweep(api, request.spec.name, {**request.form, "only_missing": not rerun}, cells)
        progress(
            f"sweep {submitted.sweep_id}: started; it continues without this terminal; see `./faultline sweep --follow`"
        )
    ended = submitted is None or follow_submitted(api, settings, submitted, missing, progress)
    return report_result(settings, cells, progress, ended=ended, submitted=submitted, rerun=rerun, show=show)


def follow_sweep(sweep: str | None, progress: Progress) -> int:
    """Show the progress and the result of a sweep (default: the newest); return the exit code."""
    settings = load_settings()
    plan = plan_of(settings, sweep)
    api, cells = AirflowApi(settings), cells_in(plan)
    submitted = SubmittedSweep(plan.matrix, plan.run_id, cells)
    progress(f"{plan.matrix}, sweep {plan.sweep_id}")
    ended = follow_submitted(api, settings, submitted, cells, progress)
    return report_result(settings, cells, progress, ended=ended, submitted=submitted)


def stop_sweep(sweep: str | None, progress: Progress) -> int:
    """Stop a sweep; its records are kept, and its current experiment is cancelled. Return the exit code."""
    settings = load_settings()
    plan = plan_of(settings, sweep)
    api = AirflowApi(settings)
    state = api.run_state(plan.matrix, plan.run_id)
    if state in FINISHED:
        progress(f"{plan.sweep_id}: not running ({state})")
        return 0
    done, total = progress_of(settings, plan)
    progress(f"{plan.sweep_id}: stopping; the current experiment may take two minutes to clean up")
    api.fail(plan.matrix, plan.run_id)
    api.set_note(
        plan.matrix,
        plan.run_id,
        f"{STOPPED_PREFIX} by the user after {done} of {pluralize(total, 'experiment')}; resubmit the form to resume.",
    )
    progress(f"{plan.sweep_id}: stopped after {done} of {pluralize(total, 'experiment')}; cancelling the current one")
    wait_until(
        lambda: not any(_is_open_in(attempt, plan.sweep_id) for attempt in unclosed_attempts(settings)),
        timeout_s=STOP_TIMEOUT_S,
        every_s=0.5,
        what=f"sweep {plan.sweep_id}: the end of its last experiment",
    )
    if api.run_state(plan.matrix, plan.run_id) != STOPPED_STATE:
        # Set the state again: the scheduler counts a run whose last tasks are skipped as a success.
        api.fail(plan.matrix, plan.run_id)
    progress("stopped; rerun the same command to resume")
    return 0


def cells_of(request: SweepRequest, settings: Settings) -> list[PlannedCell]:
    """Return all cells of a requested sweep; for a sequential sweep, as many as its budget allows."""
    installed = installed_build(settings, configurations=request.matrix.configurations())
    series = request.params["series"] or request.params["build"] or installed
    if request.params["decide"] is None:
        return request.matrix.cells(series)
    # Imported here, because it loads the statistics packages.
    from faultline.comparison.decisions import planned_cells

    plans = SweepPlans(settings.results).of_matrix(request.spec.name)
    return planned_cells(request.matrix, request.params["decide"], series, plans)[0]


def cells_to_measure(settings: Settings, cells: Sequence[PlannedCell], *, rerun: bool = False) -> list[PlannedCell]:
    """Return the cells without a usable record; with `rerun`, all."""
    return list(cells) if rerun else newest_records(settings, cells)[1]


def outline(request: SweepRequest, cells: Sequence[PlannedCell], missing: Sequence[PlannedCell]) -> list[str]:
    """Return the lines that describe a sweep: cells to measure and estimated duration."""
    configurations = len({cell.config.config_id for cell in cells})
    minutes = minutes_text(sum(budget_s(cell.config) for cell in missing))
    upto = "at most " if request.params["decide"] else ""
    head = (
        f"{request.spec.name}, preset {request.params.get('preset') or 'default'}: "
        f"{pluralize(configurations, 'configuration')}, {upto}{pluralize(len(cells), 'experiment')}"
    )
    if not missing:
        return [
            head,
            *(f"  {line}" for line in request.lines),
            "all have a usable record; --rerun measures them again",
        ]
    known = f", {len(cells) - len(missing)} have a usable record" if len(missing) < len(cells) else ""
    return [
        head,
        *(f"  {line}" for line in request.lines),
        f"{upto}{len(missing)} to measure{known}: about {minutes} on an idle machine",
    ]


def trigger_sweep(
    api: AirflowApi, dag_id: str, form: Mapping[str, Any], cells: Sequence[PlannedCell]
) -> SubmittedSweep:
    """Trigger the DAG of a matrix."""
    run_id = f"{dag_id}_{datetime.now(UTC):%Y%m%dT%H%M%SZ}_{secrets.token_hex(2)}"
    return SubmittedSweep(dag_id, api.trigger(dag_id, dict(form), run_id=run_id), cells)


def running_sweep(
    api: AirflowApi, settings: Settings, dag_id: str, cells: Sequence[PlannedCell]
) -> SubmittedSweep | None:
    """Return a running sweep of the same cells, for example one whose command was interrupted; None if none runs."""
    requested, plans = {cell.cell for cell in cells}, SweepPlans(settings.results)
    for run in api.runs(dag_id, "running", "queued"):
        plan = plans.read(sweep_id_of(run["dag_run_id"]))
        if plan is not None and {cell.cell for cell in cells_in(plan)} == requested:
            return SubmittedSweep(dag_id, run["dag_run_id"], cells)
    return None


def follow_submitted(
    api: AirflowApi, settings: Settings, submitted: SubmittedSweep, missing: Sequence[PlannedCell], progress: Progress
) -> bool:
    """Show the progress until the DAG run ends; return False if the services stop before."""
    typical_s = max((budget_s(cell.config) for cell in missing), default=0.0)
    return bool(
        follow(api, settings, submitted.dag_id, submitted.run_id, submitted.cells, progress, budget_s=typical_s)
    )


def report_result(
    settings: Settings,
    cells: Sequence[PlannedCell],
    progress: Progress,
    *,
    ended: bool,
    submitted: SubmittedSweep | None,
    rerun: bool = False,
    show: Callable[[list[Record]], None] | None = None,
) -> int:
    """Print the results of the cells and the address of their page; return the exit code."""
    plan = SweepPlans(settings.results).read(submitted.sweep_id) if submitted else None
    records, missing = newest_records(settings, cells, submitted.sweep_id if rerun and submitted else None, plan)
    if not records and ended:
        raise InfrastructureError("sweep: no experiment has a record; fix: see the failed tasks in the UI")
    if records:
        (show or print_records)(records)
    if submitted:
        print(f"page: {settings.endpoints.airflow}{UI_PAGE}/sweeps/{quote(submitted.sweep_id, safe='')}"
              f" ({login_text(settings, sys.stdout)})")  # fmt: skip
    if not ended:
        return 1
    decided = submitted is not None and bool(_is_decided(settings, submitted))
    last = {Cell.of(record): record for record in records}
    for cell in [] if decided else missing:
        record = last.get(cell.cell)
        why = f" ({record.status}{f': {record.reasons[0]}' if record.reasons else ''})" if record else ""
        progress(f"no usable record for {experiment_title(cell.config)}{why}; rerun the same command to retry")
    return 0 if decided or not missing else 1


def print_records(records: list[Record]) -> None:
    """Print the sweep summary and the table of records."""
    from faultline.comparison.sweep_summary import invalid_runs_of, summary_of
    from faultline.records.index_entry import IndexEntry
    from faultline.reports.console import print_summary
    from faultline.reports.terminal import print_table

    entries = [IndexEntry.of(record) for record in records]
    print_summary(summary_of(entries), invalid_runs_of(entries))
    print_table(records)


def report_times(settings: Settings, records: Sequence[Record], since: datetime, progress: Progress) -> None:
    """Print the duration of each phase of the experiments measured since `since`."""
    from faultline.reports.views.runs import run_name

    for record in records:
        split = phase_durations(Attempt(settings.attempts / record.attempt))
        if split and record.attempt > f"{since:%Y%m%dT%H%M%SZ}":
            parts = ", ".join(f"{name} {seconds:.0f}" for name, seconds in split.items())
            progress(f"{run_name(record)}: took {sum(split.values()):.0f} s ({parts})")


def await_dags(api: AirflowApi, *dag_ids: str, unpaused: bool = True) -> None:
    """Wait until Airflow has parsed the DAGs and, if `unpaused`, unpaused them.

    Raises InfrastructureError with the import error, if any.
    """

    def trouble() -> str | None:
        errors = api.import_errors()
        return f"airflow: DAG import failed: {errors[0]}" if errors else None

    for dag_id in dag_ids:
        wait_until(
            lambda dag_id=dag_id: api.has_dag(dag_id, unpaused=unpaused),  # type: ignore[misc]
            timeout_s=PARSE_TIMEOUT_S,
            every_s=0.5,
            what=f"airflow: the DAG {dag_id}",
            alive=trouble,
        )


def newest_records(
    settings: Settings, cells: Sequence[PlannedCell], sweep: str | None = None, plan: SweepPlan | None = None
) -> tuple[list[Record], list[PlannedCell]]:
    """Return the latest usable record of each cell, else its latest record; and the cells without a usable one.

    `sweep`: only records of this sweep; `plan`: only records that count for this plan.
    """
    by_cell: dict[Cell, Record] = {}
    for record in Store(settings.results).query(sweep=sweep):
        if plan is not None and not plan.counts(record):
            continue
        known = by_cell.get(Cell.of(record))
        if known is None or record.is_usable or not known.is_usable:
            by_cell[Cell.of(record)] = record
    found = [by_cell[cell.cell] for cell in cells if cell.cell in by_cell]
    return found, [cell for cell in cells if cell.cell not in by_cell or not by_cell[cell.cell].is_usable]


def plan_of(settings: Settings, sweep: str | None) -> SweepPlan:
    """Return the plan of a sweep (default: the newest). Raises ConfigError if there is none."""
    plans = SweepPlans(settings.results)
    if sweep is None:
        newest = plans.newest()
        if newest is None:
            raise ConfigError("sweep: no sweep yet; fix: start one, such as ./faultline sweep input_rate")
        return newest
    plan = plans.read(sweep)
    if plan is None:
        raise ConfigError(f"sweep: got {sweep}; expected a known sweep{suggest(sweep, plans.ids())}")
    return plan


def cells_in(plan: SweepPlan) -> list[PlannedCell]:
    """Return the cells of a plan."""
    return [PlannedCell(parse_configuration(one.config), one.repetition, plan.series) for one in plan.cells]


def progress_of(settings: Settings, plan: SweepPlan) -> tuple[int, int]:
    """Return the number of cells of a plan with a usable record, and of all its cells."""
    cells = cells_in(plan)
    return len(cells) - len(newest_records(settings, cells, plan=plan)[1]), len(cells)


def _is_decided(settings: Settings, submitted: SubmittedSweep) -> bool:
    """Return whether a sequential sweep has decided all comparisons."""
    from faultline.comparison.coverage import gap_of
    from faultline.comparison.decisions import decided_in_plan
    from faultline.records.index import Index

    plan = SweepPlans(settings.results).read(submitted.sweep_id)
    if plan is None or plan.decide is None:
        return False
    index = Index(settings.results, settings.home)
    index.refresh()
    entries = index.all()
    return not gap_of(plan, entries, decided_in_plan(plan, entries)).missing


def _is_open_in(attempt: Attempt, sweep_id: str) -> bool:
    try:
        return attempt.over is None and read_plan(attempt).order.sweep_id == sweep_id
    except InfrastructureError:
        return False


def report_running_sweeps(settings: Settings, progress: Progress) -> None:
    """Print a line for each sweep that Airflow is running, such as after a reboot."""
    plans = SweepPlans(settings.results)
    for run in AirflowApi(settings).runs("~", "running", "queued"):
        plan = plans.read(sweep_id_of(str(run["dag_run_id"]))) if run["dag_id"] != EXPERIMENT else None
        if plan is not None:
            done, total = progress_of(settings, plan)
            progress(f"{run['dag_id']} {run['dag_run_id']}: running, {done} of {total} cells measured")
        elif run["dag_id"] in MATRICES:
            progress(f"{run['dag_id']} {run['dag_run_id']}: running, not yet planned")
