"""Factory of matrix DAGs: plan -> run_experiment (mapped) -> aggregate."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG, Param, TriggerRule, chain, get_current_context, task

from faultline.experiment.axes import axis_text
from faultline.experiment.cell import EXPERIMENT
from faultline.experiment.decide import EXAMPLE
from faultline.experiment.matrices import MATRICES, MOST_MEASUREMENTS
from faultline.experiment.matrix import DEFAULT, MatrixSpec
from faultline.orchestration.forms import SECTIONS, axis_param, empty_param, further_axes_param, label_param
from faultline.orchestration.local_spark import LocalSparkJob
from faultline.orchestration.planning import HIGHEST_SEARCHED, SEARCH_PARAMS
from faultline.orchestration.run_experiment import (
    CELL_RETRIES,
    MAX_ACTIVE_RUNS,
    POLL_S,
    RETRY_ARGUMENTS,
    RunExperiment,
    retry_policy,
)
from faultline.system.errors import ConfigError
from faultline.system.settings import load_settings

if TYPE_CHECKING:
    from faultline.experiment.config import Configuration
    from faultline.orchestration.planning import SweepRun
    from faultline.records.record import Record

UNMEASURED = "some cells lack a usable record; see the failed tasks and the note of this run"
DOC = """\
### {title}

{text}

{presets}

Each combination of axis values is one experiment per repetition. Experiments run one at a time, in an order
shuffled by `seed`. Cells with a usable record are skipped (`only_missing`), so triggering the same form again
**resumes** a sweep and measures its missing cells.

With `decide`, each configuration is repeated until the difference to its neighbours on an axis is decided, or they are
equivalent, or the budget is used up. Decided comparisons are skipped.
"""


def matrix_dag(name: str) -> DAG:
    """Return the DAG of one matrix; its form has the axes first, then all other parameters."""
    spec = MATRICES[name]
    with DAG(
        name,
        schedule=None,
        is_paused_upon_creation=False,
        catchup=False,
        params=matrix_params(spec),
        doc_md=DOC.format(title=spec.title, text=spec.text, presets=presets_text(spec)),
        description=spec.title,
        tags=["faultline", "matrix"],
        render_template_as_native_obj=True,
    ) as dag:
        planned, end = plan(), aggregate()
        runs = run_experiments(planned)
        steps = [planned, runs, *([search(planned)] if spec.search else []), end]
        chain(*steps[1:])
        steps >> require_success()
    return dag


def run_experiments(planned: Any) -> Any:
    """Return `run_experiment`, mapped over a plan; while one cell is measured, the next one already starts."""
    return RunExperiment.partial(
        task_id="run_experiment",
        max_active_tis_per_dagrun=MAX_ACTIVE_RUNS,
        retries=CELL_RETRIES,
        retry_policy=retry_policy(),
        retry_delay=timedelta(seconds=10),
        map_index_template="{{ task.cell }}",
    ).expand_kwargs(planned)


def matrix_params(spec: MatrixSpec) -> dict[str, Param]:
    """Return the form of a matrix: preset, axes, sweep and other fields; the preset fills those left empty."""
    others = [name for names in SECTIONS.values() for name in names if name not in spec.axes]
    return {
        "preset": Param(
            DEFAULT, type="string", enum=list(spec.presets), title="preset",
            description="Values of the fields left empty below.", description_md=presets_text(spec),
        ),
        **{name: axis_param(name, spec.preset_values(name)) for name in spec.axes},
        "axes": further_axes_param(spec.preset_values("axes")),
        "repetitions": integer_param(
            "repetitions", None, 1, 100,
            f"Repetitions of each configuration. Empty: {_preset_counts(spec, 'repetitions')}",
        ),
        "controls": integer_param(
            "controls", None, 0, 100,
            f"Control runs of the first configuration. Empty: {_preset_counts(spec, 'controls')}",
        ),
        "only_missing": Param(
            True, type="boolean", title="only_missing", section="Sweep",
            description="Skip cells that have a usable record. Off: measure all cells again.",
        ),
        "max_measurements": integer_param(
            "max_measurements", MOST_MEASUREMENTS, 1, 10, "Most attempts of a cell."
        ),
        "keep_invalid": Param(
            False, type="boolean", title="keep_invalid", section="Sweep",
            description="Keep the invalid records of a given-up cell, without failing the run.",
        ),
        "series": label_param("series", "Records are compared within a series. Empty: the build.", "Sweep"),
        "build": label_param("build", "Label of the software under test. Empty: versions, settings, code.", "Sweep"),
        "decide": Param(
            None, type=["null", "object"], title="decide", section="Sweep",
            description=f"Sequential test in place of repetitions: an object such as {EXAMPLE}. Optional: `error` "
            "(0.05), and `hours` in addition to or in place of `experiments`.",
        ),
        "resume": Param(
            None, type=["null", "string"], title="resume", section="Sweep",
            description="Id of a sweep to resume, in its series. Leave all other fields empty.",
        ),
        **(search_params() if spec.search else {}),
        **{name: empty_param(name, spec.preset_values(name)) for name in others},
    }  # fmt: skip


def _preset_counts(spec: MatrixSpec, name: str) -> str:
    """Return the value of a sweep parameter in each preset."""
    return ", ".join(f"{number} ({preset})" for preset, number in spec.preset_values(name).items()) + "."


def presets_text(spec: MatrixSpec) -> str:
    """Return the presets as a table of their axes."""
    head = ["| preset | " + " | ".join((*spec.axes, "repetitions")) + " |", "| --- " * (len(spec.axes) + 2) + "|"]
    rows = []
    for preset in spec.presets:
        values = spec.values(preset)
        shown = [axis_text(list(values[axis])) for axis in spec.axes]
        rows.append("| " + " | ".join([f"`{preset}`", *shown, str(values["repetitions"])]) + " |")
    return "\n".join([*head, *rows])


@task(**RETRY_ARGUMENTS)
def plan() -> list[dict[str, Any]]:
    """Return the cells to measure, as arguments of `run_experiment`: configuration and run id."""
    try:
        planned, note = current_sweep_run().plan(get_current_context()["params"])
    except ConfigError as error:
        raise reject_plan(error) from None
    set_planned_note(note)
    return planned


def current_sweep_run() -> SweepRun:
    """Return this task's run, which plans a sweep."""
    from faultline.orchestration.planning import SweepRun
    from faultline.orchestration.targets.connection_query import preflight_in_task

    context = get_current_context()
    return SweepRun(context["dag"].dag_id, context["run_id"], load_settings(), preflight_in_task)


