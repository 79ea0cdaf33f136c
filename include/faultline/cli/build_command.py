"""Commands for engines: `engine add` and `engine list`, and `build add`, `list` and `remove` for Spark builds.

Each Spark build has its own master and workers.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from faultline.system.text import progress

if TYPE_CHECKING:
    from faultline.engines.spark.distributions import Distribution
    from faultline.system.settings import Settings

app = typer.Typer(
    name="build", help="Register other Spark builds. The parameter spark_build=NAME selects one.", no_args_is_help=True
)


@app.command()
def add(
    name: Annotated[str, typer.Argument(help="Name of the build, such as snapshot.")],
    spark_home: Annotated[Path, typer.Option(help="Spark folder with bin/spark-submit, or pyspark/ of a wheel.")],
    java: Annotated[Path | None, typer.Option(help="Java home for this build (default: the common one).")] = None,
    conf: Annotated[Path | None, typer.Option(help="Settings of this build, as a spark-defaults.conf file.")] = None,
) -> None:
    """Register a Spark build. Check its version, Kafka connector and Python, and hash its jars."""
    from importlib.metadata import version

    from faultline.engines.spark.conf_rules import check_settings
    from faultline.engines.spark.distributions import distributions, inspect_distribution, read_conf, register
    from faultline.installation.supervisord import Supervisor
    from faultline.system.errors import ConfigError
    from faultline.system.locks import MachineLock
    from faultline.system.settings import load_settings

    settings = load_settings()
    if (holder := MachineLock(settings.machine).holder()) and holder.own:
        raise ConfigError(f"{name}: registration failed: experiment running ({holder.text}); fix: wait for its end")
    defaults = {} if conf is None else read_conf(conf)
    check_settings(defaults, "--conf")
    made = inspect_distribution(settings, name, spark_home, java, defaults, version("pyspark"))
    before = distributions(settings).get(name)
    register(settings, made)
    progress(f"{name}: Spark {made.version} in {made.spark_home}, jars {made.sha256[:12]}, Python {made.python}")
    supervisor = Supervisor(settings)
    if supervisor.is_running():
        if before is not None and before != made:
            _stop(settings, before)
        _start(settings)
    progress(f"select it with spark_build={name}; compare it with ./faultline compare --measure installed {name}")


@app.command("list")
def show() -> None:
    """List the registered builds. Report whether their files are unchanged."""
    from faultline.engines.spark.distributions import distributions, require_unchanged
    from faultline.system.errors import ConfigError
    from faultline.system.settings import load_settings

    known = distributions(load_settings())
    for one in known.values():
        try:
            require_unchanged(one)
            state = "as registered"
        except ConfigError as error:
            state = str(error)
        print(f"{one.name}  Spark {one.version}  {one.spark_home}  {state}")
    if not known:
        progress("no Spark build is registered; see ./faultline build add --help")


@app.command()
def remove(name: Annotated[str, typer.Argument(help="Build to unregister; its folder is kept.")]) -> None:
    """Unregister a build and stop its master and workers. Records are kept."""
    from faultline.engines.spark.distributions import unregister
    from faultline.installation.supervisord import Supervisor
    from faultline.system.errors import ConfigError
    from faultline.system.locks import MachineLock
    from faultline.system.settings import load_settings

    settings = load_settings()
    if (holder := MachineLock(settings.machine).holder()) and holder.own:
        raise ConfigError(f"{name}: removal failed: experiment running ({holder.text}); fix: wait for its end")
    removed = unregister(settings, name)
    if Supervisor(settings).is_running():
        _stop(settings, removed)
    progress(f"unregistered {name}; {removed.spark_home} kept")


engines = typer.Typer(
    name="engine", help="Install further engines. The parameter engine=NAME selects one.", no_args_is_help=True
)


@engines.command("add")
def add_engine(name: Annotated[str, typer.Argument(help="Engine to install: flink.")]) -> None:
    """Install an engine, or repair it. Needs Java and 1 GB of disk."""
    from faultline import bootstrap
    from faultline.engines.flink.distribution import ADD_COMMAND, LOCKS, FlinkDistribution
    from faultline.installation.flink import install_flink
    from faultline.installation.java import find_java
    from faultline.system.errors import ConfigError
    from faultline.system.settings import load_settings

    if name != "flink":
        raise ConfigError(f"engine: got {name}; expected flink")
    settings = load_settings()
    java = find_java(settings.home / "java.json")
    with bootstrap.bootstrap_lock(settings.home) as lock:
        packages = bootstrap.VirtualEnvironment(settings.root, settings.home, lock, LOCKS[0], ADD_COMMAND)
        install_flink(FlinkDistribution(settings.home, settings.root), java, packages.install, lock, progress)


@engines.command("list")
def show_engines() -> None:
    """List the engines, whether they are installed, and the workloads that they run."""
    from faultline.installation.flink import describe_engines
    from faultline.system.settings import load_settings

    for name, text in describe_engines(load_settings()).items():
        print(f"{name:<6} {text}")


def _start(settings: Settings) -> None:
    from faultline.cli.service_control import bring_up
    from faultline.installation.supervisord import Supervisor

    airflow = any(name.startswith("airflow-") for name in Supervisor(settings).states())
    bring_up(progress, airflow=airflow, settings=settings)


def _stop(settings: Settings, removed: Distribution) -> None:
    from faultline.installation.supervisord import Supervisor

    Supervisor(settings).remove([name for name in Supervisor(settings).states() if name.endswith(f"@{removed.name}")])
