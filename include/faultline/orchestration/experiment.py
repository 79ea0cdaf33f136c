"""The DAG `experiment`: one cell, measured once.

Its tasks call the steps of the core, one after another; generator, workload, recorder and conductor
are detached processes that live across them. Imports of the core happen inside the tasks, so that
parsing the DAG file stays cheap.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG, Param, chain, get_current_context, task

from faultline.base.errors import ConfigError, FaultlineError, InvalidMeasurement
from faultline.base.settings import load_settings
from faultline.base.waiting import seldom
from faultline.base.window_lock import beside_windows
from faultline.experiment.build import EXAMPLE
from faultline.experiment.config import Configuration
from faultline.orchestration.forms import configuration_params, label_param, refuse_unknown
from faultline.orchestration.local_spark import LocalSparkJob
from faultline.orchestration.run_experiment import AGAIN, AT_ONCE, UNFINISHED, state_of

if TYPE_CHECKING:
    from faultline.base.attempt import Attempt
    from faultline.records.record import Record
    from faultline.runner.prepare import Order

DAG_ID = "experiment"
# How often a running experiment asks whether its sweep was stopped; each time is a call to the API server.
PARENT_CHECK_S = 5.0
TWIN_CHECK_S = 2.0
BOOKKEEPING = ("repetition", "series", "build", "matrix", "sweep_id", "parent_run_id", "logical_date")
BUILD_SPEC = "build_spec"
# What the DAG itself needs to know of a run.
SWITCHES = ("keep_topics", "only_missing")
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
        DAG_ID,
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
        steps = [
            [provision_topics(attempt), start_recorder(attempt)],
            start_generator(attempt),
            submit_workload(attempt),
            inject_fault(attempt),
            await_end(attempt),
            harvest,
            judge(attempt),
        ]
        chain(attempt, *steps, end)
        end.as_teardown(setups=attempt)
    return dag


def experiment_params() -> dict[str, Param]:
    """One complete configuration, and where the record belongs."""
    return {
        **configuration_params(),
        "repetition": Param(
            0, type="integer", minimum=0, title="repetition", section="Bookkeeping",
            description="Number of the repetition.",
        ),
        "series": label_param("series", "Records are compared within a series. Empty: the build."),
        "build": label_param("build", "Label of the software under test. Empty: versions, settings, code."),
        "matrix": label_param("matrix", "The matrix that asks for this experiment; empty for a single one."),
        "sweep_id": Param(
            None, type=["null", "string"], title="sweep_id", section="Bookkeeping", description="The sweep."
        ),
        "parent_run_id": Param(
            None, type=["null", "string"], title="parent_run_id", section="Bookkeeping",
            description="Run of the matrix; when it is stopped, this experiment ends as cancelled.",
        ),
        "logical_date": Param(
            None, type=["null", "string"], title="logical_date", section="Bookkeeping",
            description="The night it stands for.",
        ),
        BUILD_SPEC: Param(
            None, type=["null", "object"], title=BUILD_SPEC, section="Bookkeeping",
            description=f"What is under test in place of the installed programs and settings, such as {EXAMPLE}",
        ),
        "keep_topics": Param(
            False, type="boolean", title="keep_topics", section="Bookkeeping",
            description="Keep the Kafka topics after the teardown, to look at them.",
        ),
        "only_missing": Param(
            False, type="boolean", title="only_missing", section="Bookkeeping",
            description="Measure nothing when the cell has a valid record by the time its turn comes.",
        ),
    }  # fmt: skip


def order_of(params: dict[str, Any], run_id: str | None = None) -> Order:
    """The order that the params of the run `run_id` stand for. Raises ConfigError naming the key."""
    from faultline.experiment.build import parse_build
    from faultline.experiment.config import parse_configuration
    from faultline.runner.prepare import Order

    known = Configuration.model_fields
    refuse_unknown(params, [*known, *BOOKKEEPING, BUILD_SPEC, *SWITCHES])
    config = parse_configuration({key: value for key, value in params.items() if key in known})
    given: dict[str, Any] = {key: params[key] for key in BOOKKEEPING if params.get(key) is not None}
    return Order(config, run_id=run_id, build_spec=parse_build(params.get(BUILD_SPEC), BUILD_SPEC), **given)


def step(function: Callable[[Attempt], Any]) -> Callable[[str], Any]:
    """A step of an attempt as the body of a task: refuses closed attempts, and keeps the reason of a failure."""

    @functools.wraps(function)
    def body(attempt_id: str) -> Any:
        from airflow.sdk.exceptions import AirflowFailException

        from faultline.runner.teardown import note_failure, refuse_closed

        attempt = attempt_of(attempt_id)
        try:
            refuse_closed(attempt)
        except ConfigError as error:
            raise AirflowFailException(str(error)) from None
        try:
            return function(attempt)
        except FaultlineError as error:
            note_failure(attempt.folder, function.__name__, error)
            raise AirflowFailException(str(error)) from None
        except Exception as error:
            note_failure(attempt.folder, function.__name__, error)
            raise

    # The wrapper takes an id, not an attempt, so it must not show the wrapped signature.
    del body.__wrapped__
    body.__annotations__ = {"attempt_id": str, "return": Any}
    return body


def attempt_of(attempt_id: str) -> Attempt:
    from faultline.base.attempt import Attempt

    return Attempt(load_settings().attempts / attempt_id)


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
    return bool(context["ti"].get_dr_count(dag_id=DAG_ID, run_ids=[run_id], states=["queued", "running"]))


def tell(record: Record) -> None:
    """Puts the headline of a record into the note of its run, and where to look at it into the log."""
    from faultline.orchestration.notes import write_note
    from faultline.reports.headline import experiment_page, headline

    settings, context = load_settings(), get_current_context()
    print(f"results: {settings.endpoints.airflow}{experiment_page(record)}")
    if problem := write_note(settings, context["dag"].dag_id, context["run_id"], headline(record)):
        print(problem)


def java_version() -> str:
    from faultline.cluster.java import find_java

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
    from faultline.base.waiting import wait_until
    from faultline.runner.orphans import unclosed
    from faultline.runner.steps import TURN_S

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
    from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

    from faultline.experiment.matrix import sweep_id_of
    from faultline.orchestration.kafka import delete_topics
    from faultline.runner.orphans import sweep_orphans
    from faultline.runner.prepare import prepare as make

    context = get_current_context()
    settings, params = load_settings(), dict(context["params"])
    # One that a person triggered is a sweep of its own, under the name of its run.
    params["sweep_id"] = params.get("sweep_id") or sweep_id_of(context["run_id"])
    try:
        order = order_of(params, context["run_id"])
    except ConfigError as error:
        raise AirflowFailException(str(error)) from None
    if params.get("only_missing"):
        await_twin(order)
        if is_measured(order):
            raise AirflowSkipException("the cell got a valid record while this run was queued")
    try:
        from faultline.orchestration.provision import remote_hosts

        with beside_windows(settings.window_lock):
            for line in sweep_orphans(settings, run_at_work, delete_topics):
                print(line)
            keep = bool(params.get("keep_topics"))
            return make(order, settings, java_version(), hosts=remote_hosts(settings), keep_topics=keep).id
    except FaultlineError as error:
        from faultline.orchestration.refusal import record_refusal

        tell(record_refusal(order, settings, java_version(), error))
        raise AirflowFailException(str(error)) from None


@task
@step
def provision_topics(attempt: Attempt) -> None:
    from faultline.orchestration.kafka import create_topics

    create_topics(attempt)


@task
@step
def start_recorder(attempt: Attempt) -> int:
    from faultline.runner import steps

    return steps.start_recorder(attempt, load_settings(), cancelled=parent_stopped).pid


@task
@step
def start_generator(attempt: Attempt) -> int | None:
    from faultline.orchestration.spark import generator_command
    from faultline.runner import steps

    entry = steps.start_generator(attempt, load_settings(), generator_command)
    return None if entry is None else entry.pid


@task
@step
def submit_workload(attempt: Attempt) -> int:
    from faultline.orchestration.spark import command_of
    from faultline.runner import steps

    return steps.submit_workload(attempt, load_settings(), command_of).pid


@task
@step
def inject_fault(attempt: Attempt) -> dict[str, Any]:
    from faultline.runner import steps

    return steps.inject_fault(attempt, load_settings())


@task
@step
def await_end(attempt: Attempt) -> dict[str, Any]:
    from faultline.runner import steps

    return steps.await_end(attempt, load_settings(), cancelled=seldom(parent_stopped, PARENT_CHECK_S))


class HarvestOperator(LocalSparkJob):
    """Gathers what the run left on disk; then Spark reads both topics, unless the engine has a way of its own."""

    template_fields = (*LocalSparkJob.template_fields, "attempt_id")

    def __init__(self, *, attempt_id: Any, **arguments: Any) -> None:
        super().__init__(program="harvest", **arguments)
        self.attempt_id = attempt_id

    def execute(self, context: Any) -> None:
        from faultline.base.processes import end_processes, processes_with_token
        from faultline.engines.registry import engine_at
        from faultline.experiment.plan import plan_of
        from faultline.runner.collect import gather, is_large
        from faultline.runner.steps import scheduled_records
        from faultline.runner.teardown import note_failure

        attempt = attempt_of(self.attempt_id)
        try:
            configuration = gather(attempt, load_settings())
            plan = plan_of(attempt)
            if harvest := engine_at(attempt).harvester(plan):
                harvest(configuration)
                return
            # The job of an earlier try whose task was killed would write into the same folder.
            end_processes(processes_with_token(attempt.id))
            self.application_args = ["--config", str(configuration)]
            self.name = f"harvest {attempt.id}"
            self.large, self.for_attempt = is_large(scheduled_records(plan)), attempt.id
            super().execute(context)
        except Exception as error:
            note_failure(attempt.folder, "harvest", error)
            raise


@task(**AGAIN)
def judge(attempt_id: str) -> str:
    """Writes the record, then fails the run unless it is valid. Returns the record's path."""
    from airflow.sdk.exceptions import AirflowFailException

    from faultline.analysis.verdict import judge_attempt, require_valid
    from faultline.runner.teardown import note_failure

    settings, attempt = load_settings(), attempt_of(attempt_id)
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
    from faultline.orchestration.kafka import delete_topics
    from faultline.runner.teardown import close

    return close(attempt_of(attempt_id), load_settings(), delete_topics)
