"""A job of the user's: its file is loaded where it runs, and nowhere else.

What it defines is sent to executors by value, modules beside it included: they find no such files.
"""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

# Each partition's share of the numbers of one millisecond: as many as there may be partitions.
NUMBERS_A_MS = 1024
# What of an input record the job sees; `number` is its instant of production and its partition in one, and grows with
# both, so the newest of several records has the largest.
COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")


# Names of settings that are not written down, and what stands in their place, as Spark's own pages have it.
SECRET, HIDDEN = re.compile(r"(?i)secret|password|token|credential|access.?key"), "*********(redacted)"


class JobError(Exception):
    """What the job did not do as it said."""


def passed_values(config: dict[str, Any]) -> dict[str, Any]:
    """What the job's functions get as `config`: its arguments, `attempt`, a name that no other run has, and `folder`,
    where it may keep files until the run is judged."""
    return {**config["arguments"], "attempt": config["attempt"], "folder": config["folder"]}


def load(path: Path) -> ModuleType:
    """The job's module, run, with a session: a UDF may be declared by a type that Spark has to read. Raises what it
    raises."""
    SparkSession.builder.getOrCreate()
    folder = path.resolve().parent
    name = f"job_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    # Before it runs: it may register functions while it is loaded, and those of modules beside it.
    cloudpickle.register_pickle_by_value(module)
    for beside in _modules_in(folder):
        loaded = beside in sys.modules
        # A name is all that is kept, but it must be that of a module that is loaded.
        cloudpickle.register_pickle_by_value(sys.modules.setdefault(beside, ModuleType(beside)))
        if not loaded:
            del sys.modules[beside]
    spec.loader.exec_module(module)
    return module


def _modules_in(folder: Path) -> Iterator[str]:
    """Names of the modules and packages that an import finds in a folder, and nowhere before."""
    for name in {path.stem for path in folder.iterdir() if path.stem.isidentifier()}:
        spec = importlib.util.find_spec(name) if name not in sys.modules else sys.modules[name].__spec__
        places = [] if spec is None else [spec.origin, *(spec.submodule_search_locations or ())]
        if any(place and Path(place).resolve().is_relative_to(folder) for place in places):
            yield name


def require_declared(spark: SparkSession, config: dict[str, Any]) -> None:
    """Writes down what the session runs under. Raises JobError for a query that the job has started itself, and for a
    setting that it has changed and the measuring relies on: `own_settings`, each with what to do instead."""
    if active := spark.streams.active:
        for query in active:  # its own end would be told for the reason
            query.stop()
        raise JobError(
            f"query started {len(active)} streaming query of its own, and the one that it returns is measured; measure "
            "each in a job of its own, without start()"
        )
    told_settings = dict(spark.sparkContext.getConf().getAll())
    changed = {name: value for name, value in dict(spark.conf.getAll).items() if value != told_settings.get(name)}
    shown = {name: HIDDEN if SECRET.search(name) else value for name, value in {**told_settings, **changed}.items()}
    target = Path(config["application"])
    written = target.with_suffix(".part")
    written.write_text(json.dumps(shown))
    written.rename(target)
    # What happened is read from the log, which a job may have silenced.
    spark.sparkContext.setLogLevel("INFO")
    for name, remedy in config["own_settings"].items():
        if name in changed and name in told_settings:
            raise JobError(
                f"the job sets {name} to {changed[name]} itself, and runs under {told_settings[name]}; leave it out, "
                f"{remedy}"
            )


def number(milliseconds: Column, partition: Column) -> Column:
    """The number of a record that was produced then, on that partition; two of one millisecond there share it."""
    return milliseconds * F.lit(NUMBERS_A_MS) + partition


def with_numbers(records: DataFrame) -> DataFrame:
    """Kafka's records as a job gets them: COLUMNS and `number`."""
    own = number(F.unix_millis("timestamp"), F.col("partition"))
    return records.select(*COLUMNS, own.alias("number"))


def results(frame: object, wanted: tuple[str, ...], function: str) -> DataFrame:
    """What one of the job's functions returned, with these columns. Raises JobError for anything else."""
    columns = getattr(frame, "columns", None)
    if columns is None:
        raise JobError(f"{function} returned {type(frame).__name__}, and a DataFrame is needed; return one")
    for name in wanted:
        if name not in columns:
            raise JobError(f"{function} returned the columns {', '.join(columns)}, and {name} is missing; select it")
    return frame  # type: ignore[return-value]
