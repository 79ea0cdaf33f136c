"""Terminal output: the table of runs, and the report about one run."""

from __future__ import annotations

import io
import itertools
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from faultline.experiment.workloads.registry import has_schedule, workload_of
from faultline.records.columns import CatalogueColumn, Sheet
from faultline.records.find import find_record
from faultline.records.format import (
    CONTROL,
    NONE,
    WIDTH,
    count,
    fault_of,
    milliseconds,
    plain,
    seconds,
    signed,
    throughput,
    window_of,
)
from faultline.records.record import USABLE, Record
from faultline.reports.views.experiment_report import FaultReport, RecoverySpan, ReportEvent
from faultline.reports.views.run import RunView, run_view
from faultline.reports.views.runs import load_parts, rerun_command, table_rows, used_columns
from faultline.reports.views.series import has_curves
from faultline.system.errors import ConfigError
from faultline.system.files import check_output_path
from faultline.system.settings import Settings

_SHORT = {"executors": "exec.", "generator": "gen.", "Overcounted": "Over"}
_LEGEND = (
    "p50, p99: latency in ms (≤ n: maximum, for fewer than 100 batches); CPU in cores, by role (exec.: executors, "
    "gen.: generator); Over: overcounted; > n: not recovered within n s (censored); —: not applicable or unknown; "
    "Faults: injections of the run, recoveries are their medians; dimmed: does not count."
)
BAR_WIDTH = 48
# Minimum width for a separate column of evidence.
MIN_EVIDENCE_WIDTH = 110
# Width before a bar: longest name, seconds and spacing.
_BAR_MARGIN = 32
_SEEN, _UNSEEN, _SLIVER = "█", "░", "▏"
_STATUS_STYLE = {
    "valid": "green",
    "unmet": "yellow",
    "invalid": "yellow",
    "failed": "red",
    "cancelled": "red",
}
MAX_OFFENDERS = 10
MAX_KEY = 40


def print_table(records: Sequence[Record]) -> None:
    """Print the table; if the output is not a terminal, with a width of 120 characters."""
    Console(width=None if sys.stdout.isatty() else WIDTH).print(ResultTable(table_rows(records)))


class ResultTable(Table):
    """Result table that splits its columns into several tables if they do not fit."""

    def __init__(self, rows: Sequence[Mapping[str, str]]) -> None:
        super().__init__()
        self._texts = list(rows)
        self._columns = used_columns(self._texts)
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
        """Return one table if it fits (with narrow gaps if necessary), else as few tables as possible."""
        for gap in (2, 1):
            single = self._part(self._columns, gap)
            if self._width(console, options, single) <= options.max_width:
                return [single]
        parts: list[list[CatalogueColumn]] = []
        groups = [list(group) for _, group in itertools.groupby(self._columns, lambda column: column.group)]
        identity, last = groups[0], groups[-1]
        for group in [*groups[1:-2], [*groups[-2], *last]]:
            fits = self._width(console, options, self._part([*identity, *group])) <= options.max_width
            for piece in [group] if fits else [[column] for column in group]:
                together = self._part([*parts[-1], *piece]) if parts else None
                if together is not None and self._width(console, options, together) <= options.max_width:
                    parts[-1] += piece
                else:
                    parts.append([*identity, *piece])
        return [self._part(columns) for columns in parts]

    def _part(self, columns: Sequence[CatalogueColumn], gap: int = 2) -> Table:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, gap - 1, 0, 0), show_edge=False)
        _fill(table, columns, self._texts)
        return table

    @staticmethod
    def _width(console: Console, options: ConsoleOptions, table: Table) -> int:
        return table.__rich_measure__(console, options.update(width=10_000)).maximum


def _heading(column: CatalogueColumn) -> str:
    """Return a heading of two lines: name and unit, or for CPU the group, which has no heading of its own."""
    name = column.head(Sheet.RUNS)
    name = _SHORT.get(name, name)
    return f"CPU\n{name}" if column.group == "CPU" else f"{name}\n{'' if column.group == 'Audit' else column.unit}"


def _fill(table: Table, columns: Sequence[CatalogueColumn], rows: Sequence[Mapping[str, str]]) -> None:
    for column in columns:
        justify: Literal["left", "right"] = "left" if column.left else "right"
        table.add_column(_heading(column), justify=justify, no_wrap=True)
    for row in rows:
        # rich would interpret a plain string as markup.
        table.add_row(*(Text(row[column.key]) for column in columns), style="" if row["status"] in USABLE else "dim")


