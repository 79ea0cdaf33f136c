"""`./faultline target add`, `list`, `check` and `remove`: existing clusters to measure on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from faultline.system.errors import ConfigError, InfrastructureError
from faultline.system.text import progress

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from faultline.installation.targets.target_options import TargetOptions
    from faultline.system.settings import Settings
    from faultline.system.target_registry import Target

app = typer.Typer(
    name="target", help="Register existing clusters. The parameter target=NAME selects one.", no_args_is_help=True
)
Name = Annotated[str, typer.Argument(help="Target name.")]


@app.command()
def add(
    name: Annotated[str, typer.Argument(help="Name of the target, such as lab.")],
    kafka: Annotated[
        Path | None, typer.Option(help="JSON file with librdkafka settings, such as bootstrap.servers.")
    ] = None,
    share_kafka: Annotated[str | None, typer.Option(help="Share the Kafka Connection of this target.")] = None,
    spark: Annotated[str | None, typer.Option(help="Spark master, such as spark://HOST:7077.")] = None,
    spark_file: Annotated[
        Path | None,
        typer.Option(help='JSON file with further Spark settings: {"secret", "ui", "conf", "driver-host"}.'),
    ] = None,
    storage: Annotated[str | None, typer.Option(help="Shared folder of all hosts, or hdfs://HOST:PORT/PATH.")] = None,
    storage_web: Annotated[
        str | None, typer.Option(help="WebHDFS address as http://HOST:PORT (default: port 9870 of that host).")
    ] = None,
    host: Annotated[
        list[str] | None,
        typer.Option(help="Host with an existing SSH Connection. Repeatable."),
    ] = None,
    host_file: Annotated[
        Path | None,
        typer.Option(help='JSON file with SSH hosts by name: {"host", "user", "key_file", "known_hosts"} each.'),
    ] = None,
    own_connections: Annotated[
        bool, typer.Option("--own-connections", help="Create separate Connections, named after the target.")
    ] = False,
) -> None:
    """Register a target and create its missing Connections. Existing Connections are never changed.

    Pass secrets in files with mode 0600; they are stored in the Connections only. Invalid options, and options that
    contradict an existing Connection, are refused before anything is created.
    """
    from faultline.installation.targets.target_options import TargetOptions
    from faultline.orchestration.connections import query_connections
    from faultline.system.settings import load_settings
    from faultline.system.target_registry import load_targets, make_target, register

    settings = load_settings()
    given = TargetOptions(kafka, spark, spark_file, storage, storage_web, host_file)
    known = load_targets(settings)
    one = make_target(name, tuple(dict.fromkeys((*(host or ()), *given.listed_hosts))), first=not own_connections)
    if share_kafka is not None:
        one = replace(one, kafka=_shared_kafka(known, share_kafka, given))
    if name in known:
        one = _extend(known[name], one, given_own=own_connections or share_kafka is not None)
    wanted = given.connections(one)
    answer = query_connections(settings, one.connections, wanted)
    if not wanted and name not in known and not any(answer.specs.values()):
        raise ConfigError(
            "--kafka: missing, like --spark and --storage, and no Connection exists; expected these options"
        )
    for conn_id, keys in answer.differences.items():
        raise _conflict(known, one, conn_id, keys)
    register(settings, one)
    for conn_id, found in answer.specs.items():
        if conn_id in answer.created:
            progress(f"Connection {conn_id}: created")
        elif found is not None:
            progress(f"Connection {conn_id}: exists, unchanged")
    missing = [one.missing_connection(conn_id) for conn_id, found in answer.specs.items() if found is None]
    for error in missing:
        progress(str(error))
    if missing:
        progress(f"{name}: registered, not usable yet")
        raise typer.Exit(2)
    progress(f"{name}: registered; check it with ./faultline target check {name}")


@app.command("list")
def show() -> None:
    """List the registered targets. Show their last known addresses and Connections."""
    from faultline.system.settings import load_settings
    from faultline.system.target_registry import describe_addresses, load_targets

    settings = load_settings()
    known = load_targets(settings)
    for one in known.values():
        print(f"{one.name}  {describe_addresses(settings, one)}  {'  '.join(one.connections)}")
    if not known:
        progress("no target is registered; see ./faultline target add --help")


@app.command()
def check(name: Name) -> None:
    """Check a target. Print one line per check: reachability, login, permissions, clock, topics, versions, storage.

    Creates and removes a temporary topic and folder. Exit code 2 if the setup is wrong, 1 if a part is unreachable.
    """
    from faultline.cli.service_control import require
    from faultline.installation.targets.preflight import run_preflight
    from faultline.orchestration.connections import active_experiment, import_target
    from faultline.system.settings import load_settings
    from faultline.system.target_registry import find_target

    settings = load_settings()
    one = find_target(settings, name)
    if one is None:
        raise ConfigError("NAME: got the embedded services; fix: use ./faultline doctor")
    require(settings)
    if (experiment := active_experiment(settings)) is not None:
        raise InfrastructureError(f"machine: check failed: {experiment} is running; fix: wait for its end")
    import_target(settings, one)
    if error := run_preflight(settings, one, print):
        progress(
            f"{name}: not usable; fix: correct the cause in the FAILED line, in the cluster, in the Airflow UI or with "
            f"./faultline target remove {name} and add; then check again"
        )
        raise typer.Exit(2 if isinstance(error, ConfigError) else 1)
    progress(f"{name}: usable with target={name}")


@app.command()
def remove(name: Name) -> None:
    """Unregister a target. Remove the Connections that `target add` created for it, and its credential files.

    Connections that another target uses, and all results, are kept.
    """
    from faultline.orchestration.connections import query_connections
    from faultline.system.settings import load_settings
    from faultline.system.target_registry import find_target, load_targets, unregister

    settings = load_settings()
    one = find_target(settings, name)
    if one is None:
        raise ConfigError("NAME: got the embedded services; fix: use ./faultline down")
    _require_unused(settings, name)
    others = [other for other in load_targets(settings).values() if other.name != name]
    used = {conn_id: other.name for other in others for conn_id in other.connections}
    alone = [conn_id for conn_id in one.connections if conn_id not in used]
    answer = query_connections(settings, alone, remove=alone)
    unregister(settings, one)
    for conn_id in one.connections:
        if conn_id in answer.removed:
            progress(f"Connection {conn_id}: removed")
        elif conn_id in used:
            progress(f"Connection {conn_id}: kept, used by {used[conn_id]}")
        elif answer.specs[conn_id] is not None:
            progress(f"Connection {conn_id}: kept, not created by target add")
    progress(f"unregistered {name}; results kept")


def _extend(known: Target, one: Target, *, given_own: bool) -> Target:
    """Return the registered target with further hosts. Raises ConfigError for other Connections."""
    if given_own and (known.kafka, known.spark, known.storage) != (one.kafka, one.spark, one.storage):
        raise ConfigError(
            f"{known.name}: got other Connections than {known.kafka}, {known.spark} and {known.storage}; "
            f"fix: ./faultline target remove {known.name}, then add"
        )
    return replace(known, hosts=tuple(dict.fromkeys((*known.hosts, *one.hosts))))


def _shared_kafka(known: Mapping[str, Target], other: str, given: TargetOptions) -> str:
    """Return the id of another target's Kafka Connection."""
    from faultline.system.text import suggest

    if other not in known:
        raise ConfigError(f"--share-kafka: got {other!r}; expected a known target{suggest(other, known)}")
    if given.kafka is not None:
        raise ConfigError("--share-kafka: got --kafka too; expected one of both")
    return known[other].kafka


