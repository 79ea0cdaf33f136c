"""Catalogue of the columns that tables, pages, exports and comparisons show of a record.

The key of a figure is its path in the record's metrics; a figure with a `read` function is computed from others.
`heads` names the tables that contain the column, with its heading in each; tables keep the order of the catalogue.
Selection lists, exports and the page of an experiment show every figure of a record.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from faultline.experiment.workloads.registry import has_schedule, workload_of
from faultline.records.columns import LESS, MORE, CatalogueColumn, Metric, Over, Sheet
from faultline.records.format import has_few_batches
from faultline.records.index_entry import IndexEntry
from faultline.system.process_tags import ROLES

Figures = Mapping[str, float | bool]
_CPU, _NODES = "cpu_cores.", "cpu_by_host."
CPU_TOTAL = f"{_CPU}total"
CPU_PER_MILLION = "cpu_s_per_million.engine"
MACRO = "recovery.macro_s"
DEFAULT = P99 = "latency_ms.p99"
# The p99, or the slowest batch if there are too few batches for a p99.
TAIL = "latency_ms.tail"
CENSORED_AT = "recovery.censored_at_s"


def _tail(entry: IndexEntry) -> float | None:
    few = has_few_batches(entry.metrics.get("latency_ms.batches"))
    return entry.metrics.get("latency_ms.max" if few else P99)


def _cpu_total(entry: IndexEntry) -> float | None:
    known = [value for name, value in entry.metrics.items() if name.startswith(_CPU)]
    return float(sum(known)) if known else None


def _query(entry: IndexEntry) -> Any:
    return entry.config.get("query") if "query" in workload_of(entry.config).parameters.model_fields else None


def _state(entry: IndexEntry) -> Any:
    return entry.config.get("state_mb") if workload_of(entry.config).can("preloaded_state") else None


def _interval(entry: IndexEntry) -> Any:
    # Without a schedule, batches follow each other immediately and the interval has no effect.
    return entry.config.get("checkpoint_interval_s") if has_schedule(entry.config) else None


def _in(name: str, *tables: Sheet) -> dict[Sheet, str]:
    return dict.fromkeys(tables, name)


_RUNS, _CELLS, _COMPARED, _WATCHED, _ANSWER = Sheet.RUNS, Sheet.CELLS, Sheet.COMPARED, Sheet.WATCHED, Sheet.ANSWER
_LATENCY, _RECOVERY, _RESOURCES, _AUDIT = Sheet.LATENCY, Sheet.RECOVERY, Sheet.RESOURCES, Sheet.AUDIT
_EXPORT = _in("", Sheet.EXPORT)
# Columns that identify an experiment.
IDENTITY = (
    CatalogueColumn("number", "Experiment", "#", heads=_in("", _RUNS), read=lambda entry: None),
    CatalogueColumn("matrix", "Experiment", "Matrix", heads=_EXPORT),
    CatalogueColumn("query", "Experiment", "Query", heads=_in("", _RUNS), read=_query, left=True),
    CatalogueColumn("state_mb", "Experiment", "State", "MB", _in("", _RUNS), read=_state),
    CatalogueColumn("interval_s", "Experiment", "Interval", "s", _in("", _RUNS), read=_interval),
    CatalogueColumn("fault", "Experiment", "Fault", heads=_in("", _RUNS), left=True),
    CatalogueColumn("config_id", "Experiment", "Configuration", heads=_EXPORT),
    CatalogueColumn("series", "Experiment", "Series", heads=_EXPORT),
    CatalogueColumn("build", "Experiment", "Build", heads=_EXPORT),
    CatalogueColumn("attempt", "Experiment", "Attempt", heads=_EXPORT),
    CatalogueColumn("repetition", "Experiment", "Rep", heads=_in("", _RUNS, Sheet.EXPORT)),
    CatalogueColumn("status", "", "Status", heads=_in("", _RUNS, Sheet.EXPORT), left=True),
    CatalogueColumn("sweep_id", "Experiment", "Sweep", heads=_EXPORT),
    CatalogueColumn("logical_date", "Experiment", "Logical date", heads=_EXPORT),
    CatalogueColumn("measured_at", "Experiment", "Measured", heads=_EXPORT),
)
_ROLE_NAMES = {"python_workers": "Python workers", "kafka": "Kafka"}
_PARTS_OF_LATENCY = (
    ("latency_ms", ""), ("latency_during_ms", " during the fault"), ("latency_after_ms", " after the recovery"),
)  # fmt: skip
METRICS = (
    Metric("latency_ms.p50", "Latency", "Latency p50", "ms",
           _in("p50", _RUNS, _LATENCY, _CELLS, _COMPARED, _WATCHED) | _in("latency p50", _ANSWER), better=LESS),
    Metric("latency_ms.p90", "Latency", "Latency p90", "ms", better=LESS),
    Metric(P99, "Latency", "Latency p99", "ms",
           _in("", _COMPARED, _WATCHED) | _in("latency p99", _ANSWER), better=LESS),
    # No better direction: two sides of a comparison may differ in which of the two figures it is.
    Metric(TAIL, "Latency", "Latency p99, or maximum with few batches", "ms",
           {_RUNS: "p99", _CELLS: "", _LATENCY: "p99 or slowest"}, read=_tail),
    Metric("latency_ms.p999", "Latency", "Latency p99.9", "ms", better=LESS),
    Metric("latency_ms.max", "Latency", "Latency maximum", "ms", better=LESS),
    Metric("latency_ms.mean", "Latency", "Latency mean", "ms", _in("mean", _LATENCY), better=LESS),
    Metric("non_compute_ms", "Latency", "Non-compute time", "ms", _in("non-compute", _LATENCY), better=LESS),
    Metric("throughput_rps", "Throughput", "Throughput", "records/s",
           {_RUNS: "Handled", _LATENCY: "throughput", _ANSWER: "throughput"} | _in("", _CELLS, _COMPARED, _WATCHED),
           better=MORE),
    Metric("rps_per_core", "Throughput", "Throughput per core", "records/s", _in("per core", _LATENCY), better=MORE),
    Metric("source_rps", "Throughput", "Throughput at the source", "records/s", _in("at the source", _LATENCY)),
    Metric("sustained", "Throughput", "Sustained", "1 = yes", _in("sustained", _LATENCY), better=MORE, over=Over.HELD),
    Metric("effective_interval_s", "Throughput", "Time between commits", "s", _in("between commits", _LATENCY),
           better=LESS),
    Metric("realtime", "Others", "Realtime", heads=_in("real time", _LATENCY), over=Over.HELD, listed=False),
    Metric(CPU_TOTAL, "CPU", "CPU, all roles", "cores", {_COMPARED: "", _WATCHED: "", _ANSWER: "CPU"},
           read=_cpu_total, better=LESS),
    *(
        Metric(f"{_CPU}{role}", "CPU", f"CPU {role.replace('_', ' ')}", "cores",
               {_RUNS: role.removesuffix("_workers"), _RESOURCES: _ROLE_NAMES.get(role, role)}, better=LESS)
        for role in ROLES
    ),
    Metric(CPU_PER_MILLION, "CPU", "CPU per million records", "s", better=LESS),
    Metric("cpu_s_per_million.workers", "CPU", "CPU per million records, without the driver", "s", better=LESS),
    *(
        Metric(f"cpu_by_phase.{phase}", "CPU", f"CPU per million records, {phase} recoveries", "s",
               _in(f"CPU {phase}, per million", _RECOVERY), better=LESS)
        for phase in ("before", "during", "after")
    ),
    Metric("background_cpu.processes", "CPU", "CPU of other processes", "cores", _in("other processes", _RESOURCES)),
    Metric("background_cpu.services", "CPU", "CPU of Airflow and other services", "cores",
           _in("of them Airflow and services", _RESOURCES)),
    Metric("background_cpu.recorder", "CPU", "CPU of the recorder", "cores", _in("recorder", _RESOURCES)),
    Metric("background_cpu.steal", "CPU", "CPU stolen by the host", "cores", _in("stolen by the host", _RESOURCES)),
    Metric("waited.others", "CPU", "CPU lost to other processes", "cores", _in("lost to others", _RESOURCES)),
    Metric("waited.stolen", "CPU", "CPU lost to the host", "cores"),
    Metric("waited.worst_5s", "CPU", "CPU lost in the worst 5 s", "cores", _in("lost in the worst 5 s", _RESOURCES)),
    Metric("gc_s", "Memory and state", "Garbage collection", "s", _in("GC", _RESOURCES), better=LESS),
    Metric("gc.driver_s", "Memory and state", "Garbage collection, driver", "s", better=LESS),
    Metric("gc.longest_ms", "Memory and state", "Longest GC pause", "ms", better=LESS),
    # Equal to gc_s if the JVM logs were read, and the number of pauses.
    Metric("gc.executors_s", "Memory and state", "Garbage collection, executors", "s", listed=False),
    Metric("gc.pauses", "Memory and state", "GC pauses", listed=False),
    Metric("warmup.waited_s", "Work", "Warm-up beyond its minimum", "s"),
    Metric("warmup.steady", "Others", "Warmup · steady", listed=False),
    Metric("warmup.bound_s", "Others", "Warmup · bound", "s", listed=False),
    Metric("work.tasks", "Work", "Tasks", heads=_in("tasks", _RESOURCES)),
    Metric("work.task_s", "Work", "Run time of tasks", "s", _in("run time of tasks", _RESOURCES), better=LESS),
    Metric("work.batches", "Work", "Batches", heads=_in("batches", _RESOURCES)),
    Metric("work.batch_s", "Work", "Execution time of batches", "s", _in("execution of batches", _RESOURCES),
           better=LESS),
    Metric("work.batch_us_per_record", "Work", "Execution time of batches per record", "µs",
           _in("of them per record", _RESOURCES), better=LESS),
    *(
        Metric(f"checkpoints.{key}", "Checkpoints", name, unit, listed=False)
        for key, name, unit in (
            ("count", "Checkpoints", ""), ("start_delay_ms.p50", "Barrier start delay p50", "ms"),
            ("start_delay_ms.max", "Barrier start delay maximum", "ms"),
            ("written_bytes.max", "Checkpoint upload maximum", "bytes"),
        )
    ),
    Metric("checkpoints.alignment_ms.p50", "Checkpoints", "Barrier alignment p50", "ms",
           _in("alignment", _RESOURCES), better=LESS),
    Metric("checkpoints.alignment_ms.max", "Checkpoints", "Barrier alignment maximum", "ms", better=LESS),
    Metric("checkpoints.duration_ms.p50", "Checkpoints", "Checkpoint duration p50", "ms",
           _in("checkpoint duration", _RESOURCES), better=LESS),
    Metric("checkpoints.duration_ms.max", "Checkpoints", "Checkpoint duration maximum", "ms", better=LESS),
    Metric("checkpoints.written_bytes.p50", "Checkpoints", "Checkpoint upload p50", "bytes", better=LESS),
    Metric("checkpoints.persisted_bytes.p50", "Checkpoints", "Records in flight in a checkpoint, p50", "bytes",
           better=LESS),
    Metric("checkpoints.persisted_bytes.max", "Checkpoints", "Records in flight in a checkpoint, maximum", "bytes",
           better=LESS),
    Metric("visible_delay_ms.p50", "Latency", "Emission to end of transaction, p50", "ms", better=LESS),
    Metric("visible_delay_ms.max", "Latency", "Emission to end of transaction, maximum", "ms", better=LESS),
    Metric("unplanned_exits", "Work", "Unplanned exits of workers", better=LESS, over=Over.TOTAL),
    Metric("state_bytes.logical", "Memory and state", "State, logical", "bytes", _in("state", _RESOURCES)),
    Metric("state_bytes.checkpoint", "Memory and state", "State in the checkpoint", "bytes",
           _in("checkpoint", _RESOURCES), better=LESS),
    *(
        Metric(f"rss_mb.{role}", "Memory and state", f"Memory {role.replace('_', ' ')}", "MB", better=LESS)
        for role in ROLES
    ),
    Metric("recovery.recovered", "Recovery", "Recovery observed", heads=_in("recovered", _RECOVERY), over=Over.HELD,
           listed=False),
    Metric("recovery.detection_s", "Recovery", "Detection", "s", _in("detection", _RECOVERY), better=LESS),
    Metric("recovery.redeploy_s", "Recovery", "Redeploy", "s", _in("redeploy", _RECOVERY), better=LESS),
    Metric("recovery.load_s", "Recovery", "Load", "s", _in("load", _RECOVERY), better=LESS),
    Metric("recovery.reload_s", "Recovery", "Reload", "s",
           _in("", _RUNS, _CELLS, _COMPARED) | _in("**reload**", _RECOVERY), better=LESS),
    Metric("recovery.replay_s", "Recovery", "Replay", "s",
           _in("", _RUNS, _CELLS, _COMPARED) | _in("replay", _RECOVERY), better=LESS),
    Metric("recovery.catchup_s", "Recovery", "Catch-up", "s", _in("catch-up", _RECOVERY), better=LESS),
    Metric(MACRO, "Recovery", "Macro recovery", "s",
           {_RUNS: "Macro", _RECOVERY: "**macro**", _ANSWER: "recovery"} | _in("", _CELLS, _COMPARED, _WATCHED),
           better=LESS),
    Metric("injections.made", "Recovery", "Injections in one run", heads=_in("Faults", _RUNS)),
    Metric("injections.planned", "Others", "Injections · planned", listed=False),
    Metric("recovery.settled_s", "Recovery", "Settled", "s", _in("settled", _RECOVERY), better=LESS),
    Metric("recovery.durable_s", "Recovery", "Input at the fault committed", "s", better=LESS),
    Metric("recovery.silence_s", "Recovery", "Longest silence", "s", _in("silence", _RECOVERY), better=LESS),
    Metric("recovery.dip_depth", "Recovery", "Dip depth", "share", _in("dip", _RECOVERY), better=LESS),
    Metric("recovery.replacement_up_s", "Recovery", "Replacement up", "s", _in("replacement up", _RECOVERY)),
    Metric("recovery.plateau_ratio", "Recovery", "Tail after ÷ before the fault", better=LESS),
    Metric("recovery.drift_since_first_s", "Recovery", "Macro minus its value by the first baseline", "s"),
    Metric("placebo.macro_s", "Recovery", "Placebo recovery of a control run", "s", better=LESS),
    Metric("recovery.lag_area_record_s", "Recovery", "Lag area", "record·s", better=LESS),
    Metric(CENSORED_AT, "Recovery", "Recovery not complete after", "s", listed=False),
    Metric("recovery.resolution_s", "Recovery", "Resolution of the recovery", "s", listed=False),
    Metric("recovery.recovered_within", "Recovery", "Recovered within", "share", listed=False),
    Metric("recovery.latency_limit_ms", "Recovery", "Recovery threshold of the latency", "ms", listed=False),
    Metric("recovery.lag_limit", "Recovery", "Recovery threshold of the consumer lag", "records", listed=False),
    Metric("recovery.hold_s", "Recovery", "Stability window", "s", listed=False),
    Metric("recovery.restarts", "Recovery", "Job restarts", heads=_in("restarts", _RECOVERY), better=LESS),
    Metric("recovery.phase", "Recovery", "Phase of the fault in the checkpoint cycle", "share", listed=False),
    Metric("latency_during_ms.p50", "Latency", "Latency p50 during the fault", "ms", _in("p50 during", _RECOVERY),
           better=LESS),
    Metric("latency_during_ms.p99", "Latency", "Latency p99 during the fault", "ms", better=LESS),
    Metric("latency_during_ms.max", "Latency", "Latency maximum during the fault", "ms",
           _in("slowest during", _RECOVERY), better=LESS),
    Metric("latency_after_ms.p50", "Latency", "Latency p50 after the recovery", "ms", _in("p50 after", _RECOVERY),
           better=LESS),
    Metric("latency_after_ms.p99", "Latency", "Latency p99 after the recovery", "ms", better=LESS),
    Metric("latency_after_ms.max", "Latency", "Latency maximum after the recovery", "ms", better=LESS),
    # Sample sizes, excluded tuples and further quantiles of each latency.
    *(
        Metric(f"{part}.{key}", "Latency", f"{name}{when}", unit, listed=False)
        for part, when in _PARTS_OF_LATENCY
        for key, name, unit in (
            ("mean", "Latency mean", "ms"), ("p90", "Latency p90", "ms"), ("p999", "Latency p99.9", "ms"),
            ("count", "Tuples measured", ""), ("batches", "Batches measured", ""),
            ("negative", "Tuples with an output before their send time", ""),
            ("unreflected", "Tuples never reflected", "tuples"), ("method", "How the latency was measured", ""),
        )
        if when or key in ("count", "batches", "negative", "method")
    ),
    Metric("audit.expected", "Audit", "Expected", "tuples", _in("expected", _AUDIT), over=Over.TOTAL),
    *(
        Metric(key, "Audit", name, unit, {_AUDIT: head} | heads, better=better, over=Over.TOTAL)
        for key, name, unit, head, better, heads in (
            ("audit.lost", "Lost", "tuples", "lost", LESS, _in("Lost", _RUNS, _CELLS, _WATCHED)),
            ("audit.undrained", "Not processed", "offsets", "not processed", LESS, {_RUNS: "Undrained"}),
            ("audit.overcounted", "Overcounted", "tuples", "overcounted", LESS, {_RUNS: ""}),
            ("audit.unexpected", "Unexpected", "outputs", "unexpected", LESS, {}),
            ("audit.checksum_mismatches", "Checksum mismatches", "keys", "checksum mismatches", LESS, {}),
            ("audit.reemitted", "Re-emitted", "outputs", "re-emitted", LESS, {}),
            ("audit.unknown", "Sends unknown", "records", "sends unknown", LESS, {}),
            ("latency_ms.unreflected", "Tuples never reflected", "tuples", "never reflected", LESS, {}),
            ("late_records.sent", "Sent too late", "records", "sent too late", None, {}),
            ("late_records.dropped_rows", "Left out as too late", "rows", "rows left out as late", None, {}),
        )
    ),
    *(
        Metric(f"stages.{key}", "Stages", name, unit, {Sheet.STAGES: head} if head else {}, better=better)
        for key, name, unit, head, better in (
            ("signals", "Signals to slow down", "", "signals", None),
            ("failed", "Failed tuples", "tuples", "failed", LESS),
            ("set_aside", "Tuples set aside", "tuples", "", LESS),
            ("most_queued", "Longest queue", "tuples", "longest queue", LESS),
            ("replacements", "Replaced stages", "", "replaced", None),
            ("gap_s", "Longest pause of a replacement", "s", "longest pause", LESS),
            ("batch_s", "Longest batch of a replaced stage", "s", "longest batch", None),
            ("unstored", "Words not stored as acknowledged", "", "not stored", LESS),
        )
    ),
    Metric("key_skew.requested", "Keys", "Zipf exponent, requested", heads={Sheet.KEYS: "exponent asked for"}),
    Metric("key_skew.measured", "Keys", "Zipf exponent, measured", heads={Sheet.KEYS: "measured"}),
    Metric("key_skew.low", "Keys", "Zipf exponent, lower bound", listed=False),
    Metric("key_skew.high", "Keys", "Zipf exponent, upper bound", listed=False),
    Metric("key_skew.hottest_share", "Keys", "Share of the hottest key", "share", {Sheet.KEYS: "hottest key"}),
    Metric("key_skew.distinct", "Keys", "Distinct keys", heads={Sheet.KEYS: "distinct keys"}),
    Metric("schedule_lag_ms.p50", "Generator", "Schedule lag p50", "ms"),
    Metric("schedule_lag_ms.p99", "Generator", "Schedule lag p99", "ms"),
    Metric("schedule_lag_ms.max", "Generator", "Schedule lag maximum", "ms"),
    Metric("recovery.lateness_ms", "Generator", "Largest schedule lag in a recovery", "ms"),
)  # fmt: skip
BY_KEY: Mapping[str, Metric] = {metric.key: metric for metric in METRICS}
KNOWN = tuple(metric for metric in METRICS if metric.listed)
# Metrics with a better direction, which comparisons need.
COMPARABLE = {metric.key: metric for metric in KNOWN if metric.better}
# Prefixes of figures that no selection list offers.
_UNLISTED_PREFIXES = ("placebo.", "injections.ended_early.")
_UNITS = {"_ms": "ms", "_s": "s", "_rps": "records/s", "_mb": "MB", "_bytes": "bytes", "_cores": "cores"}


def columns_in(table: Sheet) -> list[CatalogueColumn]:
    """Return all columns of a table, in order."""
    return [column for column in (*IDENTITY, *METRICS) if table in column.heads]


def metrics_in(table: Sheet) -> list[Metric]:
    """Return the figures of a table, in order."""
    return [metric for metric in METRICS if table in metric.heads]


# Figures that comparisons show by default.
USUAL = tuple(metric.key for metric in metrics_in(Sheet.COMPARED))


def metrics_of(entries: Sequence[IndexEntry], *, invalid: bool = False) -> list[Metric]:
    """Return the metrics that at least one usable entry has, those of the catalogue first.

    Other metrics are named after their path in the record. `invalid`: also use invalid entries.
    """
    counted = [entry for entry in entries if entry.is_usable or invalid]
    present = dict.fromkeys(key for entry in counted for key in entry.metrics)
    computed = {one.key for one in KNOWN if one.read and any(one.value(entry) is not None for entry in counted)}
    others = [metric_for(key) for key in present if key not in BY_KEY and not key.startswith(_UNLISTED_PREFIXES)]
    return [*(one for one in KNOWN if one.key in present or one.key in computed), *others]


def value_of(entry: IndexEntry, key: str) -> float | None:
    """Return a figure of a record; 1 or 0 for a truth value, None if unknown."""
    return metric_for(key).value(entry)


def bounds_of(entry: IndexEntry, key: str) -> tuple[float, float] | None:
    """Return the lower and upper bound of a figure of one record, or None if unknown.

    A recovery ended at most `resolution_s` before its value; the upper bound of a censored one is infinite.
    """
    value = value_of(entry, key)
    if key != MACRO:
        return None if value is None else (value, value)
    if value is None:
        lower = value_of(entry, CENSORED_AT) if entry.metrics.get("recovery.recovered") is False else None
        return None if lower is None else (lower, math.inf)
    resolution_s = value_of(entry, "recovery.resolution_s") or 0.0
    return max(0.0, value - resolution_s), value


def by_group(metrics: Iterable[Metric]) -> list[tuple[str, list[Metric]]]:
    """Return the metrics by heading, for a selection list."""
    groups: dict[str, list[Metric]] = {}
    for metric in metrics:
        groups.setdefault(metric.group, []).append(metric)
    return list(groups.items())


def metric_for(key: str) -> Metric:
    """Return the metric of a path; a metric outside the catalogue is named after its path."""
    if key in BY_KEY:
        return BY_KEY[key]
    if key.startswith(_NODES):
        return Metric(key, "CPU", f"CPU of node {key.removeprefix(_NODES)}", "cores")
    parent, _, leaf = key.rpartition(".")
    suffix = next((suffix for part in (leaf, parent) for suffix in _UNITS if part.endswith(suffix)), "")
    words = " · ".join(part.removesuffix(suffix) for part in key.split(".")).replace("_", " ")
    return Metric(key, "Others", words[:1].upper() + words[1:], _UNITS.get(suffix, ""))
