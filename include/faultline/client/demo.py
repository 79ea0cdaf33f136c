"""`./faultline demo`: the main job from one command, and what it shows on the way."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from faultline.base.attempt import Attempt
from faultline.base.errors import InfrastructureError
from faultline.base.settings import Settings
from faultline.base.text import Say
from faultline.base.waiting import wait_until
from faultline.client.airflow_api import AirflowApi
from faultline.client.following import follow
from faultline.client.operations import bring_up
from faultline.cluster.airflow_home import USER, password
from faultline.experiment.cell import Cell
from faultline.experiment.matrices import MATRICES
from faultline.experiment.matrix import Matrix, PlannedCell, sweep_id_of
from faultline.records.record import Record
from faultline.records.store import Store
from faultline.runner.environment import installed_build
from faultline.runner.progress import describe, split_of

DAG_ID = "state_size_x_checkpoint_interval"
PRESET = "demo"
EXPERIMENT_BUDGET_S = 112.0
PARSE_TIMEOUT_S = 120.0


def run_demo(say: Say, *, again: bool, output: Path | None) -> int:
    """Runs the demo; returns the exit code: 0 when every cell has a valid record."""
    started = datetime.now(UTC)
    settings = bring_up(say)
    say(f"Airflow {settings.endpoints.airflow}, user {USER}, password {password(settings)}")
    cells = demo_matrix().cells(installed_build(settings))
    api = AirflowApi(settings)
    missing = cells if again else [cell for cell in cells if not Store(settings.results).sound(cell.cell)]
    await_dags(api, DAG_ID, "experiment")  # until then nobody knows its runs
    run_id = _running(api)
    if run_id:
        say(f"goes on with {run_id}")
    elif missing:
        say(f"{len(missing)} of {len(cells)} experiments to measure, about {_minutes(len(missing))}")
        run_id = api.trigger(DAG_ID, _form(again), run_id=_new_run_id())
    else:
        say("all experiments have valid records; `--again` measures them anew")
    ended = run_id is None or follow(api, settings, DAG_ID, run_id, cells, say, budget_s=EXPERIMENT_BUDGET_S)
    records, missing = newest_records(settings, cells, sweep_id_of(run_id) if again and run_id else None)
    if records:
        show(settings, records, started, output, say)
    elif ended:
        raise InfrastructureError("demo: not one experiment left a record; see the failed tasks in the UI")
    if ended:
        minutes = (datetime.now(UTC) - started).total_seconds() / 60
        say(f"done in {minutes:.1f} min; `./faultline down` ends the services")
        command = f"./faultline demo{' --again' * again}"
        for cell in missing:
            say(f"no valid record for {describe(cell.config)}; `{command}` measures it again")
    return 0 if ended and not missing else 1


def await_dags(api: AirflowApi, *dag_ids: str) -> None:
    """Waits until Airflow has parsed the DAGs. Raises InfrastructureError with the import error, if any."""

    def trouble() -> str | None:
        errors = api.import_errors()
        return f"airflow: a DAG file cannot be read: {errors[0]}" if errors else None

    for dag_id in dag_ids:
        wait_until(
            lambda dag_id=dag_id: api.has_dag(dag_id),  # type: ignore[misc]
            timeout_s=PARSE_TIMEOUT_S,
            every_s=0.5,
            what=f"airflow: the DAG {dag_id}",
            alive=trouble,
        )


def show(settings: Settings, records: list[Record], started: datetime, output: Path | None, say: Say) -> None:
    """Prints the answer, the table, where the time of what was measured since `started` went, and where report and UI
    are."""
    from faultline.comparison.answer import answer_of
    from faultline.records.summary import Entry
    from faultline.reports.answer.output import print_answer
    from faultline.reports.report import write_report
    from faultline.reports.table import name_of, print_table

    print_answer(answer_of([Entry.of(record) for record in records]))
    print_table(records)
    for record in records:
        split = split_of(Attempt(settings.attempts / record.attempt))
        if split and record.attempt > f"{started:%Y%m%dT%H%M%SZ}":
            parts = ", ".join(f"{name} {seconds:.0f}" for name, seconds in split.items())
            say(f"{name_of(record)}: took {sum(split.values()):.0f} s ({parts})")
    target = output or settings.results / "reports" / f"demo-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.html"
    target.parent.mkdir(parents=True, exist_ok=True)
    print(f"report: {write_report(records, settings.results, target, title='Word count under a kill')}")
    print(f"airflow: {settings.endpoints.airflow} (user {USER}, password {password(settings)})")


def newest_records(
    settings: Settings, cells: list[PlannedCell], sweep: str | None = None
) -> tuple[list[Record], list[PlannedCell]]:
    """For each cell its latest valid record, else its latest one; and the cells without a valid one.

    With `sweep`, only what that sweep measured counts.
    """
    by_cell: dict[Cell, Record] = {}
    for record in Store(settings.results).query(sweep=sweep):
        known = by_cell.get(Cell.of(record))
        if known is None or record.sound or not known.sound:
            by_cell[Cell.of(record)] = record
    found = [by_cell[cell.cell] for cell in cells if cell.cell in by_cell]
    lacking = [cell for cell in cells if cell.cell not in by_cell or not by_cell[cell.cell].sound]
    return found, lacking


def _running(api: AirflowApi) -> str | None:
    """A run of the demo's matrix that is still going, such as after an interrupted demo."""
    runs = [run["dag_run_id"] for run in api.runs(DAG_ID, "running", "queued")]
    return next((run_id for run_id in runs if run_id.startswith("demo_")), None)


def _form(again: bool) -> dict[str, object]:
    return {"preset": PRESET, "only_missing": not again}


def demo_matrix() -> Matrix:
    """What the demo measures: the preset `demo` of its matrix, as the DAG expands it."""
    return Matrix.under(MATRICES[DAG_ID].complete(PRESET), MATRICES[DAG_ID].axes)


def _new_run_id() -> str:
    return f"demo_{datetime.now(UTC):%Y%m%dT%H%M%SZ}"


def _minutes(experiments: int) -> str:
    return f"{experiments * EXPERIMENT_BUDGET_S / 60:.0f} minutes"
