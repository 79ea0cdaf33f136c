"""Built-in matrices: their axes and the values of each preset.

`smoke` is one short cell, as a functional check. `default` answers the matrix's question on two cores, `findings` tests
the papers' claims; each takes one to twelve hours. `paper` has the published values of the papers;
docs/reference/matrices.md lists those that are missing. Sources: Jiang, Wang and Zhang 2019 (fault
tolerance); Shi and others 2020 (stock trading).
"""

from __future__ import annotations

from typing import Any

from faultline.experiment.common_parameters import DEMO, DEMO_VALUES, FINDINGS, REPEATED, SHORT
from faultline.experiment.matrix import DEFAULT, MatrixSpec
from faultline.experiment.workloads.nexmark_events import NEXMARK_PRESETS
from faultline.experiment.workloads.topology_rules import TOPOLOGY_PRESETS

# Default attempts per cell.
MOST_MEASUREMENTS = 3
# Matrix without axes of its own; the user names them.
OWN = "sweep"


# Fault-tolerance paper: 5,000 records/s; both papers: five repetitions.
_PAPER: dict[str, Any] = {"rate": 5000.0, "warmup_s": 60.0, "duration_s": 300.0, "repetitions": 5}
_FAULTLESS: dict[str, Any] = {"fault": "none", **REPEATED}
_EVERY_5_S: dict[str, Any] = {"checkpoint_interval_s": 5.0, **_FAULTLESS}
_ALIGNMENT: dict[str, Any] = {
    "engine": "flink",
    "skew": [0.0, 1.5],
    "commit_mode": ["none", "at-least-once", "aligned", "unaligned-barriers"],
    **_EVERY_5_S,
}

