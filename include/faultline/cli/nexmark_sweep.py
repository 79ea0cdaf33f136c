"""`./faultline run nexmark` without a query: run the matrix `nexmark` and print a table of queries."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from faultline.cli.sweep_arguments import SweepRequest
from faultline.cli.sweep_arguments import parse_sweep as sweep_of
from faultline.cli.sweep_runner import dry_run_lines, run_request
from faultline.comparison.config_points import Point, points_of
from faultline.comparison.findings.nexmark import with_driver
from faultline.experiment.workloads.registry import has_schedule
from faultline.records.catalogue import BY_KEY, MACRO
from faultline.records.columns import Sheet
from faultline.records.index_entry import IndexEntry
from faultline.records.record import Record
from faultline.reports.markdown.tables import COUNT_COLUMN, MarkdownColumn, markdown_column
from faultline.system.process_tags import WORKERS
from faultline.system.text import Progress, natural_key

DAG_ID = "nexmark"


def parse_nexmark(given: Sequence[str]) -> SweepRequest:
    """Return the requested sweep. Raises ConfigError if this machine cannot run it."""
    return sweep_of([DAG_ID, *given])


def nexmark_dry_run(given: Sequence[str]) -> list[str]:
    """Return the lines of a dry run."""
    return dry_run_lines(parse_nexmark(given))


def print_queries(records: Sequence[Record]) -> None:
    """Print a line per query: medians of its valid repetitions."""
    points = sorted(
        points_of([IndexEntry.of(record) for record in records]), key=lambda one: natural_key(one.config["query"])
    )
    has_faults = not all(point.is_control for point in points)
    closed_loop = any(not has_schedule(point.config) for point in points)
    columns = _columns(has_faults=has_faults, closed_loop=closed_loop)
    table = Table(title="Nexmark: medians of the valid repetitions")
    for column in columns:
        table.add_column(column.heading, justify="left" if column.heading == "query" else "right")
    for point in points:
        table.add_row(*(column.text(point) for column in columns))
    Console(width=None if Console().is_terminal else 120).print(table)
    print("cores: executors and Python workers")
    if has_faults:
        print("> n: not recovered within n s; not observable for rare results (docs/reference/workloads.md)")
    if closed_loop:
        print("with driver: events/s/core including the cores of the driver")
        print("p50, p99: duration of the micro-batch of a result (docs/reference/workloads.md#nexmark)")


def _columns(*, has_faults: bool, closed_loop: bool) -> list[MarkdownColumn]:
    """Return the columns: cost with the driver for closed-loop runs, recovery for runs with a fault."""
    return [
        MarkdownColumn("query", lambda point: str(point.config["query"])),
        _median("events/s", "throughput_rps"),
        MarkdownColumn("cores", _cores),
        _median("events/s/core", "rps_per_core"),
        *([MarkdownColumn("with driver", _with_driver)] if closed_loop else []),
        *([_median("recovery s", MACRO, digits=1)] if has_faults else []),
        *(
            []
            if closed_loop
            else [markdown_column(BY_KEY[key], Sheet.AUDIT) for key in ("audit.lost", "audit.unexpected")]
        ),
        _median("p50 ms", "latency_ms.p50"),
        _median("p99 ms", "latency_ms.p99"),
        _median("state MB", "state_bytes.checkpoint", scale=1e-6, digits=1),
        _median("GC s", "gc_s", digits=1),
        COUNT_COLUMN,
    ]


def _median(name: str, key: str, *, scale: float = 1.0, digits: int = 0) -> MarkdownColumn:
    def text(point: Point) -> str:
        figure = point.figure(key)
        if figure.median is None:
            return "—"
        return f"{'> ' if figure.bound else ''}{figure.median * scale:,.{digits}f}"

    return MarkdownColumn(name, text)


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


def main(given: Sequence[str], progress: Progress) -> int:
    """Run the matrix; return 0 if every query has its usable records, else 1."""
    return run_request(parse_nexmark(given), progress, show=print_queries)
