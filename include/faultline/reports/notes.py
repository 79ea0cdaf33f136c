"""The headline of an experiment or a sweep, as the note of its run in Airflow: Markdown in a line or two."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from faultline.comparison.nightly_verdict import NightlyVerdict
from faultline.experiment.axes import axis_text
from faultline.experiment.config import Configuration
from faultline.records.format import NONE, count, macro, milliseconds, seconds, throughput
from faultline.records.record import JUDGED, Record
from faultline.reports.pages import UI_PAGE
from faultline.reports.views.runs import run_name
from faultline.system.errors import ConfigError
from faultline.system.text import pluralize

if TYPE_CHECKING:
    from faultline.experiment.matrix import Matrix

# Airflow refuses longer notes.
MAX_NOTE = 1000
MAX_REASON = 240
# How the note of a sweep begins that was stopped.
STOPPED_PREFIX = "**Stopped**"
# Parameters of a sweep that say nothing of what is measured.
_CONTROL_PARAMETERS = frozenset({"axes", "preset", "only_missing", "max_measurements", "keep_invalid"})
# Of a configuration what stands in its name, or follows from the rest.
_NAMED_PARAMETERS = (
    "workload",
    "state_mb",
    "checkpoint_interval_s",
    "fault",
    "fault_action",
    "fault_at_s",
    "duration_s",
)
_MARKDOWN = re.compile(r"([\\`*_{}\[\]()<>#+|~!&])")


def experiment_note(record: Record) -> str:
    """What one experiment came to, with a link to its page."""
    link = f"[Results]({experiment_path(record)})"
    parts = [
        f"**{record.status}**",
        escape_markdown(f"{record.config.get('workload', 'experiment')}, {run_name(record)}"),
    ]
    if record.status in JUDGED:
        parts += _figure_parts(record)
    if record.reasons:
        reason = record.reasons[0]
        parts.append(escape_markdown(reason if len(reason) <= MAX_REASON else f"{reason[: MAX_REASON - 1]}…"))
    changed = _changed_parameters(record.config)
    return join_within_limit([*parts, escape_markdown(changed)] if changed else parts, link)


def experiment_path(record: Record) -> str:
    """Path of the record's page in the Airflow UI."""
    return f"{UI_PAGE}/experiments/{quote(record.attempt, safe='')}"


def experiment_refusal_note(error: ConfigError) -> str:
    """Why an experiment was not begun."""
    return f"**Refused.** {escape_markdown(str(error))}"


def sweep_refusal_note(error: ConfigError) -> str:
    """Why a sweep was not even planned."""
    return f"**Nothing was planned.** {escape_markdown(str(error))}"


def plan_note(matrix: Matrix, params: Mapping[str, Any], cells: int, missing: int) -> str:
    """What a sweep sets out to measure: its axes, and what else was filled in, as it was taken.

    `cells`: of the whole sweep, of which `missing` are measured.
    """
    axes = " × ".join(f"{name} {axis_text(values)}" for name, values in matrix.axes.items())
    filled = [
        f"{name} {axis_text([value])}"
        for name, value in params.items()
        if value is not None and name not in matrix.axes and name not in _CONTROL_PARAMETERS
    ]
    parts = [
        f"**{missing} of {pluralize(cells, 'experiment')} to measure**",
        escape_markdown(axes) if axes else "one configuration",
    ]
    parts += [escape_markdown(f"{params.get('preset') or 'default'}: {', '.join(filled)}")]
    return join_within_limit(parts, f"[Results]({UI_PAGE})")


def resumed_plan_note(sweep_id: str, cells: int, missing: int) -> str:
    """What a sweep sets out to measure that goes on with another one."""
    link = f"[Results]({UI_PAGE}/sweeps/{quote(sweep_id, safe='')})"
    return join_within_limit(
        [f"**{missing} of {pluralize(cells, 'experiment')} to measure**", f"goes on with {escape_markdown(sweep_id)}"],
        link,
    )


