"""`./faultline sweep`: a matrix measured through Airflow, from what is asked for to its answer."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from faultline.cli.service_control import bring_up
from faultline.cli.sweep_arguments import SweepRequest, wanted_of
from faultline.cli.sweep_progress import follow, minutes_text
from faultline.experiment.attempt import Attempt
from faultline.experiment.attempt_plan import read_plan
from faultline.experiment.cell import EXPERIMENT, Cell, sweep_id_of
from faultline.experiment.config import parse_configuration
from faultline.experiment.matrices import MATRICES
from faultline.experiment.matrix import PlannedCell
from faultline.installation.airflow import login_text
from faultline.lifecycle.environment import installed_build
from faultline.lifecycle.orphans import unclosed_attempts
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

# How a run ends that is stopped.
STOPPED_STATE = "failed"
PARSE_TIMEOUT_S = 120.0
# An experiment that is broken off still ends what it started, and writes its record.
STOP_TIMEOUT_S = 180.0


@dataclass(frozen=True)
class SubmittedSweep:
    """A sweep in Airflow: its DAG, its run, and its cells."""

    dag_id: str
    run_id: str
    cells: Sequence[PlannedCell]

    @property
    def sweep_id(self) -> str:
        return sweep_id_of(self.run_id)


def run_sweep(words: Sequence[str], say: Progress, *, dry_run: bool, rerun: bool) -> int:
    """The command; returns the exit code: 0 when every cell has a valid record, or when nothing was to be started."""
    wanted = wanted_of(words)
    if dry_run:
        print("\n".join(described(wanted, rerun=rerun)))
        return 0
    return run_wanted(wanted, say, rerun=rerun)


def described(wanted: SweepRequest, *, rerun: bool = False) -> list[str]:
    """The dry run: what would be measured, and about how long it takes."""
    settings = load_settings()
    # Of a broker that was never started nothing is known yet, and then the build is another one.
    cells = cells_of(wanted, settings)
    check_targets(settings, sorted({cell.config.target for cell in cells}))
    return outline(wanted, cells, lacking(settings, cells, rerun=rerun))


def run_wanted(
    wanted: SweepRequest, say: Progress, *, rerun: bool = False, show: Callable[[list[Record]], None] | None = None
) -> int:
    """Measures what has no valid record yet, and shows all of it with `show`; returns the exit code."""
    settings = bring_up(say)
    cells = cells_of(wanted, settings)
    missing = lacking(settings, cells, rerun=rerun)
    for line in outline(wanted, cells, missing):
        say(line)
    api = AirflowApi(settings)
    await_dags(api, wanted.spec.name, EXPERIMENT)
    course = running(api, settings, wanted.spec.name, cells)
    if course:
        say(f"goes on with {course.sweep_id}")
    elif missing:
        preflight_targets(settings, sorted({cell.config.target for cell in missing}), say)
        course = begin(api, wanted.spec.name, {**wanted.form, "only_missing": not rerun}, cells)
        say(f"sweep {course.sweep_id}; it goes on without this terminal, `./faultline sweep --follow` shows it again")
    ended = course is None or follow_course(api, settings, course, missing, say)
    return finish(settings, cells, say, ended=ended, course=course, rerun=rerun, show=show)


def follow_sweep(sweep: str | None, say: Progress) -> int:
    """Shows the progress of a sweep that runs, by default the newest, and what it came to."""
    settings = load_settings()
    plan = plan_of(settings, sweep)
    api, cells = AirflowApi(settings), planned_in(plan)
    course = SubmittedSweep(plan.matrix, plan.run_id, cells)
    say(f"{plan.matrix}, sweep {plan.sweep_id}")
    ended = follow_course(api, settings, course, cells, say)
    return finish(settings, cells, say, ended=ended, course=course)


def stop_sweep(sweep: str | None, say: Progress) -> int:
    """Ends a sweep that runs; what it measured stays, and the experiment in work ends as cancelled."""
    settings = load_settings()
    plan = plan_of(settings, sweep)
    api = AirflowApi(settings)
    state = api.run_state(plan.matrix, plan.run_id)
    if state in FINISHED:
        say(f"{plan.sweep_id} runs no more ({state}); nothing to stop")
        return 0
    done, total = progress_of(settings, plan)
    say(f"{plan.sweep_id}: is being stopped; what is in work is brought to its end, which may take two minutes")
    api.fail(plan.matrix, plan.run_id)
    api.set_note(
        plan.matrix,
        plan.run_id,
        f"{STOPPED_PREFIX} by hand after {done} of {pluralize(total, 'experiment')}; the same form goes on from there.",
    )
    say(f"{plan.sweep_id}: stopped after {done} of {pluralize(total, 'experiment')}; the one in work ends as cancelled")
    wait_until(
        lambda: not any(_is_of(attempt, plan.sweep_id) for attempt in unclosed_attempts(settings)),
        timeout_s=STOP_TIMEOUT_S,
        every_s=0.5,
        what=f"sweep {plan.sweep_id}: the end of its last experiment",
    )
    if api.run_state(plan.matrix, plan.run_id) != STOPPED_STATE:
        # The scheduler had looked at the run's tasks just before they were ended, and wrote down after that what it
        # made of them: of a run whose last tasks are skipped, a success.
        api.fail(plan.matrix, plan.run_id)
    say("ended; the same call goes on from there")
    return 0


def cells_of(wanted: SweepRequest, settings: Settings) -> list[PlannedCell]:
    """All cells of a sweep that was asked for; with a question as many as its budget may pay for."""
    installed = installed_build(settings, configurations=wanted.matrix.configurations())
    series = wanted.params["series"] or wanted.params["build"] or installed
    if wanted.params["decide"] is None:
        return wanted.matrix.cells(series)
    # It loads the statistics, which a sweep that asks nothing need not wait for.
    from faultline.comparison.decisions import planned_cells

    plans = SweepPlans(settings.results).of_matrix(wanted.spec.name)
    return planned_cells(wanted.matrix, wanted.params["decide"], series, plans)[0]


def lacking(settings: Settings, cells: Sequence[PlannedCell], *, rerun: bool = False) -> list[PlannedCell]:
    """The cells that have no valid record; with `rerun` all of them."""
    return list(cells) if rerun else newest_records(settings, cells)[1]


def outline(wanted: SweepRequest, cells: Sequence[PlannedCell], missing: Sequence[PlannedCell]) -> list[str]:
    """What is going to be measured, and about how long it takes."""
    configurations = len({cell.config.config_id for cell in cells})
    minutes = minutes_text(sum(budget_s(cell.config) for cell in missing))
    upto = "at most " if wanted.params["decide"] else ""
    head = (
        f"{wanted.spec.name}, preset {wanted.params.get('preset') or 'default'}: "
        f"{pluralize(configurations, 'configuration')}, {upto}{pluralize(len(cells), 'experiment')}"
    )
    if not missing:
        return [
            head,
            *(f"  {line}" for line in wanted.text),
            "all of them have a valid record; --rerun measures them again",
        ]
    known = f", {len(cells) - len(missing)} have a valid record" if len(missing) < len(cells) else ""
    return [
        head,
        *(f"  {line}" for line in wanted.text),
        f"{upto}{len(missing)} to measure{known}: about {minutes} on an idle machine",
    ]


def begin(api: AirflowApi, dag_id: str, form: Mapping[str, Any], cells: Sequence[PlannedCell]) -> SubmittedSweep:
    """Triggers a matrix."""
    run_id = f"{dag_id}_{datetime.now(UTC):%Y%m%dT%H%M%SZ}_{secrets.token_hex(2)}"
    return SubmittedSweep(dag_id, api.trigger(dag_id, dict(form), run_id=run_id), cells)


def running(api: AirflowApi, settings: Settings, dag_id: str, cells: Sequence[PlannedCell]) -> SubmittedSweep | None:
    """A sweep of the same cells that still runs, such as after this command was interrupted."""
    mine, manifests = {cell.cell for cell in cells}, SweepPlans(settings.results)
    for run in api.runs(dag_id, "running", "queued"):
        plan = manifests.read(sweep_id_of(run["dag_run_id"]))
        if plan is not None and {cell.cell for cell in planned_in(plan)} == mine:
            return SubmittedSweep(dag_id, run["dag_run_id"], cells)
    return None


def follow_course(
    api: AirflowApi, settings: Settings, course: SubmittedSweep, missing: Sequence[PlannedCell], say: Progress
) -> bool:
    """Shows the progress until the run has ended; False when the services were ended before."""
    typical_s = max((budget_s(cell.config) for cell in missing), default=0.0)
    return bool(follow(api, settings, course.dag_id, course.run_id, course.cells, say, budget_s=typical_s))


def finish(
    settings: Settings,
    cells: Sequence[PlannedCell],
    say: Progress,
    *,
    ended: bool,
    course: SubmittedSweep | None,
    rerun: bool = False,
    show: Callable[[list[Record]], None] | None = None,
) -> int:
    """Shows what the cells came to, and where their page is; returns the exit code."""
    plan = SweepPlans(settings.results).read(course.sweep_id) if course else None
    records, missing = newest_records(settings, cells, course.sweep_id if rerun and course else None, plan)
    if not records and ended:
        raise InfrastructureError("sweep: not one experiment left a record; see the failed tasks in the UI")
    if records:
        (show or print_outcome)(records)
    if course:
        print(f"page: {settings.endpoints.airflow}{UI_PAGE}/sweeps/{quote(course.sweep_id, safe='')}"
              f" ({login_text(settings, sys.stdout)})")  # fmt: skip
    if not ended:
        return 1
    decided = course is not None and bool(_settled(settings, course))
    last = {Cell.of(record): record for record in records}
    for cell in [] if decided else missing:
        record = last.get(cell.cell)
        why = f" ({record.status}{f': {record.reasons[0]}' if record.reasons else ''})" if record else ""
        say(f"no valid record for {experiment_title(cell.config)}{why}; the same call measures it again")
    return 0 if decided or not missing else 1


def print_outcome(records: list[Record]) -> None:
    """The answer, and the table that it rests on."""
    from faultline.comparison.sweep_summary import answer_of, invalid_runs_of
    from faultline.records.index_entry import IndexEntry
    from faultline.reports.console import print_summary
    from faultline.reports.terminal import print_table

    entries = [IndexEntry.of(record) for record in records]
    print_summary(answer_of(entries), invalid_runs_of(entries))
    print_table(records)


def say_times(settings: Settings, records: Sequence[Record], since: datetime, say: Progress) -> None:
    """Where the time of each experiment went that was measured `since`."""
    from faultline.reports.views.runs import run_name

    for record in records:
        split = phase_durations(Attempt(settings.attempts / record.attempt))
        if split and record.attempt > f"{since:%Y%m%dT%H%M%SZ}":
            parts = ", ".join(f"{name} {seconds:.0f}" for name, seconds in split.items())
            say(f"{run_name(record)}: took {sum(split.values()):.0f} s ({parts})")


def await_dags(api: AirflowApi, *dag_ids: str, unpaused: bool = True) -> None:
    """Waits until Airflow has parsed the DAGs. Raises InfrastructureError with the import error, if any.

    `unpaused`: whether they must be switched on, too.
    """

    def trouble() -> str | None:
        errors = api.import_errors()
        return f"airflow: a DAG file cannot be read: {errors[0]}" if errors else None

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
    """For each cell its latest valid record, else its latest one; and the cells without a valid one.

    With `sweep`, only what that sweep measured counts; with `plan`, only what counts for it.
    """
    by_cell: dict[Cell, Record] = {}
    for record in Store(settings.results).query(sweep=sweep):
        if plan is not None and not plan.counts(record):
            continue
        known = by_cell.get(Cell.of(record))
        if known is None or record.sound or not known.sound:
            by_cell[Cell.of(record)] = record
    found = [by_cell[cell.cell] for cell in cells if cell.cell in by_cell]
    return found, [cell for cell in cells if cell.cell not in by_cell or not by_cell[cell.cell].sound]


def plan_of(settings: Settings, sweep: str | None) -> SweepPlan:
    """The plan of a sweep, by default the newest one's. Raises ConfigError when there is none."""
    manifests = SweepPlans(settings.results)
    if sweep is None:
        newest = manifests.newest()
        if newest is None:
            raise ConfigError("sweep: none was planned yet; begin one, such as ./faultline sweep input_rate")
        return newest
    plan = manifests.read(sweep)
    if plan is None:
        raise ConfigError(f"sweep: {sweep} is not known{suggest(sweep, manifests.ids())}")
    return plan


