"""The result table: what each experiment came to, in the terminal and in the report.

`plain_rows` makes the texts once, so that both show the same figures.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from faultline.experiment.workloads.registry import has_schedule, workload_of
from faultline.records.format import (
    CONTROL,
    FAULT_KEYS,
    NONE,
    WIDTH,
    cores,
    count,
    fault_of,
    macro,
    milliseconds,
    plain,
    seconds,
    tail,
    title_of,
)
from faultline.records.record import SOUND, Record
from faultline.reports.recovery_words import repeated_parts
from faultline.system.text import sortable

_SHOWN = frozenset({"query", "state_mb", "checkpoint_interval_s", "restart_delay_s"}) | FAULT_KEYS


@dataclass(frozen=True)
class Column:
    """A column: its key in `plain_rows`, the group above it, its name and its unit."""

    key: str
    group: str
    name: str
    unit: str = ""

    @property
    def left(self) -> bool:
        """Whether its texts begin at the left: words do, numbers end at the right."""
        return self.key in ("query", "fault", "status")

    @property
    def heading(self) -> str:
        """Two short lines for the terminal, where a group has no line of its own."""
        name = _SHORT.get(self.name, self.name)
        return f"CPU\n{name}" if self.group == "CPU" else f"{name}\n{self.unit}"


_SHORT = {"executors": "exec.", "generator": "gen.", "Overcounted": "Over"}

IDENTITY = (
    Column("number", "Experiment", "#"),
    Column("query", "Experiment", "Query"),
    Column("state_mb", "Experiment", "State", "MB"),
    Column("interval_s", "Experiment", "Interval", "s"),
    Column("fault", "Experiment", "Fault"),
    Column("repetition", "Experiment", "Rep"),
)
GROUPS = (
    (Column("throughput", "Throughput", "Handled", "per s"),),
    (Column("p50_ms", "Latency", "p50", "ms"), Column("p99_ms", "Latency", "p99", "ms")),
    (
        Column("cpu_driver", "CPU", "driver", "cores"),
        Column("cpu_executors", "CPU", "executors", "cores"),
        Column("cpu_python", "CPU", "python", "cores"),
        Column("cpu_kafka", "CPU", "kafka", "cores"),
        Column("cpu_generator", "CPU", "generator", "cores"),
    ),
    (
        Column("reload_s", "Recovery", "Reload", "s"),
        Column("replay_s", "Recovery", "Replay", "s"),
        Column("macro_s", "Recovery", "Macro", "s"),
        Column("recoveries", "Recovery", "Faults"),
    ),
    (
        Column("lost", "Audit", "Lost"),
        Column("undrained", "Audit", "Undrained"),
        Column("overcounted", "Audit", "Overcounted"),
        Column("status", "", "Status"),
    ),
)
COLUMNS = (*IDENTITY, *(column for group in GROUPS for column in group))
# Others are left out where they say nothing: most workloads have no queries to choose from, or no Python workers.
_ALWAYS = frozenset({"number", "fault", "p50_ms", "p99_ms", "status"})
_LEGEND = (
    "p50, p99: latency in ms (≤ n: fewer than 100 batches, so the slowest stands for the p99); CPU in cores, by role "
    "(exec.: executors, gen.: generator); Over: overcounted. > n: known not to have recovered within n s; —: does not "
    "apply, or unknown. Faults: injections of the run; recoveries are medians over them. Dim: does not count."
)


def load_of(config: Mapping[str, Any]) -> list[str]:
    """A workload and what it was offered, in parts: `nexmark`, `query q5`, `as fast as it can`."""
    title = workload_of(config).title(config)
    rate = config.get("rate", "?")
    offered = f"{rate:,.10g}" if isinstance(rate, int | float) else plain(rate)
    offered = f"{offered} records/s" if has_schedule(config) else "as fast as it can"
    return [str(config.get("workload", "?")), *([title] if title else []), offered]


def name_of(record: Record) -> str:
    """One experiment in a few words."""
    return title_of(record.config)


def ordered(records: Sequence[Record]) -> list[Record]:
    """By workload, state, interval, what else differs, then faults before controls, repetition and attempt."""
    others = sorted(_varying(records) - {"state_mb", "checkpoint_interval_s"} - FAULT_KEYS)

    def key(record: Record) -> tuple[Any, ...]:
        config = record.config
        axes = ("workload", "state_mb", "checkpoint_interval_s", *others)
        return (
            *(sortable(config.get(name)) for name in axes),
            fault_of(config) == CONTROL,
            fault_of(config),
            record.repetition,
            record.attempt,
        )

    return sorted(records, key=key)


def _handles_other(record: Record) -> bool:
    """Whether what was handled is a figure: where records keep a schedule and the engine keeps up, it is the offer."""
    kind = workload_of(record.config)
    return kind.counts != "records" or not has_schedule(record.config) or record.metrics.sustained is False


def plain_rows(records: Sequence[Record]) -> list[dict[str, str]]:
    """One row of texts for each record, sorted by the matrix's axes.

    Keys: those of COLUMNS, `reason` (the first one, else empty) and `varies` (other parameters in which
    the records differ, else empty).
    """
    others = sorted(_varying(records) - _SHOWN)
    repeated = len({record.repetition for record in records}) > 1
    builds = len({record.build for record in records}) > 1
    # Beside figures of others a dash would look like something that nobody knows.
    usual = "offered" if any(map(_handles_other, records)) else NONE
    rows = []
    for number, record in enumerate(ordered(records), start=1):
        metrics, config = record.metrics, record.config
        kind = workload_of(config)
        # What one was not given says nothing of it, whatever others were.
        varies = [f"{name} {plain(config[name])}" for name in others if config.get(name) is not None]
        varies += [f"build {record.build}"] if builds else []
        rows.append(
            {
                "number": str(number),
                "query": plain(config.get("query", NONE)) if "query" in kind.parameters.model_fields else NONE,
                "state_mb": plain(config.get("state_mb", NONE)) if kind.can("preloaded_state") else NONE,
                # As fast as it can, a batch follows the one before it.
                "interval_s": plain(config.get("checkpoint_interval_s", NONE)) if has_schedule(config) else NONE,
                "fault": fault_of(config),
                "repetition": str(record.repetition) if repeated else NONE,
                "throughput": count(metrics.throughput_rps) if _handles_other(record) else usual,
                "p50_ms": milliseconds(metrics.latency_ms.p50),
                "p99_ms": tail(metrics.latency_ms),
                "cpu_driver": cores(metrics.cpu_cores.driver),
                "cpu_executors": cores(metrics.cpu_cores.executors),
                "cpu_python": cores(metrics.cpu_cores.python_workers),
                "cpu_kafka": cores(metrics.cpu_cores.kafka),
                "cpu_generator": cores(metrics.cpu_cores.generator),
                "reload_s": seconds(metrics.recovery.reload_s),
                "replay_s": seconds(metrics.recovery.replay_s),
                "macro_s": macro(record),
                "recoveries": _times(record),
                "lost": count(metrics.audit.lost),
                "undrained": count(metrics.audit.undrained or None),
                "overcounted": count(metrics.audit.overcounted),
                "status": record.status,
                "reason": record.reasons[0] if record.reasons else "",
                "varies": ", ".join(varies),
            }
        )
    return rows


def _times(record: Record) -> str:
    """The number of recoveries whose medians a run's row shows; of how many injections, where some were not seen."""
    planned, seen = len(record.metrics.recoveries), len(repeated_parts(record))
    if not seen:
        return NONE
    return str(seen) if seen == planned else f"{seen} of {planned}"


