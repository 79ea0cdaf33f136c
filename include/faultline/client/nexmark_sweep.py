"""`./faultline run nexmark` without a query: all queries through the matrix, and their table."""

from __future__ import annotations

import secrets
import statistics
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.table import Table

from faultline.base.errors import ConfigError
from faultline.base.roles import WORKERS
from faultline.base.settings import Settings, load_settings
from faultline.base.text import Say, natural
from faultline.client.airflow_api import AirflowApi
from faultline.client.demo import await_dags, newest_records
from faultline.client.following import follow
from faultline.client.operations import bring_up
from faultline.client.run_one import split_words
from faultline.comparison.cells import Point, points_of
from faultline.comparison.findings.nexmark import with_driver
from faultline.experiment.config import Configuration, parse_configuration
from faultline.experiment.matrices import DEFAULT, MATRICES
from faultline.experiment.matrix import Matrix, PlannedCell
from faultline.experiment.workloads.registry import has_schedule
from faultline.records.metrics import MACRO
from faultline.records.record import Record
from faultline.records.summary import Entry
from faultline.reports.document.tables import Column, N, total
from faultline.runner.environment import installed_build
from faultline.runner.prepare import check_here

DAG_ID = "nexmark"
# Seconds that an experiment takes beside its warm-up and measured time.
OVERHEAD_S = 55.0
SWEEP = ("preset", "repetitions", "build")


def form_of(given: Sequence[str]) -> dict[str, Any]:
    """`key=value` words as what is filled into the matrix's form. Raises ConfigError naming the key."""
    spec = MATRICES[DAG_ID]
    values = split_words(given, [*Configuration.model_fields, *SWEEP], example="preset=smoke")
    form: dict[str, Any] = {key: values.pop(key) for key in SWEEP if key in values}
    preset = spec.values(form.get("preset", DEFAULT))
    if "repetitions" in form:
        if not form["repetitions"].isdigit() or not int(form["repetitions"]):
            raise ConfigError(f"repetitions: {form['repetitions']!r} is not a whole number; use 1 or more")
        form["repetitions"] = int(form["repetitions"])
    base = {key: value[0] if key in spec.axes else value for key, value in preset.items()
            if key in Configuration.model_fields}  # fmt: skip
    filled = set(values)
    if values.get("source", base["source"]) != base["source"]:
        # Each source has a rate of its own, and through Kafka the schedule makes the batches.
        filled |= {key for key in ("rate", "batch_events", "preload_events") if base.pop(key, None)}
    config = parse_configuration({**base, **values}).model_dump(mode="json")
    return form | {key: [config[key]] if key in spec.axes else config[key] for key in sorted(filled)}


def complete(form: Mapping[str, Any]) -> dict[str, Any]:
    """The same form with its preset written out, so that no value is taken for one that was left as it shows."""
    preset = str(form.get("preset", DEFAULT))
    return {**form} if preset == DEFAULT else {**MATRICES[DAG_ID].complete(preset), **form, "preset": DEFAULT}


def matrix_of(form: Mapping[str, Any]) -> Matrix:
    """The matrix that a form asks for. Raises ConfigError for what this machine cannot run."""
    spec = MATRICES[DAG_ID]
    matrix = Matrix.under({**spec.complete(str(form.get("preset", DEFAULT))), **form}, spec.axes)
    for config in {cell.config for cell in matrix.cells("unnamed")}:
        check_here(config)
    return matrix


def build_of(form: Mapping[str, Any], settings: Settings) -> str:
    """The build that the form names, or the one that is installed."""
    return form.get("build") or installed_build(settings)


def budget_s(cell: PlannedCell) -> float:
    """Seconds that an experiment takes, about."""
    filling = cell.config.kind.filling(cell.config.own, cell.config)
    return (0.0 if filling is None else filling.typical_s) + cell.config.warmup_s + cell.config.duration_s + OVERHEAD_S


def to_measure(cells: Sequence[PlannedCell], missing: Sequence[PlannedCell]) -> str:
    """What is left to do, in a line."""
    minutes = sum(map(budget_s, missing)) / 60
    return f"{len(missing)} of {len(cells)} experiments to measure, about {minutes:.0f} min"


def describe(given: Sequence[str]) -> str:
    """The dry run: what would be measured."""
    form, settings = form_of(given), load_settings()
    # Of a broker that was never started nothing is known yet, and then the build is another one.
    build = build_of(form, settings)
    cells = matrix_of(form).cells(build)
    return f"{to_measure(cells, newest_records(settings, cells)[1])} (build {build})"