def render_run(view: RunView, width: int) -> RenderableType:
    """Return the report about one run for a console of `width` characters."""
    report, wide = view.report, width >= MIN_EVIDENCE_WIDTH
    parts: list[RenderableType] = [_head(view)]
    if not report.faults:
        control = fault_of(view.record.config) == CONTROL
        parts.append(_title("No fault" + (" (control run)" * control)))
    else:
        parts.append(_title("Events of the experiment"))
    parts.append(_timeline(report.attempt_events, of_fault=False, wide=wide))
    for fault in report.faults:
        parts += _fault(fault, width)
    if report.restarts:
        parts.append(_title("Restarts"))
    for restart in report.restarts:
        when = f"T0 {signed(restart.after_gate_s, 3)} s: " if restart.after_gate_s is not None else ""
        parts.append(_indented(Text.assemble(when, f"{restart.who}: {restart.what}", (f"  ({restart.source})", "dim"))))
    parts += _audit(view)
    if view.clocks:
        parts += [_title("Clock offsets of other hosts"), _indented(Text(view.clocks))]
    if view.latency_clock:
        parts += [_title("Latency clock"), _indented(Text(view.latency_clock))]
    if report.remarks:
        parts += [_title("Remarks"), *(_indented(Text(remark, style="yellow")) for remark in report.remarks)]
    return Group(*parts)


def _head(view: RunView) -> RenderableType:
    """Return identity, status and configuration of the run."""
    record, latency = view.record, view.record.metrics.latency_ms
    style = f"bold {_STATUS_STYLE.get(record.status, '')}".strip()
    lines: list[RenderableType] = [Text.assemble((record.attempt, "bold"), "  ", (record.status, style))]
    lines += [_indented(Text(reason, style="yellow")) for reason in view.reasons]
    origin = f" · matrix {record.matrix}" if record.matrix else ""
    when = record.measured_at[:19].replace("T", " ")
    lines += [
        Text(_configuration(record)),
        Text(
            f"{fault_of(record.config)} · configuration {record.config_id}, repetition {record.repetition}, series "
            f"{record.series}, build {record.build}{origin} · {when} UTC"
        ),
        # Not wrapped, so that it can be copied.
        Text(f"rerun: {rerun_command(record)}", style="dim", no_wrap=True, overflow="ignore"),
    ]
    if view.has_figures:
        figures = f"p50 {milliseconds(latency.p50)} ms, p99 {milliseconds(latency.p99)} ms"
        lines.append(Text(f"latency {figures}, max {milliseconds(latency.max)} ms · {throughput(record)}"))
    if view.lost_cores:
        lines.append(Text(f"{view.lost_cores}"))
    return Group(*lines)


def _configuration(record: Record) -> str:
    """Return the configuration in one line; missing values are shown as `?`."""
    config, (warmup_s, measured_s) = record.config, window_of(record)

    def value(name: str) -> str:
        return plain(config.get(name, "?"))

    kind = workload_of(config)
    workload, *load = load_parts(config)
    counted = [f"state {value('state_mb')} MB"] if kind.title(config) is None else []
    interval = [f"interval {value('checkpoint_interval_s')} s"] if has_schedule(config) else []
    return " · ".join(
        [
            workload,
            *kind.details(config),
            *load,
            *counted,
            *interval,
            value("commit_mode"),
            f"{value('executors')} × {value('executor_cores')} cores",
            f"warm-up {plain(warmup_s)} s, measured {plain(measured_s)} s",
        ]
    )


def _fault(fault: FaultReport, width: int) -> Iterable[RenderableType]:
    """Yield the plan, outcome, recovery parts and events of one fault."""
    yield _title(f"Fault {fault.number}: {fault.what}")
    yield _indented(Text(fault.headline, style="bold red" if fault.is_censored else "bold"))
    for name, value in fault.facts:
        yield _indented(Text(f"{name.lower()}: {value}"))
    if fault.spans:
        yield Text()
        yield _bars(fault, width)
    yield _timeline(fault.events, of_fault=True, wide=width >= MIN_EVIDENCE_WIDTH)


def _bars(fault: FaultReport, width: int) -> Table:
    """Return one row per part, with a bar for its position and length in the recovery."""
    bar_width = max(10, min(BAR_WIDTH, width - _BAR_MARGIN))
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for justify in ("left", "right", "left"):
        table.add_column(justify=justify, no_wrap=True)
    for span in fault.spans:
        bar = Text(bar_text(span, fault.total_s, bar_width), style="cyan")
        table.add_row(Text(f"  {span.name}"), Text(f"{seconds(span.length_s, 2)} s"), bar)
    return table


def bar_text(span: RecoverySpan, total_s: float, width: int = BAR_WIDTH) -> str:
    """Return the bar of a part; `width` characters stand for `total_s` seconds. A short part still gets a thin bar."""
    if total_s <= 0:
        return ""
    left, right = (round(at / total_s * width) for at in (span.start_s, span.start_s + span.length_s))
    if right > left:
        return " " * left + (_SEEN if span.seen else _UNSEEN) * (right - left)
    return " " * min(left, width - 1) + (_SLIVER if span.length_s > 0 else "")


