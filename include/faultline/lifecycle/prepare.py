"""Preparation of an experiment: its order, the checks of its configuration, and the attempt's folder."""

from __future__ import annotations

import math
import re
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from fault.identity import DRIVER
from fault.victims import ROLES_BY_VICTIM
from faultline.engines.protocol import Engine
from faultline.engines.registry import ENGINES, engine_of
from faultline.experiment.attempt import Attempt, new_attempt_id, write_json
from faultline.experiment.attempt_plan import Ordered, Places, PlannedEngine, program_of, resolve, topic_partitions
from faultline.experiment.build import BuildSpec
from faultline.experiment.cell import require_sweep_id
from faultline.experiment.commit_modes import COMMIT_MODES
from faultline.experiment.config import Configuration
from faultline.installation.hosts.layout import checkpoint_disk
from faultline.installation.service_users import supervisor_pid
from faultline.installation.targets.restrictions import check_target, require_supported, unavailable_figures
from faultline.lifecycle.build_checkout import Build, build_of, check_build
from faultline.lifecycle.environment import default_build, describe_environment, job_hashes
from faultline.lifecycle.teardown import refused_record
from faultline.records.record import Record
from faultline.records.store import Store
from faultline.system.errors import ConfigError, FaultlineError
from faultline.system.files import make_folder, sync_folder
from faultline.system.process_ledger import this_process
from faultline.system.secrets import require_logins
from faultline.system.settings import Settings, check_folders, free_port, instance, load_settings
from faultline.system.ssh_hosts import ssh_hosts
from faultline.system.waiting import max_wait_s

if TYPE_CHECKING:  # only experiments on user data load it
    from generators.data_files import Data

# Smallest size of a record in Kafka's log and in the harvest.
RECORD_BYTES = 50
# Shortest pause of recorded data that causes a warning.
LONG_PAUSE_S = 30.0
LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:+-]{0,79}")


@dataclass(frozen=True)
class Order:
    """Ordered experiment: a configuration and the coordinates of its cell, its place in a sweep."""

    config: Configuration
    repetition: int = 0
    series: str | None = None
    build: str | None = None
    matrix: str | None = None
    sweep_id: str | None = None
    parent_run_id: str | None = None
    logical_date: str | None = None
    # Airflow run that measures the experiment; None if this process does.
    run_id: str | None = None
    # Build under test, in place of the installed programs and settings.
    build_spec: BuildSpec = BuildSpec()
    # Whether closing the attempt keeps its topics.
    keep_topics: bool = False
    # Whether the experiment is skipped if the cell has a usable record by then.
    only_missing: bool = False

    def __post_init__(self) -> None:
        for key in ("series", "build", "matrix"):
            value = getattr(self, key)
            if value is not None and not LABEL.fullmatch(value):
                raise ConfigError(f"{key}: got {value!r}; expected at most 80 letters, digits and ._:+-")
        if self.sweep_id is not None:
            require_sweep_id(self.sweep_id)
        if self.repetition < 0:
            raise ConfigError(f"repetition: got {self.repetition}; expected 0 or more")
        check_build(self.build_spec, self.config, key="build_spec")


def make_attempt(
    order: Order, settings: Settings, java: str, *, hosts: Mapping[str, Mapping[str, Any]] | None = None
) -> Attempt:
    """Make the attempt's folder, write `attempt.json` and finally the plan; start nothing.

    `hosts`: SSH hosts with victims, by name; None if all processes are on this host. Raises ConfigError if the machines
    lack room for the executors.
    """
    max_wait_s()
    check_folders(settings)
    if instance(settings):
        require_logins(settings.secrets)
    check_configuration(order.config)
    endpoints = engine_of(order.config).endpoints(settings, order.config)
    if endpoints.is_external:
        hosts = endpoints.hosts
        require_supported(endpoints, order.config)
    built = build_of(order.build_spec, settings, key="build_spec")
    make_folder(settings.attempts)
    attempt, engine = Attempt(settings.attempts / new_attempt_id(settings.attempts)), engine_of(order.config)
    attempt.folder.mkdir()
    sync_folder(settings.attempts)
    copy_job(order.config, attempt)
    # Written first: it names the owner, which may close the attempt.
    write_json(attempt.folder / "attempt.json", attempt_description(attempt, order, settings, java, built))
    plan = resolve(
        order.config,
        labelled_order(order, settings, java, built),
        engine=PlannedEngine(
            name=engine.name,
            addresses=engine.addresses(endpoints),
            settings=dict(order.build_spec.settings),
            # The harvest always uses the installed programs.
            programs=str(built.programs),
        ),
        endpoints=replace(endpoints, hosts=hosts or {}),
        topics={role: f"faultline-{attempt.id}-{role}" for role in topic_partitions(order.config)},
        places=_places(order.config, settings, engine, is_external=endpoints.is_external),
        cycles=engine.capabilities.cycles,
        matching=engine.tuples(order.config),
        not_measured=unavailable_figures(endpoints),
    )
    write_json(attempt.plan, replace(plan, program=program_of(attempt, order.config, plan)).as_mapping())
    return attempt