def set_planned_note(note: str) -> None:
    """Set the note of the run to the plan; the outcome of the run later replaces it."""
    from faultline.orchestration.airflow_api import note_run

    note_run(load_settings(), get_current_context(), note)


def reject_plan(error: ConfigError) -> Any:
    """Return the exception of a task that rejects a plan, and set the run's note to the reason."""
    from airflow.sdk.exceptions import AirflowFailException

    from faultline.reports.notes import sweep_refusal_note

    set_planned_note(sweep_refusal_note(error))
    return AirflowFailException(str(error))


class Aggregate(LocalSparkJob):
    """Operator that rebuilds the summary tables over all records and sets the run's note to the outcome."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(program="aggregate", **arguments)

    def execute(self, context: Any) -> None:
        from faultline.lifecycle.finish import aggregation
        from faultline.orchestration.airflow_api import note_run
        from faultline.orchestration.planning import sweep_outcome

        settings = load_settings()
        self.run_batch(aggregation(settings), context)
        # If there is no plan, the note already contains the reason.
        if note := sweep_outcome(settings, context["run_id"]):
            note_run(settings, context, note)


def aggregate() -> Aggregate:
    """Return the last task; it also runs after failed experiments."""
    return Aggregate(task_id="aggregate", trigger_rule=TriggerRule.ALL_DONE, **RETRY_ARGUMENTS)


@task(trigger_rule=TriggerRule.ONE_FAILED)
def require_success() -> None:
    """Fail the run if one of its tasks failed; needed because `aggregate` succeeds regardless."""
    from airflow.sdk.exceptions import AirflowFailException

    raise AirflowFailException(UNMEASURED)


def integer_param(name: str, default: int | None, low: int, high: int, text: str) -> Param:
    """Return an integer field of the form's sweep section; without a default it may be empty."""
    return Param(
        default,
        type="integer" if default is not None else ["null", "integer"],
        minimum=low,
        maximum=high,
        title=name,
        section="Sweep",
        description=text,
    )


