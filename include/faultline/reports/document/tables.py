"""The tables of a page: a row for each point of the axes, and columns as far as something is known."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from faultline.comparison.cells import Axis, Point
from faultline.records.format import NONE, cores
from faultline.records.metrics import KNOWN, TAIL, Metric, metrics_of
from faultline.system.marks import ROLES

# What the pages in Airflow do not choose from, but a table here has.
_MORE = (
    Metric("recovery.replacement_up_s", "Recovery", "replacement up", "s"),
    Metric("audit.expected", "Audit", "expected", "tuples"),
)
METRICS = {metric.key: metric for metric in (*KNOWN, *_MORE)}
# A cell is text: nothing in it may begin markup or end the cell.
_MARKUP = re.compile(r"([\\`*<|\[\]~$&]|(?<!\w)_|_(?!\w))")


@dataclass(frozen=True)
class Column:
    """A heading, and the text of a point under it; `—` where nothing is known."""

    heading: str
    text: Callable[[Point], str]


def figures(*keys: str, names: Sequence[str] = ()) -> list[Column]:
    """Columns of medians with least and greatest; `names` in place of the metrics' own."""
    chosen = names or [METRICS[key].name for key in keys]
    return [_figure(METRICS[key], name) for key, name in zip(keys, chosen, strict=True)]


def _figure(metric: Metric, name: str) -> Column:
    def text(point: Point) -> str:
        one = point.figure(metric.key)
        ends = {metric.text(one.low), metric.text(one.high)}
        # No spread where it is too small to be written.
        spread = one.spread(metric).replace(" – ", "–") if ends != {metric.text(one.median)} else ""
        return f"{one.text(metric)} ({spread})" if spread else one.text(metric)

    return Column(f"{name} ({metric.unit})" if metric.unit not in ("", "share") else name, text)


def total(key: str, name: str) -> Column:
    """The sum over the valid repetitions."""

    def text(point: Point) -> str:
        known = [float(entry.metrics[key]) for entry in point.valid if key in entry.metrics]
        return f"{sum(known):,.0f}" if known else NONE

    return Column(name, text)


def held(key: str, name: str) -> Column:
    """In how many of the valid repetitions something was true."""

    def text(point: Point) -> str:
        known = [bool(entry.metrics[key]) for entry in point.valid if key in entry.metrics]
        return f"{sum(known)} of {len(known)}" if known else NONE

    return Column(name, text)


def _recovered(point: Point) -> str:
    known = [bool(one.metrics["recovery.recovered"]) for one in point.valid if "recovery.recovered" in one.metrics]
    return f"{sum(known)} of {len(known)}" if known else NONE


def _oversubscribed(point: Point) -> str:
    """Whether the executors together had more cores than the machine."""
    asked = point.config.get("executors", 1) * point.config.get("executor_cores", 1)
    return "yes" if any(one.cores and asked > one.cores for one in point.entries) else NONE