def sweep_note(records: Sequence[Record], sweep_id: str, missing: int, decided: str = "") -> str:
    """What a sweep came to: how many of its records have which status, its answer, and the range of what is looked for
    first.

    `missing`: its cells that have no valid record of whatever sweep, and are still asked for. `decided`: what became of
    its question, in words.
    """
    link = f"[Results]({UI_PAGE}/sweeps/{quote(sweep_id, safe='')})"
    if not records:
        if missing:
            lacking = f"{pluralize(missing, 'cell')} {'is' if missing == 1 else 'are'} missing"
            return f"No experiment got as far as a record, and {lacking}: the red tasks say why."
        return f"Nothing had to be measured: {decided or 'every cell has a valid record already'}."
    statuses = Counter(record.status for record in records)
    parts = [
        f"**{pluralize(len(records), 'experiment')}**: "
        + ", ".join(f"{n} {status}" for status, n in statuses.most_common())
    ]
    parts += [f"**{decided}**"] if decided else []
    valid = [record for record in records if record.sound]
    parts += [escape_markdown(line) for line in _summary_lines(records)]
    parts += [
        f"{name} {text}"
        for name, text in (
            ("latency p99", _range_text(valid, lambda record: record.metrics.latency_ms.p99, milliseconds, "ms")),
            ("macro", _range_text(valid, lambda record: record.metrics.recovery.macro_s, seconds, "s")),
        )
        if text
    ]
    censored = sum(record.metrics.recovery.recovered is False for record in valid)
    if censored:
        parts.append(f"{censored} not seen to recover")
    audited = [record.metrics.audit.lost for record in valid if record.metrics.audit.lost is not None]
    if audited:
        parts.append(f"{count(sum(audited))} tuples lost")
    return join_within_limit(parts, link)


def _summary_lines(records: Sequence[Record]) -> list[str]:
    """What the sweep tells; nothing where it asked nothing."""
    # Statistics take a second to import, and the note of an experiment needs none.
    from faultline.comparison.sweep_summary import invalid_runs_of, summary_of
    from faultline.records.index_entry import IndexEntry
    from faultline.reports.views.sweep_summary import invalid_text, short_summary

    entries = [IndexEntry.of(record) for record in records]
    answer, invalid = summary_of(entries), invalid_runs_of(entries)
    lines = short_summary(answer) if answer and answer.has_content else []
    return [*lines, *([invalid_text(invalid)] if invalid and invalid.effects else [])]


def _changed_parameters(config: Mapping[str, Any]) -> str:
    """What else was asked for than by default, as it was taken: a field of the form may have made another number of
    what was typed."""
    differing = {
        name: config[name]
        for name, field in Configuration.model_fields.items()
        if name not in _NAMED_PARAMETERS and name in config and config[name] != field.default
    }
    return ", ".join(f"{name} {axis_text([value])}" for name, value in differing.items())


def _figure_parts(record: Record) -> list[str]:
    metrics = record.metrics
    recovery, audit = metrics.recovery, metrics.audit
    latency = metrics.latency_ms
    parts = [
        f"latency p50 {milliseconds(latency.p50)} ms, p99 {milliseconds(latency.p99)} ms",
        throughput(record),
    ]
    if recovery.recovered is not None:
        parts.append(
            f"reload {seconds(recovery.reload_s, 2)} s, replay {seconds(recovery.replay_s, 2)} s, "
            f"macro {escape_markdown(macro(record))} s"
        )
    sums = f", {count(audit.checksum_mismatches)} sums differ" if audit.checksum_mismatches else ""
    undrained = f", {count(audit.undrained)} not processed" if audit.undrained else ""
    parts.append(f"{count(audit.lost)} lost, {count(audit.overcounted)} overcounted{sums}{undrained}")
    return [part for part in parts if NONE not in part or "latency" in part]


def _range_text(
    records: Sequence[Record], value: Callable[[Record], float | None], text: Callable[[float | None], str], unit: str
) -> str:
    """Median, least and greatest; empty where nothing is known."""
    known = [found for record in records if (found := value(record)) is not None]
    if not known:
        return ""
    if len(known) == 1:
        return f"{text(known[0])} {unit}"
    return f"{text(statistics.median(known))} {unit} ({text(min(known))} to {text(max(known))})"


def escape_markdown(text: str) -> str:
    """Text that Markdown leaves as it is, on one line."""
    return _MARKDOWN.sub(r"\\\1", " ".join(text.split()))


def join_within_limit(parts: Sequence[str], link: str) -> str:
    """The parts and the link, within what a note may hold; the link is never cut."""
    text = " · ".join(parts)
    room = MAX_NOTE - len(link) - 3
    return f"{text if len(text) <= room else text[: room - 1] + '…'} · {link}"


# The morning's note: what a night came to, as the note of its run in Airflow.


