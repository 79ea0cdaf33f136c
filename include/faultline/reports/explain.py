"""`./faultline explain RECORD`: one experiment as text and plot: what happened, when, and by whose evidence."""

from __future__ import annotations

import io
import json
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from faultline.experiment.config import Configuration, parse_configuration
from faultline.experiment.workloads.registry import has_schedule, workload_of
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
    share,
    signed,
    throughput,
    window_of,
)
from faultline.records.record import JUDGED, Record
from faultline.reports.curves import are_known
from faultline.reports.disturbance import lost_text, reasons_of
from faultline.reports.narrative import FaultStory, Happening, Span, Story, tell
from faultline.reports.table import load_of
from faultline.system.errors import ConfigError
from faultline.system.files import check_target
from faultline.system.settings import Settings

BAR_WIDTH = 48
# From this width on the evidence stands beside the event.
EVIDENCE_BESIDE = 110
# What stands before a bar: the longest name, the seconds, and the space between.
_BESIDE_BARS = 32
_SEEN, _UNSEEN, _SLIVER = "█", "░", "▏"
_STATUS_STYLE = {
    "valid": "green",
    "unmet": "yellow",
    "unsound": "yellow",
    "invalid": "yellow",
    "failed": "red",
    "cancelled": "red",
}
# Given by the workload's name, or following from the others.
_NOT_RETYPED = {"workload", "truth"}
_SHORT_FORM = {"fault", "fault_action", "fault_at_s"}
MAX_OFFENDERS = 10
MAX_KEY = 40


def explain(record_ref: str, settings: Settings, *, plot: Path | None = None) -> str:
    """The story of one record as text, and its plot page.

    `record_ref`: path of a record, attempt id, unique beginning of one, or `last`. `plot`: where the page goes, by
    default results/reports/<attempt>.html. Coloured only when standard output is a terminal. Raises ConfigError when
    there is no such record, or the given `plot` cannot be written.
    """
    story, page, problem = _explained(record_ref, settings, plot)
    terminal = sys.stdout.isatty()
    text = io.StringIO()
    width = Console().width if terminal else WIDTH
    # Whoever reads a pipe wants the text alone, whatever the environment says about colours.
    console = Console(file=text, width=width, force_terminal=terminal, color_system="auto" if terminal else None)
    console.print(render_story(story, width), highlight=False, crop=False)
    console.print(Text(f"\nPlot: {page}" if page else f"\nNo plot: {problem}"), soft_wrap=True)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


def explain_json(record_ref: str, settings: Settings, *, plot: Path | None = None) -> dict[str, Any]:
    """The same facts as one JSON object; `plot` in it is the page's path, null when there is none."""
    story, page, _ = _explained(record_ref, settings, plot)
    return {**story.as_dict(), "plot": str(page) if page else None}


def _explained(record_ref: str, settings: Settings, plot: Path | None) -> tuple[Story, Path | None, str]:
    """The story, its page, and why there is no page."""
    if plot is not None:
        check_target(plot, "--plot")
    record, results = find_record(record_ref, settings)
    story = tell(record, results)
    if plot is None and not are_known(results / "attempts" / record.attempt):
        return story, None, f"attempts/{record.attempt}/series.json is missing"
    from faultline.reports.report import write_report

    target = plot or settings.results / "reports" / f"{record.attempt}.html"
    try:
        return story, write_report([record], results, target, title=f"Attempt {record.attempt}"), ""
    except OSError as error:
        problem = f"{target}: cannot be written ({error.strerror})"
        if plot is not None:
            raise ConfigError(f"--plot {problem}; give another file") from None
        return story, None, problem