def _places(config: Configuration, settings: Settings, engine: Engine, *, is_external: bool) -> Places:
    """Return files, tags and ports of the attempt.

    `is_external`: on a target (an external cluster), without the embedded services.
    """
    mark = instance(settings).get("instance")
    holds = {} if is_external else {"kafka": settings.restart_delay("kafka"), **engine.restart_delays(settings)}
    return Places(
        window_lock=str(settings.window_lock),
        instance=None if is_external else mark,
        background=mark,
        keeper=supervisor_pid(settings),
        holds={node: str(path) for node, path in holds.items()},
        ports={one.role: free_port() for one in config.kind.companions(config.own)},
        checkpoint_disk=str(checkpoint_disk(settings)) if settings.placement.is_spread and not is_external else None,
    )


def record_refusal(order: Order, settings: Settings, java: str, error: FaultlineError) -> Record:
    """Store and return a `failed` or `cancelled` record with the reason, for the sweep."""
    attempt = Attempt(settings.attempts / new_attempt_id(settings.attempts))
    labelled = labelled_order(order, settings, java)
    record = refused_record({**attempt_description(attempt, order, settings, java), **asdict(labelled)}, error)
    Store(settings.results).write(record)
    return record


def copy_job(config: Configuration, attempt: Attempt) -> None:
    """Copy the user's files under test, because they may change before the harvest."""
    for name, path in config.kind.files(config.own).items():
        (attempt.job / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, attempt.job / name)


def labelled_order(order: Order, settings: Settings, java: str, built: Build | None = None) -> Ordered:
    """Return an order with its labels.

    `built`: the build under test; None if it could not be made, as in the record of a refusal.
    """
    tested = None if order.build_spec.installed else built
    build = order.build or default_build(settings, java, tested, job=job_hashes([order.config]))
    return Ordered(
        config=order.config.model_dump(mode="json"),
        config_id=order.config.config_id,
        repetition=order.repetition,
        series=order.series or build,
        build=build,
        matrix=order.matrix,
        sweep_id=order.sweep_id,
        parent_run_id=order.parent_run_id,
        logical_date=order.logical_date,
        keep_topics=order.keep_topics,
    )


def attempt_description(
    attempt: Attempt, order: Order, settings: Settings, java: str, built: Build | None = None
) -> dict[str, Any]:
    """Return the content of `attempt.json`: owner and environment."""
    return {
        "attempt": attempt.id,
        # Other installations may share the results folder; only this one cleans up.
        "home": str(settings.home),
        # Owner that closes it; None: the tasks of its run.
        "owner": None if order.run_id else this_process(),
        "run_id": order.run_id,
        "prepared_wall_ns": time.time_ns(),
        "environment": describe_environment(
            settings, order.config, java, None if order.build_spec.installed else built
        ),
    }


def check_configuration(config: Configuration) -> None:
    """Raise ConfigError for a configuration that cannot run on this machine."""
    check_target(load_settings(), config)
    check_engine(config)
    check_hosts(config)
    check_source(config)
    check_load(config)
    config.kind.check_here(config.own, config)


def check_engine(config: Configuration) -> None:
    """Raise ConfigError for what the configuration's engine does not support."""
    engine = engine_of(config)
    able = engine.capabilities
    if able.workloads is not None and config.workload not in able.workloads:
        known = " or ".join(able.workloads)
        raise ConfigError(f"workload: got {config.workload}; expected {known} with engine={engine.name}")
    if config.commit_mode not in able.commit_modes:
        known, nearest = ", ".join(sorted(able.commit_modes)), COMMIT_MODES[config.commit_mode].nearest
        fix = f"; fix: commit_mode={nearest}" if nearest in able.commit_modes else ""
        raise ConfigError(f"commit_mode: got {config.commit_mode}; expected {known} (engine {engine.name}){fix}")
    for key in sorted(ENGINES.parameters - engine.parameters):
        if getattr(config, key) != type(config).model_fields[key].default:
            raise ConfigError(f"{key}: unsupported by the engine {engine.name}; fix: omit it")
    for one in config.planned_faults():
        cycle, victim = one.fault.cycle, one.fault.victim
        if cycle is not None and cycle not in able.cycles:
            raise ConfigError(f"cycle: got {cycle}; unsupported by the engine {engine.name}; fix: omit it")
        if not {role.name for role in ROLES_BY_VICTIM[victim]} <= engine.roles:
            known = ", ".join(sorted(engine.roles))
            key = "fault" if config.fault_plan is None else "fault_plan"
            raise ConfigError(f"{key}: got victim {victim}; expected {known} (engine {engine.name})")
    engine.check(config)