def nightly_note(verdict: NightlyVerdict, sweep_id: str) -> str:
    """Return what a night came to: counts of verdicts, problems, exceeded limits, changes, and the smallest change that
    it shows."""
    parts = [f"**{verdict.date[:10]}**: {escape_markdown(verdict.summary)}"]
    parts += [f"**red** {escape_markdown(verdict.problem)}"] if verdict.is_paired and verdict.problem else []
    groups = [("beyond its limit", verdict.beyond), ("limit in doubt", verdict.doubtful), ("worse", verdict.reasons)]
    if verdict.is_paired:
        groups += [("suspected", verdict.suspicions), ("better", verdict.improvements)]
    parts += [f"**{word}** {escape_markdown(line)}" for word, lines in groups for line in lines]
    if verdict.is_paired:
        parts.append(
            "would have been seen within two nights, four times in five: " + escape_markdown("; ".join(verdict.visible))
        )
    else:
        parts += [escape_markdown(text) for text in (verdict.problem, verdict.power) if text]
    return join_within_limit(parts, _sweep_link(sweep_id))


def _sweep_link(sweep_id: str) -> str:
    return f"[Results]({UI_PAGE}/sweeps/{quote(sweep_id, safe='')})"


# What of a night is worth telling: worse, better, or broken; and in which words.


# A message is read on a phone: what is beyond stands on the page.
MAX_LINES = 12


@dataclass(frozen=True)
class AlertContent:
    """What is told of a night: `kind` (worse, better, broken or test), of which night of which DAG, in a line and in
    more, where to look, and the figures behind it, as the verdict keeps them."""

    kind: str
    dag_id: str
    night: str
    title: str
    lines: tuple[str, ...]
    link: str
    figures: tuple[Mapping[str, Any], ...] = ()

    @property
    def text(self) -> str:
        """All of it as plain text."""
        return "\n".join([self.title, *self.lines, self.link])


def nightly_alert(
    dag_id: str, night: str, link: str, verdict: NightlyVerdict | None, *, planned: int, missing: int, valid: int
) -> AlertContent | None:
    """What to tell of a night, None where it is as it was.

    `verdict`: as it is kept in results/nights/, None where there is none; `planned`: cells, of which so many are
    `missing`, and `valid` records there are. What became worse is told before what is missing, and both are told.
    """
    gap = f"{missing} of {pluralize(planned, 'cell')} without a valid record" if missing else ""
    known = verdict or NightlyVerdict()
    counts = [(len(known.beyond), "beyond a limit"), (len(known.reasons), "worse")]
    worse = ", ".join(f"{pluralize(number, 'figure')} {word}" for number, word in counts if number)
    figures, lines = known.figures, (gap, *([known.problem] if known.problem else []))
    if not planned:
        kind, what, lines = "broken", "not planned", ("nothing was measured; the note of its run says why",)
    elif not valid:
        kind, what, figures = "broken", "nothing valid", ()
    elif worse:
        kind, what, lines = "worse", worse, (*known.beyond, *known.reasons, gap)
    elif gap or verdict is None or verdict.red:
        why = "inconclusive" if not gap and verdict else "incomplete"
        kind, what = "broken", why
    elif known.improvements:
        kind, what, lines = "better", f"{pluralize(len(known.improvements), 'figure')} better", known.improvements
    else:
        return None
    return AlertContent(kind, dag_id, night, f"Night {night[:10]}: {what}", _first_lines(lines), link, figures)


def missed_start_alert(night: str, dag_id: str, minutes: int, link: str) -> AlertContent:
    """What is told of a night that was due and did not begin."""
    line = (
        f"{dag_id} was due at {night} and has no plan {minutes} minutes later; is it switched on, and the scheduler up?"
    )
    return AlertContent("broken", dag_id, night, f"Night {night[:10]}: not begun", (line,), link)


def results_link(address: str, sweep_id: str | None) -> str:
    """Where the night's page is."""
    return f"{address}{UI_PAGE}/sweeps/{quote(sweep_id, safe='')}" if sweep_id else f"{address}{UI_PAGE}/nights"


def _first_lines(texts: Sequence[str]) -> tuple[str, ...]:
    kept = [text for text in texts if text]
    more = len(kept) - MAX_LINES
    return (*kept[:MAX_LINES], *([f"and {more} more"] if more > 0 else []))
