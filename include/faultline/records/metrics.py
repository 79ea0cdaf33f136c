"""What can be plotted and compared: each figure of a record with its name, its unit, and how it is written."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from faultline.records.format import NONE, cores, count, few_batches, milliseconds, seconds, share
from faultline.records.summary import Entry
from faultline.system.marks import ROLES

LESS, MORE = "less", "more"
_CPU, _NODES = "cpu_cores.", "cpu_nodes."
CPU_TOTAL = f"{_CPU}total"
CPU_PER_MILLION = "cpu_s_per_million.engine"
MACRO = "recovery.macro_s"
DEFAULT = _P99 = "latency_ms.p99"
# The p99, or the slowest batch where there are too few batches for a p99.
TAIL = "latency_ms.tail"
CENSORED_AT = "recovery.censored_at_s"


@dataclass(frozen=True)
class Metric:
    """One figure: `key` is its path in the record's metrics, `group` the heading that it stands under.

    `better`: whether less of it is better or more; None where neither is, as of what was asked for.
    """

    key: str
    group: str
    name: str
    unit: str = ""
    better: str | None = None

    @property
    def title(self) -> str:
        """Name and unit."""
        return f"{self.name} ({self.unit})" if self.unit else self.name

    def text(self, value: float | None) -> str:
        """A value as it stands in a table, without its unit."""
        if value is None:
            return NONE
        match self.unit:
            case "ms":
                return milliseconds(value)
            case "s":
                return seconds(value, 2)
            case "cores":
                return cores(value)
            case "share":
                return share(value)
        return count(value) if value == int(value) or abs(value) >= 1000 else f"{value:,.3g}"


KNOWN = (
    *(
        Metric(f"latency_ms.{key}", "Latency", f"Latency {name}", "ms", LESS)
        for key, name in (
            ("p50", "p50"), ("p90", "p90"), ("p99", "p99"), ("p999", "p99.9"), ("max", "maximum"), ("mean", "mean"),
        )
    ),
    # Neither is better: of a side with more batches it is another figure.
    Metric(TAIL, "Latency", "Latency p99, or of the slowest of few batches", "ms"),
    *(
        Metric(f"latency_{part}_ms.{key}", "Latency", f"Latency {name} {when}", "ms", LESS)
        for part, when in (("during", "during the fault"), ("after", "after the recovery"))
        for key, name in (("p50", "p50"), ("p99", "p99"), ("max", "maximum"))
    ),
    Metric("non_compute_ms", "Latency", "Non-compute time", "ms", LESS),
    Metric("throughput_rps", "Throughput", "Throughput", "records/s", MORE),
    Metric("rps_per_core", "Throughput", "Throughput per core", "records/s", MORE),
    Metric("source_rps", "Throughput", "Throughput at the source", "records/s"),
    Metric("sustained", "Throughput", "Sustained", "1 = yes", MORE),
    Metric("effective_interval_s", "Throughput", "Time between commits", "s", LESS),
    Metric(MACRO, "Recovery", "Macro recovery", "s", LESS),
    Metric("recovery.reload_s", "Recovery", "Reload", "s", LESS),
    Metric("recovery.replay_s", "Recovery", "Replay", "s", LESS),
    Metric("recovery.detection_s", "Recovery", "Detection", "s", LESS),
    Metric("recovery.redeploy_s", "Recovery", "Redeploy", "s", LESS),
    Metric("recovery.load_s", "Recovery", "Load", "s", LESS),
    Metric("recovery.catchup_s", "Recovery", "Catch-up", "s", LESS),
    Metric("recovery.silence_s", "Recovery", "Longest silence", "s", LESS),
    Metric("recovery.settled_s", "Recovery", "Settled", "s", LESS),
    Metric("recovery.plateau_ratio", "Recovery", "Tail after ÷ before the fault", "", LESS),
    Metric("recovery.drift_since_first_s", "Recovery", "Macro less that by the first baseline", "s"),
    Metric("injections.made", "Recovery", "Injections in one run"),
    Metric("placebo.macro_s", "Recovery", "Recovery from nothing, of a control", "s", LESS),
    Metric("recovery.dip_depth", "Recovery", "Dip depth", "share", LESS),
    Metric("recovery.lag_area_record_s", "Recovery", "Lag area", "record·s", LESS),
    Metric(CPU_TOTAL, "CPU", "CPU, all roles", "cores", LESS),
    *(
        Metric(f"cpu_cores.{role}", "CPU", f"CPU {role.replace('_', ' ')}", "cores", LESS)
        for role in ROLES
    ),
    Metric(CPU_PER_MILLION, "CPU", "CPU per million records", "s", LESS),
    Metric("cpu_s_per_million.workers", "CPU", "CPU per million records, without the driver", "s", LESS),
    Metric("cpu_besides.others", "CPU", "CPU of other processes", "cores"),
    Metric("cpu_besides.services", "CPU", "CPU of Airflow and other services", "cores"),
    Metric("cpu_besides.recorder", "CPU", "CPU of the recorder", "cores"),
    Metric("cpu_besides.stolen", "CPU", "CPU stolen by the host", "cores"),
    Metric("warmup.waited_s", "Work", "Warm-up until steady, after its shortest", "s"),
    Metric("waited.others", "CPU", "CPU lost to other processes", "cores"),
    Metric("waited.stolen", "CPU", "CPU lost to the host", "cores"),
    Metric("waited.worst_5s", "CPU", "CPU lost in the worst 5 s", "cores"),
    Metric("work.batches", "Work", "Batches"),
    Metric("work.tasks", "Work", "Tasks"),
    Metric("work.batch_s", "Work", "Execution time of batches", "s", LESS),
    Metric("work.task_s", "Work", "Run time of tasks", "s", LESS),
    Metric("work.batch_us_per_record", "Work", "Execution time of batches per record", "µs", LESS),
    Metric("gc_s", "Memory and state", "Garbage collection", "s", LESS),
    Metric("gc.driver_s", "Memory and state", "Garbage collection, driver", "s", LESS),
    Metric("gc.longest_ms", "Memory and state", "Longest pause of collection", "ms", LESS),
    Metric("state_bytes.logical", "Memory and state", "State, logical", "bytes"),
    Metric("state_bytes.checkpoint", "Memory and state", "State in the checkpoint", "bytes", LESS),
    *(
        Metric(f"rss_mb.{role}", "Memory and state", f"Memory {role.replace('_', ' ')}", "MB", LESS)
        for role in ROLES
    ),
    *(
        Metric(f"audit.{key}", "Audit", name, unit, LESS)
        for key, name, unit in (
            ("lost", "Lost", "tuples"), ("undrained", "Not processed", "offsets"),
            ("overcounted", "Overcounted", "tuples"), ("wrong", "Wrong", "outputs"),
            ("sums_differ", "Counted alike, but not the same", "keys"),
            ("reemitted", "Re-emitted", "outputs"), ("unknown", "Sends unknown", "records"),
        )
    ),
    Metric("latency_ms.unreflected", "Audit", "Tuples never reflected", "tuples", LESS),
    Metric("late.sent", "Audit", "Sent too late", "records"),
    Metric("late.dropped_rows", "Audit", "Left out as too late", "rows"),
    Metric("stages.signals", "Stages", "Signals to slow down"),
    Metric("stages.failed", "Stages", "Failed tuples", "tuples", LESS),
    Metric("stages.set_aside", "Stages", "Tuples set aside", "tuples", LESS),
    Metric("stages.most_queued", "Stages", "Longest queue", "tuples", LESS),
    Metric("stages.replacements", "Stages", "Replaced stages"),
    Metric("stages.gap_s", "Stages", "Longest pause of a replacement", "s", LESS),
    Metric("stages.batch_s", "Stages", "Longest batch of a replaced stage", "s"),
    Metric("stages.unstored", "Stages", "Words not stored as acknowledged", "", LESS),
    Metric("keys.requested", "Keys", "Zipf exponent, asked for"),
    Metric("keys.measured", "Keys", "Zipf exponent, measured"),
    Metric("keys.hottest_share", "Keys", "Share of the hottest key", "share"),
    Metric("keys.distinct", "Keys", "Distinct keys"),
    Metric("schedule_lag_ms.p99", "Generator", "Schedule lag p99", "ms"),
    Metric("recovery.lateness_ms", "Generator", "Largest lateness in a recovery", "ms"),
)  # fmt: skip
# What a reader of a comparison wants to know first.
USUAL = (
    "latency_ms.p50", "latency_ms.p99", "throughput_rps", CPU_TOTAL,
    "recovery.reload_s", "recovery.replay_s", MACRO,
)  # fmt: skip
# Named where they are listed, and no figures that pages and tables show by themselves.
_FURTHER = (
    *(
        Metric(f"latency_{part}ms.{key}", "Latency", f"{name}{when}", unit)
        for part, when in (("", ""), ("during_", " during the fault"), ("after_", " after the recovery"))
        for key, name, unit in (
            ("mean", "Latency mean", "ms"),
            ("p90", "Latency p90", "ms"),
            ("p999", "Latency p99.9", "ms"),
            ("count", "Tuples measured", ""),
            ("batches", "Batches measured", ""),
            ("negative", "Tuples that came before they were sent", ""),
            ("unreflected", "Tuples never reflected", "tuples"),
            ("method", "How the latency was measured", ""),
        )
    ),
    Metric("recovery.replacement_up_s", "Recovery", "Replacement up", "s"),
    Metric("recovery.recovered", "Recovery", "Seen to recover"),
    Metric(CENSORED_AT, "Recovery", "Watched for", "s"),
    Metric("recovery.resolution_s", "Recovery", "Known to", "s"),
    Metric("recovery.recovered_within", "Recovery", "Recovered within", "share"),
    Metric("recovery.latency_limit_ms", "Recovery", "Bound of the latency", "ms"),
    Metric("recovery.lag_limit", "Recovery", "Bound of the lag", "records"),
    Metric("recovery.hold_s", "Recovery", "Has to stay so for", "s"),
    Metric("recovery.phase", "Recovery", "Place of the fault in the interval", "share"),
    Metric("audit.expected", "Audit", "Expected", "tuples"),
    Metric("keys.low", "Keys", "Zipf exponent, measured at least"),
    Metric("keys.high", "Keys", "Zipf exponent, measured at most"),
    Metric("gc.executors_s", "Memory and state", "Garbage collection, executors", "s"),
    Metric("gc.pauses", "Memory and state", "Pauses of collection"),
    Metric("schedule_lag_ms.p50", "Generator", "Schedule lag p50", "ms"),
    Metric("schedule_lag_ms.max", "Generator", "Schedule lag maximum", "ms"),
)
_BY_KEY = {metric.key: metric for metric in KNOWN}
_NAMED = {metric.key: metric for metric in (*_FURTHER, *KNOWN)}
# Of which less or more is better, so that one value may be held against another.
COMPARABLE = {metric.key: metric for metric in KNOWN if metric.better}
# Neither figures of their own nor comparable: bounds, counts of what a figure was made of.
_HIDDEN = frozenset(
    {
        CENSORED_AT, "recovery.recovered", "recovery.resolution_s", "recovery.phase", "keys.low", "keys.high",
        "realtime", "injections.planned", "warmup.steady", "warmup.bound_s",
        # The same as gc_s where it is known, and how many pauses made it up.
        "gc.executors_s", "gc.pauses",
    }
)  # fmt: skip
# Of each latency: what it is made of, and quantiles that are in between; of each recovery: its bounds.
_LATENCIES = ("latency_ms.", "latency_during_ms.", "latency_after_ms.")
_WITHIN = frozenset({"count", "negative", "unreflected", "batches", "mean", "p90", "p999"})
_BOUNDS = frozenset({"recovered_within", "latency_limit_ms", "lag_limit", "hold_s"})
_UNITS = {"_ms": "ms", "_s": "s", "_rps": "records/s", "_mb": "MB", "_bytes": "bytes", "_cores": "cores"}


def metrics_of(entries: Sequence[Entry], *, unsound: bool = False) -> list[Metric]:
    """The metrics that at least one sound entry has, well-known ones first; others under their path in the record.

    `unsound`: whether those of unsound entries are among them.
    """
    present: dict[str, None] = {}
    for entry in entries:
        if entry.sound or unsound:
            present.update(dict.fromkeys(entry.metrics))
    if any(key.startswith(_CPU) for key in present):
        present[CPU_TOTAL] = None
    if _P99 in present:
        present[TAIL] = None
    others = [named(key) for key in present if key not in _BY_KEY and not _is_hidden(key)]
    return [*(metric for metric in KNOWN if metric.key in present), *others]


def value_of(entry: Entry, key: str) -> float | None:
    """One figure of one record; a truth value as 1 or 0."""
    if key == TAIL:
        few = few_batches(entry.metrics.get("latency_ms.batches"))
        return value_of(entry, "latency_ms.max" if few else _P99)
    if key == CPU_TOTAL:
        known = [value for name, value in entry.metrics.items() if name.startswith(_CPU)]
        return float(sum(known)) if known else None
    value = entry.metrics.get(key)
    return None if value is None else float(value)


def bounds_of(entry: Entry, key: str) -> tuple[float, float] | None:
    """The least and the largest that a figure of one record may be: a recovery is known to its resolution, and one that
    was not seen to end only from below. None where nothing is known of it."""
    value = value_of(entry, key)
    if key != MACRO:
        return None if value is None else (value, value)
    if value is None:
        watched = value_of(entry, CENSORED_AT) if entry.metrics.get("recovery.recovered") is False else None
        return None if watched is None else (watched, math.inf)
    blur = value_of(entry, "recovery.resolution_s") or 0.0
    # By schema 1 the bin in which it was seen may be the one before or after.
    return max(0.0, value - blur), value + (blur if entry.schema == 1 else 0.0)


def by_group(metrics: Iterable[Metric]) -> list[tuple[str, list[Metric]]]:
    """The metrics under their headings, for a list to choose from."""
    groups: dict[str, list[Metric]] = {}
    for metric in metrics:
        groups.setdefault(metric.group, []).append(metric)
    return list(groups.items())


def _is_hidden(key: str) -> bool:
    leaf = key.rpartition(".")[2]
    made_of = key.startswith(_LATENCIES) and leaf in _WITHIN
    aside = key.startswith(("placebo.", "injections.ended_early."))
    return key in _HIDDEN or made_of or leaf in _BOUNDS or aside


def named(key: str) -> Metric:
    """The metric of a path; of one that nobody has named in words made of the path."""
    if key in _NAMED:
        return _NAMED[key]
    if key.startswith(_NODES):
        return Metric(key, "CPU", f"CPU of node {key.removeprefix(_NODES)}", "cores")
    place, _, leaf = key.rpartition(".")
    suffix = next((suffix for part in (leaf, place) for suffix in _UNITS if part.endswith(suffix)), "")
    words = " · ".join(part.removesuffix(suffix) for part in key.split(".")).replace("_", " ")
    return Metric(key, "Others", words[:1].upper() + words[1:], _UNITS.get(suffix, ""))
