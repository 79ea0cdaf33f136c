"""User jobs: their file is loaded only in this process, or the statements of a SQL file are executed.

Its definitions, including modules next to it, are sent to executors by value, because executors have no such files.
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

# Record numbers per millisecond, one per partition; limits the number of partitions.
NUMBERS_PER_MS = 1024
# Columns of the job's input. Its column `number` combines production time and partition, so newer records have larger
# numbers.
COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
# View with the role of the function `tuples`.
TUPLES = "tuples"

# Settings to redact, and the replacement, as in Spark's UI.
SECRET, REDACTED = re.compile(r"(?i)secret|password|token|credential|access.?key"), "*********(redacted)"


class JobError(Exception):
    """Violation of the job's contract."""


def passed_values(config: dict[str, Any]) -> dict[str, Any]:
    """Return the `config` of the job's functions: its arguments, `attempt` and `folder`.

    `attempt` is unique to the run. `folder` may hold files until the run is judged.
    """
    return {**config["arguments"], "attempt": config["attempt"], "folder": config["folder"]}


def load_job(config: dict[str, Any]) -> ModuleType:
    """Return the module of a job's file, or for a SQL file a module with the same functions."""
    return sql_module(config["sql"]) if config.get("sql") else load(Path(config["job"]))


def sql_module(sql: dict[str, Any]) -> ModuleType:
    """Return a module with the function `query`, and `tuples` if there is such a view.

    `sql`: statements that create `views`, by name, and `select`.
    """

    def define(records: DataFrame) -> SparkSession:
        spark = records.sparkSession
        texts = [F.coalesce(F.col("key").cast("string"), F.lit("")).alias("key"), F.col("value").cast("string")]
        columns = [name for name in (*COLUMNS, "number") if name not in ("key", "value", "timestampType")]
        records.select(*texts, *columns).createOrReplaceTempView("records")
        for name, statement in sql["views"].items():
            # A query is defined more than once, such as for the warm-up.
            spark.catalog.dropTempView(name)
            spark.sql(statement)
        return spark

    def query(records: DataFrame, config: dict[str, Any]) -> DataFrame:
        return define(records).sql(sql["select"])

    def tuples(records: DataFrame) -> DataFrame:
        return define(records).table(TUPLES)

    module = ModuleType("sql_job")
    vars(module).update({"query": query, **({TUPLES: tuples} if TUPLES in sql["views"] else {})})
    return module


def load(path: Path) -> ModuleType:
    """Execute the job's file and return its module.

    A session exists before, because declaring a UDF may need Spark to parse a type. Raises the errors of the file.
    """
    SparkSession.builder.getOrCreate()
    folder = path.resolve().parent
    name = f"job_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    # Registered before execution, because the module may register functions, also of modules next to it.
    cloudpickle.register_pickle_by_value(module)
    for module_name in _modules_in(folder):
        loaded = module_name in sys.modules
        # Only the name is stored, but the module must be loaded.
        cloudpickle.register_pickle_by_value(sys.modules.setdefault(module_name, ModuleType(module_name)))
        if not loaded:
            del sys.modules[module_name]
    spec.loader.exec_module(module)
    return module


def _modules_in(folder: Path) -> Iterator[str]:
    """Yield the names of modules and packages that an import finds in this folder."""
    for name in {path.stem for path in folder.iterdir() if path.stem.isidentifier()}:
        spec = importlib.util.find_spec(name) if name not in sys.modules else sys.modules[name].__spec__
        places = [] if spec is None else [spec.origin, *(spec.submodule_search_locations or ())]
        if any(place and Path(place).resolve().is_relative_to(folder) for place in places):
            yield name


def require_declared(spark: SparkSession, config: dict[str, Any]) -> None:
    """Write the session's settings, and check the job.

    Raises JobError for queries that the job started itself, and for changes of reserved settings (`own_settings`, each
    with the fix).
    """
    if active := spark.streams.active:
        for query in active:  # otherwise its end would be reported as the reason
            query.stop()
        raise JobError(
            f"query: started {len(active)} streaming queries itself; expected only a returned query; "
            "fix: use one job per query, without start()"
        )
    initial_settings = dict(spark.sparkContext.getConf().getAll())
    changed = {name: value for name, value in dict(spark.conf.getAll).items() if value != initial_settings.get(name)}
    shown = {
        name: REDACTED if SECRET.search(name) else value for name, value in {**initial_settings, **changed}.items()
    }
    target = Path(config["application"])
    written = target.with_suffix(".part")
    written.write_text(json.dumps(shown))
    written.rename(target)
    # Evidence is read from the log, whose level the job may have changed.
    spark.sparkContext.setLogLevel("INFO")
    for name, remedy in config["own_settings"].items():
        if name in changed and name in initial_settings:
            raise JobError(
                f"job: got {name}={changed[name]} from its code; expected {initial_settings[name]}; fix: do not "
                f"set it, {remedy}"
            )


def record_number(milliseconds: Column, partition: Column) -> Column:
    """Return the number of a record; records of one partition and millisecond share it."""
    return milliseconds * F.lit(NUMBERS_PER_MS) + partition


def with_numbers(records: DataFrame) -> DataFrame:
    """Return Kafka's records in the form of a job's input: COLUMNS and `number`."""
    own = record_number(F.unix_millis("timestamp"), F.col("partition"))
    return records.select(*COLUMNS, own.alias("number"))


def results(frame: object, wanted: tuple[str, ...], function: str) -> DataFrame:
    """Return the result of a job's function.

    Raises JobError if it is not a DataFrame with these columns.
    """
    columns = getattr(frame, "columns", None)
    if columns is None:
        raise JobError(f"{function}: returned {type(frame).__name__}; expected a DataFrame")
    for name in wanted:
        if name not in columns:
            raise JobError(f"{function}: returned the columns {', '.join(columns)}; expected also {name}")
    return frame  # type: ignore[return-value]
