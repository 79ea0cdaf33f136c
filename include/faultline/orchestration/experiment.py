"""DAG `experiment`: one measurement of one cell.

Its tasks perform the steps of `faultline.lifecycle.steps`. Generator, workload, recorder and fault scheduler are
detached processes. Tasks import the lifecycle lazily, to keep the parsing of the DAG file fast.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG, TriggerRule, chain, get_current_context, task

from faultline.experiment.cell import EXPERIMENT
from faultline.orchestration.forms import experiment_params
from faultline.orchestration.local_spark import LocalSparkJob
from faultline.orchestration.run_experiment import MAX_ACTIVE_RUNS, RETRY_ARGUMENTS
from faultline.system.errors import ConfigError, FaultlineError
from faultline.system.settings import load_settings

if TYPE_CHECKING:
    from faultline.lifecycle.context import RunContext
    from faultline.records.record import Record

# XCom key under which `require_accepted` finds the reason why `prepare` refused the experiment.
REFUSED = "refused"
DOC = """\
### One experiment

Creates topics, starts recorder, generator and workload, opens the start barrier (**T0**), injects the fault of
`fault` at `fault_at_s`, waits for the drain, harvests and judges. The result is one **record** in
`results/records/`. The run succeeds if the record is `valid` or `unmet`.

One experiment is measured at a time. The next one waits in `start_recorder`, and starts while the previous one is
harvested and judged. To repeat a measurement, trigger the DAG or clear the **whole** run. Single steps of a
closed attempt fail, except `harvest` and `judge`, which read the attempt's raw files.
"""


def experiment_dag() -> DAG:
    """Return the DAG."""
    with DAG(
        EXPERIMENT,
        schedule=None,
        max_active_runs=MAX_ACTIVE_RUNS,
        is_paused_upon_creation=False,
        catchup=False,
        params=experiment_params(),
        doc_md=DOC,
        description="One benchmark experiment: a workload, with or without a fault",
        tags=["faultline"],
        default_args={"retries": 0},
        render_template_as_native_obj=True,
    ) as dag:
        attempt = prepare()
        harvest = HarvestOperator(task_id="harvest", attempt_id=attempt, **RETRY_ARGUMENTS)
        end = teardown(attempt)
        topics = provision_topics(attempt)
        steps = [
            [topics, start_recorder(attempt)],
            start_generator(attempt),
            submit_workload(attempt),
            inject_fault(attempt),
            await_end(attempt),
            harvest,
            judge(attempt),
        ]
        chain(attempt, *steps, end)
        # Not directly after `prepare`, because a task that follows a setup runs only if the setup succeeded.
        chain(topics, require_accepted())
        end.as_teardown(setups=attempt)
    return dag


def publish_note(record: Record) -> None:
    """Set the note of the run to the headline of the record, and print the address of the record's page."""
    from faultline.reports.notes import experiment_note, experiment_path

    print(f"results: {load_settings().endpoints.airflow}{experiment_path(record)}")
    set_run_note(experiment_note(record))


def set_run_note(note: str) -> None:
    """Set the note of this run."""
    from faultline.orchestration.airflow_api import note_run

    note_run(load_settings(), get_current_context(), note)


@task
def prepare() -> str:
    """Validate the configuration, make the attempt and return its id."""
    from airflow.sdk.exceptions import AirflowSkipException

    from faultline.lifecycle import steps
    from faultline.orchestration.hooks import AirflowHooks
    from faultline.orchestration.planning import order_of_run
    from faultline.reports.notes import experiment_refusal_note

    context, settings = get_current_context(), load_settings()
    try:
        order = order_of_run(dict(context["params"]), context["run_id"])
    except ConfigError as error:
        set_run_note(experiment_refusal_note(error))
        raise skip_refused(error) from None
    try:
        return steps.prepare(order, AirflowHooks(settings, context), settings).attempt.id
    except steps.AlreadyMeasuredError as measured:
        raise AirflowSkipException(str(measured)) from None
    except steps.RefusedError as refused:
        publish_note(refused.record)
        raise skip_refused(refused.reason) from None


def skip_refused(error: FaultlineError) -> Exception:
    """Return the exception that skips all steps of a refused experiment; `require_accepted` then fails the run."""
    from airflow.sdk.exceptions import AirflowSkipException

    get_current_context()["ti"].xcom_push(key=REFUSED, value=str(error))
    skipped: Exception = AirflowSkipException(f"refused: {error}")
    return skipped


