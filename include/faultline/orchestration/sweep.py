"""The factory of matrix DAGs: plan -> run_experiment (mapped) -> aggregate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG, Param, TriggerRule, get_current_context, task

from faultline.config import Configuration
from faultline.errors import ConfigError
from faultline.orchestration.forms import axis_param, configuration_params, label_param
from faultline.orchestration.local_spark import LocalSparkJob
from faultline.orchestration.run_experiment import RETRIES, RunExperiment, retry_policy
from faultline.settings import load_settings

if TYPE_CHECKING:
    from faultline.matrix import Matrix

SWEEP_PARAMS = ("repetitions", "controls", "only_missing", "max_measurements", "series", "build")
DOC = """\
### {title}

{text}

Each value on each axis gives one experiment a repetition; they run one at a time, in an order shuffled by
`seed`. Cells that already have a valid record are left out (`only_missing`), so triggering the same form again
**resumes** a sweep, and measures what an earlier one missed.
"""


def matrix_dag(
    dag_id: str,
    *,
    title: str,
    text: str,
    axes: Mapping[str, Sequence[Any]],
    fixed: Mapping[str, Any] | None = None,
    controls: int = 1,
) -> DAG:
    """A DAG over `axes`, whose form shows the axes first and every other parameter after them."""
    with DAG(
        dag_id,
        schedule=None,
        is_paused_upon_creation=False,
        catchup=False,
        params=matrix_params(axes, fixed or {}, controls),
        doc_md=DOC.format(title=title, text=text),
        description=title,
        tags=["faultline", "matrix"],
        render_template_as_native_obj=True,
    ) as dag:
        cells = plan.override(task_id="plan")(list(axes))
        runs = RunExperiment.partial(
            task_id="run_experiment",
            max_active_tis_per_dagrun=1,
            retries=RETRIES,
            retry_policy=retry_policy(),
            retry_delay=timedelta(seconds=10),
        ).expand_kwargs(cells)
        runs >> aggregate()
    return dag


def matrix_params(axes: Mapping[str, Sequence[Any]], fixed: Mapping[str, Any], controls: int) -> dict[str, Param]:
    """The form of a matrix: axes, sweep, then the configuration's other fields."""
    others = {name: param for name, param in configuration_params(**fixed).items() if name not in axes}
    return {
        **{name: axis_param(name, list(values)) for name, values in axes.items()},
        "repetitions": _integer("repetitions", 1, 1, 100, "Measurements of each configuration."),
        "controls": _integer("controls", controls, 0, 100, "Runs of the first configuration without fault."),
        "only_missing": Param(
            True, type="boolean", title="only_missing", section="Sweep",
            description="Leave out cells that already have a valid record. Off: measure all of them again.",
        ),
        "max_measurements": _integer("max_measurements", 3, 1, 10, "Measurements of a cell before it is given up."),
        "series": label_param("series", "Records are compared within a series. Empty: the build.", "Sweep"),
        "build": label_param("build", "Label of the software under test. Empty: versions and settings.", "Sweep"),
        **others,
    }  # fmt: skip


@task
def plan(axes: list[str]) -> list[dict[str, Any]]:
    """The cells to measure, as arguments of `run_experiment`: configuration and run id."""
    from airflow.sdk.exceptions import AirflowFailException

    from faultline.environment import default_build
    from faultline.matrix import plan as plan_cells
    from faultline.matrix import sweep_id_of
    from faultline.orchestration.experiment import java_version, refuse_unknown
    from faultline.store import Cell, Store

    context = get_current_context()
    params, settings = dict(context["params"]), load_settings()
    sweep_id = sweep_id_of(context["run_id"])
    build = params["build"] or default_build(settings, java_version())
    try:
        refuse_unknown(params, [*Configuration.model_fields, *SWEEP_PARAMS])
        cells = matrix_of(params, axes).cells(params["series"] or build)
    except ConfigError as error:
        raise AirflowFailException(str(error)) from None
    valid = [Cell.of(record) for record in Store(settings.results).query(status="valid")]
    chosen = plan_cells(cells, valid, only_missing=params["only_missing"], seed=params["seed"])
    return [
        {
            "trigger_run_id": f"{sweep_id}__{planned.label}",
            "conf": {
                **planned.config.model_dump(mode="json"),
                "repetition": planned.repetition,
                "series": planned.series,
                "build": build,
                "matrix": context["dag"].dag_id,
                "sweep_id": sweep_id,
                "parent_run_id": context["run_id"],
            },
            "max_measurements": params["max_measurements"],
        }
        for planned in chosen
    ]


def matrix_of(params: Mapping[str, Any], axes: Sequence[str]) -> Matrix:
    """The matrix that a form stands for."""
    from faultline.matrix import Matrix

    fixed = {name: params[name] for name in Configuration.model_fields if name in params and name not in axes}
    return Matrix({name: params[name] for name in axes}, fixed, params["repetitions"], params["controls"])


def aggregate() -> LocalSparkJob:
    """Rebuilds the summary tables over all records; also when some experiments failed."""
    settings = load_settings()
    return LocalSparkJob(
        program="aggregate",
        task_id="aggregate",
        application_args=["--records", str(settings.records), "--target", str(settings.results / "summary")],
        name="aggregate",
        retries=2,
        retry_delay=timedelta(seconds=5),
        trigger_rule=TriggerRule.ALL_DONE,
    )


def _integer(name: str, default: int, low: int, high: int, text: str) -> Param:
    return Param(
        default, type="integer", minimum=low, maximum=high, title=name, section="Sweep", description=text
    )  # fmt: skip
