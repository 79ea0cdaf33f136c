"""DAG `nightly_regression`: the same configurations in every nightly run, compared with earlier ones.

plan_nightly_run -> run_experiment (mapped) -> aggregate -> compare_with_baseline -> no_regression -> send_alerts

`no_regression` fails if a figure became worse, so that Airflow handles a regression like any failed task. `send_alerts`
alerts the recipients of the nightly file.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.sensors.time_delta import TimeDeltaSensor
from airflow.sdk import DAG, CronTriggerTimetable, Param, TriggerRule, chain, get_current_context, task

from faultline.comparison.statistics.estimate import MIN_REPETITIONS
from faultline.experiment.build import EXAMPLE
from faultline.experiment.matrices import MOST_MEASUREMENTS
from faultline.experiment.nightly_file import FIELDS, PAIRS, NightlyFile, nightly_files, schedule
from faultline.orchestration.forms import label_param
from faultline.orchestration.matrix_dag import (
    aggregate,
    current_sweep_run,
    integer_param,
    reject_plan,
    require_success,
    run_experiments,
)
from faultline.orchestration.nightly.nightly_plan import nightly_cells, reference_of_nightly_run
from faultline.orchestration.run_experiment import RETRY_ARGUMENTS
from faultline.records.catalogue import USUAL
from faultline.system.errors import ConfigError
from faultline.system.settings import load_settings

if TYPE_CHECKING:
    from faultline.comparison.nightly_verdict import NightlyVerdict
    from faultline.comparison.slo import SLOReport
    from faultline.records.index_entry import IndexEntry
    from faultline.records.sweep_plan import ReferenceBuild, SweepPlan

# Suffix of the watch DAG, which checks that the nightly run has started.
WATCH_SUFFIX = "_watch"
START_GRACE_MIN = 30
# A scheduled run that starts later is rejected, because it would be measured during the day.
MAX_START_DELAY_MIN = 120
# Airflow's type of a scheduled run.
SCHEDULED = "scheduled"
# Cost of killing an executor and the driver, on word count.
DEFAULT_SET: list[dict[str, Any]] = [
    {"workload": "word_count", "checkpoint_interval_s": 5.0, "fault": "executor"},
    {"workload": "word_count", "checkpoint_interval_s": 5.0, "fault": "driver"},
]
DOC = """\
### Nightly regression

