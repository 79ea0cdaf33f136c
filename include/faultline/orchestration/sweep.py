"""The factory of matrix DAGs: plan -> run_experiment (mapped) -> aggregate."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG, Param, TriggerRule, chain, get_current_context, task

from faultline.experiment.axes import axis_text
from faultline.experiment.config import Configuration
from faultline.experiment.decide import EXAMPLE
from faultline.experiment.matrices import DEFAULT, MATRICES, MOST_MEASUREMENTS, MatrixSpec
from faultline.orchestration.forms import SECTIONS, axis_param, empty_param, further_axes_param, label_param
from faultline.orchestration.local_spark import LocalSparkJob
from faultline.orchestration.run_experiment import AGAIN, AT_ONCE, RETRIES, RunExperiment, retry_policy
from faultline.orchestration.search import SEARCH_PARAMS, require_search, search, search_params
from faultline.system.errors import ConfigError
from faultline.system.settings import load_settings
from faultline.system.text import suggest

if TYPE_CHECKING:
    from faultline.experiment.matrix import Matrix, PlannedCell
    from faultline.records.manifest import Baseline, Question
    from faultline.records.record import Record

SWEEP_PARAMS = (
    "preset", "axes", "repetitions", "controls", "only_missing", "max_measurements", "keep_unsound", "series", "build",
    "decide", "resume",
)  # fmt: skip
DOC = """\
### {title}

{text}

{presets}

Each value on each axis gives one experiment a repetition; they run one at a time, in an order shuffled by
`seed`. Cells that already have a valid record are left out (`only_missing`), so triggering the same form again
**resumes** a sweep, and measures what an earlier one missed.