@task(trigger_rule=TriggerRule.ALL_SKIPPED)
def require_accepted() -> None:
    """Fail the run that `prepare` refused, with its reason; skipped for accepted runs."""
    from airflow.sdk.exceptions import AirflowFailException

    if reason := get_current_context()["ti"].xcom_pull(task_ids="prepare", key=REFUSED):
        raise AirflowFailException(reason)


def open_task_run(attempt_id: str, **hooks: Any) -> RunContext:
    """Return the attempt's context in this task."""
    from faultline.lifecycle.context import open_run
    from faultline.orchestration.hooks import AirflowHooks

    settings = load_settings()
    return open_run(attempt_id, AirflowHooks(settings, get_current_context(), **hooks), settings)


def step_task(name: str) -> Any:
    """Return the task that performs a step once; it returns the pid of the started process, or the step's value."""

    @task(task_id=name)
    def body(attempt_id: str) -> Any:
        from airflow.sdk.exceptions import AirflowFailException

        from faultline.lifecycle.steps import STEPS, perform

        try:
            value = perform(STEPS[name], open_task_run(attempt_id))
        except FaultlineError as error:
            raise AirflowFailException(str(error)) from None
        return getattr(value, "pid", value)

    return body


provision_topics = step_task("provision_topics")
start_recorder = step_task("start_recorder")
start_generator = step_task("start_generator")
submit_workload = step_task("submit_workload")
inject_fault = step_task("inject_fault")
await_end = step_task("await_end")


class HarvestOperator(LocalSparkJob):
    """Operator of the step `harvest`, which submits its Spark job."""

    template_fields = (*LocalSparkJob.template_fields, "attempt_id")

    def __init__(self, *, attempt_id: Any, **arguments: Any) -> None:
        super().__init__(program="harvest", **arguments)
        self.attempt_id = attempt_id

    def execute(self, context: Any) -> None:
        from functools import partial

        perform_repeatable("harvest", open_task_run(self.attempt_id, batch=partial(self.run_batch, context=context)))


@task(**RETRY_ARGUMENTS)
def judge(attempt_id: str) -> str:
    """Write the record and return its path; fail the run unless the record is valid."""
    from airflow.sdk.exceptions import AirflowFailException

    from faultline.records.judge.rejudge import require_valid
    from faultline.system.errors import InvalidMeasurement

    record = perform_repeatable("judge", open_task_run(attempt_id))
    publish_note(record)
    try:
        require_valid(record)
    except InvalidMeasurement as error:
        raise AirflowFailException(str(error)) from None
    return str(Path("records") / record.config_id / f"{record.attempt}.json")


def perform_repeatable(name: str, run: RunContext) -> Any:
    """Perform a repeatable step; fail without retry after a reboot."""
    from airflow.sdk.exceptions import AirflowFailException

    from faultline.lifecycle.steps import STEPS, perform
    from faultline.lifecycle.teardown import UnfinishedError

    try:
        return perform(STEPS[name], run)
    except UnfinishedError as error:
        raise AirflowFailException(str(error)) from None


@task
def teardown(attempt_id: str) -> dict[str, Any]:
    """End the attempt's processes, delete its topics and close it."""
    from airflow.sdk.exceptions import AirflowFailException

    from faultline.experiment.attempt import Attempt
    from faultline.lifecycle.steps import TEARDOWN, perform
    from faultline.lifecycle.teardown import processes_ended_if_unreadable
    from faultline.orchestration.airflow_api import note_stopped
    from faultline.records.store import Store

    with processes_ended_if_unreadable(Attempt(load_settings().attempts / attempt_id)):
        run = open_task_run(attempt_id)
    outcome: dict[str, Any] = perform(TEARDOWN, run)
    settings, attempt = run.settings, run.attempt
    judged = (attempt.folder / "audit.json").exists()  # `judge` has set the note
    records = [] if judged else Store(settings.results).read(run.plan.order.config_id).records
    for record in (one for one in records if one.attempt == attempt.id):
        publish_note(record)
        params = get_current_context()["params"]
        if record.status == "cancelled" and params.get("parent_run_id") and params.get("matrix"):
            note_stopped(settings, params["matrix"], params["parent_run_id"])
    if why := outcome.get("unhealed"):
        raise AirflowFailException(f"{attempt.id}: teardown failed: {why} (retried by the next experiment)")
    return outcome
