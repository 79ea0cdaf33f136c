"""The DAG `nightly_regression`: the same configurations each night, held against the nights before.

plan_nightly_run -> run_experiment (mapped) -> aggregate -> compare_with_baseline -> no_regression -> send_alerts

`no_regression` fails when a figure became worse, so that whatever Airflow does about failed tasks is done about
regressions; `send_alerts` alerts those whom the night's file names.
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

# How the DAG is called that notices a night which does not begin, and when it looks.
WATCH_SUFFIX = "_watch"
START_GRACE_MIN = 30
# A night that begins later by itself would be measured amid the day.
MAX_START_DELAY_MIN = 120
# The kind of a run that the schedule began.
SCHEDULED = "scheduled"
# What a user of word count asks first: what a kill costs, of an executor and of the driver.
DEFAULT_SET: list[dict[str, Any]] = [
    {"workload": "word_count", "checkpoint_interval_s": 5.0, "fault": "executor"},
    {"workload": "word_count", "checkpoint_interval_s": 5.0, "fault": "driver"},
]
DOC = """\
### Nightly regression

**With a `baseline`**, a revision's workload programs and settings of the engine, it measures each configuration of
`set` with tonight's build and with that one, in `repetitions` pairs, one directly after the other. The task
`no_regression` **fails when two nights in a row find the `primary` figure worse, or one is certain beyond doubt**, and
when it cannot tell. The note of the run says what changed, since when, and how large a change would have been seen.

**Without one** it measures each `repetitions` times, with `controls` runs of the same without a fault among them, and
holds the night against up to `baseline_nights` nights before it that ran one build. The task fails when a figure became
worse. Verdicts need five repetitions a side; what they rest on, and what they can see, stands in
docs/explanation/comparing.md.

It **also fails when a median is beyond one of its `limits`**, whatever the nights before were like.

A night that was missed is made up for by Airflow's own backfill (menu of the DAG, or `airflow backfill create`): its
records carry the night as `logical_date`, and `measured_at` says when they were really measured.

Paused at first: it would take the machine for some hours each night. What it measures, when, beside what, and who is
told stands in `nightly.yaml` (docs/reference/nightly.md), which is read again by itself; `./faultline nightly check`
explains it.
"""


def nightly_dags(root: Path | None = None) -> dict[str, DAG]:
    """Return a DAG for each nightly file and for the default one; one with alerts also gets a watch DAG.

    A fault in a file is reported when its run is planned."""
    files = nightly_files(root or load_settings().root)
    return {dag.dag_id: dag for one in files for dag in (nightly_dag(one), *([watch_dag(one)] if one.alerts else []))}


def nightly_dag(night: NightlyFile) -> DAG:
    """The DAG of one night."""
    params = nightly_params()
    problem = night.problem or form_problem(params, night)
    with DAG(
        night.dag_id,
        # A night's logical date is the instant it is due.
        schedule=CronTriggerTimetable(night.schedule, timezone="UTC"),
        # Without a start date the first night is the next one: switching it on does not make up for the last.
        catchup=False,
        max_active_runs=1,
        is_paused_upon_creation=True,
        params=params,
        doc_md=f"**{problem}**\n\n{DOC}" if problem else DOC,
        description=problem or "The same configurations each night, held against the nights before",
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


def form_problem(params: dict[str, Param], night: NightlyFile) -> str | None:
    """Fills the form with what a night's file says; what is wrong with the first field that refuses it, in a line."""
    from airflow.sdk.exceptions import ParamValidationError

    for name, value in night.form.items():
        try:
            params[name].resolve(value)
        except (ParamValidationError, ValueError) as error:
            return f"{night.path.name if night.path else night.dag_id}: {name}: {str(error).splitlines()[0]}"
    return None


def watch_dag(night: NightlyFile) -> DAG:
    """The DAG that notices a night that was due and did not begin; on its schedule, and paused at first, as it is."""
    with DAG(
        f"{night.dag_id}{WATCH_SUFFIX}",
        schedule=CronTriggerTimetable(night.schedule, timezone="UTC"),
        catchup=False,
        is_paused_upon_creation=True,
        doc_md=f"Checks {START_GRACE_MIN} minutes after a run of `{night.dag_id}` was due whether it started; "
        "sends an alert if not. It cannot detect that the scheduler itself is down.",
        description=f"Whether {night.dag_id} has begun",
        tags=["faultline", "nightly"],
    ) as dag:
        wait = TimeDeltaSensor(task_id="wait", delta=timedelta(minutes=START_GRACE_MIN), deferrable=True)
        wait >> check_started(night.dag_id)
    return dag