With `decide` it repeats each configuration until its neighbours along an axis can be told apart, or are known to be as
good as equal, or the budget is spent; what is decided is skipped.
"""


def matrix_dag(name: str) -> DAG:
    """The DAG of one matrix, whose form shows the axes first and every other parameter after them."""
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
        runs = measure(planned)
        steps = [planned, runs, *([search(planned)] if spec.search else []), end]
        chain(*steps[1:])
        steps >> require_success()
    return dag


def measure(planned: Any) -> Any:
    """`run_experiment`, mapped over what a plan returns: one cell is measured at a time, and the next one ready."""
    return RunExperiment.partial(
        task_id="run_experiment",
        max_active_tis_per_dagrun=AT_ONCE,
        retries=RETRIES,
        retry_policy=retry_policy(),
        retry_delay=timedelta(seconds=10),
        map_index_template="{{ task.cell }}",
    ).expand_kwargs(planned)


def matrix_params(spec: MatrixSpec) -> dict[str, Param]:
    """The form of a matrix: preset, axes, sweep, then the configuration's other fields; all empty, for the preset to
    fill."""
    others = [name for names in SECTIONS.values() for name in names if name not in spec.axes]
    return {
        "preset": Param(
            DEFAULT, type="string", enum=list(spec.presets), title="preset",
            description="Fills what is left empty below.", description_md=presets_text(spec),
        ),
        **{name: axis_param(name, spec.said_of(name)) for name in spec.axes},
        "axes": further_axes_param(),
        "repetitions": integer_param(
            "repetitions", None, 1, 100,
            f"Measurements of each configuration. Empty: {_of_presets(spec, 'repetitions')}",
        ),
        "controls": integer_param(
            "controls", None, 0, 100,
            f"Runs of the first configuration without fault. Empty: {_of_presets(spec, 'controls')}",
        ),
        "only_missing": Param(
            True, type="boolean", title="only_missing", section="Sweep",
            description="Leave out cells that already have a valid record. Off: measure all of them again.",
        ),
        "max_measurements": integer_param(
            "max_measurements", MOST_MEASUREMENTS, 1, 10, "Measurements of a cell till it is given up."
        ),
        "keep_unsound": Param(
            False, type="boolean", title="keep_unsound", section="Sweep",
            description="A cell that is given up keeps its unsound records, and does not fail the run.",
        ),
        "series": label_param("series", "Records are compared within a series. Empty: the build.", "Sweep"),
        "build": label_param("build", "Label of the software under test. Empty: versions, settings, code.", "Sweep"),
        "decide": Param(
            None, type=["null", "object"], title="decide", section="Sweep",
            description=f"Measure until it can be told, in place of repetitions: an object such as {EXAMPLE}; "
            "`error` (0.05), and `hours` beside `experiments` or in their place.",
        ),
        "resume": Param(
            None, type=["null", "string"], title="resume", section="Sweep",
            description="Id of a sweep whose missing cells are measured, in its series. All else stays empty.",
        ),
        **(search_params() if spec.search else {}),
        **{name: empty_param(name, spec.said_of(name)) for name in others},
    }  # fmt: skip


def _of_presets(spec: MatrixSpec, name: str) -> str:
    """What each preset makes of a number of the sweep."""
    return ", ".join(f"{number} ({preset})" for preset, number in spec.said_of(name).items()) + "."


def presets_text(spec: MatrixSpec) -> str:
    """The presets as a table: what each puts on the axes."""
    head = ["| preset | " + " | ".join((*spec.axes, "repetitions")) + " |", "| --- " * (len(spec.axes) + 2) + "|"]
    rows = []
    for preset in spec.presets:
        values = spec.values(preset)
        shown = [axis_text(list(values[axis])) for axis in spec.axes]
        rows.append("| " + " | ".join([f"`{preset}`", *shown, str(values["repetitions"])]) + " |")
    return "\n".join([*head, *rows])


@task(**AGAIN)
def plan() -> list[dict[str, Any]]:
    """The cells to measure, as arguments of `run_experiment`: configuration and run id."""

    from faultline.lifecycle.environment import installed_build
    from faultline.orchestration.forms import refuse_unknown
    from faultline.reports.headline import plan_headline

    context = get_current_context()
    spec, settings = MATRICES[context["dag"].dag_id], load_settings()
    try:
        refuse_unknown(context["params"], [*Configuration.model_fields, *SWEEP_PARAMS, *SEARCH_PARAMS])
        if context["params"]["resume"]:
            return resume_sweep(context["params"])
        params = spec.resolve(context["params"])
        require_search(params)
        matrix = spec.matrix(params)
        build = params["build"] or installed_build(settings, configurations=matrix.configurations())
        series = params["series"] or build
        cells, question = _planned(matrix, params, series)
        planned = begin_sweep(cells, series=series, build=build, params=params, question=question)
        # What was taken, since a field of the form may have made another number of what was typed.
        say_planned(plan_headline(matrix, params, len(cells), len(planned)))
        return planned
    except ConfigError as error:
        raise refused(error) from None


def resume_sweep(params: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The missing cells of another sweep, in its series. Raises ConfigError where they would not belong together."""
    from faultline.experiment.config import parse_configuration
    from faultline.experiment.matrix import PlannedCell
    from faultline.lifecycle.environment import installed_build
    from faultline.records.manifest import Manifests
    from faultline.reports.headline import resumed_headline

    name, matrix = params["resume"], get_current_context()["dag"].dag_id
    filled = [key for key, value in params.items() if value not in (None, "") and key in Configuration.model_fields]
    if filled:
        raise ConfigError(f"{filled[0]}: is as in the sweep that is resumed; leave it empty, or leave out resume")
    manifests = Manifests(load_settings().results)
    plan = manifests.read(name)
    if plan is None or plan.matrix != matrix:
        known = [one.sweep_id for one in manifests.of_matrix(matrix)]
        raise ConfigError(f"resume: {name} is no sweep of {matrix}{suggest(name, known)}")
    cells = [PlannedCell(parse_configuration(one.config), one.repetition, plan.series) for one in plan.cells]
    build = params["build"] or installed_build(load_settings(), configurations=[one.config for one in cells])
    if build != plan.build:
        raise ConfigError(
            f"resume: {name} was measured with the build {plan.build}, and {build} is at hand: they do not mix; "
            "trigger a sweep of its own"
        )
    how = {**params, "only_missing": True, "axes": plan.axes}
    planned = begin_sweep(cells, series=plan.series, build=build, params=how, question=plan.decide, since=plan.since)
    say_planned(resumed_headline(name, len(cells), len(planned)))
    return planned


