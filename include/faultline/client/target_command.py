"""`./faultline target add`, `list`, `check` and `remove`: clusters that exist, to measure on.

Heavy modules are imported inside, so that `--help` answers at once.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from faultline.base.errors import ConfigError
from faultline.base.text import say

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from faultline.base.settings import Settings
    from faultline.base.target import Target
    from faultline.cluster.targets.given import Given

app = typer.Typer(help="Clusters that exist, to measure on; target=NAME is a parameter.", no_args_is_help=True)
Name = Annotated[str, typer.Argument(help="The target.")]


@app.command()
def add(
    name: Annotated[str, typer.Argument(help="What experiments call it, such as lab.")],
    kafka: Annotated[
        Path | None, typer.Option(help="A JSON file of librdkafka's settings, such as bootstrap.servers.")
    ] = None,
    kafka_of: Annotated[
        str | None, typer.Option(help="A target with the same Kafka, whose Connection this one shares.")
    ] = None,
    spark: Annotated[str | None, typer.Option(help="The master, such as spark://HOST:7077.")] = None,
    spark_file: Annotated[
        Path | None, typer.Option(help='More on it, as JSON: {"secret", "ui", "conf", "driver-host"}.')
    ] = None,
    storage: Annotated[
        str | None, typer.Option(help="A folder that all hosts share, or hdfs://HOST:PORT/PATH.")
    ] = None,
    storage_web: Annotated[
        str | None, typer.Option(help="Where WebHDFS answers for it, http://HOST:PORT; by default port 9870 there.")
    ] = None,
    host: Annotated[
        list[str] | None,
        typer.Option(help="A host that is reached over SSH by a Connection that is there. Repeatable."),
    ] = None,
    host_file: Annotated[
        Path | None, typer.Option(help='Such hosts by name, as JSON: {"host", "user", "key_file", "known_hosts"} each.')
    ] = None,
    own: Annotated[bool, typer.Option("--own", help="Connections of its own, which end with its name.")] = False,
) -> None:
    """Register a target, and make those of its Connections that are missing; one that is there is never changed.

    Secrets are told by files of mode 0600, since everybody can read command lines; they then stand in the Connections
    only. What is wrong, and what says something else than a Connection that is there, is refused before anything is
    made. `target remove` takes back what was made.
    """
    from faultline.base.settings import load_settings
    from faultline.base.target import keep, named_after, targets
    from faultline.client.connections import ask
    from faultline.cluster.targets.given import Given

    settings = load_settings()
    given = Given(kafka, spark, spark_file, storage, storage_web, host_file)
    hosts = dict.fromkeys((*(host or ()), *given.listed_hosts()))
    one = named_after(name, tuple(hosts), first=not own)
    known = targets(settings)
    if kafka_of is not None:
        one = replace(one, kafka=_kafka_of(known, kafka_of, given))
    wanted = given.connections(one)
    there = {} if wanted or name in known else ask(settings, one.connections).said
    if not wanted and not any(there.values()) and name not in known:
        raise ConfigError(
            "--kafka: missing, as --spark and --storage are, and none of their Connections is there; give them"
        )
    answer = ask(settings, one.connections, wanted)
    for conn_id, keys in answer.differing.items():
        raise _differs(settings, one, conn_id, keys, own=own)
    before = known[name].made if name in known else ()
    keep(settings, replace(one, made=tuple(sorted({*before, *answer.made}))))
    for conn_id, said in answer.said.items():
        if conn_id in answer.made:
            say(f"Connection {conn_id}: made")
        elif said is not None:
            say(f"Connection {conn_id}: is there, and stays as it is")
        else:
            say(f"MISSING: {one.missing(conn_id)}")
    say(f"now look at it: ./faultline target check {name}")


@app.command("list")
def show() -> None:
    """Show the registered targets, where they are reached, and their Connections."""
    from faultline.base.settings import load_settings
    from faultline.base.target import targets, where

    settings = load_settings()
    known = targets(settings)
    for one in known.values():
        print(f"{one.name}  {where(settings, one)}  {'  '.join(one.connections)}")
    if not known:
        say("no target is registered, experiments run on the embedded services; ./faultline target add --help")


@app.command()
def check(name: Name) -> None:
    """Look at a target, a line for each look: reached, login, rights, clock, topics, Spark's versions, the storage.

    Makes a topic and a folder of its own, and removes them. Exit code 2 for what is to be mended, 1 for what is away.
    """
    from faultline.base.settings import load_settings
    from faultline.base.target import target
    from faultline.client.connections import take_in
    from faultline.client.operations import require
    from faultline.cluster.targets.look import look

    settings = load_settings()
    one = target(settings, name)
    if one is None:
        raise ConfigError("NAME: the embedded services are looked at by ./faultline doctor")
    require(settings)
    take_in(settings, one)
    if error := look(settings, one, print):
        say(f"{name} is not as experiments need it; mend the line with NO, and look again")
        raise typer.Exit(2 if isinstance(error, ConfigError) else 1)
    say(f"{name} is as experiments need it: target={name}")


@app.command()
def remove(name: Name) -> None:
    """Forget a target: remove the Connections that `target add` made for it, and the files with its logins.

    A Connection that another target uses goes with that one; those of others stay, as does what was measured.
    """
    from faultline.base.settings import load_settings
    from faultline.base.target import forget, keep, target, targets
    from faultline.client.connections import ask

    settings = load_settings()
    one = target(settings, name)
    if one is None:
        raise ConfigError("NAME: the embedded services are no target that was added; ./faultline down ends them")
    _refuse_in_use(settings, name)
    others = [other for other in targets(settings).values() if other.name != name]
    used = {conn_id: other for other in others for conn_id in other.connections}
    removed = ask(settings, (), remove=[conn_id for conn_id in one.made if conn_id not in used]).removed
    # What another uses goes with the last of them.
    for other in others:
        if left := {conn_id for conn_id in one.made if used.get(conn_id) is other}:
            keep(settings, replace(other, made=tuple(sorted({*other.made, *left}))))
    forget(settings, one)
    for conn_id in sorted({*one.connections, *one.made}):
        if conn_id in removed:
            say(f"Connection {conn_id}: removed")
        elif conn_id in used:
            say(f"Connection {conn_id}: stays, {used[conn_id].name} uses it")
        else:
            say(f"Connection {conn_id}: was not made by target add, and stays")
    say(f"{name} is forgotten; what was measured on it stays")


def _kafka_of(known: Mapping[str, Target], other: str, given: Given) -> str:
    """The id of another target's Connection."""
    from faultline.base.text import suggest

    if other not in known:
        raise ConfigError(f"--kafka-of: no target is called {other!r}{suggest(other, known)}")
    if given.kafka is not None:
        raise ConfigError("--kafka-of: --kafka is given, too; give one of both")
    return known[other].kafka


def _differs(settings: Settings, one: Target, conn_id: str, keys: Sequence[str], *, own: bool) -> ConfigError:
    """What is said where a Connection is there and says something else than what is given."""
    from faultline.base.target import targets

    makers = [other.name for other in targets(settings).values() if conn_id in other.made]
    if one.name in makers:
        remedy = f"./faultline target remove {one.name}, and add it again"
    elif own or conn_id in map(one.host, one.hosts):
        remedy = "leave its option out, or take another name"
    else:
        remedy = "leave its option out, or give --own, for Connections that end with the target's name"
    return ConfigError(
        f"Connection {conn_id}: is there, and says something else than what is given ({', '.join(keys)}); nothing was "
        f"made: edit it on Airflow's page, or {remedy}"
    )


def _refuse_in_use(settings: Settings, name: str) -> None:
    """Its logins are needed to the end of an experiment."""
    from faultline.base.attempt import open_attempts

    for attempt in open_attempts(settings.attempts, settings.home):
        if attempt.read().get("config", {}).get("target") == name:
            raise ConfigError(
                f"{name}: the experiment {attempt.id} runs on it; let it end, or ./faultline sweep --stop"
            )
