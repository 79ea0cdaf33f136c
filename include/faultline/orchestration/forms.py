"""Trigger forms of the DAGs, generated from the configuration's fields and limits."""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from airflow.sdk import Param

from faultline.experiment.axes import EXAMPLE, axis_text
from faultline.experiment.build import EXAMPLE as BUILD
from faultline.experiment.cell import MOST, PATTERN
from faultline.experiment.common_parameters import limits
from faultline.experiment.config import Configuration
from faultline.experiment.workloads.protocol import Workload
from faultline.experiment.workloads.registry import WORKLOADS


def workload_sections() -> list[str]:
    """Return the sections of workload-specific parameters, without the form's first section."""
    return list(dict.fromkeys(one.section for one in WORKLOADS.values() if one.section != Workload.section))


def workload_section_fields(section: str) -> tuple[str, ...]:
    """Return the workload parameters of `section`; a parameter of several sections is only in the first."""
    first: dict[str, str] = {}
    for one in WORKLOADS.values():
        for name in one.parameters.model_fields:
            first.setdefault(name, one.section)
    return tuple(name for name, where in first.items() if where == section)


SECTIONS: dict[str, tuple[str, ...]] = {
    "Workload": (
        "workload", "engine", "rate", "warmup_s", "warmup_max_s", "duration_s", "corpus", "skew", "vocabulary",
        *workload_section_fields("Workload"),
    ),
    "Your data": ("data", "data_key", "data_time", "data_time_unit", "data_pace", "data_speed"),
    "Load": ("rate_curve", "skew_curve", "accept_overload", "generator_processes", "generator_on"),
    **{name: workload_section_fields(name) for name in workload_sections()},
    "State and checkpoints": (
        "state_store", "state_mb", "state_touch", "checkpoint_interval_s", "snapshot_interval_s", "commit_mode",
        "delivery_guarantee",
    ),
    "Cluster": (
        "target", "executors", "spares", "executor_cores", "executor_memory_mb", "partitions", "shuffle_partitions",
    ),
    "Settings": ("spark_build", "spark_conf", "flink_conf", "topic_conf", "jvm_options"),
    "Fault": (
        "fault", "fault_action", "fault_at_s", "fault_plan", "injections", "max_wait_s", "restart_delay_s",
        "recovered_within",
    ),
    "Randomness": ("seed",),
}  # fmt: skip


def section_of(name: str) -> str:
    return next(section for section, names in SECTIONS.items() if name in names)


@functools.cache
def _properties() -> dict[str, Any]:
    """Return the JSON schema of the configuration's fields; cached, because it takes 5 ms."""
    properties: dict[str, Any] = Configuration.model_json_schema()["properties"]
    return properties


def field_schema(name: str) -> dict[str, Any]:
    """Return the JSON schema of one configuration field: type, limits, choices."""
    properties = copy.deepcopy(_properties()[name])
    variants = properties.get("anyOf", [properties])
    schema = {key: value for key, value in variants[0].items() if key != "title"}
    if "const" in schema:  # the form can only show a list of choices
        schema["enum"] = [schema.pop("const")]
    if schema.pop("empty", False):
        schema |= {"type": ["null", schema["type"]], "default": None}
    elif any(variant.get("type") == "null" for variant in variants):
        schema["type"] = ["null", schema["type"]]
        if "enum" in schema:
            schema |= {"enum": [*schema["enum"], None], "values_display": {"null": "empty"}}
    return schema


def _limits_text(name: str) -> str:
    text = limits(name, Configuration)
    return f" ({text})" if text else ""


def field_param(name: str, **override: Any) -> Param:
    """Return one configuration field as a form field."""
    field = Configuration.model_fields[name]
    schema = {**field_schema(name), **override}
    default = schema.pop("default", field.default)
    schema.pop("description", None)
    return Param(
        default,
        title=name,
        description=f"{field.description}{_limits_text(name)}",
        section=section_of(name),
        **schema,
    )


def configuration_params(**defaults: Any) -> dict[str, Param]:
    """Return every configuration field as a form field, in the order of the sections."""
    return {
        name: field_param(name, **({"default": defaults[name]} if name in defaults else {}))
        for names in SECTIONS.values()
        for name in names
    }


