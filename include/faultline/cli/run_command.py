"""`./faultline run`: one experiment, through the scheduler when it runs, else in this process."""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from faultline.cli.service_control import bring_up, require
from faultline.cli.sweep_arguments import from_here, split_words
from faultline.cli.sweep_runner import await_dags
from faultline.experiment.attempt import Attempt
from faultline.experiment.build import parse_build
from faultline.experiment.cell import EXPERIMENT
from faultline.experiment.config import Configuration, may_be_empty, parse_configuration
from faultline.installation.airflow import airflow_health
from faultline.installation.service_users import is_for_runs, supervisor_pid, use_services
from faultline.installation.supervision import down
from faultline.installation.supervisord import Supervisor
from faultline.lifecycle.hooks import PlainHooks
from faultline.lifecycle.prepare import Order, check_configuration, pause_warning
from faultline.lifecycle.progress import current_attempt, experiment_title, phase_of
from faultline.lifecycle.steps import run
from faultline.orchestration.airflow_api import FINISHED, AirflowApi
from faultline.orchestration.connections import check_targets, import_target, preflight_targets
from faultline.records.record import Record
from faultline.records.store import Store
from faultline.reports.pages import UI_PAGE
from faultline.system.errors import ConfigError, InfrastructureError
from faultline.system.process_tags import INSTANCE_MARK
from faultline.system.settings import Settings, instance, load_settings
from faultline.system.target_registry import find_target
from faultline.system.text import Progress

BOOKKEEPING = ("repetition", "series", "build", "build_spec")
POLL_S = 1.0


def parse_order(workload: str, given: Sequence[str], *, keep_topics: bool = False) -> Order:
    """`key=value` words as what is to be measured. Raises ConfigError naming the key, before anything is started."""
    values: dict[str, Any] = {
        "workload": workload,
        **{key: from_here(key, text) for key, text in _words(given).items()},
    }
    told = {key: values.pop(key) for key in BOOKKEEPING if key in values}
    config = parse_configuration({key: None if text == "" else text for key, text in values.items()})
    if "repetition" in told:
        if not told["repetition"].isdigit():
            raise ConfigError(f"repetition: {told['repetition']!r} is not a whole number; use 0 or more")
        told["repetition"] = int(told["repetition"])
    check_configuration(config)
    if "build_spec" in told:
        told["build_spec"] = parse_build(told["build_spec"], "build_spec")
    sweep_id = f"single-{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"
    return Order(config, sweep_id=sweep_id, keep_topics=keep_topics, **told)


def _words(given: Sequence[str]) -> dict[str, str]:
    """The words by key. Raises ConfigError for one that is of a sweep, and for nothing where something is needed."""
    for key in ("preset", "repetitions", "controls", "decide"):
        if any(word.partition("=")[0] == key for word in given):
            raise ConfigError(f"{key}: is of a sweep, and this is one experiment; see ./faultline sweep --help")
    values = split_words(given, [*Configuration.model_fields, *BOOKKEEPING], example="state_mb=8")
    for key, text in values.items():
        if text == "" and not may_be_empty(key):
            raise ConfigError(f"{key}: is empty; give a value, or leave it out")
    return values


def describe_faults(workload: str, given: Sequence[str]) -> list[str]:
    """The dry run: a line for each planned fault. Who the victims are is chosen by seed among those alive then."""
    config = parse_order(workload, given).config
    check_targets(load_settings(), [config.target])
    seed = config.plan().seed
    lines = []
    for planned in config.planned_faults():
        fault = planned.fault
        if fault.definition.resource is not None:
            lines.append(planned.describe())
        else:
            lines.append(f"{planned.describe(_whom(fault.victim, fault.count))} (chosen by seed {seed})")
    lines = lines or ["nothing: a control"]
    return [*lines, pause] if (pause := pause_warning(config)) is not None else lines


def _whom(victim: str, count: int) -> str:
    who = {"any": "random process on a random node", "python_worker": "Python worker at work", "kafka": "Kafka broker"}
    name = who.get(victim, victim)
    return f"1 {name}" if count == 1 else f"{count} at once: {name}"


def run_single(workload: str, given: Sequence[str], say: Progress, *, keep_topics: bool) -> Record:
    """Runs one experiment and returns its record, whatever its status."""
    return run_order(parse_order(workload, given, keep_topics=keep_topics), say)


