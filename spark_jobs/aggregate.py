"""Summary tables of all records and samples; this program is their only writer.

    spark-submit aggregate.py --records FOLDER --attempts FOLDER --target FOLDER [--renames JSON]

`--renames` maps names of older record schemas to the current ones: {"keys", "statuses", "codes"}, each an object.

The tables are written into a new folder next to the target, under a lock, and swapped in atomically. Each is written as
Parquet and CSV:

- experiments: one row per record; configuration and metrics as columns named by their path
- cells: per matrix, configuration, series and build: main parameters, number of valid records, and median, minimum and
  maximum of each metric
- recoveries: one row per fault: its number in the plan, and the parts of its recovery
- samples: one row per attempt and second after T0: latency of the outputs emitted in it, CPU by role
- latencies: per cell as above, nearest-rank percentiles over the pooled tuples of its valid records

In CSV, texts that look like formulas get a leading apostrophe, because a spreadsheet would evaluate them.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import DoubleType, NumericType, StringType, StructType

KEYS = ["matrix", "config_id", "series", "build"]
CENSORED = "coalesce(recovery_recovered = false, false)"
# Columns that identify the configuration of a row of `cells`.
LABELS = [
    f"config_{name}"
    for name in ("workload", "fault", "fault_action", "commit_mode", "checkpoint_interval_s", "state_mb")
]
# Per mille, as in `faultline.records.judge.latency`.
PERMILLES = {"p50": 500, "p90": 900, "p99": 990, "p999": 999}
_ATTEMPT = r"/attempts/([^/]+)/(?:series\.json|harvest/)"
ATTEMPT_COLUMNS = ["attempt", "repetition", "status", "sweep_id", "logical_date", "measured_at"]
# As in `faultline.reports.tables`; Java and Python interpret both equally.
FORMULA = r"^(?:[\t\r\n]|\s*[=+\-@" "\uff1d\uff0b\uff0d\uff20])"
NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?(?![\s\S])"
# Old name to current name, of keys by their dotted path, of statuses and of reason codes.
Renames = Mapping[str, Mapping[str, str]]
NO_RENAMES: Renames = {"keys": {}, "statuses": {}, "codes": {}}
# Standard CSV: quotes are doubled, and spaces are preserved.
CSV = {"escape": '"', "ignoreLeadingWhiteSpace": False, "ignoreTrailingWhiteSpace": False}


def flatten(schema: StructType, prefix: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Return the paths of all leaves of a struct, such as (metrics, latency_ms, p50), without lists and maps."""
    paths = []
    for field in schema.fields:
        path = (*prefix, field.name)
        if isinstance(field.dataType, StructType):
            paths += flatten(field.dataType, path)
        elif field.dataType.typeName() not in ("array", "map"):
            paths.append(path)
    return paths


def experiments(records: DataFrame, renames: Renames = NO_RENAMES) -> DataFrame:
    """Return one row per record; column names join the path of nested values with underscores."""
    columns = [F.col(name) for name in [*KEYS, *ATTEMPT_COLUMNS]]
    for root in ("config", "metrics"):
        leaves = flatten(records.schema[root].dataType, (root,))  # type: ignore[arg-type]
        columns += [
            _column(records, path, old, renames["codes"])
            for path, old in by_current_path(leaves, renames["keys"]).items()
        ]
    reasons = F.transform("reasons", lambda one: current_reason(one, renames["codes"]))
    return records.select(*columns, F.concat_ws("; ", reasons).alias("reasons"))