def empty_param(name: str, presets: Mapping[str, Any]) -> Param:
    """Return an initially empty form field; its help lists the value of each of the `presets` that sets it."""
    schema = field_schema(name)
    schema.pop("description", None)
    default = schema.pop("default", None)
    types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    schema["type"] = ["null", *(kind for kind in types if kind != "null")]
    if "enum" in schema:
        schema["enum"] = [*(value for value in schema["enum"] if value is not None), None]
        schema["values_display"] = {"null": "empty"}
    if "boolean" in types:
        # A switch cannot be empty, so this is a text field: the form uses the first type and offers the examples.
        schema |= {"type": ["null", "string", "boolean"], "examples": ["true", "false"]}
    field = Configuration.model_fields[name]
    return Param(
        None,
        title=name,
        description=f"{field.description}{_limits_text(name)} {_empty_text(presets, default)}",
        section=section_of(name),
        **schema,
    )


def _empty_text(presets: Mapping[str, Any], default: Any) -> str:
    """Return the help text on an empty field."""
    values = [f"{value_text(value)} ({name})" for name, value in presets.items()]
    if default is not None:
        values.append(f"{'otherwise ' if values else ''}{value_text(default)}")
    return f"Empty: {', '.join(values)}." if values else "Empty: derived from the others."


def value_text(value: Any) -> str:
    """Return a value as shown in the form's help and in preset tables."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return f"{value:,.10g}".replace(",", "") if value < 10_000 else f"{value:,.10g}"
    return value if isinstance(value, str) else json.dumps(value)


def axis_param(name: str, presets: Mapping[str, Sequence[Any]]) -> Param:
    """Return the form field of an axis: one line of values of one field; an API call may pass a list.

    Both are checked when the sweep is planned. `presets`: the axis values of each preset.
    """
    field = Configuration.model_fields[name]
    texts = "; ".join(f"{preset}: {axis_text(values)}" for preset, values in presets.items())
    return Param(
        None,
        # The form uses the first type other than null.
        type=["null", "string", "array", "number", "integer"],
        examples=list(dict.fromkeys(axis_text(values) for values in presets.values())),
        title=name,
        description=f"Axis, such as `1, 8` or `1..32 ×2`. {field.description}{_limits_text(name)} Empty: {texts}.",
    )


def further_axes_param(presets: Mapping[str, Any]) -> Param:
    """Return the form field for axes in addition to those of the matrix; its help lists those of the `presets`."""
    return Param(
        None,
        type=["null", "string", "object"],
        examples=[EXAMPLE],
        title="axes",
        description=f"Further axes, of any parameter, such as `{EXAMPLE}`. {_empty_text(presets, 'none')}",
    )


def label_param(title: str, description: str, section: str = "Bookkeeping") -> Param:
    """Return an optional label field, such as series or build."""
    return Param(
        None,
        type=["null", "string"],
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._:+-]{0,79}$",
        title=title,
        description=description,
        section=section,
    )


def experiment_params() -> dict[str, Param]:
    """Return one complete configuration and the labels of the record."""
    return {
        **configuration_params(),
        "repetition": Param(
            0, type="integer", minimum=0, title="repetition", section="Bookkeeping",
            description="Number of the repetition, from 0.",
        ),
        "series": label_param("series", "Records are compared within a series. Empty: the build."),
        "build": label_param("build", "Label of the software under test. Empty: versions, settings, code."),
        "matrix": label_param("matrix", "Matrix of this experiment. Empty: none."),
        "sweep_id": Param(
            None, type=["null", "string"], pattern=PATTERN, maxLength=MOST, title="sweep_id", section="Bookkeeping",
            description="Sweep of this experiment.",
        ),
        "parent_run_id": Param(
            None, type=["null", "string"], title="parent_run_id", section="Bookkeeping",
            description="Run of the matrix. If it is stopped, this experiment is cancelled.",
        ),
        "logical_date": Param(
            None, type=["null", "string"], title="logical_date", section="Bookkeeping",
            description="Logical date of the nightly run.",
        ),
        "build_spec": Param(
            None, type=["null", "object"], title="build_spec", section="Bookkeeping",
            description=f"Build under test, in place of the installed programs and settings, such as {BUILD}",
        ),
        "keep_topics": Param(
            False, type="boolean", title="keep_topics", section="Bookkeeping",
            description="Keep the Kafka topics after the teardown.",
        ),
        "only_missing": Param(
            False, type="boolean", title="only_missing", section="Bookkeeping",
            description="Skip the experiment if the cell has a usable record when its turn comes.",
        ),
    }  # fmt: skip
