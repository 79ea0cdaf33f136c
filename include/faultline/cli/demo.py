"""`./faultline demo`: services, a sweep with executor kills, and its results, from one command."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from faultline.cli.service_control import bring_up
from faultline.cli.sweep_progress import FollowResult, follow, minutes_text
from faultline.cli.sweep_runner import await_dags, newest_records, print_records, report_times
from faultline.experiment.cell import EXPERIMENT, Cell, sweep_id_of
from faultline.experiment.common_parameters import DEMO, DEMO_MEASUREMENTS
from faultline.experiment.matrices import MATRICES
from faultline.experiment.matrix import Matrix, PlannedCell
from faultline.installation.airflow import login_text
from faultline.lifecycle.environment import installed_build
from faultline.lifecycle.progress import budget_s, experiment_title
from faultline.orchestration.airflow_api import AirflowApi
from faultline.records.record import WITH_FIGURES, Record
from faultline.reports.report import write_report
from faultline.system.child_environment import caller_umask
from faultline.system.errors import InfrastructureError
from faultline.system.files import check_output_path
from faultline.system.settings import Settings
from faultline.system.text import Progress, pluralize

DAG_ID = "state_size_x_checkpoint_interval"


def run_demo(progress: Progress, *, rerun: bool, output: Path | None) -> int:
    """Run the demo; return 0 if every cell was measured and judged, valid or not, else 1."""
    started = datetime.now(UTC)
    if output is not None:
        check_output_path(output, "--output")
    settings = bring_up(progress)
    up = datetime.now(UTC)
    progress(f"Airflow {settings.endpoints.airflow}, {login_text(settings, sys.stderr)}")
    cells = demo_matrix().cells(installed_build(settings))
    api = AirflowApi(settings)
    missing = cells if rerun else newest_records(settings, cells)[1]
    await_dags(api, DAG_ID, EXPERIMENT)
    run_id = _running_demo(api)
    if run_id:
        progress(f"resuming {run_id}")
    elif missing:
        minutes = minutes_text(sum(budget_s(cell.config) for cell in missing))
        progress(f"{len(missing)} of {pluralize(len(cells), 'experiment')} to measure, about {minutes}")
        run_id = api.trigger(DAG_ID, _form(rerun), run_id=_new_run_id())
    else:
        progress("all experiments have usable records; `--rerun` re-runs them")
    watched = FollowResult("success")
    if run_id:
        typical_s = max(budget_s(cell.config) for cell in cells)
        watched = follow(
            api, settings, DAG_ID, run_id, cells, progress,
            budget_s=typical_s, most=DEMO_MEASUREMENTS, keep_invalid=True,
        )  # fmt: skip
    records, missing = newest_records(settings, cells, sweep_id_of(run_id) if rerun and run_id else None)
    if records:
        print_results(settings, records, started, output, progress)
    elif watched:
        raise InfrastructureError("demo: no experiment has a record; fix: see the failed tasks in the UI")
    if not watched:
        return 1
    _report_unusable(records, missing, rerun, progress)
    if watched.first_recovery_s is not None:
        first = [(watched.first_recovery_s - since.timestamp()) / 60 for since in (started, up)]
        progress(f"first recovery: after {first[0]:.1f} min, {first[1]:.1f} min after the services started")
    progress(
        f"done in {(datetime.now(UTC) - started).total_seconds() / 60:.1f} min; `./faultline down` stops the services"
    )
    judged = {Cell.of(record) for record in records if record.status in WITH_FIGURES}
    return 0 if watched.state == "success" and all(cell.cell in judged for cell in cells) else 1


def print_results(
    settings: Settings, records: list[Record], started: datetime, output: Path | None, progress: Progress
) -> None:
    """Print summary, table, times of the experiments measured since `started`, and the addresses of report and UI."""
    print_records(records)
    report_times(settings, records, started, progress)
    target = output or settings.results / "reports" / f"demo-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.html"
    with caller_umask():
        print(f"report: {write_report(records, settings.results, target, title='Word count under a kill')}")
    print(f"airflow: {settings.endpoints.airflow} ({login_text(settings, sys.stdout)})")


def _report_unusable(
    records: Sequence[Record], missing: Sequence[PlannedCell], rerun: bool, progress: Progress
) -> None:
    """Print a line per configuration with runs that have no usable record, and the command that re-runs them."""
    command = f"./faultline demo{' --rerun' * rerun}"
    last = {Cell.of(record): record.status for record in records}
    unusable = Counter((experiment_title(cell.config), last.get(cell.cell, "no record")) for cell in missing)
    for (name, status), runs in unusable.items():
        progress(f"no usable record for {pluralize(runs, 'run')} of {name} ({status}); `{command}` re-runs them")


def _running_demo(api: AirflowApi) -> str | None:
    """Return the id of an unfinished run of the demo, or None."""
    runs = [run["dag_run_id"] for run in api.runs(DAG_ID, "running", "queued")]
    return next((run_id for run_id in runs if run_id.startswith("demo_")), None)


def _form(rerun: bool) -> dict[str, object]:
    return {
        "preset": DEMO, "only_missing": not rerun, "max_measurements": DEMO_MEASUREMENTS, "keep_invalid": True,
    }  # fmt: skip


def demo_matrix() -> Matrix:
    """Return the matrix of the demo: the preset `demo`, as the DAG expands it."""
    return MATRICES[DAG_ID].preset_matrix(DEMO)


def _new_run_id() -> str:
    return f"demo_{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
