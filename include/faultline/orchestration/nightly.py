"""The DAG `nightly_regression`: the same configurations each night, held against the nights before.

plan_night -> run_experiment (mapped) -> aggregate -> compare_with_baseline -> no_regression

The last task fails when a figure became worse, so that whatever Airflow does about failed tasks (mails, callbacks,
notifiers) is done about regressions.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG, CronTriggerTimetable, Param, TriggerRule, chain, get_current_context, task

from faultline.base.errors import ConfigError
from faultline.base.settings import load_settings
from faultline.base.text import suggest
from faultline.comparison.gate.size import PAIRS
from faultline.comparison.statistics import LEAST
from faultline.experiment.build import EXAMPLE
from faultline.experiment.matrices import MOST_MEASUREMENTS
from faultline.experiment.nightly_schedule import NIGHTLY, schedule
from faultline.orchestration.forms import label_param
from faultline.orchestration.run_experiment import AGAIN
from faultline.orchestration.sweep import aggregate, begin_sweep, integer_param, measure, refused, require_success
from faultline.records.metrics import USUAL

if TYPE_CHECKING:
    from faultline.comparison.gate.verdict import GateVerdict
    from faultline.experiment.config import Configuration
    from faultline.experiment.matrix import PlannedCell
    from faultline.records.manifest import Baseline, Manifest
    from faultline.records.summary import Entry

NOTIFIERS = "FAULTLINE_NOTIFIERS"
# What a scheduled night is, since nobody fills in its form.
NIGHT = "FAULTLINE_NIGHT"
# What a user of word count asks first: what a kill costs, of an executor and of the driver.
DEFAULT_SET: list[dict[str, Any]] = [
    {"workload": "word_count", "checkpoint_interval_s": 5.0, "fault": "executor"},
    {"workload": "word_count", "checkpoint_interval_s": 5.0, "fault": "driver"},
]
PARAMS = (
    "set", "repetitions", "controls", "baseline", "primary", "baseline_nights", "metrics", "only_missing",
    "max_measurements", "build",
)  # fmt: skip
DOC = """\
### Nightly regression

**With a `baseline`**, a revision's workload programs and settings of the engine, it measures each configuration of
`set` with tonight's build and with that one, in `repetitions` pairs, one directly after the other. The task
`no_regression` **fails when two nights in a row find the `primary` figure worse, or one is certain beyond doubt**, and
when it cannot tell. The note of the run says what changed, since when, and how large a change would have been seen.

**Without one** it measures each `repetitions` times, with `controls` runs of the same without a fault among them, and
holds the night against up to `baseline_nights` nights before it that ran one build. The task fails when a figure became
worse. Verdicts need five repetitions a side; what they rest on, and what they can see, stands in docs/metrics.md.

A night that was missed is made up for by Airflow's own backfill (menu of the DAG, or `airflow backfill create`): its
records carry the night as `logical_date`, and `measured_at` says when they were really measured.

Paused at first: it would take the machine for some hours each night. Schedule (cron, UTC): environment variable
`FAULTLINE_NIGHTLY_SCHEDULE`; what this form begins with, and a scheduled night is: `FAULTLINE_NIGHT`, a JSON object of
its fields; notifiers of a regression: `FAULTLINE_NOTIFIERS`. All are read when services start.
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
        params=with_defaults(nightly_params(), os.environ.get(NIGHT)),
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


def with_defaults(params: dict[str, Param], text: str | None) -> dict[str, Param]:
    """The form with other values to begin with, from a JSON object: `{"baseline": {"revision": "v1.3"}}`.

    Raises ConfigError for what is no object, a field that there is not, and a value that the form would refuse.
    """
    from airflow.sdk.exceptions import ParamValidationError

    try:
        given = json.loads(text) if text else {}
    except ValueError as error:
        raise ConfigError(f"{NIGHT}: is no JSON ({error}); write an object of the form's fields") from None
    if not isinstance(given, dict):
        raise ConfigError(f'{NIGHT}: is no object; write one of the form\'s fields, such as {{"repetitions": 15}}')
    for name, value in given.items():
        if name not in params:
            raise ConfigError(f"{NIGHT}.{name}: is no field of the form{suggest(name, params)}")
        try:
            params[name].resolve(value)
        except (ParamValidationError, ValueError) as error:
            raise ConfigError(f"{NIGHT}.{name}: {str(error).splitlines()[0]}") from None
    return params


