"""The DAG `experiment`: one cell, measured once.

Its tasks call the steps of the core, one after another; generator, workload, recorder and conductor
are detached processes that live across them. Imports of the core happen inside the tasks, so that
parsing the DAG file stays cheap.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG, TriggerRule, chain, get_current_context, task

from faultline.system.errors import ConfigError, FaultlineError, InvalidMeasurement
from faultline.system.quiet.window_lock import beside_windows
from faultline.system.settings import load_settings
from faultline.system.waiting import seldom
from faultline.experiment.cell import EXPERIMENT
from faultline.orchestration.experiment_form import experiment_params, order_of
from faultline.orchestration.local_spark import LocalSparkJob
from faultline.orchestration.run_experiment import AGAIN, AT_ONCE, UNFINISHED, state_of
from faultline.orchestration.step import attempt_of, refuse_lost, step

if TYPE_CHECKING:
    from faultline.experiment.attempt import Attempt
    from faultline.records.record import Record
    from faultline.lifecycle.prepare import Order

# How often a running experiment asks whether its sweep was stopped; each time is a call to the API server.
PARENT_CHECK_S = 5.0
TWIN_CHECK_S = 2.0
# Under which `prepare` leaves why it refused, for `require_accepted`.
REFUSED = "refused"
DOC = """\
### One experiment

Provisions topics, starts recorder, generator and workload, opens the gate (**T0**), breaks what `fault`
names at `fault_at_s`, waits for the drain, harvests and judges. The outcome is one **record** in
`results/records/`; the run is green when that record counts: `valid`, or `unmet`.

One experiment is measured at a time; the next one waits in `start_recorder`, and starts while the one before it is
harvested and judged. To measure again, trigger anew or clear the **whole** run: single steps of a
closed attempt refuse, except `harvest` and `judge`, which work on the attempt's raw files.
"""


def experiment_dag() -> DAG:
    """Builds the DAG."""
    with DAG(
        EXPERIMENT,
        schedule=None,
        max_active_runs=AT_ONCE,
        is_paused_upon_creation=False,
        catchup=False,
        params=experiment_params(),
        doc_md=DOC,
        description="One benchmark experiment: a workload, perhaps under a fault, measured",
        tags=["faultline"],
        default_args={"retries": 0},
        render_template_as_native_obj=True,
    ) as dag:
        attempt = prepare()
        harvest = HarvestOperator(task_id="harvest", attempt_id=attempt, **AGAIN)
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
        # Not after `prepare` itself: what follows a setup directly may look at nothing but its success.
        chain(topics, require_accepted())
        end.as_teardown(setups=attempt)
    return dag


def parent_stopped() -> bool:
    """Whether the matrix run that asked for this experiment is over or gone: it waits for as long as it wants it."""
    context = get_current_context()
    params = context["params"]
    matrix, parent = params.get("matrix"), params.get("parent_run_id")
    if not parent or not matrix:
        return False
    if not context["ti"].get_dr_count(dag_id=matrix, run_ids=[parent]):
        return True
    return state_of(context, matrix, parent) not in UNFINISHED


def run_at_work(run_id: str) -> bool:
    """Whether another run of this DAG is queued or running. An earlier attempt of this very run is over."""
    context = get_current_context()
    if run_id == context["run_id"]:
        return False
    return bool(context["ti"].get_dr_count(dag_id=EXPERIMENT, run_ids=[run_id], states=["queued", "running"]))


def tell(record: Record) -> None:
    """Puts the headline of a record into the note of its run, and where to look at it into the log."""
    from faultline.reports.headline import experiment_page, headline

    print(f"results: {load_settings().endpoints.airflow}{experiment_page(record)}")
    say_in_note(headline(record))


def say_in_note(note: str) -> None:
    """Puts a line into the note of this run."""
    from faultline.orchestration.notes import note_run

    note_run(load_settings(), get_current_context(), note)


def java_version() -> str:
    from faultline.installation.java import find_java

    return find_java(load_settings().home / "java.json").version


def is_measured(order: Order) -> bool:
    """Whether the order's cell has a valid record; one without a series is of no cell yet."""
    from faultline.experiment.cell import Cell
    from faultline.records.store import Store

    if order.series is None:
        return False
    cell = Cell(order.config.config_id, order.repetition, order.series)
    return Store(load_settings().results).sound(cell) is not None