def nightly_params() -> dict[str, Param]:
    """The form: the set, how often each is measured, and what it is held against."""
    return {
        "set": Param(
            DEFAULT_SET, type="array", items={"type": "object"}, minItems=1, title="set",
            description="Configurations, each an object of the parameters that differ from the defaults.",
        ),
        "repetitions": Param(
            None, type=["null", "integer"], minimum=1, maximum=100, title="repetitions", section="Sweep",
            description=f"Measurements of each. Empty: {PAIRS} pairs with a baseline, {MIN_REPETITIONS} without.",
        ),
        "controls": integer_param(
            "controls", MIN_REPETITIONS, 0, 100,
            "Without a baseline: runs without a fault for each: how much they differ is the noise floor.",
        ),
        "baseline": Param(
            None, type=["null", "object"], title="baseline", section="Sweep",
            description=f"The build to measure beside tonight's, in pairs: an object such as {EXAMPLE}; {{}} is the "
            "checkout as it is. Empty: the nights before.",
        ),
        "primary": Param(
            None, type=["null", "array"], items={"type": "string"}, title="primary", section="Sweep",
            description="With a baseline: the figure that each configuration of the set is judged by, by its path in "
            "the record; one for all, or one for each. Empty: chosen by what can be seen.",
        ),
        "baseline_nights": integer_param("baseline_nights", 7, 1, 365, "Nights that a night is held against."),
        "metrics": Param(
            list(USUAL), type="array", items={"type": "string"}, minItems=1, title="metrics", section="Sweep",
            description="What is compared, by its path in the record.",
        ),
        "limits": Param(
            None, type=["null", "object"], title="limits", section="Sweep",
            description="What figures have to keep, by their path in the record, such as "
            '{"recovery.macro_s": 30, "latency_ms.p99": 500}: beyond it the night is red.',
        ),
        "only_missing": Param(
            True, type="boolean", title="only_missing", section="Sweep",
            description="Leave out cells of this night that already have a valid record.",
        ),
        "max_measurements": integer_param(
            "max_measurements", MOST_MEASUREMENTS, 1, 10, "Measurements of a cell till it is given up."
        ),
        "build": label_param("build", "Label of the software under test. Empty: versions, settings, code.", "Sweep"),
    }  # fmt: skip


@task(**RETRY_ARGUMENTS)
def plan_nightly_run() -> list[dict[str, Any]]:
    """The cells of this night, as arguments of `run_experiment`."""
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
        night = require_on_time(require_past(nightly_date()))
        configs = nightly_configurations(params["set"])
        build = params["build"] or installed_build(load_settings(), configurations=configs)
        order = {**params, "seed": zlib.crc32(night.encode())}
        cells, baseline = nightly_cells(params, night), reference_of_nightly_run(params, night)
        labels: dict[str, Any] = {"series": night, "build": build, "logical_date": night, "schedule": file.schedule}
        return current_sweep_run().write_plan(cells, params=order, baseline=baseline, **labels)
    except ConfigError as error:
        raise reject_plan(error) from None


def nightly_file_of(dag_id: str) -> NightlyFile:
    """What stands in the file of a night now; nothing where it has none, or where it is gone."""
    found = {one.dag_id: one for one in nightly_files(load_settings().root)}
    return found.get(dag_id, NightlyFile(dag_id, None, schedule()))


def nightly_date() -> str:
    """The night that this run stands for: its logical date, or of one triggered by hand without any when it was due."""
    context = get_current_context()
    moment = context.get("logical_date") or context["dag_run"].run_after
    return str(moment.isoformat(timespec="seconds"))


def require_past(night: str) -> str:
    """The night itself. Raises ConfigError for one that has not come: what is measured now would stand for it."""
    from datetime import UTC, datetime

    if datetime.fromisoformat(night) > datetime.now(UTC):
        raise ConfigError(f"logical_date: {night} has not come yet; leave it out, or give a night that is over")
    return night


def require_on_time(night: str) -> str:
    """The night itself. Raises ConfigError for one that its schedule began too late: whatever `catchup` says, Airflow
    makes up for the last night that was due while it was down, or that came before a backfill."""
    run = get_current_context()["dag_run"]
    if run.run_type != SCHEDULED or run.clear_number or run.start_date is None:
        return night
    late = run.start_date - run.run_after
    if late <= timedelta(minutes=MAX_START_DELAY_MIN):
        return night
    raise ConfigError(
        f"logical_date: {night} began {late.total_seconds() / 3600:.0f} hours after it was due, since Airflow was down "
        "or had the night before in work; clear this run, or backfill the night, to measure it nevertheless"
    )