def nightly_params() -> dict[str, Param]:
    """The form: the set, how often each is measured, and what it is held against."""
    return {
        "set": Param(
            DEFAULT_SET, type="array", items={"type": "object"}, minItems=1, title="set",
            description="Configurations, each an object of the parameters that differ from the defaults.",
        ),
        "repetitions": Param(
            None, type=["null", "integer"], minimum=1, maximum=100, title="repetitions", section="Sweep",
            description=f"Measurements of each. Empty: {PAIRS} pairs with a baseline, {LEAST} without.",
        ),
        "controls": integer_param(
            "controls", LEAST, 0, 100,
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
    from faultline.orchestration.forms import refuse_unknown
    from faultline.runner.environment import installed_build

    params = get_current_context()["params"]
    try:
        refuse_unknown(params, PARAMS)
        metrics_named(params["metrics"])
        night = past(night_of_run())
        build = params["build"] or installed_build(load_settings())
        order = {**params, "seed": zlib.crc32(night.encode())}
        cells, baseline = night_cells(params, night), baseline_of_night(params, night)
        labels: dict[str, Any] = {"series": night, "build": build, "logical_date": night, "schedule": schedule()}
        return begin_sweep(cells, params=order, baseline=baseline, **labels)
    except ConfigError as error:
        raise refused(error) from None


def night_cells(params: Mapping[str, Any], night: str) -> list[Any]:
    """Every configuration of the set, and its control where there is no baseline, as often as asked for; each once.

    Raises ConfigError naming the place in the set and the key that is wrong.
    """
    from faultline.experiment.matrix import PlannedCell, control_of

    paired = params.get("baseline") is not None
    repetitions = params["repetitions"] or (PAIRS if paired else LEAST)
    planned: list[PlannedCell] = []
    for config in configurations(params["set"]):
        planned += [PlannedCell(config, repetition, night) for repetition in range(repetitions)]
        # Pairs need no noise floor: what they scatter is their own.
        if config.planned_faults() and not paired:
            control = control_of(config)
            planned += [PlannedCell(control, repetition, night) for repetition in range(params["controls"])]
    return list(dict.fromkeys(planned))


def configurations(given: Sequence[Any]) -> list[Configuration]:
    """Those of a set. Raises ConfigError naming the place and the key."""
    from faultline.experiment.config import parse_configuration

    found = []
    for number, one in enumerate(given):
        try:
            found.append(parse_configuration(one))
        except ConfigError as error:
            raise ConfigError(f"set[{number}]: {error}") from None
    return found


def baseline_of_night(params: Mapping[str, Any], night: str) -> Baseline | None:
    """What the night is measured beside; brings its programs here. None where the form names nothing.

    Raises ConfigError for a build that cannot be, a figure that is none, and pairs too few to tell anything.
    """
    if params["baseline"] is None:
        if params["primary"]:
            raise ConfigError("primary: judges pairs, and there is no baseline to pair with; give one, or leave it out")
        return None
    from faultline.comparison.gate.verdict import least_pairs
    from faultline.comparison.nights import BASELINE
    from faultline.experiment.build import parse_build
    from faultline.records.manifest import Baseline
    from faultline.runner.builds import build_of, check_builds
    from faultline.runner.environment import installed_build

    settings, configs = load_settings(), configurations(params["set"])
    spec = parse_build(params["baseline"], "baseline")
    check_builds(spec, configs, key="baseline")
    primary = primary_of(configs, params["primary"])
    need, pairs = least_pairs(len(primary)), params["repetitions"] or PAIRS
    if pairs < need:
        many = f"{len(primary)} configuration{'s' if len(primary) > 1 else ''}"
        raise ConfigError(f"repetitions: {pairs} pairs can tell nothing of {many}; give {need} or more, best {PAIRS}")
    brought = build_of(spec, settings, key="baseline")
    # By its commit: a branch may move on while the night lasts.
    pinned = {**spec.as_mapping(), "revision": brought.commit}
    build = installed_build(settings, brought)
    return Baseline(series=f"{night}{BASELINE}", build=build, spec=pinned, primary=primary)


def primary_of(configs: Sequence[Configuration], given: Sequence[str] | None) -> dict[str, str]:
    """The figure that each configuration is judged by, by its id. Raises ConfigError for one that is not known."""
    from faultline.comparison.gate.nights import usual_primary
    from faultline.comparison.question import FIGURES

    names = list(given or [])
    if len(names) not in (0, 1, len(configs)):
        raise ConfigError(
            f"primary: {len(names)} figures for {len(configs)} configurations; give one for all, or one for each"
        )
    for name in names:
        if name not in FIGURES:
            raise ConfigError(f"primary: {name!r} is no figure of which less or more is better{suggest(name, FIGURES)}")
    chosen = names * len(configs) if len(names) == 1 else names or [usual_primary(one) for one in configs]
    return {config.config_id: name for config, name in zip(configs, chosen, strict=True)}


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
    from faultline.comparison.compare import metrics_named
    from faultline.comparison.nights import Night, as_json, judge_night, nights_of
    from faultline.experiment.matrix import sweep_id_of
    from faultline.records.index import Index
    from faultline.records.manifest import Manifests
    from faultline.reports.night_headline import gate_headline, night_headline

    context, settings = get_current_context(), load_settings()
    params, night, run_id = context["params"], night_of_run(), context["run_id"]
    index, sweep_id = Index(settings.results), sweep_id_of(run_id)
    index.refresh()
    nights = nights_of(index.of_matrix(context["dag"].dag_id))
    own = next((one for one in nights if one.date == night), Night(night, ()))
    plan = Manifests(settings.results).read(sweep_id)
    if plan is None:
        return {"summary": "nothing was planned", "reasons": [], "problem": "nothing was planned"}
    if plan.baseline is not None:
        gate = gate_of(plan, index.of_matrix(context["dag"].dag_id))
        tell(sweep_id, gate[1], gate_headline(gate[0], gate[1], sweep_id))
        return {"summary": gate[1]["summary"], "reasons": gate[1]["reasons"], "problem": None,
                "shut": list(gate[0].problems)}  # fmt: skip
    verdict = judge_night(own, nights, metrics_named(params["metrics"]), params["baseline_nights"])
    kept = as_json(verdict)
    tell(sweep_id, kept, night_headline(verdict, sweep_id))
    problem = None if own.valid else kept["problem"]
    return {"summary": kept["summary"], "reasons": kept["reasons"], "problem": problem}


def gate_of(plan: Manifest, entries: Sequence[Entry]) -> tuple[GateVerdict, dict[str, Any]]:
    """The verdict on a night that was measured beside a baseline, and as it is kept."""
    from faultline.comparison.gate.nights import as_json, paired_nights
    from faultline.comparison.gate.verdict import judge_gate
    from faultline.records.manifest import Manifests

    plans = Manifests(load_settings().results).of_matrix(plan.matrix)
    nights = paired_nights([*(one for one in plans if one.sweep_id != plan.sweep_id), plan], entries)
    verdict = judge_gate([one for one in nights if one.date <= str(plan.logical_date)])
    return verdict, as_json(verdict, plan)


def tell(sweep_id: str, kept: Mapping[str, Any], note: str) -> None:
    """Keeps a verdict in `results/nights/`, prints it, and puts it into the note of the run."""
    from faultline.base.attempt import write_json
    from faultline.orchestration.notes import write_note

    context, settings = get_current_context(), load_settings()
    folder = settings.results / "nights"
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / f"{sweep_id}.json", dict(kept))
    lines = [kept["summary"], *kept["reasons"], *kept.get("suspicions", ()), kept["problem"] or ""]
    print(*filter(None, lines), sep="\n")
    if problem := write_note(settings, context["dag"].dag_id, context["run_id"], note):
        print(problem)


@task
def no_regression(verdict: dict[str, Any]) -> None:
    """Fails when a figure became worse, with a line for each, and where pairs that were planned cannot tell; is skipped
    when there was nothing to hold the night against."""
    from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

    if verdict["problem"]:
        raise AirflowSkipException(verdict["problem"])
    if verdict["reasons"]:
        than = "the baseline" if "shut" in verdict else "the nights before"
        raise AirflowFailException(f"worse than {than}: " + "; ".join(verdict["reasons"]))
    if verdict.get("shut"):
        raise AirflowFailException("; ".join(verdict["shut"]))