N = Column("n", lambda point: f"{len(point.valid)} of {len(point.entries)}")
LATENCY = (
    *figures("latency_ms.p50", TAIL, "latency_ms.mean", names=("p50", "p99 or slowest", "mean")),
    *figures(
        "non_compute_ms",
        "throughput_rps",
        "rps_per_core",
        "source_rps",
        names=("non-compute", "throughput", "per core", "at the source"),
    ),
    held("sustained", "sustained"),
    *figures("effective_interval_s", names=("between commits",)),
    held("realtime", "real time"),
)
KEYS = (
    *figures("keys.requested", "keys.measured", names=("exponent asked for", "measured")),
    *figures("keys.hottest_share", "keys.distinct", names=("hottest key", "distinct keys")),
)
RECOVERY = (
    Column("recovered", _recovered),
    *figures(
        *(f"recovery.{part}_s" for part in ("detection", "redeploy", "load", "reload", "replay", "catchup", "macro")),
        *(f"recovery.{part}" for part in ("settled_s", "silence_s", "dip_depth", "replacement_up_s")),
        "latency_during_ms.p50", "latency_during_ms.max", "latency_after_ms.p50",
        names=(
            "detection", "redeploy", "load", "**reload**", "replay", "catch-up", "**macro**", "settled", "silence",
            "dip", "replacement up", "p50 during", "slowest during", "p50 after",
        ),
    ),
)  # fmt: skip
STAGES = figures(
    *(f"stages.{key}" for key in ("signals", "failed", "most_queued", "replacements", "gap_s", "batch_s", "unstored")),
    names=("signals", "failed", "longest queue", "replaced", "longest pause", "longest batch", "not stored"),
)
RESOURCES = (
    Column("oversubscribed", _oversubscribed),
    *figures(
        *(f"cpu_cores.{role}" for role in ROLES),
        names=("driver", "executors", "Python workers", "Kafka", "generator"),
    ),
    *figures(
        *(f"cpu_besides.{name}" for name in ("others", "services", "recorder", "stolen")),
        names=("other processes", "of them Airflow and services", "recorder", "stolen by the host"),
    ),
    *figures("waited.others", "waited.worst_5s", names=("lost to others", "lost in the worst 5 s")),
    *figures("gc_s", "work.tasks", "work.task_s", "work.batches", "work.batch_s", "work.batch_us_per_record",
             names=("GC", "tasks", "run time of tasks", "batches", "execution of batches", "of them per record")),
    *figures("state_bytes.logical", "state_bytes.checkpoint", names=("state", "checkpoint")),
)  # fmt: skip
AUDIT = (
    total("audit.expected", "expected"),
    total("audit.lost", "lost"),
    total("audit.undrained", "not processed"),
    total("audit.overcounted", "overcounted"),
    total("audit.wrong", "wrong"),
    total("audit.sums_differ", "sums differ"),
    total("audit.reemitted", "re-emitted"),
    total("audit.unknown", "sends unknown"),
    total("latency_ms.unreflected", "never reflected"),
    total("late.sent", "sent too late"),
    total("late.dropped_rows", "rows left out as late"),
)
# Columns of these keys are shown apart, or are not figures of one point.
_ELSEWHERE = ("cpu_nodes.", "rss_mb.", "schedule_lag_ms.")
_USELESS = {NONE, cores(0)}


def sections(matrix: str, points: Sequence[Point]) -> list[tuple[str, list[Column]]]:
    """The tables of a matrix by heading, without columns in which nothing is known of any point.

    What a record has and no table names, such as a figure of a later version, stands among the resources.
    """
    entries = [entry for point in points for entry in point.entries]
    others = [metric for metric in metrics_of(entries) if metric.key not in METRICS]
    more = [_figure(metric, metric.name) for metric in others if not metric.key.startswith(_ELSEWHERE)]
    wanted: list[tuple[str, Iterable[Column]]] = [
        ("Recovery", RECOVERY),
        ("Latency and throughput", LATENCY),
        ("Stages", STAGES),
        ("Keys", KEYS if matrix == "skew_x_alignment_mode" else ()),
        ("CPU, memory and work", (*RESOURCES, *more)),
        # Of events that the engine makes itself nothing is kept, so nothing is audited.
        ("Audit", AUDIT if any("audit.expected" in entry.metrics for entry in entries) else ()),
    ]
    told = [point for point in points if point.valid]
    found = [
        (heading, [column for column in columns if not {column.text(point) for point in told} <= _USELESS])
        for heading, columns in wanted
    ]
    return [(heading, columns) for heading, columns in found if columns]


def table(points: Sequence[Point], axes: Sequence[Axis], columns: Sequence[Column]) -> list[str]:
    """Lines of a Markdown table: the axes, the columns, and how many of the measured are valid."""
    heads = [*(words(axis.name) for axis in axes), *(column.heading for column in columns), N.heading]
    lines = [f"| {' | '.join(heads)} |", f"|{' --- |' * len(heads)}"]
    for point in points:
        cells = [*(words(axis.label(point)) for axis in axes), *(column.text(point) for column in (*columns, N))]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def words(text: str) -> str:
    """A text that comes from a record, as one line without markup."""
    return _MARKUP.sub(r"\\\1", " ".join(text.split()))
