"""Results of a matrix as one Markdown page with SVG charts."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from faultline.comparison.config_points import (
    FAULT,
    Axis,
    Point,
    axes_of,
    is_number,
    label,
    points_of,
    sort_points,
    split_controls,
)
from faultline.comparison.findings.catalogue import PAPERS, findings
from faultline.comparison.findings.claims import ANSWERED, ClaimVerdict
from faultline.comparison.findings.nexmark import table_of
from faultline.comparison.findings.shi import sustained_rates
from faultline.comparison.sweep_summary import invalid_runs_of, summary_of
from faultline.experiment.config import Configuration
from faultline.experiment.matrices import MATRICES
from faultline.experiment.workloads.registry import has_schedule, workload_of
from faultline.records.bundle import sha256
from faultline.records.format import CONTROL, NONE, fault_of, window_of
from faultline.records.index_entry import IndexEntry, counted_entries
from faultline.records.record import Record
from faultline.reports.markdown.charts import draw_charts
from faultline.reports.markdown.tables import escape_cell, markdown_table, point_table, table_sections
from faultline.reports.views.sweep_summary import front_headings, front_rows, invalid_text, summary_lines
from faultline.system.errors import ConfigError
from faultline.system.text import natural_key, pluralize, suggest

# Settings that are shown even at their default; axes are in the tables instead.
SETTINGS = (
    "workload", "rate", "warmup_s", "duration_s", "checkpoint_interval_s", "commit_mode", "executors", "executor_cores",
    "executor_memory_mb", "partitions", "shuffle_partitions", "state_mb", "restart_delay_s", "seed",
)  # fmt: skip
# Not shown without a schedule, because batches then run back to back and no fault is injected.
_SCHEDULE_SETTINGS = ("checkpoint_interval_s", "restart_delay_s")
# Not listed: these are shown in words, or derived from other settings.
_FAULT_SETTINGS = ("fault", "fault_action", "fault_at_s", "fault_plan")
_INTERVAL_NOTE = (
    "On Spark, a record waits for its micro-batch, so latency includes the checkpoint interval. Verdicts on claims "
    "about intervals therefore describe a micro-batch engine."
)
_ENGINES = {"spark": "Structured Streaming", "flink": "Flink"}
_MODES_NOTE = "Meaning of each commit mode: [commit-modes.md](../explanation/commit-modes.md)."
NOTES: Mapping[str, str] = {
    "state_size_x_checkpoint_interval": _INTERVAL_NOTE,
    "compute_x_checkpoint_interval": _INTERVAL_NOTE,
    **dict.fromkeys(("skew_x_alignment_mode", "flink_alignment", "spark_and_flink_recovery"), _MODES_NOTE),
    "input_rate": "Non-compute time is the latency of the stock paper. The offered rate does not depend on the engine.",
    "topology_optimisation": "A replacement starts tasks on the same cores; in the paper it adds machines.",
    "executor_cores": "The offered rate is the same for all configurations; the maximum throughput is not measured.",
}
# Claims without a verdict, listed below the others.
SEPARATE_VERDICTS = (
    (ClaimVerdict.NOT_COVERED, "Not covered by these runs:", "reason or requirement"),
    (ClaimVerdict.NOT_TESTABLE, "Not testable here:", "requirement"),
)
IMAGES = "images"
EVENT_RATE_TEXT = (
    "Thousands of generated events per second, of all kinds, including those that a query does not read; rate: events "
    "per second of event time. *Per core*: divided by the cores that executors and Python workers used. *With the "
    "driver*: including the driver's cores. *Machine*: whole machine, including idle cores. The figures are not "
    "comparable with those of other engines; see [workloads.md](../reference/workloads.md#comparison-with-flink)."
)


@dataclass(frozen=True)
class Page:
    """Text of a page, and its charts by path relative to the page."""

    text: str
    images: Mapping[str, str]


def write_page(
    records: Sequence[Record], path: Path, *, matrix: str | None = None, bundles: Sequence[Path] = ()
) -> str:
    """Write the page of `matrix` (default: the matrix of the records) with its charts, and return the matrix.

    `bundles`: sources of the records, listed with their hashes. Raises ConfigError if the records make no page or the
    file cannot be written.
    """
    chosen = select_matrix(records, matrix)
    page = results_page(records, chosen, name=path.stem, evidence=_bundle_lines(path.parent, bundles))
    try:
        for target, content in ((path, page.text), *((path.parent / name, svg) for name, svg in page.images.items())):
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(content, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--page: writing {path} failed: {error.strerror}; fix: choose a writable path") from error
    return chosen


def _bundle_lines(folder: Path, bundles: Sequence[Path]) -> list[str]:
    """Return one list item per bundle, with its path relative to the page."""
    return [
        f"- Records with raw files: [{escape_cell(path.name)}]"
        f"({quote(os.path.relpath(path, folder))}), SHA-256 `{sha256(path.read_bytes())}`"
        for path in bundles
    ]


def select_matrix(records: Sequence[Record], named: str | None) -> str:
    """Return the matrix of a page. Raises ConfigError if it is missing, unknown or ambiguous."""
    if named is not None and named not in MATRICES:
        raise ConfigError(f"--matrix: got {named}; expected a known matrix{suggest(named, MATRICES)}")
    if not records:
        raise ConfigError("--page: no record matches; fix: list the records with `./faultline results`")
    found = sorted({record.matrix or "no matrix" for record in records})
    if named is None and (len(found) != 1 or not records[0].matrix):
        known = ", ".join(MATRICES)
        raise ConfigError(
            f"--page: got records of {' and '.join(found)}; expected one matrix; fix: select it with --matrix ({known})"
        )
    chosen = named or found[0]
    if chosen not in MATRICES:
        raise ConfigError(f"--page: got the matrix {chosen}; expected a known matrix{suggest(chosen, MATRICES)}")
    return chosen


def results_page(records: Sequence[Record], matrix: str, *, name: str, evidence: Sequence[str] = ()) -> Page:
    """Return the page with its charts, whose file names begin with `name`.

    `evidence`: lines about the raw files. Raises ConfigError if the records have several builds.
    """
    builds = sorted({record.build for record in records if record.is_usable})
    if len(builds) > 1:
        raise ConfigError(
            f"--page: got {len(builds)} builds ({', '.join(builds)}); expected one; fix: select its sweeps with --sweep"
        )
    spec = MATRICES[matrix]
    every = sorted(records, key=lambda record: record.attempt)
    records = counted_entries(every)
    points, axes = grid(records, spec.axes)
    measured = [point for point in points if point.valid]
    drawn = [
        (f"{IMAGES}/{name}-{chart.name}.svg", chart.title, svg) for chart, svg in draw_charts(matrix, points, axes)
    ]
    lines = [
        f"# {spec.title}",
        "",
        f"Generated from the records by `./faultline results --matrix {matrix} --page FILE`. Metrics: "
        "[metrics.md](../reference/metrics.md). Verdicts: [README.md](README.md#verdicts).",
        "",
        spec.text,
        "",
        *_environment_lines(every, axes),
        *evidence,
        "",
        *_summary_lines(records),
    ]
    for path, title, _ in drawn:
        lines += [f"![{title}: median, minimum and maximum of the repetitions]({path})", ""]
    if drawn and any(point.invalid for point in points):
        lines += ["Small dashed hollow markers: invalid runs, which do not count.", ""]
    for heading, columns in table_sections(matrix, points):
        lines += [f"## {heading}", "", *point_table(measured, axes, columns), ""]
        if heading == "Recovery":
            lines += ["`>`: censored recovery; the value is a lower bound.", ""]
    speeds = table_of(records) if any(not has_schedule(record.config) for record in records) else []
    if speeds:
        lines += ["## Events per second", "", EVENT_RATE_TEXT, "", *speeds, ""]
    lines += ["## Excluded records", "", *_excluded_lines(points, axes, len(every) - len(records)), ""]
    if matrix in PAPERS:
        lines += _finding_lines(matrix, records)
    return Page("\n".join(lines), {path: svg for path, _, svg in drawn})


def _summary_lines(records: Sequence[Record]) -> list[str]:
    """Return the summary of the records: effects, recommendation, Pareto front and placebo test."""
    entries = [IndexEntry.of(record) for record in records]
    summary, invalid = summary_of(entries), invalid_runs_of(entries)
    lines = summary_lines(summary) if summary is not None and summary.has_content else []
    lines += [invalid_text(invalid)] if invalid is not None and invalid.effects else []
    if not lines:
        return []
    lines = ["## Summary", "", *(f"- {escape_cell(line)}" for line in lines), ""]
    rows = front_rows(summary) if summary is not None and summary.has_content else []
    if summary is not None and len(rows) > 1:
        heads = ["configuration", *front_headings(summary), "n", "Pareto front"]
        cells = [[escape_cell(text) for text in (name, *figures, str(n), where)] for name, figures, where, n in rows]
        lines += [*markdown_table(heads, cells), ""]
    return lines


def _environment_lines(records: Sequence[Record], axes: Sequence[Axis]) -> list[str]:
    machines, software, commits = {}, {}, {}
    for record in records:
        found = record.environment
        memory = NONE if found.memory_mb is None else f"{found.memory_mb / 1024:.0f} GiB"
        processor = f" of {escape_cell(found.processor)}" if found.processor else ""
        machines[f"{found.cores or 'unknown'} cores{processor}, {memory}"] = True
        software[", ".join(f"{name} {value}" for name, value in sorted((found.versions or {}).items()))] = True
        commits[escape_cell(str(found.git_commit)[:12])] = True
    over = sum(bool(record.environment.oversubscribed) for record in records)
    shared = f"oversubscribed in {over} of {len(records)} runs" if over else "not oversubscribed"
    dates = sorted(escape_cell(record.measured_at[:10]) for record in records)
    sweeps = sorted({record.sweep_id for record in records if record.sweep_id})
    return [
        f"- Machine: {'; '.join(machines)} ({shared}); runs all processes, including broker and generator.",
        f"- Software: {escape_cell('; '.join(software))}; Faultline {', '.join(sorted(commits))}.",
        f"- Settings: {', '.join(_setting_texts(records, axes))}.",
        f"- Measured {dates[0]}{'' if dates[0] == dates[-1] else f' to {dates[-1]}'}, records: {len(records)}, "
        f"{'sweep' if len(sweeps) == 1 else 'sweeps'} {escape_cell(', '.join(sweeps)) or NONE}.",
        *_load_lines(records),
    ]


def _load_lines(records: Sequence[Record]) -> list[str]:
    """Return the time under load, the share of runs that do not count, and how many warm-ups were too short."""
    windows = [window_of(record) for record in records if record.timeline]
    hours = sum(warmup_s + measured_s for warmup_s, measured_s in windows) / 3600
    rejected = sum(not record.is_usable for record in records)
    warmups = [record.metrics.warmup for record in records if record.is_usable]
    unsteady = sum(warmup is not None and warmup.steady is False for warmup in warmups)
    lines = [
        f"- Under load for {hours:.1f} machine-hours, from T0 to the end of each window; "
        f"invalid or failed: {rejected} of {len(records)} runs ({100 * rejected / len(records):.0f} %)."
    ]
    if unsteady:
        lines.append(
            f"- In {pluralize(unsteady, 'run')} the warm-up ended at `warmup_max_s`, before the engine was steady."
        )
    return lines


def _setting_texts(records: Sequence[Record], axes: Sequence[Axis]) -> list[str]:
    """Return settings outside the axes: usual fields, workload parameters and non-default values."""
    own = {key for record in records for key in workload_of(record.config).parameters.model_fields}
    shown = {axis.key for axis in axes}
    lines = []
    for key, field in Configuration.model_fields.items():
        values = list(dict.fromkeys(json.dumps(record.config.get(key, field.default)) for record in records))
        applies = key not in _SCHEDULE_SETTINGS or any(has_schedule(record.config) for record in records)
        wanted = applies and key in SETTINGS or key in own or values != [json.dumps(field.default)]
        if wanted and key not in shown and key not in _FAULT_SETTINGS:
            text = " or ".join(label(json.loads(value)) for value in values)
            lines.append(f"`{key}` {escape_cell(text)}")
    if FAULT not in shown:
        lines.append(escape_cell(" or ".join(dict.fromkeys(_fault_text(record) for record in records))))
    return lines


def _fault_text(record: Record) -> str:
    fault = fault_of(record.config)
    return "no fault" if fault == CONTROL else f"fault {fault}"


def _excluded_lines(points: Sequence[Point], axes: Sequence[Axis], replaced: int) -> list[str]:
    """Return lines about records that do not count, by point; `replaced`: number of superseded records."""
    lines = []
    empty = [point for point in points if not point.valid]
    if empty:
        heads = [*(escape_cell(axis.name) for axis in axes), "attempts", "reason"]
        cells = [
            [
                *(escape_cell(axis.label(point)) for axis in axes),
                str(len(point.entries)),
                escape_cell(_reasons_text(point)),
            ]
            for point in empty
        ]
        lines += markdown_table(heads, cells)
    reasons = Counter(
        reason.split(":")[0] for point in points if point.valid for entry in point.entries for reason in entry.reasons
    )
    if reasons:
        listed = ", ".join(f"{escape_cell(code)} ({number})" for code, number in sorted(reasons.items()))
        lines += [""] if lines else []
        lines += [f"Also excluded, at points with usable records: {listed}."]
    lines = lines or ["Every point has a usable record, and every record is usable."]
    if replaced:
        lines += ["", f"Only the newest record of a repetition counts; {replaced} older records are excluded."]
    return lines


def _reasons_text(point: Point) -> str:
    """Return the first text of each reason code, with its count."""
    texts: dict[str, list[str]] = {}
    for entry in point.entries:
        for reason in entry.reasons or (entry.status,):
            texts.setdefault(reason.split(":")[0], []).append(reason)
    return "; ".join(first[0] + (f" (and {len(first) - 1} more)" if len(first) > 1 else "") for first in texts.values())


def _finding_lines(matrix: str, records: Sequence[Record]) -> list[str]:
    engines = {record.config.get("engine", "spark") for record in records}
    used = " and ".join(text for engine, text in _ENGINES.items() if engine in engines)
    intro = (
        f"{PAPERS[matrix]}, measured on a cluster; these runs use {used} on one machine. A verdict "
        "states whether the finding holds here."
    )
    lines = ["## The paper's findings", "", f"{intro} {NOTES.get(matrix, '')}".rstrip(), ""]
    every = findings(matrix, records)
    answered = [one for one in every if one.verdict in ANSWERED]
    if answered:
        counted = Counter(one.verdict for one in answered)
        text = ", ".join(f"{counted[verdict]} {verdict.value}" for verdict in ANSWERED if counted[verdict])
        lines += [f"Findings covered by these runs: {len(answered)}; {text}.", ""]
        lines += ["| finding | paper | verdict | evidence |", "| --- | --- | --- | --- |"]
        lines += [
            f"| {one.claim.text} | {one.claim.source} | **{one.verdict.value}** | {escape_cell(one.evidence)} |"
            for one in answered
        ]
    for verdict, heading, column in SEPARATE_VERDICTS:
        others = [one for one in every if one.verdict is verdict]
        if others:
            lines += ["", heading, "", f"| finding | paper | {column} |", "| --- | --- | --- |"]
            lines += [f"| {one.claim.text} | {one.claim.source} | {escape_cell(one.evidence)} |" for one in others]
    by_rate = sustained_rates(records) if matrix == "input_rate" else {}
    if by_rate:
        kept = [rate for rate, answers in by_rate.items() if all(answers)]
        lost = [rate for rate, answers in by_rate.items() if not all(answers)]
        lines += [
            "",
            f"Highest rate sustained by all of its runs: {_rate_text(max(kept, default=None))}; lowest rate "
            f"not sustained by a run: {_rate_text(min(lost, default=None))}.",
        ]
    return [*lines, ""]


def _rate_text(rate: float | None) -> str:
    return "none" if rate is None else f"{rate:,.10g} records/s"


def grid(records: Sequence[Record], named: Sequence[str]) -> tuple[list[Point], list[Axis]]:
    """Return the points in order, and the axes that vary (at least one axis), the `named` ones first."""
    points = points_of([IndexEntry.of(record) for record in records])
    breaking, controls = split_controls(points)
    # Faults and control runs may vary different parameters.
    found: dict[str, Axis] = {}
    for axis in (*axes_of(breaking), *axes_of(controls)):
        found.setdefault(axis.key, axis)
    wanted = [*named, *(key for key in found if key not in named)]
    if breaking and controls and FAULT not in wanted:
        wanted.append(FAULT)
    # If there is only one configuration, its row still needs a name.
    axes = [_axis(key, points) for key in wanted or ["checkpoint_interval_s"]]
    axes = [axis for axis in axes if len(axis.values) > 1] or axes[:1]
    return sort_points(points, axes), axes


def _axis(key: str, points: Iterable[Point]) -> Axis:
    """Return the axis with all values of the points in order, control runs last."""
    empty = Axis(key, False, ())
    values = {empty.label(point): empty.of(point) for point in points if empty.label(point) != NONE}
    if all(is_number(value) for value in values.values()):
        return Axis(key, True, tuple(sorted(values.values())))
    return Axis(
        key,
        False,
        tuple(values[text] for text in sorted(values, key=lambda text: (text == CONTROL, natural_key(text)))),
    )