def render_story(story: Story, width: int) -> RenderableType:
    """The text, for a rich console of `width` characters."""
    record, wide = story.record, width >= EVIDENCE_BESIDE
    parts: list[RenderableType] = [_head(record)]
    if not story.faults:
        control = fault_of(record.config) == CONTROL
        parts.append(_title("No fault" + (": this is a control" * control)))
        parts.append(_timeline(story.edges, of_fault=False, wide=wide))
    else:
        parts += [_title("The experiment"), _timeline(story.edges, of_fault=False, wide=wide)]
        for fault in story.faults:
            parts += _fault(fault, width)
    if story.restarts:
        parts += [_title("Who started what again"), _restarts(story)]
    if record.status in JUDGED:
        parts += _audit(story)
    if offsets := record.environment.clock_offsets:
        told = ", ".join(
            f"{host} {signed(one.offset_s * 1000, 1)} ms (asked in {one.round_trip_s * 1000:.1f} ms)"
            for host, one in offsets.items()
        )
        parts.append(_title("Clocks of other hosts, ahead of this one"))
        parts.append(_indented(Text(told)))
    if (ends := record.environment.latency_clock) is not None:
        known = "nobody knows how exactly" if ends.uncertain_ms is None else f"known to {ends.uncertain_ms:.2f} ms"
        told = f"that of {ends.host}, {signed(ends.ahead_ms, 0)} ms ahead and so corrected, {known}"
        parts.append(_title("The clock that ends latencies"))
        parts.append(_indented(Text(told + ": they are no more exact" * ends.unsure, "yellow" if ends.unsure else "")))
    if story.remarks:
        parts += [_title("Remarks"), *(_indented(Text(remark, style="yellow")) for remark in story.remarks)]
    return Group(*parts)


def again(record: Record) -> str:
    """The command that runs the same experiment again: what differs from the workload's defaults, for a shell."""
    config = record.config
    defaults = {name: field.default for name, field in Configuration.model_fields.items()}
    defaults |= workload_of(config).defaults(config)
    planned = config.get("fault_plan") is not None
    changed = []
    for name, value in config.items():
        if name in _NOT_RETYPED or (planned and name in _SHORT_FORM) or value is None:
            continue
        if name in defaults and value != defaults[name]:
            changed.append((name, value))
    for derived in ("duration_s", "fault_at_s"):
        if _follows(derived, config, dict(changed)):
            changed = [(name, value) for name, value in changed if name != derived]
    if config.get("truth") is not None:
        changed.append(("truth", config["truth"]))
    words = [shlex.quote(f"{name}={_retyped(value)}") for name, value in changed]
    words += [f"repetition={record.repetition}"] if record.repetition else []
    return " ".join(["./faultline run", shlex.quote(str(config.get("workload"))), *words])


def _follows(name: str, config: Mapping[str, Any], changed: Mapping[str, Any]) -> bool:
    """Whether a changed field would come out the same if it were left out."""
    rest = {key: value for key, value in changed.items() if key != name}
    try:
        made = parse_configuration({"workload": config.get("workload"), **rest})
    except ConfigError:
        return False
    return name in changed and getattr(made, name) == config[name]


def _retyped(value: Any) -> str:
    return json.dumps(value, separators=(",", ":")) if isinstance(value, Mapping | list) else plain(value)


def _head(record: Record) -> RenderableType:
    """What was measured, how it ended, and with which configuration."""
    config, metrics = record.config, record.metrics
    title = Text.assemble(
        (record.attempt, "bold"), "  ", (record.status, f"bold {_STATUS_STYLE.get(record.status, '')}".strip())
    )
    lines: list[RenderableType] = [title]
    lines += [_indented(Text(reason, style="yellow")) for reason in reasons_of(record)]
    lines.append(Text(_configuration(record)))
    lines.append(Text(f"{fault_of(config)} · {_cell(record)}"))
    # Never broken over lines, so that it can be copied.
    lines.append(Text(f"again: {again(record)}", style="dim", no_wrap=True, overflow="ignore"))
    if record.status in JUDGED:
        latency = metrics.latency_ms
        lines.append(
            Text(
                f"latency p50 {milliseconds(latency.p50)} ms, p99 {milliseconds(latency.p99)} ms, "
                f"max {milliseconds(latency.max)} ms · {throughput(record)}"
            )
        )
        if lost := lost_text(record):
            lines.append(Text(f"cores {lost}"))
    return Group(*lines)