def _planned(matrix: Matrix, params: Mapping[str, Any], series: str) -> tuple[list[PlannedCell], Question | None]:
    """All cells of a sweep, and what it is to decide. Raises ConfigError for what cannot be decided."""
    if params["decide"] is None:
        return matrix.cells(series), None
    # It loads the statistics, which a sweep that asks nothing need not wait for.
    from faultline.comparison.question import planned_cells
    from faultline.records.manifest import Manifests

    plans = Manifests(load_settings().results).of_matrix(get_current_context()["dag"].dag_id)
    return planned_cells(matrix, params["decide"], series, plans, fresh=not params["only_missing"])


def say_planned(note: str) -> None:
    """Puts what a sweep sets out to do into the note of its run, where its outcome will stand."""
    from faultline.orchestration.notes import note_run

    note_run(load_settings(), get_current_context(), note)


def refused(error: ConfigError) -> Any:
    """What a task that plans raises; the run's note says the same, since nobody looks for it in a log."""
    from airflow.sdk.exceptions import AirflowFailException

    from faultline.reports.headline import refusal_headline

    say_planned(refusal_headline(error))
    return AirflowFailException(str(error))


def begin_sweep(
    cells: list[PlannedCell],
    *,
    series: str,
    build: str,
    params: Mapping[str, Any],
    logical_date: str | None = None,
    schedule: str | None = None,
    question: Question | None = None,
    baseline: Baseline | None = None,
    since: str | None = None,
) -> list[dict[str, Any]]:
    """Writes down what the sweep of this run sets out to measure; returns the arguments of `run_experiment` for it.

    `schedule`: the cron expression that a night was due by. `question`: what the sweep is to decide.
    `baseline`: what each cell is measured by as well, in pairs. `since`: what was measured before it does not count, by
    default without `only_missing` what was before now.
    Raises ConfigError when another run has a sweep of the same id, and for a target on which nothing can be measured.
    """
    from datetime import UTC, datetime

    from faultline.comparison.cells import Point, names_of
    from faultline.experiment.cell import Cell
    from faultline.experiment.matrix import plan as plan_cells
    from faultline.experiment.matrix import plan_pairs
    from faultline.experiment.sweep_id import sweep_id_of
    from faultline.orchestration.targets.connections import look_before
    from faultline.records.manifest import Manifest, Manifests, cells_of
    from faultline.records.record import SCHEMA
    from faultline.records.store import Store

    context, settings = get_current_context(), load_settings()
    matrix, run_id = context["dag"].dag_id, context["run_id"]
    labels: dict[str, Any] = {"matrix": matrix, "sweep_id": sweep_id_of(run_id), "series": series, "build": build}
    labels |= {"logical_date": logical_date} if logical_date else {}
    planned_at = datetime.now(UTC).isoformat(timespec="milliseconds")
    since = since or (None if params["only_missing"] else planned_at)
    about = {"logical_date": None, **labels, "run_id": run_id, "planned_at": planned_at, "schedule": schedule}
    asked: dict[str, Any] = {"decide": question, "baseline": baseline, "since": since}
    records = Store(settings.results).query()
    if question is not None:
        _require_one_build(records, {planned.config.config_id for planned in cells}, series, build)
    plan = Manifest(**about, **asked, axes=params.get("axes") or (), cells=cells_of(cells))
    measured = [Cell.of(one) for one in records if one.sound and one.schema_ == SCHEMA and plan.counts(one)]
    how: dict[str, Any] = {"only_missing": params["only_missing"], "seed": params.get("seed") or 1}
    ordered = plan_pairs(cells, baseline.series, measured, **how) if baseline else plan_cells(cells, measured, **how)
    look_before(settings, sorted({planned.config.target for planned in ordered}))
    Manifests(settings.results).write(plan)
    configs = {planned.config.config_id: planned.config for planned in cells}
    names = names_of([Point(config_id, one.model_dump(mode="json"), ()) for config_id, one in configs.items()])
    other = {"series": baseline.series, "build": baseline.build, "build_spec": baseline.spec} if baseline else {}
    sides = {series: labels, **({baseline.series: {**labels, **other}} if baseline else {})}
    return [
        {
            "trigger_run_id": child_run_id(labels["sweep_id"], planned, sides[planned.series]["build"]),
            "conf": {
                **planned.config.model_dump(mode="json"),
                **sides[planned.series],
                "repetition": planned.repetition,
                "parent_run_id": run_id,
                "only_missing": since is None,
            },
            "max_measurements": params["max_measurements"],
            "cell": f"{names[planned.config.config_id]}, r{planned.repetition}"
            + (", baseline" if baseline and planned.series == baseline.series else ""),
        }
        for planned in ordered
    ]