def run_all(given: Sequence[str], say: Say) -> tuple[list[Record], list[PlannedCell]]:
    """Measures what has no valid record yet; returns the records, and the cells that still lack a valid one."""
    form = form_of(given)
    matrix = matrix_of(form)
    settings = bring_up(say)
    cells = matrix.cells(build_of(form, settings))
    records, missing = newest_records(settings, cells)
    if missing:
        say(to_measure(cells, missing))
        api = AirflowApi(settings)
        await_dags(api, DAG_ID, "experiment")
        run_id = f"nexmark_{datetime.now(UTC):%Y%m%dT%H%M%SZ}_{secrets.token_hex(2)}"
        api.trigger(DAG_ID, complete(form), run_id=run_id)
        follow(api, settings, DAG_ID, run_id, cells, say, budget_s=budget_s(missing[0]))
        records, missing = newest_records(settings, cells)
    return records, missing


def print_queries(records: Sequence[Record]) -> None:
    """One line a query: medians of its valid repetitions."""
    points = sorted(points_of([Entry.of(record) for record in records]), key=lambda one: natural(one.config["query"]))
    broken = not all(point.control for point in points)
    own_pace = any(not has_schedule(point.config) for point in points)
    columns = _columns(broken=broken, own_pace=own_pace)
    table = Table(title="Nexmark: medians of the valid repetitions")
    for column in columns:
        table.add_column(column.heading, justify="left" if column.heading == "query" else "right")
    for point in points:
        table.add_row(*(column.text(point) for column in columns))
    Console(width=None if Console().is_terminal else 120).print(table)
    print("cores: executors and Python workers")
    if broken:
        print(
            "> n: not recovered within the n s watched, which is never seen where results are rare (docs/matrices.md)"
        )
    if own_pace:
        print("with driver: events/s/core when the driver's cores count as well")
        print("p50, p99: how long a result's batch took (docs/matrices.md#nexmark)")


def _columns(*, broken: bool, own_pace: bool) -> list[Column]:
    """What is told of a query: with the driver where it ran as fast as it can, its recovery where it was broken."""
    return [
        Column("query", lambda point: str(point.config["query"])),
        _median("events/s", "throughput_rps"),
        Column("cores", _cores),
        _median("events/s/core", "rps_per_core"),
        *([Column("with driver", _with_driver)] if own_pace else []),
        *([_median("recovery s", MACRO, digits=1)] if broken else []),
        *([] if own_pace else [total("audit.lost", "lost"), total("audit.wrong", "wrong")]),
        _median("p50 ms", "latency_ms.p50"),
        _median("p99 ms", "latency_ms.p99"),
        _median("state MB", "state_bytes.checkpoint", scale=1e-6, digits=1),
        _median("GC s", "gc_s", digits=1),
        N,
    ]


def _median(name: str, key: str, *, scale: float = 1.0, digits: int = 0) -> Column:
    def text(point: Point) -> str:
        figure = point.figure(key)
        if figure.median is None:
            return "—"
        return f"{'> ' if figure.bound else ''}{figure.median * scale:,.{digits}f}"

    return Column(name, text)


def _cores(point: Point) -> str:
    used = [point.figure(f"cpu_cores.{role}").median for role in WORKERS]
    known = [cores for cores in used if cores is not None]
    return f"{sum(known):.2f}" if known else "—"


def _with_driver(point: Point) -> str:
    if has_schedule(point.config):
        return "—"
    keys = ("throughput_rps", "rps_per_core", "cpu_cores.driver")
    known = [with_driver(*(entry.metrics.get(key) for key in keys)) for entry in point.valid]
    values = [value for value in known if value is not None]
    return f"{statistics.median(values):,.0f}" if values else "—"


def main(given: Sequence[str], say: Say) -> int:
    """The command; returns the exit code: 0 when every query has its valid records."""
    records, missing = run_all(given, say)
    print_queries(records)
    for cell in missing:
        why = next((one.reasons[0] for one in reversed(records) if one.config_id == cell.config.config_id
                    and one.reasons), "it was not measured")  # fmt: skip
        query = cell.config.kind.title(cell.config.model_dump())
        say(f"no valid record for {query} ({why}); the same command measures it again")
    measured = [record for record in records if record.sound and record.sweep_id]
    if measured:
        sweeps = " ".join(f"--sweep {sweep}" for sweep in sorted({str(record.sweep_id) for record in measured}))
        say(f"as a page: ./faultline results {sweeps} --page FILE; what happened in one: ./faultline explain ATTEMPT")
    say(f"the page: {load_settings().endpoints.airflow}/faultline/")
    return 1 if missing else 0