def _configuration(record: Record) -> str:
    """The configuration in one line; values that a file lacks are shown as unknown."""
    config, (warmup_s, measured_s) = record.config, window_of(record)

    def value(name: str) -> str:
        return plain(config.get(name, "?"))

    kind = workload_of(config)
    workload, *load = load_of(config)
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


def _cell(record: Record) -> str:
    origin = f" · matrix {record.matrix}" if record.matrix else ""
    when = record.measured_at[:19].replace("T", " ")
    return (
        f"configuration {record.config_id}, repetition {record.repetition}, series {record.series}, "
        f"build {record.build}{origin} · {when} UTC"
    )


def _fault(fault: FaultStory, width: int) -> Iterable[RenderableType]:
    """One fault: what was planned and done, the parts of its recovery, and its events."""
    style = "bold red" if fault.recovery.get("recovered") is False else "bold"
    yield _title(f"Fault {fault.number}: {fault.what}")
    yield _indented(Text(fault.verdict[0].upper() + fault.verdict[1:], style=style))
    for line in _deed(fault):
        yield _indented(Text(line))
    if fault.spans:
        yield Text()
        yield _bars(fault.spans, width)
    if sizes := _impact(fault):
        yield Text()
        yield _indented(Text(sizes))
    yield _timeline(fault.events, of_fault=True, wide=width >= EVIDENCE_BESIDE)


def _deed(fault: FaultStory) -> Iterable[str]:
    """What the conductor did, a line for each thing."""
    deed = fault.deed
    if deed is None:
        return
    if deed.victims:
        yield f"victim: {'; '.join(deed.victims)}"
    if deed.planned_at_s is not None:
        late = "" if deed.late_ms is None else f", {signed(deed.late_ms, 2)} ms off"
        yield f"planned for T0 + {seconds(deed.planned_at_s, 3)} s{late}"
    if deed.outcome is not None:
        yield f"outcome: {deed.outcome}" + (f": {deed.detail}" if deed.detail else "")
    for undone in deed.undone:
        yield f"undone: {undone}"
    if trigger := fault.recovery.get("trigger"):
        yield (
            f"came after {seconds(trigger['waited_s'])} s: the engine was back to normal "
            f"{seconds(trigger['normal_s'])} s after the fault before; "
            f"{count(trigger['baseline_commits'])} commits followed"
        )
    if (drift_s := fault.recovery.get("drift_since_first_s")) is not None:
        yield f"against the first baseline it would have taken {signed(-drift_s, 2)} s"
    if fault.recovery.get("recovered") is not None and fault.recovery.get("note"):
        yield f"remark: {fault.recovery['note']}"


def _bars(spans: Sequence[Span], width: int) -> Table:
    """The parts below each other, each bar where and as long as the part lies in the whole."""
    bar_width = max(10, min(BAR_WIDTH, width - _BESIDE_BARS))
    total = max(span.start_s + span.length_s for span in spans)
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(justify="left", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    for span in spans:
        bar = bar_text(span, total, bar_width)
        table.add_row(Text(f"  {span.name}"), Text(f"{seconds(span.length_s, 2)} s"), Text(bar, style="cyan"))
    return table


def bar_text(span: Span, total_s: float, width: int = BAR_WIDTH) -> str:
    """A bar of `width` characters for `total_s` seconds; a part too short for one character is a sliver."""
    if total_s <= 0:
        return ""
    left, right = (round(at / total_s * width) for at in (span.start_s, span.start_s + span.length_s))
    if right > left:
        return " " * left + (_SEEN if span.seen else _UNSEEN) * (right - left)
    return " " * min(left, width - 1) + (_SLIVER if span.length_s > 0 else "")


def _impact(fault: FaultStory) -> str:
    """How deep, how silent, how much lag; empty where nothing is known."""
    recovery = fault.recovery
    dip, silence, area = (recovery.get(name) for name in ("dip_depth", "silence_s", "lag_area_record_s"))
    told = [
        "" if dip is None else f"dip depth {share(dip)} of the usual throughput",
        "" if silence is None else f"longest silence {seconds(silence, 2)} s",
        "" if area is None else f"lag area {count(area)} record·s",
        "" if fault.snapshot_age_s is None else f"snapshot {seconds(fault.snapshot_age_s)} s old at the fault",
    ]
    return " · ".join(text for text in told if text)


def _timeline(events: Sequence[Happening], *, of_fault: bool, wide: bool) -> RenderableType:
    """Instant after T0, after t0 where there is a fault, name, and evidence: beside it, or below where it is narrow."""
    if not events:
        return _indented(Text("no event is known", style="dim"))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False)
    table.add_column("  after T0, s", justify="right", no_wrap=True)
    if of_fault:
        table.add_column("after t0, s", justify="right", no_wrap=True)
    table.add_column("event", no_wrap=wide, overflow="fold")
    if wide:
        table.add_column("evidence", overflow="fold")
    for event in events:
        instants = [NONE if event.after_gate_s is None else seconds(event.after_gate_s, 3)]
        if of_fault:
            instants.append(NONE if event.after_fault_s is None else signed(event.after_fault_s))
        name = Text(f"{event.name.partition('#')[0]} {event.words}" if _lettered(event.name) else event.words)
        evidence = Text(event.source, style="dim")
        table.add_row(*map(Text, instants), *([name, evidence] if wide else [Text("\n").join([name, evidence])]))
    return Padding(table, (1, 0, 0, 0))


