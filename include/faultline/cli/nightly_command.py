"""`./faultline nightly check` and `nightly test-alert`: describe nightly files and test their alerts."""

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

SAMPLE_NOTE = "Test alert with sample figures, not the result of a nightly run."

app = typer.Typer(
    name="nightly", help="Check nightly runs. `nightly.yaml` and `nights/NAME.yaml` define them.", no_args_is_help=True
)


@app.command()
def check(name: Annotated[str | None, typer.Argument(help="One file, such as weekly (default: all).")] = None) -> None:
    """Print what each nightly run measures. List configurations, schedule, duration, baseline and alerts.

    Starts nothing. Exit code 2 if a file is invalid.
    """
    files = _select(name)
    problems = []
    for number, nightly in enumerate(files):
        try:
            lines = describe_nightly(nightly)
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
        raise ConfigError(f"--kind: got {kind}; expected a known kind{suggest(kind, (TEST, *KINDS))}")
    (nightly,) = _select(name or "nightly")
    if nightly.problem:
        raise ConfigError(nightly.problem)
    if not nightly.alerts:
        raise ConfigError(f"alerts: missing; fix: add alerts to {nightly.path or 'nightly.yaml'}")
    settings, now = load_settings(), datetime.now(UTC).isoformat(timespec="seconds")
    link = results_link(settings.endpoints.airflow, None)
    alert = AlertContent(kind, nightly.dag_id, now, f"Test of {nightly.dag_id}: {kind}", (SAMPLE_NOTE,), link)
    if kind in KINDS and (sample := _sample_alert(nightly, kind, now, link)) is not None:
        alert = replace(sample, kind=kind, title=f"Test: {sample.title}", lines=(SAMPLE_NOTE, *sample.lines))
    sent = send_alert(alert, nightly.alerts)
    if not sent:
        raise ConfigError(
            f"--kind: got {kind}, which has no recipient; expected a kind of {', '.join(_recipients(nightly))}"
        )
    for line in sent:
        progress(line)


def _sample_alert(nightly: NightlyFile, kind: str, now: str, link: str) -> AlertContent | None:
    """Return the alert of a nightly run with this outcome, with sample figures."""
    from faultline.comparison.regression_gate.nightly_pairs import sample_verdict
    from faultline.lifecycle.progress import experiment_title
    from faultline.orchestration.nightly.dag_factory import form_problem, nightly_params
    from faultline.orchestration.nightly.nightly_plan import describe_nightly_plan, primary_figures
    from faultline.reports.notes import nightly_alert

    params = nightly_params()
    if problem := form_problem(params, nightly):
        raise ConfigError(problem)
    values = {name: param.value for name, param in params.items()}
    configs, cells, _ = describe_nightly_plan(values)
    figure = next(iter(primary_figures(configs, values["primary"]).values()))
    verdict = sample_verdict(kind, now, {one.config_id: experiment_title(one) for one in configs}, figure)
    broken = kind == "broken"
    missing = len(cells) if broken else 0
    return nightly_alert(nightly.dag_id, now, link, verdict, planned=len(cells), missing=missing, valid=int(not broken))


def describe_nightly(nightly: NightlyFile) -> list[str]:
    """Describe a nightly file, one line each. Raises ConfigError naming the file and the key."""
    from croniter import croniter

    from faultline.cli.sweep_progress import minutes_text
    from faultline.lifecycle.prepare import check_configuration
    from faultline.lifecycle.progress import budget_s, experiment_title
    from faultline.orchestration.nightly.dag_factory import form_problem, nightly_params
    from faultline.orchestration.nightly.nightly_plan import describe_nightly_plan

    where = nightly.path.name if nightly.path else nightly.dag_id
    params = nightly_params()
    if problem := nightly.problem or form_problem(params, nightly):
        raise ConfigError(problem)
    values = {name: param.value for name, param in params.items()}
    try:
        configs, cells, words = describe_nightly_plan(values)
        for config in configs:
            check_configuration(config)
        for plan in nightly.alerts:
            plan.check_here()
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    due = croniter(nightly.schedule, datetime.now(UTC)).get_next(datetime)
    seconds = sum(budget_s(cell.config) for cell in cells)
    lines = [
        f"{nightly.path or f'{nightly.dag_id}, without a file'}",
        f"  DAG {nightly.dag_id}, schedule `{nightly.schedule}` (UTC), next run {due:%Y-%m-%d %H:%M} if unpaused",
        f"  measures {pluralize(len(configs), 'configuration')}: {'; '.join(map(experiment_title, configs))}",
        *(f"  {line}" for line in words),
        f"  {pluralize(len(cells), 'experiment')}, about {minutes_text(seconds)} on an idle machine",
    ]
    return [*lines, f"  alerts {'; '.join(_recipients(nightly)) or 'none'}"]


def _recipients(nightly: NightlyFile) -> list[str]:
    return [f"{plan.text} ({', '.join(plan.when)})" for plan in nightly.alerts]


def _select(name: str | None) -> list[NightlyFile]:
    """Return the file called `name`, or all. Raises ConfigError for an unknown name."""
    from faultline.experiment.nightly_file import NIGHTLY, PREFIX, nightly_files
    from faultline.system.settings import ROOT

    files = nightly_files(ROOT)
    if name is None:
        return files
    short = {("nightly" if one.dag_id == NIGHTLY else one.dag_id.removeprefix(PREFIX)): one for one in files}
    known = short | {one.dag_id: one for one in files}
    if name not in known:
        raise ConfigError(f"{name}: no such nightly file{suggest(name, short)}")
    return [known[name]]
