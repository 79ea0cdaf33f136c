"""Notes of Airflow runs about experiments, sweeps and nightly runs, and alerts about nightly runs, as Markdown."""

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
from faultline.records.record import WITH_FIGURES, Record
from faultline.reports.pages import UI_PAGE
from faultline.reports.views.runs import run_name
from faultline.system.errors import ConfigError
from faultline.system.text import pluralize

if TYPE_CHECKING:
    from faultline.experiment.matrix import Matrix

# Airflow rejects longer notes.
MAX_NOTE = 1000
MAX_REASON = 240
# Prefix of the note of a stopped sweep.
STOPPED_PREFIX = "**Stopped**"
# Parameters that control a sweep without describing its configurations.
_CONTROL_PARAMETERS = frozenset({"axes", "preset", "only_missing", "max_measurements", "keep_invalid"})
# Configuration fields that the name of an experiment shows or that follow from others.
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
    """Return the outcome of one experiment with a link to its page."""
    link = f"[Results]({experiment_path(record)})"
    parts = [
        f"**{record.status}**",
        escape_markdown(f"{record.config.get('workload', 'experiment')}, {run_name(record)}"),
    ]
    if record.status in WITH_FIGURES:
        parts += _figure_parts(record)
    if record.reasons:
        reason = record.reasons[0]
        parts.append(escape_markdown(reason if len(reason) <= MAX_REASON else f"{reason[: MAX_REASON - 1]}…"))
    changed = _changed_parameters(record.config)
    return join_within_limit([*parts, escape_markdown(changed)] if changed else parts, link)


def experiment_path(record: Record) -> str:
    """Return the path of the record's page in the Airflow UI."""
    return f"{UI_PAGE}/experiments/{quote(record.attempt, safe='')}"


def experiment_refusal_note(error: ConfigError) -> str:
    """Return why an experiment was rejected."""
    return f"**Rejected.** {escape_markdown(str(error))}"


def sweep_refusal_note(error: ConfigError) -> str:
    """Return why a sweep was not planned."""
    return f"**Not planned.** {escape_markdown(str(error))}"


def plan_note(matrix: Matrix, params: Mapping[str, Any], cells: int, missing: int) -> str:
    """Return the plan of a sweep: its axes and the other given parameters, after parsing.

    `cells`: number of cells of the sweep; `missing`: number of cells to measure.
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
    """Return the plan of a sweep that resumes another one."""
    link = f"[Results]({UI_PAGE}/sweeps/{quote(sweep_id, safe='')})"
    return join_within_limit(
        [f"**{missing} of {pluralize(cells, 'experiment')} to measure**", f"resuming {escape_markdown(sweep_id)}"],
        link,
    )


def sweep_note(records: Sequence[Record], sweep_id: str, missing: int, decided: str = "") -> str:
    """Return the outcome of a sweep: status counts, summary and ranges of the main figures.

    `missing`: number of required cells without a usable record in any sweep. `decided`: outcome of the sequential test,
    in words.
    """
    link = f"[Results]({UI_PAGE}/sweeps/{quote(sweep_id, safe='')})"
    if not records:
        if missing:
            lacking = f"{pluralize(missing, 'cell')} {'is' if missing == 1 else 'are'} missing"
            return f"No experiment produced a record; {lacking}. See the failed tasks."
        return f"Nothing to measure: {decided or 'every cell has a usable record'}."
    statuses = Counter(record.status for record in records)
    parts = [
        f"**{pluralize(len(records), 'experiment')}**: "
        + ", ".join(f"{n} {status}" for status, n in statuses.most_common())
    ]
    parts += [f"**{decided}**"] if decided else []
    valid = [record for record in records if record.is_usable]
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
        parts.append(f"{censored} censored recoveries")
    audited = [record.metrics.audit.lost for record in valid if record.metrics.audit.lost is not None]
    if audited:
        parts.append(f"{count(sum(audited))} tuples lost")
    return join_within_limit(parts, link)


def _summary_lines(records: Sequence[Record]) -> list[str]:
    """Return the summary of the sweep; empty if it compares nothing."""
    # Imported here because statistics take a second to import and notes of experiments need none.
    from faultline.comparison.sweep_summary import invalid_runs_of, summary_of
    from faultline.records.index_entry import IndexEntry
    from faultline.reports.views.sweep_summary import invalid_text, short_summary

    entries = [IndexEntry.of(record) for record in records]
    answer, invalid = summary_of(entries), invalid_runs_of(entries)
    lines = short_summary(answer) if answer and answer.has_content else []
    return [*lines, *([invalid_text(invalid)] if invalid and invalid.effects else [])]


def _changed_parameters(config: Mapping[str, Any]) -> str:
    """Return the parsed fields that differ from their default; the form may have changed the user's input."""
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
    sums = f", {count(audit.checksum_mismatches)} checksum mismatches" if audit.checksum_mismatches else ""
    undrained = f", {count(audit.undrained)} not processed" if audit.undrained else ""
    parts.append(f"{count(audit.lost)} lost, {count(audit.overcounted)} overcounted{sums}{undrained}")
    return [part for part in parts if NONE not in part or "latency" in part]