MATRICES: dict[str, MatrixSpec] = {
    spec.name: spec
    for spec in (
        MatrixSpec(
            "state_size_x_checkpoint_interval",
            "State size × checkpoint interval",
            "Cost of a larger state and a longer interval, and recovery after an executor kill. Half of the runs are "
            "controls. The preset `paper` has no fault, as in the paper; `demo` is short and injects several faults "
            "per run.",
            ("state_mb", "checkpoint_interval_s", "fault"),
            {
                "smoke": {"state_mb": [0.1], "checkpoint_interval_s": [2.0], **SHORT, "fault": ["none"]},
                DEFAULT: {
                    "state_mb": [1.0, 8.0],
                    "checkpoint_interval_s": [1.0, 2.0, 5.0, 15.0, 60.0],
                    "fault": ["executor", "none"],
                    **REPEATED,
                },
                # Claims of the papers on two cores: one control run per kill, state sizes from none to the papers'.
                FINDINGS: {
                    "state_mb": [0.0, 5.0, 10.0, 15.0],
                    "checkpoint_interval_s": [1.0, 5.0],
                    "fault": ["executor", "none"],
                    "injections": 2,
                    "repetitions": 3,
                },
                DEMO: DEMO_VALUES,
                "paper": {
                    "state_mb": [0.0, 5.0, 10.0, 15.0],
                    "checkpoint_interval_s": [1.0, 5.0, 10.0, 30.0, 60.0],
                    **_PAPER,
                    "fault": ["none"],
                },
            },
        ),
        MatrixSpec(
            "skew_x_alignment_mode",
            "Skew × alignment mode",
            "Cost of checkpoint alignment under skewed keys: word count in the commit modes that correspond to the "
            "alignment modes of Jiang and others (2019), all at one interval.",
            ("skew", "commit_mode"),
            {
                "smoke": {"skew": [1.0], "commit_mode": ["aligned"], "checkpoint_interval_s": 2.0, **SHORT},
                DEFAULT: {
                    "skew": [0.0, 1.5],
                    # In real-time mode word count waits 8 s for its shuffle with batches of 5 s: see commit-modes.md.
                    "commit_mode": ["none", "aligned"],
                    **_EVERY_5_S,
                },
                FINDINGS: {
                    "skew": [0.0, 0.75, 1.5],
                    "commit_mode": ["none", "aligned"],
                    **_EVERY_5_S,
                },
                "paper": {
                    "skew": [0.0, 0.5, 1.0, 1.5, 2.0],
                    "commit_mode": ["none", "unaligned", "aligned"],
                    "checkpoint_interval_s": 30.0,
                    "fault": "none",
                    **_PAPER,
                },
            },
        ),
        MatrixSpec(
            "compute_x_checkpoint_interval",
            "Compute × checkpoint interval",
            "Effect of the checkpoint interval on light and heavy computation: `pi` with few and with many terms.",
            ("iterations", "checkpoint_interval_s"),
            {
                "smoke": {
                    "iterations": [1000],
                    "checkpoint_interval_s": [2.0],
                    "workload": "pi",
                    "state_mb": 0.0,
                    **SHORT,
                },
                DEFAULT: {
                    # Two cores sustain 2 s at 3,000 terms per record, but not at 10,000.
                    "iterations": [100, 3000],
                    "checkpoint_interval_s": [2.0, 10.0, 60.0],
                    "workload": "pi",
                    "state_mb": 0.0,
                    **_FAULTLESS,
                },
                FINDINGS: {
                    "iterations": [100, 3000],
                    "checkpoint_interval_s": [2.0, 10.0],
                    "workload": "pi",
                    "state_mb": 0.0,
                    **_FAULTLESS,
                    "repetitions": 6,
                },
                "paper": {
                    "iterations": [100, 1000, 10_000, 100_000],
                    "checkpoint_interval_s": [1.0, 5.0, 10.0, 30.0],
                    "workload": "pi",
                    "state_mb": 0.0,
                    "fault": "none",
                    **_PAPER,
                },
            },
        ),
        MatrixSpec(
            "input_rate",
            "Input rate",
            "Latency, GC and CPU of the stock group-by as the input rate grows, and the highest sustained rate. "
            "`search` then finds that rate by bisection.",
            ("rate",),
            {
                "smoke": {**SHORT, "rate": [100.0], "workload": "stock_group_by", "state_mb": 0.0},
                DEFAULT: {
                    "rate": [100.0, 500.0, 2500.0],
                    "workload": "stock_group_by",
                    "state_mb": 0.0,
                    "accept_overload": True,
                    **_FAULTLESS,
                },
                FINDINGS: {
                    # Two cores sustain the first four.
                    "rate": [4.0, 100.0, 2500.0, 40_000.0, 160_000.0],
                    "workload": "stock_group_by",
                    "state_mb": 0.0,
                    "accept_overload": True,
                    **_FAULTLESS,
                },
                "paper": {
                    "rate": [3.97, 19.3, 92.5, 1701.06, 46_071.31],
                    "workload": "stock_group_by",
                    "state_mb": 0.0,
                    "accept_overload": True,
                    "warmup_s": 60.0,
                    "duration_s": 300.0,
                    "fault": "none",
                    "repetitions": 5,
                },
            },
            search=True,
        ),
        MatrixSpec(
            "executor_cores",
            "Executor cores",
            "Latency of the stock join as executors get more cores, with one partition per core at the largest value. "
            "A record reports oversubscription of the machine.",
            ("executor_cores",),
            {
                "smoke": {
                    **SHORT,
                    "executor_cores": [1],
                    "workload": "stock_join",
                    "state_mb": 0.0,
                    "checkpoint_interval_s": 5.0,
                    "duration_s": 20.0,
                },
                DEFAULT: {
                    "executor_cores": [1, 2, 4],
                    "executors": 1,
                    "partitions": 4,
                    "shuffle_partitions": 4,
                    # One core takes 5 to 8 s for a batch of the join at any size.
                    "rate": 200.0,
                    "checkpoint_interval_s": 10.0,
                    "workload": "stock_join",
                    "state_mb": 0.0,
                    **_FAULTLESS,
                },
                FINDINGS: {
                    # More cores than the machine has would measure oversubscription.
                    "executor_cores": [1, 2],
                    "executors": 1,
                    "partitions": 4,
                    "shuffle_partitions": 4,
                    "rate": 200.0,
                    "checkpoint_interval_s": 10.0,
                    "workload": "stock_join",
                    "state_mb": 0.0,
                    **_FAULTLESS,
                    "repetitions": 6,
                },
                "paper": {
                    "executor_cores": [2, 4, 8, 16],
                    "executors": 4,
                    "partitions": 64,
                    "shuffle_partitions": 64,
                    "workload": "stock_join",
                    "state_mb": 0.0,
                    "warmup_s": 60.0,
                    "duration_s": 120.0,
                    "fault": "none",
                    "repetitions": 5,
                },
            },
        ),
        MatrixSpec(
            "recovery",
            "Recovery: what is killed × checkpoint interval",
            "Recovery time by kind of victim and by interval. All runs use `word_count_python`, which has every kind "
            "of victim. `none` on the axis `fault` gives a control run at every interval.",
            ("fault", "checkpoint_interval_s"),
            {
                "smoke": {
                    "fault": ["none"],
                    "checkpoint_interval_s": [2.0],
                    "workload": "word_count_python",
                    "warmup_s": 5.0,
                    "duration_s": 10.0,
                    "rate": 100.0,
                },
                DEFAULT: {
                    "fault": ["executor", "worker", "driver", "python_worker", "kafka", "none"],
                    "checkpoint_interval_s": [2.0, 5.0, 20.0],
                    "workload": "word_count_python",
                    **REPEATED,
                },
                FINDINGS: {
                    "fault": ["executor", "worker", "driver", "python_worker", "kafka", "none"],
                    "checkpoint_interval_s": [2.0, 10.0],
                    "workload": "word_count_python",
                    "injections": 2,
                    "repetitions": 3,
                },
                "paper": {
                    "fault": ["any", "none"],
                    "checkpoint_interval_s": [1.0, 5.0, 10.0, 30.0],
                    "workload": "word_count_python",
                    "state_mb": 10.0,
                    **_PAPER,
                },
            },
        ),
        MatrixSpec(
            "spark_and_flink_recovery",
            "Recovery: Spark and Flink side by side",
            "Recovery of the same word count on both engines, after the kill of a worker process (`executor`) and of "
            "the coordinating process (`driver`). Spark with snapshots and with the changelog that its guide "
            "recommends; Flink with its default heartbeats and with short ones. Needs `./faultline engine add flink`.",
            ("engine", "commit_mode", "state_mb", "checkpoint_interval_s", "fault"),
            {
                "smoke": {
                    **SHORT,
                    "engine": ["spark"],
                    "commit_mode": ["aligned"],
                    "state_mb": [0.1],
                    "checkpoint_interval_s": [2.0],
                    "fault": ["none"],
                },
                DEFAULT: {
                    "engine": ["spark", "flink"],
                    "commit_mode": ["aligned", "aligned-changelog"],
                    "state_mb": [1.0, 50.0],
                    "checkpoint_interval_s": [2.0, 10.0],
                    "fault": ["executor", "driver"],
                    # A lost TaskManager is noticed after two failed heartbeats (default: 10 s each), a lost JobManager
                    # after the timeout (default: 50 s).
                    "axes": {"flink_conf": [{}, {"heartbeat.interval": "1s", "heartbeat.timeout": "5s"}]},
                    "injections": 2,
                    "repetitions": 3,
                },
            },
            bound=dict.fromkeys(("commit_mode", "flink_conf"), "engine"),
        ),
        MatrixSpec(
            "flink_alignment",
            "Flink: skew × alignment mode",
            "Cost of barrier alignment on Flink under skewed keys, at a high load: without checkpoints, without "
            "alignment, with it, and with barriers that overtake records. Needs `./faultline engine add flink`.",
            ("skew", "commit_mode"),
            {
                "smoke": {**SHORT, "engine": "flink", "skew": [1.0], "commit_mode": ["aligned"]},
                DEFAULT: {**_ALIGNMENT, "skew": [0.0, 0.75, 1.5]},
                # Three quarters of the rate that two cores sustain with a skew of 1.5; a JVM compiles for a minute.
                FINDINGS: {**_ALIGNMENT, "rate": 7800.0, "duration_s": 60.0, "warmup_s": 60.0, "warmup_max_s": 120.0},
            },
        ),
        MatrixSpec(
            "network_faults",
            "Faults of hosts: what is broken × whose host",
            "Word count while the network, disk, CPU or memory of a worker's host or of the broker's host is disturbed "
            "for ten seconds. Needs `./faultline up --hosts 3`. `none` on the axis `fault` gives a control run.",
            ("fault", "fault_action"),
            {
                "smoke": {**SHORT, "fault": ["none"], "fault_action": ["partition"], "checkpoint_interval_s": 2.0},
                DEFAULT: {
                    "fault": ["worker", "kafka", "none"],
                    "fault_action": [
                        "partition",
                        "delay",
                        "loss",
                        "bandwidth",
                        "disk_full",
                        "cpu_pressure",
                        "memory_pressure",
                    ],
                    "checkpoint_interval_s": 2.0,
                    **REPEATED,
                },
            },
        ),
        MatrixSpec(
            "topology_optimisation",
            "Dynamic topology: what each mechanism is worth",
            "Benefit and cost of back-pressure, replay, replacement and delayed persistence in a chain of stages, each "
            "alone and all together. `latency`, `slow_store` and `overload` are further tests of the paper. Throughput "
            "counts words; `rate` and the source rate count lines.",
            ("mechanisms", "parallelism"),
            TOPOLOGY_PRESETS,
        ),
        MatrixSpec(
            "nexmark",
            "Nexmark: what each query costs",
            "Events per second and per core of each Nexmark query over events that the engine creates as fast as it "
            "can; or, through Kafka at a rate, latency and recovery.",
            ("query", "rate", "source", "state_store"),
            NEXMARK_PRESETS,
            # Each source has its own rate; through Kafka the schedule determines the batches.
            bound=dict.fromkeys(("rate", "batch_events", "preload_events"), "source"),
        ),
        MatrixSpec(
            OWN,
            "A sweep of your own",
            "Any workload along any parameters, named in `axes`. Empty fields have the defaults of a single "
            "experiment.",
            (),
            {"smoke": {**SHORT, "checkpoint_interval_s": 2.0, "state_mb": 0.1}, DEFAULT: {**REPEATED}},
        ),
    )
}