@task(trigger_rule=TriggerRule.ALL_DONE, **RETRY_ARGUMENTS)
def compare_with_baseline() -> dict[str, Any]:
    """Holds the night against its baseline; keeps the verdict in `results/nights/` and puts it into the run's note."""
    from faultline.comparison.compare import metrics_named
    from faultline.comparison.nightly_history import NightlyRun, judge_nightly_run, nightly_runs_of
    from faultline.comparison.slo import check_slos, parse_slos
    from faultline.experiment.cell import sweep_id_of
    from faultline.orchestration.airflow_api import note_run
    from faultline.records.index import Index
    from faultline.records.sweep_plan import SweepPlans
    from faultline.reports.notes import nightly_note

    context, settings = get_current_context(), load_settings()
    params, night, sweep_id = context["params"], nightly_date(), sweep_id_of(context["run_id"])
    index = Index(settings.results, settings.home)
    index.refresh()
    entries = index.of_matrix(context["dag"].dag_id)
    nights = nightly_runs_of(entries)
    own = next((one for one in nights if one.date == night), NightlyRun(night, ()))
    plan = SweepPlans(settings.results).read(sweep_id)
    if plan is None:
        return {"summary": "nothing was planned", "problem": "nothing was planned"}
    # Not the baseline's: whether that one keeps a limit is nobody's question tonight.
    promised = check_slos([one for one in own.entries if one.build == plan.build], parse_slos(params.get("limits")))
    verdict = (
        judge_nightly_run(own, nights, metrics_named(params["metrics"]), params["baseline_nights"], promised)
        if plan.baseline is None
        else paired_verdict_of(plan, plan.baseline, entries, promised)
    )
    verdict.store(settings.results, sweep_id)
    said = (*verdict.beyond, *verdict.doubtful, *verdict.reasons, *verdict.suspicions)
    print(*filter(None, (verdict.summary, *said, verdict.problem)), sep="\n")
    note_run(settings, context, nightly_note(verdict, sweep_id))
    told = verdict.without_figures()
    # What was measured and cannot be compared is no reason to skip the next task.
    return told if verdict.is_paired or not own.valid else {**told, "problem": None}


def paired_verdict_of(
    plan: SweepPlan, baseline: ReferenceBuild, entries: Sequence[IndexEntry], promised: SLOReport
) -> NightlyVerdict:
    """The verdict on a night that was measured beside a baseline."""
    from faultline.comparison.regression_gate.nightly_pairs import paired_runs_of, paired_verdict
    from faultline.comparison.regression_gate.verdict import judge_gate
    from faultline.records.sweep_plan import SweepPlans

    plans = SweepPlans(load_settings().results).of_matrix(plan.matrix)
    nights = paired_runs_of([*(one for one in plans if one.sweep_id != plan.sweep_id), plan], entries)
    verdict = judge_gate([one for one in nights if one.date <= str(plan.logical_date)])
    return paired_verdict(verdict, baseline.spec, promised)


@task
def no_regression(verdict: dict[str, Any]) -> None:
    """Fails when a figure is beyond its limit or became worse, with a line for each, and where pairs that were planned
    cannot tell; is skipped when there was nothing to hold the night against."""
    from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

    from faultline.comparison.nightly_verdict import NightlyVerdict

    told = NightlyVerdict.model_validate(verdict)
    than = "the baseline" if told.is_paired else "the nights before"
    wrong = [f"beyond its limit: {line}" for line in told.beyond]
    wrong += [f"worse than {than}: {'; '.join(told.reasons)}"] * bool(told.reasons)
    wrong += [told.problem] if told.is_paired and told.problem else []
    if wrong:
        raise AirflowFailException("; ".join(wrong))
    if told.problem:
        raise AirflowSkipException(told.problem)


@task(trigger_rule=TriggerRule.ALL_DONE, **RETRY_ARGUMENTS)
def send_alerts() -> list[str]:
    """Alerts whoever the night's file names: of what became worse or better, and of a night that is broken."""
    from faultline.comparison.coverage import gap_of
    from faultline.comparison.nightly_verdict import stored_verdict
    from faultline.experiment.cell import sweep_id_of
    from faultline.orchestration.nightly.alerts import send_alert
    from faultline.records.index import Index
    from faultline.records.sweep_plan import SweepPlans
    from faultline.reports.notes import nightly_alert, results_link

    context, settings = get_current_context(), load_settings()
    dag_id, night, sweep_id = context["dag"].dag_id, nightly_date(), sweep_id_of(context["run_id"])
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
        dag_id, night, link, stored_verdict(settings.results, sweep_id), planned=gap.planned if gap else 0,
        missing=len(gap.missing) if gap else 0, valid=sum(one.sound for one in own),
    )  # fmt: skip
    if alert is None:
        return []
    said = send_alert(alert, plans)
    print(*said, sep="\n")
    return said


@task
def check_started(dag_id: str) -> None:
    """Alerts, and fails, when the night that was due with this run has no plan."""
    from airflow.sdk.exceptions import AirflowFailException

    from faultline.orchestration.nightly.alerts import send_alert
    from faultline.records.sweep_plan import SweepPlans
    from faultline.reports.notes import missed_start_alert, results_link

    settings, night = load_settings(), nightly_date()
    if any(plan.logical_date == night for plan in SweepPlans(settings.results).of_matrix(dag_id)):
        return
    alert = missed_start_alert(night, dag_id, START_GRACE_MIN, results_link(settings.endpoints.airflow, None))
    send_alert(alert, nightly_file_of(dag_id).alerts)
    raise AirflowFailException(alert.lines[0])
