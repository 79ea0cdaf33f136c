"""`./faultline target add`, `list` and `check`: clusters that exist, to measure on.

Heavy modules are imported inside, so that `--help` answers at once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from faultline.base.errors import ConfigError
from faultline.base.text import say

if TYPE_CHECKING:
    from faultline.base.target import Target

app = typer.Typer(help="Clusters that exist, to measure on; target=NAME is a parameter.", no_args_is_help=True)


@app.command()
def add(
    name: Annotated[str, typer.Argument(help="What experiments call it, such as lab.")],
    kafka: Annotated[
        Path | None, typer.Option(help="A JSON file of librdkafka's settings, such as bootstrap.servers.")
    ] = None,
    spark: Annotated[str | None, typer.Option(help="The master, such as spark://HOST:7077.")] = None,
    spark_file: Annotated[
        Path | None, typer.Option(help='More on it, as JSON: {"secret", "ui", "conf", "driver-host"}.')
    ] = None,
    storage: Annotated[str | None, typer.Option(help="A folder that all hosts share.")] = None,
    host: Annotated[
        list[str] | None, typer.Option(help="A host whose processes are reached over SSH, by a name. Repeatable.")
    ] = None,
    own: Annotated[bool, typer.Option("--own", help="Connections of its own, which end with its name.")] = False,
) -> None:
    """Register a target, and make those of its Connections that are missing; one that is there is never changed.

    Secrets are told by files, since everybody can read command lines; they then stand in the Connections only.
    """
    from faultline.base.settings import load_settings
    from faultline.base.target import keep, named_after
    from faultline.client.connections import ask

    settings = load_settings()
    made_of = named_after(name, tuple(host or ()), first=not own)
    wanted = _wanted(made_of, kafka, spark, spark_file, storage)
    made, said = ask(settings, made_of.connections, wanted)
    keep(settings, made_of)
    for conn_id, one in said.items():
        if conn_id in made:
            say(f"Connection {conn_id}: made")
        elif one is not None:
            say(f"Connection {conn_id}: is there, and stays as it is")
        else:
            say(f"Connection {conn_id}: MISSING; add it on Airflow's page")
    say(f"now look at it: ./faultline target check {name}")


@app.command("list")
def show() -> None:
    """Show the registered targets and their Connections."""
    from faultline.base.settings import load_settings
    from faultline.base.target import targets

    known = targets(load_settings())
    for one in known.values():
        print(f"{one.name}  {'  '.join(one.connections)}")
    if not known:
        say("no target is registered, experiments run on the embedded services; ./faultline target add --help")


@app.command()
def check(name: Annotated[str, typer.Argument(help="The target.")]) -> None:
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
        raise error
    say(f"{name} is as experiments need it: target={name}")


def _wanted(
    made_of: Target, kafka: Path | None, spark: str | None, spark_file: Path | None, storage: str | None
) -> dict[str, dict[str, Any]]:
    """The Connections that the options describe, as keyword arguments of Airflow's."""
    found: dict[str, dict[str, Any]] = {}
    if kafka is not None:
        found[made_of.kafka] = {"conn_type": "kafka", "extra": json.dumps(_object(kafka, "--kafka"))}
    more = {} if spark_file is None else _object(spark_file, "--spark-file")
    if spark is not None:
        extra = {key: more[key] for key in ("ui", "conf", "driver-host") if key in more}
        found[made_of.spark] = {"conn_type": "spark", "host": spark, "extra": json.dumps(extra)}
        if more.get("secret"):
            found[made_of.spark]["password"] = str(more["secret"])
    elif more:
        raise ConfigError("--spark-file: says more of --spark, which is missing; give it")
    if storage is not None:
        found[made_of.storage] = {"conn_type": "fs", "extra": json.dumps({"path": storage})}
    return found


def _object(file: Path, option: str) -> Mapping[str, Any]:
    try:
        value = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{option}: {file} cannot be read ({error}); give a JSON object") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{option}: {file} holds no JSON object; give one")
    return value