def by_current_path(
    paths: Sequence[tuple[str, ...]], keys: Mapping[str, str]
) -> dict[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the paths of each leaf by its current path. `keys`: dotted old path to the current last element."""
    found: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
    for path in paths:
        current = tuple(keys.get(".".join(path[: end + 1]), name) for end, name in enumerate(path))
        found.setdefault(current, []).append(path)
    # An object that is null in all records of a schema looks like a leaf.
    objects = {path[:end] for path in found for end in range(len(path))}
    return {path: old for path, old in found.items() if path not in objects}


def _column(
    records: DataFrame, path: tuple[str, ...], old: Sequence[tuple[str, ...]], codes: Mapping[str, str]
) -> Column:
    """Return a nested value, named by its path. Path elements, such as host names, may contain dots.

    `old`: the paths under which the records have it.
    """
    values = [F.col(".".join(map(quoted, one))) for one in old]
    if len(values) > 1:
        # Spark infers strings if all values of a path are null.
        types = {field.dataType for field in records.select(*values).schema.fields} - {StringType()}
        kind = StringType() if not types else DoubleType() if len(types) > 1 else types.pop()
        values = [value.cast(kind) for value in values]
    value = F.coalesce(*values)
    if path[-1] == "note":
        value = current_reason(value, codes)
    return value.alias("_".join(path).removeprefix("metrics_").replace(".", "_"))


def current_reason(reason: Column, codes: Mapping[str, str]) -> Column:
    """Return a reason or note with its current code; it starts with the code."""
    for old, new in codes.items():
        reason = F.regexp_replace(reason, f"^{re.escape(old)}(?=:|$)", new)
    return reason


def quoted(name: str) -> str:
    """Quote a column name for Spark expressions."""
    return "`" + name.replace("`", "``") + "`"


def cells(table: DataFrame) -> DataFrame:
    """Return median, minimum and maximum of each metric over the valid records of a configuration."""
    metrics = [
        field.name
        for field in table.schema.fields
        if isinstance(field.dataType, NumericType)
        and not field.name.startswith("config_")
        and field.name not in (*KEYS, *ATTEMPT_COLUMNS)
    ]
    summaries = [F.first(name).alias(name) for name in LABELS if name in table.columns]
    summaries += [F.count("*").alias("n"), F.count_if(F.expr(CENSORED)).alias("censored")]
    for name in metrics:
        summaries += [
            _unless_censored(name, F.median(name)).alias(f"{name}_median"),
            _unless_censored(name, F.min(name)).alias(f"{name}_min"),
            _unless_censored(name, F.max(name)).alias(f"{name}_max"),
        ]
    return table.where("status = 'valid'").groupBy(*KEYS).agg(*summaries)


def _unless_censored(name: str, summary: Column) -> Column:
    """Return null for recovery times if some are censored, because their median is then unknown."""
    return F.when(F.count_if(F.expr(CENSORED)) == 0, summary) if name.startswith("recovery_") else summary


def recoveries(records: DataFrame, codes: Mapping[str, str] = NO_RENAMES["codes"]) -> DataFrame:
    """Return one row per fault of a record; nested values are named by their path, such as `trigger_phase`."""
    one = F.posexplode("metrics.recoveries").alias("fault", "part")
    rows = records.select("attempt", *KEYS, "status", one)
    # If all records are controls, Spark infers strings as the elements of empty lists.
    part = rows.schema["part"].dataType
    paths = flatten(part, ("part",)) if isinstance(part, StructType) else []
    parts = []
    for path in paths:
        value = F.col(".".join(map(quoted, path)))
        value = current_reason(value, codes) if path[-1] == "note" else value
        parts.append(value.alias("_".join(path[1:])))
    return rows.select("attempt", *KEYS, "status", "fault", *parts)


def samples(courses: DataFrame) -> DataFrame:
    """Return `series.json` of the attempts by second after T0 (its end). `courses` has a column `attempt`."""
    second = F.col("one.t_s").cast("long").alias("second")
    latency = courses.select("attempt", F.explode("latency").alias("one")).select(
        "attempt", (second + 1).alias("second"), "one.p50_ms", "one.p99_ms", "one.max_ms", "one.n"
    )
    cpu = courses.select("attempt", F.explode("cpu").alias("one")).select("attempt", second, "one.*").drop("t_s")
    return latency.join(cpu, ["attempt", "second"], "full_outer")


def latencies(records: DataFrame, tuples: DataFrame) -> DataFrame:
    """Return pooled percentiles of each cell over the tuples of the measured windows of its valid records.

    `tuples` has a column `attempt`. Tuples are counted by millisecond first, so that only distinct values are sorted.
    """

    def instant(name: str) -> Column:
        event = F.filter("timeline", lambda one: one["name"] == name)
        return (F.get(event, F.lit(0))["wall_ns"] / 1_000_000).alias(name)

    measured = records.where("status = 'valid'").select(
        "attempt", *KEYS, instant("measured_from"), instant("measured_until")
    )
    counted = (
        tuples.where("not primer and emitted_ms is not null")
        .join(F.broadcast(measured), "attempt")
        .where("produced_ms >= measured_from and produced_ms < measured_until and emitted_ms >= produced_ms")
        .groupBy(*KEYS, (F.col("emitted_ms") - F.col("produced_ms")).alias("latency_ms"))
        .agg(F.sum("n").alias("n"))
    )
    cell = Window.partitionBy(*KEYS)
    ranked = counted.select(
        *KEYS, "latency_ms", "n", F.sum("n").over(cell).alias("total"),
        F.sum("n").over(cell.orderBy("latency_ms")).alias("reached"),
    )  # fmt: skip
    return ranked.groupBy(*KEYS).agg(
        F.sum("n").alias("tuples"),
        (F.sum(F.col("latency_ms") * F.col("n")) / F.sum("n")).alias("mean_ms"),
        F.max("latency_ms").alias("max_ms"),
        *(
            F.min(F.when(F.col("reached") * 1000 >= F.col("total") * permille, F.col("latency_ms"))).alias(f"{name}_ms")
            for name, permille in PERMILLES.items()
        ),
    )


def with_attempt(frame: DataFrame) -> DataFrame:
    """Add the attempt, from the folder below `attempts` that contains each file."""
    return frame.withColumn("attempt", F.regexp_extract("_metadata.file_path", _ATTEMPT, 1))


def write(table: DataFrame, folder: Path, name: str) -> None:
    """Write `name`.parquet and `name`.csv as single files; the CSV is derived from the Parquet file."""
    parquet = folder / f"{name}.parquet"
    _write_one(table, "parquet", parquet)
    _write_one(escape_formulas(table.sparkSession.read.parquet(str(parquet))), "csv", folder / f"{name}.csv", **CSV)


def escape_formulas(table: DataFrame) -> DataFrame:
    """Prefix texts and column names that look like formulas, and are not numbers, with an apostrophe."""
    columns = []
    for field in table.schema.fields:
        cell = F.col(quoted(field.name))
        if isinstance(field.dataType, StringType):
            formula = cell.rlike(FORMULA) & ~cell.rlike(NUMBER)
            cell = F.when(formula, F.concat(F.lit("'"), cell)).otherwise(cell)
        columns.append(cell.alias(f"'{field.name}" if re.match(FORMULA, field.name, re.ASCII) else field.name))
    return table.select(*columns)


def _write_one(table: DataFrame, form: str, file: Path, **options: str | bool) -> None:
    parts = file.with_name(f".{file.name}")
    table.coalesce(1).write.format(form).options(header=True, **options).save(str(parts))
    next(parts.glob(f"part-*.{form}")).rename(file)
    shutil.rmtree(parts)


def swap(new: Path, target: Path) -> None:
    """Replace the target atomically by `new`: the target is a symbolic link. The tables are synced before.

    The previous folder is removed if it is a table folder next to the target.
    """
    _sync(new)
    old = target.with_name(os.readlink(target)) if target.is_symlink() and _is_table_folder(target) else None
    link = target.with_name(f".{target.name}.link")
    link.unlink(missing_ok=True)
    link.symlink_to(new.name)
    link.rename(target)
    if old and old != new:
        shutil.rmtree(old, ignore_errors=True)  # fails for a link


def _sync(folder: Path) -> None:
    for path in (*folder.iterdir(), folder):
        opened = os.open(path, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


def _is_table_folder(target: Path) -> bool:
    return re.fullmatch(rf"{re.escape(target.name)}-\d+", os.readlink(target)) is not None


def aggregate(spark: SparkSession, arguments: Sequence[str]) -> None:
    """Run the program on an existing Spark session."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=Path, required=True)
    parser.add_argument("--attempts", type=Path, required=True)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--renames", type=json.loads, default=NO_RENAMES)
    options, _ = parser.parse_known_args(arguments)
    options.target.parent.mkdir(parents=True, exist_ok=True)
    with (options.target.parent / ".summary.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not any(options.records.glob("*/*.json")):
            print("aggregate: no records yet")
            return
        records = spark.read.option("multiLine", True).json(f"{options.records}/*/*.json")
        if options.renames["statuses"]:
            records = records.replace(options.renames["statuses"], subset=["status"])
        table = experiments(records, options.renames).cache()
        new = options.target.with_name(f"{options.target.name}-{time.time_ns()}")
        new.mkdir()
        try:
            write(table.orderBy("attempt"), new, "experiments")
            write(cells(table).orderBy(*KEYS), new, "cells")
            write(recoveries(records, options.renames["codes"]).orderBy("attempt", "fault"), new, "recoveries")
            if any(options.attempts.glob("*/series.json")):
                courses = spark.read.option("multiLine", True).json(f"{options.attempts}/*/series.json")
                write(samples(with_attempt(courses)).orderBy("attempt", "second"), new, "samples")
            # Only valid records count, and reading dominates the time.
            valid = [row["attempt"] for row in table.where("status = 'valid'").select("attempt").collect()]
            files = [options.attempts / attempt / "harvest" / "tuples.parquet" for attempt in valid]
            if present := [str(file) for file in files if file.exists()]:
                tuples = spark.read.parquet(*present)
                write(latencies(records, with_attempt(tuples)).orderBy(*KEYS), new, "latencies")
            swap(new, options.target)
        except BaseException:
            shutil.rmtree(new, ignore_errors=True)
            raise


def main() -> None:
    spark = SparkSession.builder.getOrCreate()
    aggregate(spark, sys.argv[1:])
    spark.stop()


if __name__ == "__main__":
    main()
