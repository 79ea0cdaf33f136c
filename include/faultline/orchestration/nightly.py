"""The DAG `nightly_regression`: the same configurations each night, held against the nights before.

plan_night -> run_experiment (mapped) -> aggregate -> compare_with_baseline -> no_regression

The last task fails when a figure became worse, so that whatever Airflow does about failed tasks (mails, callbacks,
notifiers) is done about regressions.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping
from typing import Any

from airflow.sdk import DAG, CronTriggerTimetable, Param, TriggerRule, chain, get_current_context, task

from faultline.base.errors import ConfigError
from faultline.base.settings import load_settings
from faultline.comparison.statistics import LEAST
from faultline.experiment.matrices import MOST_MEASUREMENTS
from faultline.experiment.nightly_schedule import NIGHTLY, schedule
from faultline.orchestration.forms import label_param
from faultline.orchestration.run_experiment import AGAIN
from faultline.orchestration.sweep import aggregate, begin_sweep, integer_param, measure, refused, require_success
from faultline.records.metrics import USUAL

NOTIFIERS = "FAULTLINE_NOTIFIERS"
# What a user of word count asks first: what a kill costs, of an executor and of the driver.
DEFAULT_SET: list[dict[str, Any]] = [
    {"workload": "word_count", "checkpoint_interval_s": 5.0, "fault": "executor"},
    {"workload": "word_count", "checkpoint_interval_s": 5.0, "fault": "driver"},
]
PARAMS = ("set", "repetitions", "controls", "baseline_nights", "metrics", "only_missing", "max_measurements", "build")
DOC = """\
### Nightly regression

Measures each configuration of `set` `repetitions` times, with `controls` runs of the same without a fault among them,
in random order; then holds the night against up to `baseline_nights` nights before it that ran one build. The task
`no_regression` **fails when a figure became worse**; the note of the run says which. Verdicts need five repetitions a
side; what they rest on stands in docs/metrics.md.

A night that was missed is made up for by Airflow's own backfill (menu of the DAG, or `airflow backfill create`): its
records carry the night as `logical_date`, and `measured_at` says when they were really measured.

