"""`./faultline run`: one experiment, through Airflow if its scheduler is running, else in this process."""

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
from faultline.cli.sweep_arguments import absolute_path, split_words
from faultline.cli.sweep_progress import ProgressLine, ProgressState, minutes_text
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
from faultline.system.journal import JournalCache
from faultline.system.process_tags import INSTANCE_MARK
from faultline.system.settings import Settings, instance, load_settings
from faultline.system.target_registry import find_target
from faultline.system.text import Progress

ORDER_KEYS = ("repetition", "series", "build", "build_spec")
POLL_S = 1.0


def parse_order(workload: str, given: Sequence[str], *, keep_topics: bool = False) -> Order:
    """Parse `key=value` words into an order. Raises ConfigError naming the key."""
    values: dict[str, Any] = {
        "workload": workload,
        **{key: absolute_path(key, text) for key, text in _split(given).items()},
    }
    own = {key: values.pop(key) for key in ORDER_KEYS if key in values}
    config = parse_configuration({key: None if text == "" else text for key, text in values.items()})
    if "repetition" in own:
        if not own["repetition"].isdigit():
            raise ConfigError(f"repetition: got {own['repetition']!r}; expected a whole number from 0")
        own["repetition"] = int(own["repetition"])
    check_configuration(config)
    if "build_spec" in own:
        own["build_spec"] = parse_build(own["build_spec"], "build_spec")
    sweep_id = f"single-{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"
    return Order(config, sweep_id=sweep_id, keep_topics=keep_topics, **own)


def _split(given: Sequence[str]) -> dict[str, str]:
    """Return the words by key. Raises ConfigError for a key of sweeps and for a missing value."""
    for key in ("preset", "repetitions", "controls", "decide"):
        if any(word.partition("=")[0] == key for word in given):
            raise ConfigError(f"{key}: expected only in a sweep; see ./faultline sweep --help")
    values = split_words(given, [*Configuration.model_fields, *ORDER_KEYS], example="state_mb=8")
    for key, text in values.items():
        if text == "" and not may_be_empty(key):
            raise ConfigError(f"{key}: empty; expected a value")
    return values


def planned_fault_lines(workload: str, given: Sequence[str]) -> list[str]:
    """Return a line per planned fault. Victims are unknown yet: the seed chooses them at the time of the injection."""
    config = parse_order(workload, given).config
    check_targets(load_settings(), [config.target])
    seed = config.plan().seed
    lines = []
    for planned in config.planned_faults():
        fault = planned.fault
        if fault.definition.resource is not None:
            lines.append(planned.describe())
        else:
            lines.append(f"{planned.describe(_victim_text(fault.victim, fault.count))} (chosen by seed {seed})")
    lines = lines or ["no fault: control run"]
    return [*lines, pause] if (pause := pause_warning(config)) is not None else lines


def _victim_text(victim: str, count: int) -> str:
    names = {"any": "random process on a random node", "python_worker": "busy Python worker", "kafka": "Kafka broker"}
    name = names.get(victim, victim)
    return f"1 {name}" if count == 1 else f"{count} at once: {name}"


def run_single(workload: str, given: Sequence[str], progress: Progress, *, keep_topics: bool) -> Record:
    """Run one experiment and return its record, whatever its status."""
    return run_order(parse_order(workload, given, keep_topics=keep_topics), progress)


def run_order(order: Order, progress: Progress) -> Record:
    """Run a parsed order and return its record, whatever its status."""
    settings = load_settings()
    require(settings)
    preflight_targets(settings, [order.config.target], progress)
    progress(experiment_title(order.config))
    if (pause := pause_warning(order.config)) is not None:
        progress(pause)
    if not _is_healthy(settings, "scheduler"):
        return _run_in_process(order, progress)
    _run_in_airflow(settings, conf_of(order), progress)
    records = Store(settings.results).query(sweep=order.sweep_id)
    if not records:
        raise InfrastructureError("run: no record; fix: see the logs of the first failed task")
    return records[-1]


def conf_of(order: Order) -> dict[str, Any]:
    """Return the order as the conf of a DAG run; Airflow resolves missing values."""
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


def page_url(attempt: str) -> str | None:
    """Return the address of an experiment's page, or None if Airflow is down."""
    settings = load_settings()
    up = _is_healthy(settings, "metadatabase")
    return f"{settings.endpoints.airflow}{UI_PAGE}/experiments/{attempt}" if up else None


def _is_healthy(settings: Settings, component: str) -> bool:
    """Return whether the component is healthy; False if another installation's Airflow answers at this port."""
    return airflow_health(settings).get(component) == "healthy" and AirflowApi(settings).is_own()


def _run_in_airflow(settings: Settings, conf: dict[str, Any], progress: Progress) -> None:
    api = AirflowApi(settings)
    await_dags(api, EXPERIMENT)
    run_id = api.trigger(EXPERIMENT, conf, run_id=conf["sweep_id"])
    line, journals = ProgressLine(progress), JournalCache()
    try:
        while api.run_state(EXPERIMENT, run_id) not in FINISHED:
            _show(settings, conf["sweep_id"], line, journals)
            time.sleep(POLL_S)
            if supervisor_pid(settings) is None:
                raise InfrastructureError("run: services stopped during the experiment; fix: ./faultline up")
    finally:
        line.clear()


def _run_in_process(order: Order, progress: Progress) -> Record:
    """Run the experiment in this process.

    Services that were down are started, and stopped afterwards unless another process uses them.
    """
    before = load_settings()
    if (cluster := find_target(before, order.config.target)) is not None:
        import_target(before, cluster)
    with use_services(before, run=True) as alone:
        were_up = Supervisor(before).is_running()
        settings = bring_up(progress, airflow=False, for_run=True)
        try:
            return _measure(order, settings, progress)
        finally:
            if is_for_runs(settings) and alone():
                down(settings, progress)
            elif not were_up:
                progress("services: kept for another process; `./faultline down` stops them")


def _measure(order: Order, settings: Settings, progress: Progress) -> Record:
    """Run the steps with their output in a log file, and show the progress."""
    over, line, journals = threading.Event(), ProgressLine(progress), JournalCache()

    def follow() -> None:
        while not over.wait(POLL_S):
            _show(settings, str(order.sweep_id), line, journals)

    follower = threading.Thread(target=follow, daemon=True)
    # `down` finds processes by this tag.
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
            line.print_above("interrupted: stopping the processes of the experiment")
            raise
        finally:
            over.set()
            follower.join()
            line.clear()
            if mark is None:
                del os.environ[INSTANCE_MARK]
            else:
                os.environ[INSTANCE_MARK] = mark
    if not Attempt(settings.attempts / record.attempt).closed.exists():
        progress(f"{record.attempt}: cleanup incomplete; the next experiment retries it; log: {path}")
    elif record.status == "failed":
        progress(f"log: {path}")
    return record


def _show(settings: Settings, sweep_id: str, line: ProgressLine, journals: JournalCache) -> None:
    attempt = current_attempt(settings, sweep_id)
    if attempt is None:
        return
    phase = phase_of(attempt, read=journals.read)
    detail = f", {phase.detail}" if phase.detail else ""
    left = f"about {minutes_text(phase.left_s)} left" if phase.left_s else ""
    line.show(ProgressState(f"{attempt.id}: {phase.name}", detail, left, phase.name))