**With a `baseline`** (a revision's workload programs and engine settings), each configuration of `set` is measured
with the current build and with that reference build, in `repetitions` pairs, one directly after the other. The task
`no_regression` **fails if two nightly runs in a row find the `primary` figure worse, or one is beyond doubt**. It also
fails if the pairs are inconclusive. The note of the run reports what changed, since when, and the minimum detectable
effect.

**Without a `baseline`**, each configuration is measured `repetitions` times, with `controls` control runs. The run is
compared with up to `baseline_nights` earlier nightly runs of one build. The task fails if a figure became worse.
Verdicts need five repetitions per side; see docs/explanation/comparing.md.

It **also fails if a median exceeds one of its `limits`**, whatever the earlier runs were.

Use Airflow's backfill for a missed run (menu of the DAG, or `airflow backfill create`). Its records have the missed
date as `logical_date` and the actual time as `measured_at`.

The DAG is paused initially, since it uses the machine for some hours per run. `nightly.yaml`
(docs/reference/nightly.md) sets configurations, schedule, reference build and alerts. It is reloaded automatically;
`./faultline nightly check` explains it.
"""


def nightly_dags(root: Path | None = None) -> dict[str, DAG]:
    """Return a DAG for each nightly file and for the default one; one with alerts also gets a watch DAG.

    An error in a file is reported when its run is planned.
    """
    files = nightly_files(root or load_settings().root)
    return {dag.dag_id: dag for one in files for dag in (nightly_dag(one), *([watch_dag(one)] if one.alerts else []))}


def nightly_dag(file: NightlyFile) -> DAG:
    """Return the DAG of one nightly file."""
    params = nightly_params()
    problem = file.problem or form_problem(params, file)
    with DAG(
        file.dag_id,
        # The logical date is the instant when the run is due.
        schedule=CronTriggerTimetable(file.schedule, timezone="UTC"),
        # Without a start date the first run is the next one: unpausing does not catch up.
        catchup=False,
        max_active_runs=1,
        is_paused_upon_creation=True,
        params=params,
        doc_md=f"**{problem}**\n\n{DOC}" if problem else DOC,
        description=problem or "The same configurations in every nightly run, compared with earlier ones",
        tags=["faultline", "nightly"],
        render_template_as_native_obj=True,
    ) as dag:
        planned, end = plan_nightly_run(), aggregate()
        runs = run_experiments(planned)
        compared = compare_with_baseline()
        alarm = no_regression(compared)
        chain(runs, end, compared, alarm)
        chain([compared, alarm], send_alerts())
        [planned, runs, end] >> require_success()
    return dag


def form_problem(params: dict[str, Param], file: NightlyFile) -> str | None:
    """Set the form's defaults from a nightly file; return the first invalid field and its error, None without one."""
    from airflow.sdk.exceptions import ParamValidationError

    for name, value in file.form.items():
        try:
            params[name].resolve(value)
        except (ParamValidationError, ValueError) as error:
            return f"{file.path.name if file.path else file.dag_id}: {name}: {str(error).splitlines()[0]}"
    return None


def watch_dag(file: NightlyFile) -> DAG:
    """Return the DAG that detects a nightly run that did not start.

    It has the nightly run's schedule and is also paused initially.
    """
    with DAG(
        f"{file.dag_id}{WATCH_SUFFIX}",
        schedule=CronTriggerTimetable(file.schedule, timezone="UTC"),
        catchup=False,
        is_paused_upon_creation=True,
        doc_md=f"Checks {START_GRACE_MIN} minutes after a run of `{file.dag_id}` was due whether it started; "
        "sends an alert if not. It cannot detect that the scheduler itself is down.",
        description=f"Checks that {file.dag_id} has started",
        tags=["faultline", "nightly"],
    ) as dag:
        wait = TimeDeltaSensor(task_id="wait", delta=timedelta(minutes=START_GRACE_MIN), deferrable=True)
        wait >> check_started(file.dag_id)
    return dag


def nightly_params() -> dict[str, Param]:
    """Return the form: set of configurations, repetitions, and comparison."""
    return {
        "set": Param(
            DEFAULT_SET, type="array", items={"type": "object"}, minItems=1, title="set",
            description="Configurations: objects of the parameters that differ from the defaults.",
        ),
        "repetitions": Param(
            None, type=["null", "integer"], minimum=1, maximum=100, title="repetitions", section="Sweep",
            description=f"Repetitions. Empty: {PAIRS} pairs with a baseline, {MIN_REPETITIONS} without.",
        ),
        "controls": integer_param(
            "controls", MIN_REPETITIONS, 0, 100,
            "Control runs of each configuration, without a baseline; they give the noise floor.",
        ),
        "baseline": Param(
            None, type=["null", "object"], title="baseline", section="Sweep",
            description=f"Reference build, measured in pairs with the present one: an object such as {EXAMPLE}; "
            "{} is the checkout. Empty: compare with earlier nightly runs.",
        ),
        "primary": Param(
            None, type=["null", "array"], items={"type": "string"}, title="primary", section="Sweep",
            description="Figure that decides each configuration, with a baseline: paths in the record, one for all or "
            "one for each. Empty: the most sensitive figure.",
        ),
        "baseline_nights": integer_param("baseline_nights", 7, 1, 365, "Earlier nightly runs to compare with."),
        "metrics": Param(
            list(USUAL), type="array", items={"type": "string"}, minItems=1, title="metrics", section="Sweep",
            description="Figures to compare, by their paths in the record.",
        ),
        "limits": Param(
            None, type=["null", "object"], title="limits", section="Sweep",
            description="Limits of figures, by their paths in the record, such as "
            '{"recovery.macro_s": 30, "latency_ms.p99": 500}. A larger value fails the run.',
        ),
        "only_missing": Param(
            True, type="boolean", title="only_missing", section="Sweep",
            description="Skip cells of this nightly run that have a usable record.",
        ),
        "max_measurements": integer_param(
            "max_measurements", MOST_MEASUREMENTS, 1, 10, "Most attempts of a cell."
        ),
        "build": label_param("build", "Label of the software under test. Empty: versions, settings, code.", "Sweep"),
    }  # fmt: skip


@task(**RETRY_ARGUMENTS)
def plan_nightly_run() -> list[dict[str, Any]]:
    """Return the cells of this nightly run, as arguments of `run_experiment`."""
    from faultline.comparison.compare import metrics_named
    from faultline.comparison.slo import parse_slos
    from faultline.experiment.nightly_file import nightly_configurations
    from faultline.lifecycle.environment import installed_build
    from faultline.orchestration.planning import reject_unknown

    context = get_current_context()
    params, file = context["params"], nightly_file_of(context["dag"].dag_id)
    try:
        if file.problem:
            raise ConfigError(file.problem)
        reject_unknown(params, FIELDS)
        metrics_named(params["metrics"])
        parse_slos(params.get("limits"))
        date = require_on_time(require_past(nightly_date()))
        configs = nightly_configurations(params["set"])
        build = params["build"] or installed_build(load_settings(), configurations=configs)
        order = {**params, "seed": zlib.crc32(date.encode())}
        cells, baseline = nightly_cells(params, date), reference_of_nightly_run(params, date)
        labels: dict[str, Any] = {"series": date, "build": build, "logical_date": date, "schedule": file.schedule}
        return current_sweep_run().write_plan(cells, params=order, baseline=baseline, **labels)
    except ConfigError as error:
        raise reject_plan(error) from None


def nightly_file_of(dag_id: str) -> NightlyFile:
    """Return the current nightly file of a DAG; the default one if it has none."""
    found = {one.dag_id: one for one in nightly_files(load_settings().root)}
    return found.get(dag_id, NightlyFile(dag_id, None, schedule()))


def nightly_date() -> str:
    """Return the logical date of this run; for a manual run without one, the time when it was due."""
    context = get_current_context()
    moment = context.get("logical_date") or context["dag_run"].run_after
    return str(moment.isoformat(timespec="seconds"))


def require_past(date: str) -> str:
    """Return the date unchanged.

    Raises ConfigError for a future date, because measurements of today must not count for it.
    """
    from datetime import UTC, datetime

    if datetime.fromisoformat(date) > datetime.now(UTC):
        raise ConfigError(f"logical_date: got {date}; expected a date in the past; fix: omit it, or give a past date")
    return date


def require_on_time(date: str) -> str:
    """Return the date unchanged.

    Raises ConfigError if the scheduler started the run too late: Airflow catches up the last missed run even without
    `catchup`.
    """
    run = get_current_context()["dag_run"]
    if run.run_type != SCHEDULED or run.clear_number or run.start_date is None:
        return date
    late = run.start_date - run.run_after
    if late <= timedelta(minutes=MAX_START_DELAY_MIN):
        return date
    raise ConfigError(
        f"logical_date: {date} started {late.total_seconds() / 3600:.0f} hours late, because Airflow was down or the "
        "previous run was still active; fix: clear this run, or backfill the date"
    )


@task(trigger_rule=TriggerRule.ALL_DONE, **RETRY_ARGUMENTS)
def compare_with_baseline() -> dict[str, Any]:
    """Judge the nightly run, store the verdict in `results/nights/` and set the run's note."""
    from faultline.comparison.compare import metrics_named
    from faultline.comparison.nightly_history import NightlyRun, judge_nightly_run, nightly_runs_of
    from faultline.comparison.slo import check_slos, parse_slos
    from faultline.experiment.cell import sweep_id_of
    from faultline.orchestration.airflow_api import note_run
    from faultline.records.index import Index
    from faultline.records.sweep_plan import SweepPlans
    from faultline.reports.notes import nightly_note

    context, settings = get_current_context(), load_settings()
    params, date, sweep_id = context["params"], nightly_date(), sweep_id_of(context["run_id"])
    index = Index(settings.results, settings.home)
    index.refresh()
    entries = index.of_matrix(context["dag"].dag_id)
    nights = nightly_runs_of(entries)
    own = next((one for one in nights if one.date == date), NightlyRun(date, ()))
    plan = SweepPlans(settings.results).read(sweep_id)
    if plan is None:
        return {"summary": "no plan", "problem": "no plan"}
    # The limits apply only to the build under test, not to the reference build.
    promised = check_slos([one for one in own.entries if one.build == plan.build], parse_slos(params.get("limits")))
    verdict = (
        judge_nightly_run(own, nights, metrics_named(params["metrics"]), params["baseline_nights"], promised)
        if plan.baseline is None
        else paired_verdict_of(plan, plan.baseline, entries, promised)
    )
    verdict.store(settings.results, sweep_id)
    lines = (*verdict.beyond, *verdict.doubtful, *verdict.reasons, *verdict.suspicions)
    print(*filter(None, (verdict.summary, *lines, verdict.problem)), sep="\n")
    note_run(settings, context, nightly_note(verdict, sweep_id))
    result = verdict.without_figures()
    # A problem would skip the next task; if usable records merely lack an earlier run to compare with, it must not.
    return result if verdict.is_paired or not own.valid else {**result, "problem": None}


def paired_verdict_of(
    plan: SweepPlan, baseline: ReferenceBuild, entries: Sequence[IndexEntry], promised: SLOReport
) -> NightlyVerdict:
    """Return the verdict on a nightly run that was measured in pairs with a reference build."""
    from faultline.comparison.regression_gate.nightly_pairs import paired_runs_of, paired_verdict
    from faultline.comparison.regression_gate.verdict import judge_gate
    from faultline.records.sweep_plan import SweepPlans

    plans = SweepPlans(load_settings().results).of_matrix(plan.matrix)
    nights = paired_runs_of([*(one for one in plans if one.sweep_id != plan.sweep_id), plan], entries)
    verdict = judge_gate([one for one in nights if one.date <= str(plan.logical_date)])
    return paired_verdict(verdict, baseline.spec, promised)


@task
def no_regression(verdict: dict[str, Any]) -> None:
    """Fail if a figure exceeds its limit or became worse, or if planned pairs are inconclusive.

    The message has one entry per figure. The task is skipped if the run has no plan or no usable record.
    """
    from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

    from faultline.comparison.nightly_verdict import NightlyVerdict

    judged = NightlyVerdict.model_validate(verdict)
    than = "the baseline" if judged.is_paired else "earlier nightly runs"
    wrong = [f"beyond its limit: {line}" for line in judged.beyond]
    wrong += [f"worse than {than}: {'; '.join(judged.reasons)}"] * bool(judged.reasons)
    wrong += [judged.problem] if judged.is_paired and judged.problem else []
    if wrong:
        raise AirflowFailException("; ".join(wrong))
    if judged.problem:
        raise AirflowSkipException(judged.problem)


@task(trigger_rule=TriggerRule.ALL_DONE, **RETRY_ARGUMENTS)
def send_alerts() -> list[str]:
    """Send the alerts of the nightly file: on regressions, improvements and incomplete runs."""
    from faultline.comparison.coverage import gap_of
    from faultline.comparison.nightly_verdict import stored_verdict
    from faultline.experiment.cell import sweep_id_of
    from faultline.orchestration.nightly.alerts import send_alert
    from faultline.records.index import Index
    from faultline.records.sweep_plan import SweepPlans
    from faultline.reports.notes import nightly_alert, results_link

    context, settings = get_current_context(), load_settings()
    dag_id, date, sweep_id = context["dag"].dag_id, nightly_date(), sweep_id_of(context["run_id"])
    plans = nightly_file_of(dag_id).alerts
    if not plans:
        return []
    plan, index = SweepPlans(settings.results).read(sweep_id), Index(settings.results, settings.home)
    index.refresh()
    entries = index.of_matrix(dag_id)
    own = [one for one in entries if plan is not None and one.logical_date == plan.logical_date]
    gap = gap_of(plan, entries) if plan else None
    link = results_link(settings.endpoints.airflow, sweep_id if plan else None)
    alert = nightly_alert(
        dag_id, date, link, stored_verdict(settings.results, sweep_id), planned=gap.planned if gap else 0,
        missing=len(gap.missing) if gap else 0, valid=sum(one.is_usable for one in own),
    )  # fmt: skip
    if alert is None:
        return []
    sent = send_alert(alert, plans)
    print(*sent, sep="\n")
    return sent


@task
def check_started(dag_id: str) -> None:
    """Send an alert and fail if the nightly run with the logical date of this run has no plan."""
    from airflow.sdk.exceptions import AirflowFailException

    from faultline.orchestration.nightly.alerts import send_alert
    from faultline.records.sweep_plan import SweepPlans
    from faultline.reports.notes import missed_start_alert, results_link

    settings, date = load_settings(), nightly_date()
    if any(plan.logical_date == date for plan in SweepPlans(settings.results).of_matrix(dag_id)):
        return
    alert = missed_start_alert(date, dag_id, START_GRACE_MIN, results_link(settings.endpoints.airflow, None))
    send_alert(alert, nightly_file_of(dag_id).alerts)
    raise AirflowFailException(alert.lines[0])