def _lettered(name: str) -> bool:
    """Whether it is one of t0 … t7, whose letters are known from the definitions."""
    return len(name.partition("#")[0]) == 2 and name[0] == "t" and name[1].isdigit()


def _restarts(story: Story) -> RenderableType:
    lines = [
        _indented(
            Text.assemble(
                f"T0 {signed(restart.after_gate_s, 3)} s: " if restart.after_gate_s is not None else "",
                f"{restart.who}: {restart.what}",
                (f"  ({restart.source})", "dim"),
            )
        )
        for restart in story.restarts
    ]
    return Group(*lines)


def _audit(story: Story) -> Iterable[RenderableType]:
    audit = story.record.metrics.audit
    if audit.expected is None:
        return  # of events that the engine made nothing is kept
    yield _title("Audit")
    sums = "" if audit.sums_differ is None else f", {count(audit.sums_differ)} sums differ"
    undrained = f" · {count(audit.undrained)} offsets not processed" if audit.undrained else ""
    yield _indented(
        Text(
            f"{count(audit.expected)} expected · {count(audit.lost)} lost, {count(audit.overcounted)} overcounted, "
            f"{count(audit.wrong)} wrong{sums} · {count(audit.reemitted)} re-emitted, "
            f"{count(audit.unknown)} sends unknown{undrained}"
        )
    )
    if not story.offenders:
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False)
    for name in ("  kind", "key", "expected", "final"):
        table.add_column(name, justify="right" if name in ("expected", "final") else "left", overflow="fold")
    for offender in story.offenders[:MAX_OFFENDERS]:
        numbers = [_number(offender.get(name)) for name in ("expected", "final")]
        table.add_row(Text(f"  {offender.get('kind')}"), Text(short_key(offender.get("key"))), *map(Text, numbers))
    yield Padding(table, (1, 0, 0, 0))
    if len(story.offenders) > MAX_OFFENDERS:
        yield _indented(Text(f"{len(story.offenders) - MAX_OFFENDERS} more in audit.json", style="dim"))


def short_key(key: Any) -> str:
    """A key as text; of a long one (filler words have 1,000 characters) the beginning and the length."""
    text = str(key)
    return text if len(text) <= MAX_KEY else f"{text[:MAX_KEY]}… ({count(len(text))} characters)"


def _number(value: Any) -> str:
    return count(value) if isinstance(value, int | float) else NONE if value is None else str(value)


def _title(text: str) -> RenderableType:
    return Padding(Text(text, style="bold underline"), (1, 0, 0, 0))


def _indented(text: Text) -> RenderableType:
    return Padding(text, (0, 0, 0, 2))