def await_twin(order: Order) -> None:
    """Waits while another run measures the order's cell, perhaps of another sweep: it need not be measured twice."""
    from faultline.system.waiting import wait_until
    from faultline.lifecycle.orphans import unclosed
    from faultline.lifecycle.steps import TURN_S

    if order.series is None:
        return
    settings, stopped = load_settings(), seldom(parent_stopped, PARENT_CHECK_S)
    wait_until(
        lambda: stopped() or not any(_measures(attempt, order) for attempt in unclosed(settings)),
        timeout_s=TURN_S,
        every_s=TWIN_CHECK_S,
        what="experiment: the end of the run that measures the same cell",
    )


def _measures(attempt: Attempt, order: Order) -> bool:
    """Whether an attempt that is not closed is of the order's cell, and of another run that goes on."""
    if attempt.over:
        return False
    try:
        told = attempt.read()
    except FaultlineError:
        return False  # damaged: whoever cleans up says so
    cell = (order.config.config_id, order.repetition, order.series)
    same = (told["config_id"], told["repetition"], told["series"]) == cell
    return same and bool(told["run_id"]) and run_at_work(str(told["run_id"]))


@task
def prepare() -> str:
    """Validates, and makes the attempt. Returns the attempt's id."""
    from airflow.sdk.exceptions import AirflowSkipException

    from faultline.experiment.sweep_id import sweep_id_of
    from faultline.orchestration.kafka import delete_topics
    from faultline.reports.headline import refused_headline
    from faultline.lifecycle.orphans import sweep_orphans
    from faultline.lifecycle.prepare import prepare as make

    context = get_current_context()
    settings, params = load_settings(), dict(context["params"])
    # One that a person triggered is a sweep of its own, under the name of its run.
    params["sweep_id"] = params.get("sweep_id") or sweep_id_of(context["run_id"])
    try:
        order = order_of(params, context["run_id"])
    except ConfigError as error:
        say_in_note(refused_headline(error))
        raise refusal(error) from None
    if params.get("only_missing"):
        await_twin(order)
        if is_measured(order):
            raise AirflowSkipException("the cell got a valid record while this run was queued")
    try:
        from faultline.orchestration.provision import remote_hosts
        from faultline.orchestration.targets.connections import prepare_target

        with beside_windows(settings.window_lock):
            for line in sweep_orphans(settings, run_at_work, delete_topics):
                print(line)
            prepare_target(settings, order.config.target)
            keep = bool(params.get("keep_topics"))
            return make(order, settings, java_version(), hosts=remote_hosts(settings), keep_topics=keep).id
    except FaultlineError as error:
        from faultline.orchestration.refusal import record_refusal

        tell(record_refusal(order, settings, java_version(), error))
        raise refusal(error) from None


def refusal(error: FaultlineError) -> Exception:
    """What `prepare` raises where nothing can be measured: the steps after it are skipped, not failed, and
    `require_accepted` makes the run red for the one reason that there is."""
    from airflow.sdk.exceptions import AirflowSkipException

    get_current_context()["ti"].xcom_push(key=REFUSED, value=str(error))
    skipped: Exception = AirflowSkipException(f"refused: {error}")
    return skipped


@task(trigger_rule=TriggerRule.ALL_SKIPPED)
def require_accepted() -> None:
    """Fails the run that `prepare` refused, with its reason; is skipped itself where something was measured."""
    from airflow.sdk.exceptions import AirflowFailException

    if reason := get_current_context()["ti"].xcom_pull(task_ids="prepare", key=REFUSED):
        raise AirflowFailException(reason)


@task
@step
def provision_topics(attempt: Attempt) -> None:
    from faultline.orchestration.kafka import create_topics

    create_topics(attempt)


@task
@step
def start_recorder(attempt: Attempt) -> int:
    from faultline.lifecycle import steps
    from faultline.lifecycle.progress import holder_text

    settings = load_settings()
    if holder := holder_text(settings):
        # In the log, which the UI shows as the task runs; a note would cost the experiment that is measured meanwhile.
        print(f"waits for {holder}")
    return steps.start_recorder(attempt, settings, cancelled=parent_stopped).pid


@task
@step
def start_generator(attempt: Attempt) -> int | None:
    from faultline.orchestration.spark import generator_command
    from faultline.lifecycle import steps

    entry = steps.start_generator(attempt, load_settings(), generator_command)
    return None if entry is None else entry.pid


