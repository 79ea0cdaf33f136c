"""Valid values of all fields of the trigger forms, different from the defaults where possible."""

from __future__ import annotations

from typing import Any

from faultline.experiment.axes import axis_text
from faultline.experiment.config import Configuration
from faultline.experiment.matrices import MATRICES
from faultline.experiment.matrix import DEFAULT, MatrixSpec
from faultline.experiment.nightly_file import NIGHTLY, SPEED
from faultline.experiment.workloads.registry import WORKLOADS, own_fields

PLAN = {"faults": [{"victim": "driver", "action": "term", "at_s": 60}]}
STEP = {"kind": "step", "at_s": 30, "to": 400}
# Valid values that differ from the defaults, and are valid in combination.
CHANGED: dict[str, Any] = {
    "rate": 250.5, "warmup_s": 12, "duration_s": 120, "corpus": "moby-dick", "skew": 0.8, "vocabulary": 500,
    "iterations": 50, "prices": "five-companies", "truth": None, "rate_curve": STEP, "skew_curve": {**STEP, "to": 1.2},
    "accept_overload": True, "generator_processes": 3, "generator_on": "executors",
    "window_s": 20, "slide_s": 4, "watermark_s": 6, "disorder": 0.2, "late": 0.05, "stocks": 50, "users": 200,
    "query": "q5", "source": "engine", "events": {"shares": [4, 6, 90]}, "batch_events": 200_000,
    "mechanisms": "all", "parallelism": "1-2-2", "topology": {"divisor": 3.0},
    "preload_events": 400_000, "state_store": "memory", "state_mb": 2.5, "state_touch": 0.05,
    "checkpoint_interval_s": 6, "snapshot_interval_s": 20,
    "commit_mode": "aligned-changelog", "executors": 3, "executor_cores": 2, "executor_memory_mb": 768,
    "partitions": 4, "shuffle_partitions": 4, "fault": "driver", "fault_action": "term", "fault_at_s": 60,
    "fault_plan": PLAN, "restart_delay_s": 1.5, "recovered_within": 0.5, "seed": 7, "injections": 1,
    "max_wait_s": 90, "warmup_max_s": 60,
    "spark_conf": {"spark.sql.adaptive.enabled": "false"}, "topic_conf": {"compression.type": "lz4"},
    "jvm_options": {"executors": "-XX:+UseParallelGC"},
    "job": "/jobs/count.py", "arguments": {"window_s": "5"}, "application": "/jobs/count.jar", "main_class": "a.Count",
    "application_arguments": "{bootstrap} {input}", "jars": "/jobs/beside.jar", "reference": "/jobs/count.py",
    "pass_header": True,
    "data": None, "data_key": None, "data_time": None, "data_time_unit": None, "data_pace": "rate",
    "data_speed": 1, "spark_build": None,
    "target": "embedded", "engine": "spark", "flink_conf": None, "spares": 0, "delivery_guarantee": "at-least-once",
}  # fmt: skip
WITHOUT_FAULT = {"fault": "none", "fault_action": "kill", "fault_at_s": None, "fault_plan": None}
SWEEP = {
    "preset": "smoke", "axes": "seed=1, 2", "repetitions": 2, "controls": 1, "only_missing": False,
    "max_measurements": 2, "keep_invalid": True,
    "series": "form-check", "build": "form:check", "search": True, "search_low": 50, "search_high": 20_000,
    "resume": None,
    "decide": {"figure": "latency_ms.p50", "along": "rate", "smallest": 0.1, "hours": 2},
}  # fmt: skip
NIGHTLY_VALUES = {
    "set": [{"workload": "pi", "state_mb": 0, "fault": "driver"}, {"workload": "known_truth", "truth": {}}],
    "repetitions": 8, "controls": 2, "baseline": {}, "primary": ["latency_ms.p50"], "baseline_nights": 5,
    "metrics": ["latency_ms.p50", "recovery.macro_s"], "limits": {"recovery.macro_s": 30},
    "only_missing": False, "max_measurements": 2, "build": "form:check",
}  # fmt: skip
BOOKKEEPING = {
    "repetition": 2, "series": "form-check", "build": "form:check", "matrix": "form-check", "sweep_id": "form-check",
    "parent_run_id": "nobody", "logical_date": "2026-11-21", "keep_topics": True,
    "build_spec": {"settings": {"spark.sql.adaptive.enabled": "false"}}, "only_missing": True,
}  # fmt: skip


def legal(name: str, workload: str) -> Any:
    """Return a value of a configuration field that is valid for the workload."""
    kind = WORKLOADS[workload]
    if name == "workload":
        return workload
    if name in own_fields().keys() - kind.parameters.model_fields.keys():
        return Configuration.model_fields[name].default
    if name in ("skew", "skew_curve") and not kind.can("skewed"):
        return None
    if workload == "nexmark" and name in WITHOUT_FAULT:  # the engine generates its events
        return WITHOUT_FAULT[name]
    if workload == "nexmark" and (name.startswith("generator_") or name == "topic_conf"):
        return Configuration.model_fields[name].default
    return 0 if name == "state_mb" and not kind.can("preloaded_state") else CHANGED[name]


def matrix_values(spec: MatrixSpec) -> dict[str, Any]:
    """Return valid values of a matrix form; each axis has two values, of the preset `paper` if it exists."""
    workload = spec.values(DEFAULT).get("workload", "word_count")
    values = {name: legal(name, workload) for name in Configuration.model_fields}
    values["seed"] = None  # an axis here
    # Fields of a matrix form are text, also those of switches.
    values |= {name: str(value).lower() for name, value in values.items() if isinstance(value, bool)}
    values |= {name: value for name, value in SWEEP.items() if spec.search or not name.startswith("search")}
    preset = spec.values("paper" if "paper" in spec.presets else DEFAULT)
    values |= {axis: axis_text(list(preset[axis][:2])) for axis in spec.axes}
    # Fault axes include Spark workers; a generator on executors would not survive those faults.
    return values | ({"fault_plan": None, "generator_on": "host"} if "fault" in spec.axes else {})


def form_values(dag_id: str) -> dict[str, Any]:
    """Return values for all fields of a DAG's form that are valid in combination."""
    if dag_id == NIGHTLY:
        return NIGHTLY_VALUES
    if dag_id == SPEED:
        return {"baseline_nights": 5}
    if dag_id in MATRICES:
        return matrix_values(MATRICES[dag_id])
    return {**{name: legal(name, "word_count") for name in Configuration.model_fields}, **BOOKKEEPING}


def wrong_value(dag_id: str) -> tuple[str, Any]:
    """Return a field of the form and an invalid value."""
    if dag_id in MATRICES:
        return "seed", -1
    others = {NIGHTLY: ("build", "two words"), SPEED: ("baseline_nights", 0)}
    return others.get(dag_id, ("rate", 0))
