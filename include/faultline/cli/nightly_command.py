"""`./faultline nightly check` and `test-alert`: what a night's file says, in words and minutes, and whether it reaches
anybody.

Heavy modules are imported inside, so that `--help` answers at once.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from faultline.system.errors import ConfigError
from faultline.system.text import pluralize, progress, suggest

if TYPE_CHECKING:
    from faultline.experiment.nightly_file import NightlyFile
    from faultline.reports.notes import AlertContent

MADE_UP = "this is no night's outcome, its figures are made up; it shows that alerts arrive, and how they look"

app = typer.Typer(help="Check nightly runs, which nightly.yaml and nights/NAME.yaml define.", no_args_is_help=True)


@app.command()
def check(name: Annotated[str | None, typer.Argument(help="One file, such as weekly (default: all).")] = None) -> None:
    """Print what each nightly run measures: configurations, schedule, duration, baseline and alerts.

    Starts nothing. Exit code 2 if a file is invalid.
    """
    files = _chosen(name)
    problems = []
    for number, night in enumerate(files):
        try:
            lines = explained(night)
        except ConfigError as error:
            problems.append(str(error))
            continue
        print("\n".join(["", *lines] if number else lines))
    if problems:
        raise ConfigError("; ".join(problems))


@app.command("test-alert")
def test_alert(
    name: Annotated[str | None, typer.Argument(help="One file, such as weekly (default: nightly.yaml).")] = None,
    kind: Annotated[
        str, typer.Option(help="test, worse, better or broken; all but test reach only their subscribers.")
    ] = "test",
) -> None:
    """Send a test alert to all recipients of a nightly file."""
    from faultline.experiment.alert_plan import KINDS
    from faultline.orchestration.nightly.alerts import TEST, send_alert
    from faultline.reports.notes import AlertContent, results_link
    from faultline.system.settings import load_settings

    if kind not in (TEST, *KINDS):
        raise ConfigError(f"--kind {kind}: is not known{suggest(kind, (TEST, *KINDS))}")
    (night,) = _chosen(name or "nightly")
    if night.problem:
        raise ConfigError(night.problem)
    if not night.alerts:
        raise ConfigError(f"alerts: {night.dag_id} tells nobody; write alerts into {night.path or 'nightly.yaml'}")
    settings, now = load_settings(), datetime.now(UTC).isoformat(timespec="seconds")
    link = results_link(settings.endpoints.airflow, None)
    alert = AlertContent(kind, night.dag_id, now, f"Try-out of {night.dag_id}: {kind}", (MADE_UP,), link)
    if kind in KINDS and (told := _made_up(night, kind, now, link)) is not None:
        alert = replace(told, kind=kind, title=f"Try-out: {told.title}", lines=(MADE_UP, *told.lines))
    sent = send_alert(alert, night.alerts)
    if not sent:
        raise ConfigError(f"--kind {kind}: nobody asked for it; {night.dag_id} tells {', '.join(_who(night))}")
    for line in sent:
        progress(line)


def _made_up(night: NightlyFile, kind: str, now: str, link: str) -> AlertContent | None:
    """What would be told of a night of this file that came out so."""
    from faultline.comparison.regression_gate.nightly_pairs import sample_verdict
    from faultline.lifecycle.progress import experiment_title
    from faultline.orchestration.nightly.dag_factory import form_problem, nightly_params
    from faultline.orchestration.nightly.nightly_plan import describe_nightly_plan, primary_figures
    from faultline.reports.notes import nightly_alert

    params = nightly_params()
    if problem := form_problem(params, night):
        raise ConfigError(problem)
    values = {name: param.value for name, param in params.items()}
    configs, cells, _ = describe_nightly_plan(values)
    figure = next(iter(primary_figures(configs, values["primary"]).values()))
    verdict = sample_verdict(kind, now, {one.config_id: experiment_title(one) for one in configs}, figure)
    broken = kind == "broken"
    missing = len(cells) if broken else 0
    return nightly_alert(night.dag_id, now, link, verdict, planned=len(cells), missing=missing, valid=int(not broken))


def explained(night: NightlyFile) -> list[str]:
    """A night in words. Raises ConfigError naming the file and the key."""
    from croniter import croniter

    from faultline.cli.sweep_progress import minutes_text
    from faultline.lifecycle.prepare import check_configuration
    from faultline.lifecycle.progress import budget_s, experiment_title
    from faultline.orchestration.nightly.dag_factory import form_problem, nightly_params
    from faultline.orchestration.nightly.nightly_plan import describe_nightly_plan

    where = night.path.name if night.path else night.dag_id
    params = nightly_params()
    if problem := night.problem or form_problem(params, night):
        raise ConfigError(problem)
    values = {name: param.value for name, param in params.items()}
    try:
        configs, cells, words = describe_nightly_plan(values)
        for config in configs:
            check_configuration(config)
        for plan in night.alerts:
            plan.check_here()
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    due = croniter(night.schedule, datetime.now(UTC)).get_next(datetime)
    seconds = sum(budget_s(cell.config) for cell in cells)
    lines = [
        f"{night.path or f'{night.dag_id}, without a file'}",
        f"  runs as the DAG {night.dag_id}, due by `{night.schedule}` (UTC), next on {due:%Y-%m-%d at %H:%M}, once "
        "it is switched on",
        f"  measures {pluralize(len(configs), 'configuration')}: {'; '.join(map(experiment_title, configs))}",
        *(f"  {line}" for line in words),
        f"  {pluralize(len(cells), 'experiment')}, about {minutes_text(seconds)} on an idle machine",
    ]
    return [*lines, f"  tells {'; '.join(_who(night)) or 'nobody'}"]


def _who(night: NightlyFile) -> list[str]:
    return [f"{plan.text} ({', '.join(plan.when)})" for plan in night.alerts]


def _chosen(name: str | None) -> list[NightlyFile]:
    """The nights that are asked for. Raises ConfigError for one that there is not."""
    from faultline.experiment.nightly_file import NIGHTLY, PREFIX, nightly_files
    from faultline.system.settings import ROOT

    files = nightly_files(ROOT)
    if name is None:
        return files
    short = {("nightly" if one.dag_id == NIGHTLY else one.dag_id.removeprefix(PREFIX)): one for one in files}
    known = short | {one.dag_id: one for one in files}
    if name not in known:
        raise ConfigError(f"{name}: no night of this name{suggest(name, short)}")
    return [known[name]]