def planned_in(plan: SweepPlan) -> list[PlannedCell]:
    """The cells of a plan."""
    return [PlannedCell(parse_configuration(one.config), one.repetition, plan.series) for one in plan.cells]


def progress_of(settings: Settings, plan: SweepPlan) -> tuple[int, int]:
    """How many cells of a plan have a valid record, and how many it has."""
    cells = planned_in(plan)
    return len(cells) - len(newest_records(settings, cells, plan=plan)[1]), len(cells)


def _settled(settings: Settings, course: SubmittedSweep) -> bool:
    """Whether a sweep with a question lacks nothing that is still asked for."""
    from faultline.comparison.coverage import gap_of
    from faultline.comparison.decisions import settled_in
    from faultline.records.index import Index

    plan = SweepPlans(settings.results).read(course.sweep_id)
    if plan is None or plan.decide is None:
        return False
    index = Index(settings.results, settings.home)
    index.refresh()
    entries = index.all()
    return not gap_of(plan, entries, settled_in(plan, entries)).missing


def _is_of(attempt: Attempt, sweep_id: str) -> bool:
    try:
        return attempt.over is None and read_plan(attempt).order.sweep_id == sweep_id
    except InfrastructureError:
        return False


def say_what_goes_on(settings: Settings, say: Progress) -> None:
    """A line for each sweep that Airflow goes on with, such as after the machine was started anew."""

    manifests = SweepPlans(settings.results)
    for run in AirflowApi(settings).runs("~", "running", "queued"):
        plan = manifests.read(sweep_id_of(str(run["dag_run_id"]))) if run["dag_id"] != EXPERIMENT else None
        if plan is not None:
            done, whole = progress_of(settings, plan)
            say(f"{run['dag_id']} {run['dag_run_id']}: goes on, {done} of {whole} cells are measured")
        elif run["dag_id"] in MATRICES:
            say(f"{run['dag_id']} {run['dag_run_id']}: goes on, and is planned first")