def _range_text(
    records: Sequence[Record], value: Callable[[Record], float | None], text: Callable[[float | None], str], unit: str
) -> str:
    """Return median, minimum and maximum; empty if no value is known."""
    known = [found for record in records if (found := value(record)) is not None]
    if not known:
        return ""
    if len(known) == 1:
        return f"{text(known[0])} {unit}"
    return f"{text(statistics.median(known))} {unit} ({text(min(known))} to {text(max(known))})"


def escape_markdown(text: str) -> str:
    """Return the text on one line with Markdown escaped."""
    return _MARKDOWN.sub(r"\\\1", " ".join(text.split()))


def join_within_limit(parts: Sequence[str], link: str) -> str:
    """Return the parts and the link, truncated to MAX_NOTE characters; the link is never cut."""
    text = " · ".join(parts)
    room = MAX_NOTE - len(link) - 3
    return f"{text if len(text) <= room else text[: room - 1] + '…'} · {link}"


# Note of a nightly run.


def nightly_note(verdict: NightlyVerdict, sweep_id: str) -> str:
    """Return verdict counts, problems, violated limits, changes and minimum detectable effects of a nightly run."""
    parts = [f"**{verdict.date[:10]}**: {escape_markdown(verdict.summary)}"]
    parts += [f"**red** {escape_markdown(verdict.problem)}"] if verdict.is_paired and verdict.problem else []
    groups = [("limit violated", verdict.beyond), ("limit inconclusive", verdict.doubtful), ("worse", verdict.reasons)]
    if verdict.is_paired:
        groups += [("suspected", verdict.suspicions), ("better", verdict.improvements)]
    parts += [f"**{word}** {escape_markdown(line)}" for word, lines in groups for line in lines]
    if verdict.is_paired:
        parts.append(
            "minimum detectable effect over two nightly runs, 80 % power: "
            + escape_markdown("; ".join(verdict.visible))
        )
    else:
        parts += [escape_markdown(text) for text in (verdict.problem, verdict.power) if text]
    return join_within_limit(parts, _sweep_link(sweep_id))


def _sweep_link(sweep_id: str) -> str:
    return f"[Results]({UI_PAGE}/sweeps/{quote(sweep_id, safe='')})"


# Alerts about nightly runs.


# Alerts are read on phones; the results page has all lines.
MAX_LINES = 12


@dataclass(frozen=True)
class AlertContent:
    """Alert about one nightly run.

    `kind`: worse, better, broken or test; `night`: logical date; `figures`: comparisons behind the alert.
    """

    kind: str
    dag_id: str
    night: str
    title: str
    lines: tuple[str, ...]
    link: str
    figures: tuple[Mapping[str, Any], ...] = ()

    @property
    def text(self) -> str:
        """The whole alert as plain text."""
        return "\n".join([self.title, *self.lines, self.link])


def nightly_alert(
    dag_id: str, logical_date: str, link: str, verdict: NightlyVerdict | None, *, planned: int, missing: int, valid: int
) -> AlertContent | None:
    """Return the alert about a nightly run, or None if nothing changed.

    `verdict`: the stored one, None if missing; `planned` and `missing`: numbers of cells; `valid`: number of usable
    records. If there are both regressions and missing cells, regressions decide the kind; the alert reports both.
    """
    gap = f"{missing} of {pluralize(planned, 'cell')} without a usable record" if missing else ""
    known = verdict or NightlyVerdict()
    counts = [(len(known.beyond), "beyond a limit"), (len(known.reasons), "worse")]
    worse = ", ".join(f"{pluralize(number, 'figure')} {word}" for number, word in counts if number)
    figures, lines = known.figures, (gap, *([known.problem] if known.problem else []))
    if not planned:
        kind, what, lines = "broken", "not planned", ("nothing was measured; see the note of the DAG run",)
    elif not valid:
        kind, what, figures = "broken", "no usable record", ()
    elif worse:
        kind, what, lines = "worse", worse, (*known.beyond, *known.reasons, gap)
    elif gap or verdict is None or verdict.red:
        why = "inconclusive" if not gap and verdict else "incomplete"
        kind, what = "broken", why
    elif known.improvements:
        kind, what, lines = "better", f"{pluralize(len(known.improvements), 'figure')} better", known.improvements
    else:
        return None
    return AlertContent(
        kind, dag_id, logical_date, f"Nightly run {logical_date[:10]}: {what}", _first_lines(lines), link, figures
    )


def missed_start_alert(logical_date: str, dag_id: str, minutes: int, link: str) -> AlertContent:
    """Return the alert about a nightly run that was due and did not start."""
    line = (
        f"{dag_id} was due at {logical_date} and has no plan after {minutes} minutes; check that the DAG is not paused "
        "and that the scheduler runs"
    )
    return AlertContent("broken", dag_id, logical_date, f"Nightly run {logical_date[:10]}: not started", (line,), link)


def results_link(address: str, sweep_id: str | None) -> str:
    """Return the address of the results of a nightly run; without a sweep, of the page of all nightly runs."""
    return f"{address}{UI_PAGE}/sweeps/{quote(sweep_id, safe='')}" if sweep_id else f"{address}{UI_PAGE}/nights"


def _first_lines(texts: Sequence[str]) -> tuple[str, ...]:
    kept = [text for text in texts if text]
    more = len(kept) - MAX_LINES
    return (*kept[:MAX_LINES], *([f"and {more} more"] if more > 0 else []))