@task
@step
def submit_workload(attempt: Attempt) -> int:
    from faultline.orchestration.spark import command_of
    from faultline.lifecycle import steps

    return steps.submit_workload(attempt, load_settings(), command_of).pid


@task
@step
def inject_fault(attempt: Attempt) -> dict[str, Any]:
    from faultline.lifecycle import steps

    return steps.inject_fault(attempt, load_settings())


@task
@step
def await_end(attempt: Attempt) -> dict[str, Any]:
    from faultline.lifecycle import steps

    return steps.await_end(attempt, load_settings(), cancelled=seldom(parent_stopped, PARENT_CHECK_S))


class HarvestOperator(LocalSparkJob):
    """Gathers what the run left on disk; then Spark reads both topics, unless the engine has a way of its own."""

    template_fields = (*LocalSparkJob.template_fields, "attempt_id")

    def __init__(self, *, attempt_id: Any, **arguments: Any) -> None:
        super().__init__(program="harvest", **arguments)
        self.attempt_id = attempt_id

    def execute(self, context: Any) -> None:
        from faultline.system.marks import RUN_MARK
        from faultline.system.processes import end_processes, marked
        from faultline.engines.registry import engine_at
        from faultline.experiment.plan import configuration_of, plan_of
        from faultline.lifecycle.collect import gather, is_large, require_whole, sent_records
        from faultline.lifecycle.teardown import note_failure

        attempt = attempt_of(self.attempt_id)
        refuse_lost(attempt, "harvest")
        try:
            configuration = gather(attempt, load_settings())
            plan = plan_of(attempt)
            require_whole(plan)
            if harvest := engine_at(attempt).harvester(plan):
                harvest(configuration)
                return
            # The job of an earlier try whose task was killed would write into the same folder.
            end_processes(marked(RUN_MARK, attempt.id))
            self.application_args = ["--config", str(configuration)]
            self.name = f"harvest {attempt.id}"
            self.large, self.for_attempt = is_large(sent_records(attempt, plan)), attempt.id
            if attempt.job.is_dir():
                self.run_under_conditions_of(attempt, configuration_of(attempt))
            self.alone, self.endpoints = attempt.job.is_dir() or plan.endpoints.elsewhere, plan.endpoints
            super().execute(context)
        except Exception as error:
            note_failure(attempt.folder, "harvest", error)
            raise


@task(**AGAIN)
def judge(attempt_id: str) -> str:
    """Writes the record, then fails the run unless it is valid. Returns the record's path."""
    from airflow.sdk.exceptions import AirflowFailException

    from faultline.records.judge.verdict import judge_attempt, require_valid
    from faultline.lifecycle.teardown import has_record, note_failure

    settings, attempt = load_settings(), attempt_of(attempt_id)
    if not has_record(attempt, settings):
        refuse_lost(attempt, "judge")
    try:
        record = judge_attempt(attempt, settings)
        tell(record)
        require_valid(record)
    except InvalidMeasurement as error:
        raise AirflowFailException(str(error)) from None
    except Exception as error:
        note_failure(attempt.folder, "judge", error)
        raise
    return str(Path("records") / record.config_id / f"{record.attempt}.json")


@task
def teardown(attempt_id: str) -> dict[str, Any]:
    """Ends what the attempt's ledger names, deletes its topics, and closes the attempt."""
    from airflow.sdk.exceptions import AirflowFailException

    from faultline.orchestration.kafka import delete_topics
    from faultline.orchestration.notes import note_stopped
    from faultline.records.store import Store
    from faultline.lifecycle.teardown import close

    settings, attempt = load_settings(), attempt_of(attempt_id)
    outcome = close(attempt, settings, delete_topics)
    judged = (attempt.folder / "audit.json").exists()  # and told
    records = [] if judged else Store(settings.results).read(attempt.read()["config_id"]).records
    for record in (one for one in records if one.attempt == attempt.id):
        tell(record)
        params = get_current_context()["params"]
        if record.status == "cancelled" and params.get("parent_run_id") and params.get("matrix"):
            note_stopped(settings, params["matrix"], params["parent_run_id"])
    if why := outcome.get("unhealed"):
        raise AirflowFailException(f"{attempt.id} stays open, and the next experiment tries again: {why}")
    return outcome
