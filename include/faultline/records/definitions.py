"""Definitions of the figures of a record, by path below `metrics`; `<…>` stands for any one part of a path."""

from __future__ import annotations

import re
from collections.abc import Mapping

DEFINITIONS: Mapping[str, str] = {
    # Latency.
    "latency_ms.p50": "Median latency of the tuples produced in the measured window, before the first fault if there "
    "is one. Quantiles are nearest ranks, without interpolation.",
    "latency_ms.p90": "90th percentile of the same tuples.",
    "latency_ms.p99": "99th percentile of the same tuples.",
    "latency_ms.tail": "p99; with fewer than 100 batches, `max`.",
    "latency_ms.p999": "99.9th percentile of the same tuples.",
    "latency_ms.max": "Largest latency.",
    "latency_ms.mean": "Sum of latencies ÷ `count`.",
    "latency_ms.count": "Tuples in the latency figures.",
    "latency_ms.batches": "Micro-batches committed in that time; null without batches. All tuples of a batch share "
    "its delay, so a p99 has as many independent values as there are batches.",
    "latency_ms.negative": "Tuples of the whole window with an output before their send time, excluded from the "
    "figures above; indicates a clock or generator error.",
    "latency_ms.unreflected": "Tuples of the whole window that no output reflects, excluded from the figures above.",
    "latency_ms.method": "How tuples were matched with outputs: `batch`, `id` or `rank`.",
    "latency_during_ms.<key>": "The same figures for tuples produced from the first fault to the end of the last "
    "recovery.",
    "latency_after_ms.<key>": "The same figures for tuples produced after that; null if a recovery was not observed "
    "to end.",
    "non_compute_ms": "Mean over tuples of latency − batch computing time (`addBatch`), at least 0. Source: "
    "`tuples.parquet`, `listener.jsonl`.",
    # Throughput.
    "throughput_rps": "Records committed in the measured window ÷ its length. A time bin that crosses an edge counts "
    "by its share inside. Source: `batches.json`.",
    "rps_per_core": "`throughput_rps` ÷ cores of executors and Python workers.",
    "source_rps": "Records with a send time in the measured window ÷ its length; with `source=engine`, events of "
    "batches planned in it.",
    "sustained": "True if the upper end of the 95 % interval of the consumer-lag slope is at most 1 % of the rate; "
    "false if the lower end is above it; otherwise null.",
    "effective_interval_s": "Median time between commits after warm-up, before the first fault.",
    "realtime": "`unaligned` only: whether outputs appear while batches run, so that their time-weighted median "
    "spacing is at most half the batch duration.",
    # CPU.
    "cpu_cores.total": "Sum over all roles.",
    "cpu_cores.<role>": "CPU time (user + system) in the measured window ÷ its length, from `/proc`, sampled each "
    "second; includes processes that ended.",
    "cpu_by_host.<host>": "Cores used on that host by all roles except the generator.",
    "cpu_s_per_million.engine": "CPU seconds of driver, executors and Python workers per million committed records.",
    "cpu_s_per_million.workers": "The same without the driver.",
    "cpu_by_phase.<key>": "CPU seconds of driver, executors and Python workers per million records due: `before` the "
    "first fault, `during` recoveries and `after` them, in the phases of the latency.",
    "background_cpu.processes": "Cores used by all processes outside the experiment.",
    "background_cpu.services": "Part of them used by Airflow, its tasks and other services of Faultline.",
    "background_cpu.recorder": "Part of them used by the recorder.",
    "background_cpu.steal": "Cores taken by the hypervisor; null if the kernel does not report them.",
    "waited.others": "Cores that the measured processes lost to other processes "
    "([method](../explanation/validity.md#lost-cpu)).",
    "waited.stolen": "Cores that the measured processes lost to the hypervisor.",
    "waited.worst_5s": "Both together, over the worst 5 s.",
    # Memory, state and work.
    "gc_s": "Garbage-collection pauses of all executors in the measured window, from the JVM logs. "
    "Records without `gc` hold the totals of tasks instead; do not compare the two.",
    "gc.driver_s": "The same for the driver.",
    "gc.executors_s": "Equal to `gc_s`.",
    "gc.pauses": "Number of pauses of driver and executors.",
    "gc.longest_ms": "Longest of these pauses, cut at the edges of the window.",
    "warmup.waited_s": "Warm-up beyond `warmup_s` until the engine was steady; null for a fixed warm-up.",
    "warmup.steady": "Whether the engine was steady when the measured window started.",
    "warmup.bound_s": "Latest permitted start of the measured window, in seconds after T0.",
    "work.tasks": "Tasks completed by executors in the measured window.",
    "work.task_s": "Sum of their run times.",
    "work.batches": "Batches that ended in the measured window.",
    "work.batch_s": "Sum of their execution times (`triggerExecution`).",
    "work.batch_us_per_record": "Batch execution time per committed record.",
    "checkpoints.count": "Engines with barriers: checkpoints completed in the measured window before the first fault.",
    "checkpoints.duration_ms.<key>": "Median or largest duration of these checkpoints, from trigger to completion.",
    "checkpoints.start_delay_ms.<key>": "Trigger to first barrier, in the slowest subtask of a checkpoint.",
    "checkpoints.alignment_ms.<key>": "First to last barrier, in the slowest subtask of a checkpoint.",
    "checkpoints.written_bytes.<key>": "Bytes uploaded for a checkpoint.",
    "checkpoints.persisted_bytes.<key>": "Bytes of records in flight in a checkpoint.",
    "visible_delay_ms.<key>": "`exactly-once` only: an output's emission to the completion of the checkpoint that "
    "ends its transaction, before the first fault.",
    "unplanned_exits": "Supervised workers that ended by themselves between T0 and the end of the measured window; "
    "victims of faults are excluded.",
    "state_bytes.logical": "Live state rows × mean row size (key in UTF-8 and 8 bytes per number); word counts and "
    "`known_truth` only.",
    "state_bytes.checkpoint": "Last snapshot plus changelog in the checkpoint.",
    "rss_mb.<role>": "Peak resident memory, summed over the processes of the role each second. Shared pages count in "
    "every process.",
    # Recovery.
    "recovery.recovered": "Whether t7 was observed.",
    "recovery.detection_s": "t2 − t0; t0 to t7 are defined in [Recovery](../explanation/recovery.md#timeline).",
    "recovery.redeploy_s": "t3 − t2.",
    "recovery.load_s": "t4 − t3.",
    "recovery.reload_s": "t4 − t0.",
    "recovery.replay_s": "t5 − t4.",
    "recovery.catchup_s": "t6 − t5.",
    "recovery.macro_s": "t7 − t0.",
    "injections.made": "Injections made; null for runs with a single planned injection.",
    "injections.planned": "Injections planned.",
    "recovery.settled_s": "t0 to the start of the last level of the latency, a change point of the p99 per time bin.",
    "recovery.durable_s": "t0 to the first commit that covers the input present at the fault.",
    "recovery.silence_s": "Longest gap between two outputs that overlaps [t0, t6], at its full length.",
    "recovery.dip_depth": "1 − lowest throughput of a time bin in (t0, t7] ÷ median of the baseline window, in [0, 1].",
    "recovery.replacement_up_s": "t0 to the registration of the first new executor.",
    "recovery.plateau_ratio": "p99 of the tuples of the last stability window ÷ p99 before the fault.",
    "recovery.drift_since_first_s": "`macro_s` − the value under the thresholds of the first baseline window; later "
    "injections only.",
    "placebo.<key>": "Control runs: the recovery rule applied at the time a fault would have had.",
    "recovery.lag_area_record_s": "Consumer lag integrated over [t0, t7].",
    "recovery.censored_at_s": "If not recovered: t0 to the last instant at which recovery was certainly incomplete.",
    "recovery.resolution_s": "If recovered: t7 − last threshold violation; the recovery ended within it.",
    "recovery.recovered_within": "Parameter `recovered_within`.",
    "recovery.latency_limit_ms": "Recovery threshold L\\* of the latency.",
    "recovery.lag_limit": "Recovery threshold lag\\* of the consumer lag.",
    "recovery.hold_s": "Stability window H.",
    "recovery.restarts": "Job restarts by the engine in [t0, t6]; null if it reports none.",
    "recovery.phase": "Share of the checkpoint cycle that had passed at t0.",
    "recovery.injection": "Number of the injection, from 1.",
    "recovery.at_s": "t0 in seconds after T0.",
    "recovery.trigger.normal_s": "Previous injection to detected recovery.",
    "recovery.trigger.baseline_commits": "Commits since then.",
    "recovery.trigger.phase": "Planned share of the checkpoint cycle.",
    "recovery.trigger.waited_s": "Whole wait for the injection.",
    "recovery.note": "Why this recovery alone is limited or unusable; starts with a reason code.",
    "injections.ended_early.signal": "Signal that kept the engine above its threshold when `max_wait_s` passed.",
    "injections.ended_early.value": "Its value.",
    "injections.ended_early.limit": "Its threshold.",
    "injections.ended_early.waited_s": "Time waited.",
    # Audit.
    "audit.expected": "Sum of the recomputed values over the committed input.",
    "audit.lost": "Σ max(0, expected − final).",
    "audit.undrained": "Input offsets beyond the last commit when the drain ended; in no other count.",
    "audit.overcounted": "Σ max(0, final − value recomputed over the whole input).",
    "audit.unexpected": "Keys or values that the recomputation does not contain.",
    "audit.checksum_mismatches": "Keys with the expected count but a different sum of tuple hashes; word counts only.",
    "audit.reemitted": "Outputs emitted before with the same key and value; normal for an at-least-once sink.",
    "audit.unknown": "Sends without acknowledgement; they are not lost.",
    "late_records.sent": "Records sent one hour too old.",
    "late_records.dropped_rows": "Rows that the engine reports as dropped by the watermark, after partial aggregation.",
    # Stages of `topology`.
    "stages.signals": "`topology`: back-pressure signals after T0.",
    "stages.failed": "Failed tuples.",
    "stages.set_aside": "Tuples set aside after `max_attempts`.",
    "stages.most_queued": "Largest queue, without the running batch.",
    "stages.replacements": "Replaced stages.",
    "stages.gap_s": "Longest time from the last commit of a replaced stage to its next planned batch.",
    "stages.batch_s": "Longest batch of such a stage.",
    "stages.unstored": "Words whose stored count differs from the last acknowledged one; null without `persist`.",
    # Input.
    "key_skew.requested": "Parameter `skew`.",
    "key_skew.measured": "Maximum-likelihood Zipf exponent of the words in the input topic.",
    "key_skew.low": "Lower end of its 95 % interval.",
    "key_skew.high": "Upper end of its 95 % interval.",
    "key_skew.hottest_share": "Share of the most frequent word.",
    "key_skew.distinct": "Distinct words.",
    "schedule_lag_ms.p50": "Median of actual − intended send time. Source: `schedule_lag.hlog`.",
    "schedule_lag_ms.p99": "99th percentile.",
    "schedule_lag_ms.max": "Largest value.",
    "recovery.lateness_ms": "Largest schedule lag in [t0, t7].",
    "data.records": "User data: records in the file.",
    "data.cycles": "Passes through the data.",
    "data.cycle_ms": "Shift of the times in `data_time` per pass.",
    "not_measured.<figure>": "User jobs: why the figure cannot be measured.",
}
_PATTERNS = {
    re.compile(re.sub(r"<\w+>", "[^.]+", re.escape(key).replace(r"\.", "[.]"))): key
    for key in DEFINITIONS
    if "<" in key
}


def definition_of(path: str) -> tuple[str, str]:
    """Return the key that covers the path of a figure, and its definition. Raises KeyError if there is none."""
    if path not in DEFINITIONS:
        path = next((key for pattern, key in _PATTERNS.items() if pattern.fullmatch(path)), path)
    return path, DEFINITIONS[path]
