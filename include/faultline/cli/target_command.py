"""`./faultline target add`, `list`, `check` and `remove`: clusters that exist, to measure on.

Heavy modules are imported inside, so that `--help` answers at once.
"""

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

app = typer.Typer(help="Register existing clusters; the parameter target=NAME selects one.", no_args_is_help=True)
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
        one = replace(one, kafka=_kafka_of(known, share_kafka, given))
    if name in known:
        one = _as_before(known[name], one, given_own=own_connections or share_kafka is not None)
    wanted = given.connections(one)
    answer = query_connections(settings, one.connections, wanted)
    if not wanted and name not in known and not any(answer.specs.values()):
        raise ConfigError(
            "--kafka: missing, as --spark and --storage are, and none of their Connections is there; give them"
        )
    for conn_id, keys in answer.differences.items():
        raise _differs(known, one, conn_id, keys)
    register(settings, one)
    for conn_id, said in answer.specs.items():
        if conn_id in answer.created:
            progress(f"Connection {conn_id}: made")
        elif said is not None:
            progress(f"Connection {conn_id}: is there, and stays as it is")
    lacking = [one.missing_connection(conn_id) for conn_id, said in answer.specs.items() if said is None]
    for missing in lacking:
        progress(str(missing))
    if lacking:
        progress(f"{name} is registered, and cannot be used yet")
        raise typer.Exit(2)
    progress(f"now look at it: ./faultline target check {name}")


@app.command("list")
def show() -> None:
    """List the registered targets with their last known addresses and Connections."""
    from faultline.system.settings import load_settings
    from faultline.system.target_registry import describe_addresses, load_targets

    settings = load_settings()
    known = load_targets(settings)
    for one in known.values():
        print(f"{one.name}  {describe_addresses(settings, one)}  {'  '.join(one.connections)}")
    if not known:
        progress("no target is registered, experiments run on the embedded services; ./faultline target add --help")


@app.command()
def check(name: Name) -> None:
    """Check a target, one line per check: reachability, login, permissions, clock, topics, Spark versions, storage.

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
        raise ConfigError("NAME: the embedded services are looked at by ./faultline doctor")
    require(settings)
    if (experiment := active_experiment(settings)) is not None:
        raise InfrastructureError(f"machine: {experiment} is at work, and looking would disturb it; wait for its end")
    import_target(settings, one)
    if error := run_preflight(settings, one, print):
        progress(
            f"{name} is not as experiments need it; mend what the line with NO names: there, or on Airflow's page "
            f"(./faultline up), or by ./faultline target remove {name} and adding it anew; then look again"
        )
        raise typer.Exit(2 if isinstance(error, ConfigError) else 1)
    progress(f"{name} is as experiments need it: target={name}")


@app.command()
def remove(name: Name) -> None:
    """Unregister a target: remove the Connections that `target add` created for it, and its credential files.

    Connections that another target uses, and all results, are kept.
    """
    from faultline.orchestration.connections import query_connections
    from faultline.system.settings import load_settings
    from faultline.system.target_registry import find_target, load_targets, unregister

    settings = load_settings()
    one = find_target(settings, name)
    if one is None:
        raise ConfigError("NAME: the embedded services are no target that was added; ./faultline down ends them")
    _refuse_in_use(settings, name)
    others = [other for other in load_targets(settings).values() if other.name != name]
    used = {conn_id: other.name for other in others for conn_id in other.connections}
    alone = [conn_id for conn_id in one.connections if conn_id not in used]
    answer = query_connections(settings, alone, remove=alone)
    unregister(settings, one)
    for conn_id in one.connections:
        if conn_id in answer.removed:
            progress(f"Connection {conn_id}: removed")
        elif conn_id in used:
            progress(f"Connection {conn_id}: stays, {used[conn_id]} uses it")
        elif answer.specs[conn_id] is not None:
            progress(f"Connection {conn_id}: was not made by target add, and stays")
    progress(f"{name} is forgotten; what was measured on it stays")


def _as_before(known: Target, one: Target, *, given_own: bool) -> Target:
    """A target that is registered keeps its Connections and its hosts; others may come to them."""
    if given_own and (known.kafka, known.spark, known.storage) != (one.kafka, one.spark, one.storage):
        raise ConfigError(
            f"{known.name}: is registered with {known.kafka}, {known.spark} and {known.storage}, and other ones are "
            f"asked for; ./faultline target remove {known.name}, and add it anew"
        )
    return replace(known, hosts=tuple(dict.fromkeys((*known.hosts, *one.hosts))))


def _kafka_of(known: Mapping[str, Target], other: str, given: TargetOptions) -> str:
    """The id of another target's Connection."""
    from faultline.system.text import suggest

    if other not in known:
        raise ConfigError(f"--share-kafka: no target is called {other!r}{suggest(other, known)}")
    if given.kafka is not None:
        raise ConfigError("--share-kafka: --kafka is given, too; give one of both")
    return known[other].kafka


def _differs(known: Mapping[str, Target], one: Target, conn_id: str, keys: Sequence[str]) -> ConfigError:
    """What is said where a Connection is there and says something else than what is given."""
    from faultline.system.target_registry import make_target

    users = [other.name for other in known.values() if conn_id in other.connections]
    if users == [one.name]:
        remedy = f"./faultline target remove {one.name}, and add it anew"
    elif conn_id in make_target(one.name).connections:
        remedy = "leave its option out, or give --own-connections, for Connections that end with the target's name"
    else:
        remedy = "leave its option out"
    return ConfigError(
        f"Connection {conn_id}: is there, and says something else than what is given ({', '.join(keys)}); nothing was "
        f"made: edit it on Airflow's page (./faultline up), or {remedy}"
    )


def _refuse_in_use(settings: Settings, name: str) -> None:
    """Its logins are needed to the end of an experiment."""
    from faultline.experiment.attempt import open_attempts
    from faultline.experiment.attempt_plan import read_plan
    from faultline.installation.service_users import supervisor_pid

    for attempt in open_attempts(settings.attempts, settings.home):
        if read_plan(attempt).order.config["target"] != name:
            continue
        if attempt.over is not None:
            raise ConfigError(f"{name}: the experiment {attempt.id} is not healed; the next one tries that again")
        if supervisor_pid(settings) is None:
            raise ConfigError(f"{name}: the experiment {attempt.id} was cut off; ./faultline up closes it")
        raise ConfigError(
            f"{name}: the experiment {attempt.id} runs on it; let it end, or end it: its sweep by ./faultline sweep "
            "--stop, a run by ./faultline down and ./faultline up"
        )