def _require_one_build(records: Iterable[Record], configurations: Collection[str], series: str, build: str) -> None:
    """Raises ConfigError where a series holds cells of a question that were measured with another build: they count as
    measured, and answer nothing."""
    others = {one.build for one in records if one.sound and one.series == series and one.config_id in configurations}
    if others - {build}:
        raise ConfigError(
            f"series: {series} has cells of the build {min(others - {build})}, which say nothing about {build}; name "
            "another series, or leave it empty"
        )


def child_run_id(sweep_id: str, planned: PlannedCell, build: str) -> str:
    """Id of the run that measures a cell, the same each time the sweep is resumed.

    Not after the build has changed: a run that is reset keeps the labels that it was triggered with.
    """
    return f"{sweep_id}__{planned.label}-{zlib.crc32(f'{planned.series} {build}'.encode()):08x}"


class Aggregate(LocalSparkJob):
    """Rebuilds the summary tables over all records, then puts what the sweep came to into the note of its run."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(program="aggregate", **arguments)

    def execute(self, context: Any) -> None:
        from faultline.comparison.coverage import gap_of
        from faultline.comparison.decisions import decisions_of, settled_in, tally
        from faultline.engines.running import BatchJob
        from faultline.experiment.sweep_id import sweep_id_of
        from faultline.orchestration.notes import note_run
        from faultline.records.index import Index
        from faultline.records.manifest import Manifests
        from faultline.records.store import Store
        from faultline.records.summary import is_large
        from faultline.reports.answer.allocation import decision_lines
        from faultline.reports.headline import sweep_headline

        settings, run_id = load_settings(), context["run_id"]
        arguments = (
            *("--records", str(settings.records)),
            *("--attempts", str(settings.attempts)),
            *("--target", str(settings.results / "summary")),
        )
        self.run_batch(BatchJob("aggregate", arguments, "aggregate", large=is_large(settings.attempts)), context)
        # So that the first look at the results need not parse what the sweep has added.
        index = Index(settings.results, settings.home)
        index.refresh()
        sweep_id = sweep_id_of(run_id)
        plan = Manifests(settings.results).read(sweep_id)
        if plan is None:
            return  # nothing was planned, and the note says why already
        entries = index.all()
        decisions = decisions_of(plan, entries)
        for line in decision_lines(plan, entries, decisions):
            print(line)
        missing = len(gap_of(plan, entries, settled_in(plan, entries)).missing)
        note = sweep_headline(Store(settings.results).query(sweep=sweep_id), sweep_id, missing, tally(decisions))
        note_run(settings, context, note)


def aggregate() -> Aggregate:
    """The last task; also when some experiments failed."""
    return Aggregate(task_id="aggregate", trigger_rule=TriggerRule.ALL_DONE, **AGAIN)


@task(trigger_rule=TriggerRule.ONE_FAILED)
def require_success() -> None:
    """Fails the run when one of its tasks failed: `aggregate` comes last and succeeds in any case."""
    from airflow.sdk.exceptions import AirflowFailException

    raise AirflowFailException("not every cell has a valid record: the red tasks and the note of this run say why")


def integer_param(name: str, default: int | None, low: int, high: int, text: str) -> Param:
    """A whole number of the form's part about the sweep; without a default it may be empty."""
    return Param(
        default,
        type="integer" if default is not None else ["null", "integer"],
        minimum=low,
        maximum=high,
        title=name,
        section="Sweep",
        description=text,
    )