def run_order(order: Order, say: Progress) -> Record:
    """The same of an order that was parsed."""
    settings = load_settings()
    require(settings)
    preflight_targets(settings, [order.config.target], say)
    say(experiment_title(order.config))
    if (pause := pause_warning(order.config)) is not None:
        say(pause)
    if not _answers(settings, "scheduler"):
        return _here(order, say)
    _through_scheduler(settings, conf_of(order), say)
    records = Store(settings.results).query(sweep=order.sweep_id)
    if not records:
        raise InfrastructureError("run: the experiment left no record; see the logs of its first failed task")
    return records[-1]


def conf_of(order: Order) -> dict[str, Any]:
    """An order as the conf of a run of Airflow: what is not said there is decided there."""
    named = {key: getattr(order, key) for key in ("series", "build") if getattr(order, key) is not None}
    spec = {} if order.build_spec.installed else {"build_spec": order.build_spec.as_mapping()}
    return {
        **order.config.model_dump(mode="json"),
        **named,
        **spec,
        "repetition": order.repetition,
        "sweep_id": order.sweep_id,
        "keep_topics": order.keep_topics,
    }


def page_of(attempt: str) -> str | None:
    """The address of an experiment's page; None where no Airflow shows it."""
    settings = load_settings()
    up = _answers(settings, "metadatabase")
    return f"{settings.endpoints.airflow}{UI_PAGE}/experiments/{attempt}" if up else None


def _answers(settings: Settings, component: str) -> bool:
    """Whether a component of this installation's own Airflow is healthy: another one may have the same port."""
    return airflow_health(settings).get(component) == "healthy" and AirflowApi(settings).is_own()


def _through_scheduler(settings: Settings, conf: dict[str, Any], say: Progress) -> None:
    api = AirflowApi(settings)
    await_dags(api, EXPERIMENT)
    run_id = api.trigger(EXPERIMENT, conf, run_id=conf["sweep_id"])
    shown = ""
    while api.run_state(EXPERIMENT, run_id) not in FINISHED:
        shown = _show(settings, conf["sweep_id"], shown, say)
        time.sleep(POLL_S)
        if supervisor_pid(settings) is None:
            raise InfrastructureError(
                "run: the services were ended under it; the next ./faultline up goes on, or closes what was cut off"
            )


def _here(order: Order, say: Progress) -> Record:
    """Measures the experiment in this process.

    Services that were not running are started before, and ended after unless others have come to use them.
    """
    before = load_settings()
    if (elsewhere := find_target(before, order.config.target)) is not None:
        import_target(before, elsewhere)
    with use_services(before, run=True) as alone:
        were_up = Supervisor(before).is_running()
        settings = bring_up(say, airflow=False, for_run=True)
        try:
            return _measure(order, settings, say)
        finally:
            if is_for_runs(settings) and alone():
                down(settings, say)
            elif not were_up:
                say("services: others use them, too, so they go on; ./faultline down ends them")


def _measure(order: Order, settings: Settings, say: Progress) -> Record:
    """Performs the steps, whose output goes into a log, and shows how far they are."""
    over = threading.Event()

    def follow() -> None:
        shown = ""
        while not over.wait(POLL_S):
            shown = _show(settings, str(order.sweep_id), shown, say)

    follower = threading.Thread(target=follow, daemon=True)
    # By its mark `down` finds what is started here.
    mark = os.environ.get(INSTANCE_MARK)
    os.environ[INSTANCE_MARK] = str(instance(settings)["instance"])
    path = settings.logs / "run.log"
    with (
        path.open("a", buffering=1, encoding="utf-8", errors="replace") as log,
        contextlib.redirect_stdout(log),
    ):
        follower.start()
        try:
            record = run(order, PlainHooks(settings), settings)
        except Exception:
            raise
        except BaseException:
            say("interrupted: what was started for the experiment is ended")
            raise
        finally:
            over.set()
            follower.join()
            if mark is None:
                del os.environ[INSTANCE_MARK]
            else:
                os.environ[INSTANCE_MARK] = mark
    if not Attempt(settings.attempts / record.attempt).closed.exists():
        say(f"{record.attempt} stays open, and the next experiment tries again; what the steps said stands in {path}")
    elif record.status == "failed":
        say(f"what the steps said stands in {path}")
    return record


def _show(settings: Settings, sweep_id: str, shown: str, say: Progress) -> str:
    attempt = current_attempt(settings, sweep_id)
    if attempt is None:
        return shown
    phase = phase_of(attempt)
    if phase.name != shown:
        say(f"{attempt.id}: {phase.name}{', ' + phase.detail if phase.detail else ''}")
    return phase.name