def check_hosts(config: Configuration) -> None:
    """Raise ConfigError for host faults if there are no other hosts, and for workloads that need a single host."""
    for one in config.planned_faults():
        if one.fault.needs_hosts and not ssh_hosts(load_settings()):
            what = "a separate checkpoint disk" if one.fault.victim == DRIVER.name else "several hosts"
            raise ConfigError(
                f"fault_action: got {one.fault.action} of a {one.fault.victim}; expected {what}; fix: "
                "./faultline down, then up --hosts 3"
            )
    if config.kind.own_client and load_settings().placement.is_spread:
        raise ConfigError(
            f"workload: {config.workload} needs the Kafka auth proxy, which accepts local connections only; "
            "fix: ./faultline down, then up --hosts 0"
        )


def check_load(config: Configuration) -> None:
    """Raise ConfigError for an input without records, or with more than fit on the disk."""
    if not config.paced:
        return
    # Lower bound: an adaptive warm-up may be longer.
    seconds = config.warmup_s + config.duration_s
    data = _load_data(config) if config.data_pace == "recorded" else None
    records = config.rate * seconds if data is None else _recorded_count(data, config, seconds)
    if records < 1 and config.rate_curve is None:
        least = math.ceil(100 / seconds) / 100
        raise ConfigError(f"rate: got {config.rate:g} records/s for {seconds:g} s; expected at least {least:g}")
    folder = load_settings().home
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if records * RECORD_BYTES > free:
        most_s = max(0.0, free / RECORD_BYTES / (records / seconds) - config.warmup_s)
        key = "rate" if data is None else "data_speed"
        raise ConfigError(
            f"{key}: got {records / seconds:,.10g} records/s for {seconds:,.0f} s, which take "
            f"{records * RECORD_BYTES / 1e9:,.0f} GB at least; expected at most {free / 1e9:,.0f} GB (free); fix: "
            f"lower it, or duration_s to {most_s:,.0f}"
        )


def pause_warning(config: Configuration) -> str | None:
    """Return a warning about the longest pause of recorded data; None below LONG_PAUSE_S."""
    from generators.pacing import RecordedSchedule

    data = _load_data(config) if config.data_pace == "recorded" else None
    if data is None:
        return None
    seconds = config.warmup_s + config.duration_s
    schedule = RecordedSchedule.for_duration(data.times_ms, data.round_ms, config.data_speed, seconds)
    # Later replay cycles only repeat the pauses within the first cycle and before the second.
    records = min(schedule.count, len(data) + 1)
    due_s = [*(schedule.due_array(0, 1, records) / 1e9).tolist(), *([seconds] if records == schedule.count else [])]
    pause_s, begin_s = max((after - before, before) for before, after in zip(due_s, due_s[1:], strict=False))
    if pause_s < LONG_PAUSE_S:
        return None
    return (
        f"data: the recorded pace has a pause of {pause_s:,.0f} s of {seconds:,.0f} s, from T0 + {begin_s:,.0f} s; "
        "fix: a larger data_speed shortens it, data_pace=rate removes it"
    )


def _recorded_count(data: Data, config: Configuration, seconds: float) -> int:
    """Return the number of records that are due if the data keeps its recorded pace.

    Raises ConfigError if they exceed the highest rate.
    """
    from generators.pacing import RecordedSchedule

    records = RecordedSchedule.for_duration(data.times_ms, data.round_ms, config.data_speed, seconds).count
    most = config.kind.highest_rate(config.model_dump())
    if records > most * seconds:
        raise ConfigError(
            f"data_speed: got {records / seconds:,.0f} records/s; expected at most {most:,.0f}; fix: lower it"
        )
    return records


def check_source(config: Configuration) -> None:
    """Raise ConfigError for an unusable corpus, price file or data file, naming file and line."""
    from generators.send_progress import InputError
    from generators.source import TextLines
    from generators.stock import closes_of

    named = config.input_source()
    try:
        if "corpus" in named:
            TextLines.load(named["corpus"], 1, 0, 0)
        if "prices" in named:
            closes_of(named["prices"])
    except InputError as error:
        raise ConfigError(str(error)) from None
    _load_data(config)


def _load_data(config: Configuration) -> Data | None:
    """Return the replayed data, if any.

    Raises ConfigError naming file and line of invalid data.
    """
    from generators.data_files import read_data, require_ordered
    from generators.send_progress import InputError

    if config.data is None:
        return None
    try:
        # Copies: one in this process and one in each process of the generator.
        named = (config.data, config.data_key, config.data_time, config.data_time_unit)
        data = read_data(*named, copies=config.generator_processes + 1)
        if config.data_pace == "recorded":
            require_ordered(data, config.data)
        return data
    except InputError as error:
        raise ConfigError(str(error)) from None