def _timeline(events: Sequence[ReportEvent], *, of_fault: bool, wide: bool) -> RenderableType:
    """Return a table of events: seconds after T0 and t0, name and evidence."""
    if not events:
        return _indented(Text("no known event", style="dim"))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False)
    table.add_column("  after T0, s", justify="right", no_wrap=True)
    if of_fault:
        table.add_column("after t0, s", justify="right", no_wrap=True)
    table.add_column("event", no_wrap=wide, overflow="fold")
    if wide:
        table.add_column("evidence", overflow="fold")
    for event in events:
        instants = [event.after_gate, *([event.after_fault] if of_fault else [])]
        name, evidence = Text(f"{event.letter} {event.words}".strip()), Text(event.source, style="dim")
        table.add_row(*map(Text, instants), *([name, evidence] if wide else [Text("\n").join([name, evidence])]))
    return Padding(table, (1, 0, 0, 0))


def _audit(view: RunView) -> Iterable[RenderableType]:
    if not view.audit:
        return
    yield _title("Audit")
    yield _indented(
        Text(" · ".join(f"{text} {metric.head(Sheet.AUDIT)}" for metric, text in view.audit if text != NONE))
    )
    offenders = view.report.offenders
    if not offenders:
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False)
    for name in ("  kind", "key", "expected", "final"):
        table.add_column(name, justify="right" if name in ("expected", "final") else "left", overflow="fold")
    for offender in offenders[:MAX_OFFENDERS]:
        numbers = [_number(offender.get(name)) for name in ("expected", "final")]
        table.add_row(Text(f"  {offender.get('kind')}"), Text(shorten_key(offender.get("key"))), *map(Text, numbers))
    yield Padding(table, (1, 0, 0, 0))
    if len(offenders) > MAX_OFFENDERS:
        yield _indented(Text(f"{len(offenders) - MAX_OFFENDERS} more in audit.json", style="dim"))


def shorten_key(key: Any) -> str:
    """Return a key as text; a long key, such as a filler word of 1,000 characters, is cut and its length added."""
    text = str(key)
    return text if len(text) <= MAX_KEY else f"{text[:MAX_KEY]}… ({count(len(text))} characters)"


def _number(value: Any) -> str:
    return count(value) if isinstance(value, int | float) else NONE if value is None else str(value)


def _title(text: str) -> RenderableType:
    return Padding(Text(text, style="bold underline"), (1, 0, 0, 0))


def _indented(text: Text) -> RenderableType:
    return Padding(text, (0, 0, 0, 2))


# Implementation of `./faultline explain RECORD`.


def explain(record_ref: str, settings: Settings, *, plot: Path | None = None) -> str:
    """Return the report about one record as text, and write its HTML page.

    `record_ref`: path of a record, attempt id, unique prefix of one, or `last`. `plot`: path of the page (default:
    results/reports/<attempt>.html). The text is coloured only in a terminal. Raises ConfigError if the record is
    missing or the given `plot` cannot be written.
    """
    view, page, problem = _load_view(record_ref, settings, plot)
    terminal = sys.stdout.isatty()
    text = io.StringIO()
    width = Console().width if terminal else WIDTH
    # Pipes get plain text even if the environment forces colours.
    console = Console(file=text, width=width, force_terminal=terminal, color_system="auto" if terminal else None)
    console.print(render_run(view, width), highlight=False, crop=False)
    console.print(Text(f"\nPlot: {page}" if page else f"\nNo plot: {problem}"), soft_wrap=True)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


def explain_json(record_ref: str, settings: Settings, *, plot: Path | None = None) -> dict[str, Any]:
    """Return the facts of `explain` as a JSON object; its key `plot` holds the path of the page, or null."""
    view, page, _ = _load_view(record_ref, settings, plot)
    return {**view.as_dict(), "plot": str(page) if page else None}


def _load_view(record_ref: str, settings: Settings, plot: Path | None) -> tuple[RunView, Path | None, str]:
    """Return the view, the path of its page, and the cause of a missing page."""
    if plot is not None:
        check_output_path(plot, "--plot")
    record, results = find_record(record_ref, settings)
    view = run_view(record, results)
    if plot is None and not has_curves(results / "attempts" / record.attempt):
        return view, None, f"attempts/{record.attempt}/series.json is missing"
    from faultline.reports.report import write_report

    target = plot or settings.results / "reports" / f"{record.attempt}.html"
    try:
        return view, write_report([record], results, target, title=f"Attempt {record.attempt}"), ""
    except OSError as error:
        problem = f"writing {target} failed: {error.strerror}"
        if plot is not None:
            raise ConfigError(f"--plot: {problem}; fix: choose a writable path") from None
        return view, None, problem