def _conflict(known: Mapping[str, Target], one: Target, conn_id: str, keys: Sequence[str]) -> ConfigError:
    """Return the error for a Connection that contradicts the given options."""
    from faultline.system.target_registry import make_target

    users = [other.name for other in known.values() if conn_id in other.connections]
    if users == [one.name]:
        fix = f"./faultline target remove {one.name}, then add"
    elif conn_id in make_target(one.name).connections:
        fix = "omit its option, or add --own-connections"
    else:
        fix = "omit its option"
    return ConfigError(
        f"Connection {conn_id}: exists with other values ({', '.join(keys)}); nothing created; fix: edit it in the "
        f"Airflow UI (./faultline up), or {fix}"
    )


def _require_unused(settings: Settings, name: str) -> None:
    """Raise ConfigError if an open experiment needs the target's credentials."""
    from faultline.experiment.attempt import open_attempts
    from faultline.experiment.attempt_plan import read_plan
    from faultline.installation.service_users import supervisor_pid

    for attempt in open_attempts(settings.attempts, settings.home):
        if read_plan(attempt).order.config["target"] != name:
            continue
        if attempt.over is not None:
            raise ConfigError(
                f"{name}: removal failed: undo of {attempt.id} incomplete; the next experiment retries it"
            )
        if supervisor_pid(settings) is None:
            raise ConfigError(f"{name}: removal failed: {attempt.id} is orphaned; fix: ./faultline up")
        raise ConfigError(
            f"{name}: removal failed: {attempt.id} is running; fix: wait for it, or stop it with ./faultline sweep "
            "--stop or, for a run, ./faultline down"
        )