# ---- Task `search`: highest sustained rate of the first configuration, by bisection ----


def search_params() -> dict[str, Param]:
    """Return the form's search section."""
    return {
        "search": Param(
            SEARCH_PARAMS["search"], type="boolean", title="search", section="Search",
            description="Then find the highest sustained rate of the first configuration by bisection.",
        ),
        "search_low": Param(
            SEARCH_PARAMS["search_low"], type="number", exclusiveMinimum=0, title="search_low", section="Search",
            description="Rate expected to be sustained, in Kafka records per second.",
        ),
        "search_high": Param(
            SEARCH_PARAMS["search_high"], type="number", exclusiveMinimum=0, maximum=HIGHEST_SEARCHED,
            title="search_high", section="Search",
            description="Rate expected not to be sustained, in Kafka records per second.",
        ),
    }  # fmt: skip


@task(trigger_rule=TriggerRule.ALL_DONE, retries=2, retry_delay=timedelta(seconds=10))
def search(planned: list[dict[str, Any]] | None) -> dict[str, Any]:
    """Measure one rate after another, each as a run of `experiment`; a retry reuses existing records."""
    from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

    from faultline.comparison.capacity import highest_sustained, search_capacity
    from faultline.experiment.cell import sweep_id_of
    from faultline.experiment.matrices import MATRICES
    from faultline.lifecycle.environment import installed_build

    context = get_current_context()
    spec, given = MATRICES[context["dag"].dag_id], context["params"]
    if not given["search"] or planned is None:
        raise AirflowSkipException("search not requested" if planned is not None else "form rejected")
    params = spec.resolve(given)
    try:
        config = spec.matrix(params).configurations()[0]
    except ConfigError as error:
        raise AirflowFailException(str(error)) from None
    build = params["build"] or installed_build(load_settings(), configurations=[config])
    series = params["series"] or build
    labels = {"series": series, "build": build, "matrix": spec.name, "parent_run_id": context["run_id"]}
    labels |= {"sweep_id": sweep_id_of(context["run_id"])}
    try:
        found, records = search_capacity(
            config,
            partial(highest_sustained, low=params["search_low"], high=params["search_high"]),
            lambda point: _newest_record(point, series),
            lambda point: _run_experiment(point, labels),
        )
    except ConfigError as error:
        raise AirflowFailException(str(error)) from None
    for rate, is_sustained in found.tried:
        print(f"{rate:g} records/s: {'sustained' if is_sustained else 'not sustained'} ({records[rate].attempt})")
    return {"sustained": found.sustained, "exceeded": found.exceeded, "tried": [list(one) for one in found.tried]}


def _newest_record(config: Configuration, series: str) -> Record | None:
    """Return the newest record of this configuration in the series; None if there is none."""
    from faultline.experiment.cell import Cell
    from faultline.records.store import Store

    return Store(load_settings().results).newest(Cell(config.config_id, 0, series))


def _run_experiment(config: Configuration, labels: Mapping[str, str]) -> Record:
    """Run `experiment` and wait for its end; reuse an active run of an earlier try.

    Raises InfrastructureError if it leaves no record.
    """
    from datetime import UTC, datetime

    from faultline.orchestration.airflow_api import FINISHED, AirflowApi
    from faultline.system.errors import InfrastructureError

    api = AirflowApi(load_settings())
    prefix = f"{labels['sweep_id']}__{config.config_id}-search-"
    before = _newest_record(config, labels["series"])
    running = [run["dag_run_id"] for run in api.runs(EXPERIMENT, "queued", "running")]
    run_id = next((name for name in running if name.startswith(prefix)), None) or api.trigger(
        EXPERIMENT,
        {**config.model_dump(mode="json"), **labels, "repetition": 0},
        run_id=f"{prefix}{datetime.now(UTC):%H%M%S}",
    )
    while api.run_state(EXPERIMENT, run_id) not in FINISHED:
        time.sleep(POLL_S)
    record = _newest_record(config, labels["series"])
    if record is None or (before is not None and record.attempt == before.attempt):
        raise InfrastructureError(f"{run_id}: no record; fix: see its first failed task")
    return record