def columns_of(rows: Sequence[Mapping[str, str]]) -> list[Column]:
    """The columns that these rows need: all, but those in which nothing is known of any, or no CPU was used."""
    useless = {NONE, cores(0)}
    return [
        column for column in COLUMNS if not rows or column.key in _ALWAYS or {row[column.key] for row in rows} - useless
    ]


def result_table(records: Sequence[Record]) -> Table:
    """The table for a terminal of 120 columns; narrower ones get the same figures in several tables."""
    return ResultTable(plain_rows(records))


def print_table(records: Sequence[Record]) -> None:
    """Prints the table on standard output; a pipe or a file, which has no width of its own, gets 120 columns."""
    Console(width=None if sys.stdout.isatty() else WIDTH).print(result_table(records))


class ResultTable(Table):
    """All columns beside each other where they fit, else some of them below the others, none left out."""

    def __init__(self, rows: Sequence[Mapping[str, str]]) -> None:
        super().__init__()
        self._texts = list(rows)
        self._columns = columns_of(self._texts)
        _fill(self, self._columns, self._texts)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for index, part in enumerate(self._parts(console, options)):
            if index:
                yield Text()
            yield part
        yield Padding(Text(_LEGEND, style="dim"), (1, 0, 0, 0))
        for row in self._texts:
            if row["varies"]:
                yield Text(f"{row['number']}: {row['varies']}", style="dim")
            if row["reason"]:
                yield Text(f"{row['number']} {row['status']}: {row['reason']}", style="yellow")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        width = min(self._width(console, options, self._part(self._columns)), options.max_width)
        return Measurement(width, width)

    def _parts(self, console: Console, options: ConsoleOptions) -> list[Table]:
        """One table, with less space between its columns if need be; else as few as hold all columns."""
        for gap in (2, 1):
            whole = self._part(self._columns, gap)
            if self._width(console, options, whole) <= options.max_width:
                return [whole]
        parts: list[list[Column]] = []
        identity = [column for column in IDENTITY if column in self._columns]
        for every in GROUPS:
            group = [column for column in every if column in self._columns]
            if not group:
                continue
            fits = self._width(console, options, self._part([*identity, *group])) <= options.max_width
            for piece in [group] if fits else [[column] for column in group]:
                together = self._part([*parts[-1], *piece]) if parts else None
                if together is not None and self._width(console, options, together) <= options.max_width:
                    parts[-1] += piece
                else:
                    parts.append([*identity, *piece])
        return [self._part(columns) for columns in parts]

    def _part(self, columns: Sequence[Column], gap: int = 2) -> Table:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, gap - 1, 0, 0), show_edge=False)
        _fill(table, columns, self._texts)
        return table

    @staticmethod
    def _width(console: Console, options: ConsoleOptions, table: Table) -> int:
        return table.__rich_measure__(console, options.update(width=10_000)).maximum


def _fill(table: Table, columns: Sequence[Column], rows: Sequence[Mapping[str, str]]) -> None:
    for column in columns:
        justify: Literal["left", "right"] = "left" if column.left else "right"
        table.add_column(column.heading, justify=justify, no_wrap=True)
    for row in rows:
        # Text, because a plain string would be read as markup.
        table.add_row(*(Text(row[column.key]) for column in columns), style="" if row["status"] in SOUND else "dim")


def _varying(records: Sequence[Record]) -> set[str]:
    """Configuration keys whose values differ between the records, but for a length of windows that follows."""
    keys = {key for record in records for key in record.config}
    found = {key for key in keys if len({repr(record.config.get(key)) for record in records}) > 1}
    return found - {"duration_s"} if found & {"checkpoint_interval_s", "fault"} else found