Paused at first: it would take the machine for an hour each night. Schedule (cron, UTC): environment variable
`FAULTLINE_NIGHTLY_SCHEDULE`; notifiers of a regression: `FAULTLINE_NOTIFIERS`; both read when services start.
"""


def nightly_dag() -> DAG:
    """Builds the DAG. Raises ConfigError for a schedule or a notifier that Airflow does not understand."""
    with DAG(
        NIGHTLY,
        # A night's logical date is the instant it is due.
        schedule=CronTriggerTimetable(schedule(), timezone="UTC"),
        # Without a start date the first night is the next one: switching it on does not make up for the last.
        catchup=False,
        max_active_runs=1,
        is_paused_upon_creation=True,
        params=nightly_params(),
        doc_md=DOC,
        description="The same configurations each night, held against the nights before",
        tags=["faultline", "nightly"],
        render_template_as_native_obj=True,
    ) as dag:
        planned, end = plan_night(), aggregate()
        runs = measure(planned)
        compared = compare_with_baseline()
        alarm = no_regression.override(on_failure_callback=notifiers(os.environ.get(NOTIFIERS)))(compared)
        chain(runs, end, compared, alarm)
        [planned, runs, end] >> require_success()
    return dag


def notifiers(text: str | None) -> list[Any]:
    """Airflow notifiers from JSON: `[{"class": "airflow.providers.smtp.notifications.smtp.SmtpNotifier",
    "arguments": {"to": "team@example.org"}}]`. Their texts may hold Airflow's templates.

    Raises ConfigError for what is not of that form, or cannot be made.
    """
    from airflow.sdk import BaseNotifier
    from airflow.sdk.module_loading import import_string

    try:
        wanted = json.loads(text) if text else []
        if not isinstance(wanted, list):
            raise TypeError("not a list")
        made = [import_string(one["class"])(**one.get("arguments", {})) for one in wanted]
    except (ValueError, KeyError, TypeError, AttributeError, ImportError) as error:
        raise ConfigError(
            f'{NOTIFIERS}: cannot be used ({error}); write [{{"class": "…", "arguments": {{…}}}}, …]'
        ) from None
    for one in made:
        if not isinstance(one, BaseNotifier):
            raise ConfigError(f"{NOTIFIERS}: {type(one).__name__} is no notifier of Airflow's; name one that is")
    return made


def nightly_params() -> dict[str, Param]:
    """The form: the set, how often each is measured, and what it is held against."""
    return {
        "set": Param(
            DEFAULT_SET, type="array", items={"type": "object"}, minItems=1, title="set",
            description="Configurations, each an object of the parameters that differ from the defaults.",
        ),
        "repetitions": integer_param("repetitions", LEAST, 1, 100, "Measurements of each; verdicts need five."),
        "controls": integer_param(
            "controls", LEAST, 0, 100, "Runs without a fault for each: how much they differ is the noise floor."
        ),
        "baseline_nights": integer_param("baseline_nights", 7, 1, 365, "Nights that a night is held against."),
        "metrics": Param(
            list(USUAL), type="array", items={"type": "string"}, minItems=1, title="metrics", section="Sweep",
            description="What is compared, by its path in the record.",
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


@task(**AGAIN)
def plan_night() -> list[dict[str, Any]]:
    """The cells of this night, as arguments of `run_experiment`."""
    from faultline.comparison.compare import metrics_named
    from faultline.orchestration.experiment import refuse_unknown
    from faultline.runner.environment import installed_build

    params = get_current_context()["params"]
    try:
        refuse_unknown(params, PARAMS)
        metrics_named(params["metrics"])
        night = past(night_of_run())
        build = params["build"] or installed_build(load_settings())
        order = {**params, "seed": zlib.crc32(night.encode())}
        cells, cron = night_cells(params, night), schedule()
        return begin_sweep(cells, series=night, build=build, params=order, logical_date=night, schedule=cron)
    except ConfigError as error:
        raise refused(error) from None


def night_cells(params: Mapping[str, Any], night: str) -> list[Any]:
    """Every configuration of the set and its control, as often as asked for; each cell once.

    Raises ConfigError naming the place in the set and the key that is wrong.
    """
    from faultline.experiment.config import parse_configuration
    from faultline.experiment.matrix import PlannedCell, control_of

    planned: list[PlannedCell] = []
    for number, given in enumerate(params["set"]):
        try:
            config = parse_configuration(given)
        except ConfigError as error:
            raise ConfigError(f"set[{number}]: {error}") from None
        planned += [PlannedCell(config, repetition, night) for repetition in range(params["repetitions"])]
        if config.planned_faults():
            control = control_of(config)
            planned += [PlannedCell(control, repetition, night) for repetition in range(params["controls"])]
    return list(dict.fromkeys(planned))


def night_of_run() -> str:
    """The night that this run stands for: its logical date, or of one triggered by hand without any when it was due."""
    context = get_current_context()
    moment = context.get("logical_date") or context["dag_run"].run_after
    return str(moment.isoformat(timespec="seconds"))


def past(night: str) -> str:
    """The night itself. Raises ConfigError for one that has not come: what is measured now would stand for it."""
    from datetime import UTC, datetime

    if datetime.fromisoformat(night) > datetime.now(UTC):
        raise ConfigError(f"logical_date: {night} has not come yet; leave it out, or give a night that is over")
    return night


@task(trigger_rule=TriggerRule.ALL_DONE, **AGAIN)
def compare_with_baseline() -> dict[str, Any]:
    """Holds the night against its baseline; keeps the verdict in `results/nights/` and puts it into the run's note."""
    from faultline.base.attempt import write_json
    from faultline.comparison.compare import metrics_named
    from faultline.comparison.nights import Night, as_json, judge_night, nights_of
    from faultline.experiment.matrix import sweep_id_of
    from faultline.orchestration.notes import write_note
    from faultline.records.index import Index
    from faultline.records.manifest import Manifests
    from faultline.reports.headline import night_headline

    context, settings = get_current_context(), load_settings()
    params, night, run_id = context["params"], night_of_run(), context["run_id"]
    index, sweep_id = Index(settings.results), sweep_id_of(run_id)
    index.refresh()
    nights = nights_of(index.of_matrix(context["dag"].dag_id))
    own = next((one for one in nights if one.date == night), Night(night, ()))
    if Manifests(settings.results).read(sweep_id) is None:
        return {"summary": "nothing was planned", "reasons": [], "problem": "nothing was planned"}
    verdict = judge_night(own, nights, metrics_named(params["metrics"]), params["baseline_nights"])
    kept = as_json(verdict)
    folder = settings.results / "nights"
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / f"{sweep_id}.json", kept)
    print(kept["summary"], *kept["reasons"], *([kept["problem"]] if kept["problem"] else []), sep="\n")
    if problem := write_note(settings, context["dag"].dag_id, run_id, night_headline(verdict, sweep_id)):
        print(problem)
    problem = None if own.valid else kept["problem"]
    return {"summary": kept["summary"], "reasons": kept["reasons"], "problem": problem}


@task
def no_regression(verdict: dict[str, Any]) -> None:
    """Fails when a figure became worse, with a line for each; is skipped when nothing was measured that could be."""
    from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

    if verdict["problem"]:
        raise AirflowSkipException(verdict["problem"])
    if verdict["reasons"]:
        raise AirflowFailException("worse than the nights before: " + "; ".join(verdict["reasons"]))
