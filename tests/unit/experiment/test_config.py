"""Configuration: identity by content, and errors that name the key."""

from __future__ import annotations

import gzip
import itertools
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.comparison.config_points import Point, axes_of, axis_steps
from faultline.experiment.axes import parse_axes
from faultline.experiment.common_parameters import required_commits
from faultline.experiment.config import FIRST_FIELDS, Configuration, parse_configuration
from faultline.experiment.injections import expected_duration_s
from faultline.experiment.matrices import MATRICES
from faultline.experiment.matrix import control_of
from faultline.experiment.named_settings import OBJECTS, fold_settings, spread_settings
from faultline.system.errors import ConfigError
from tests.support.refusals import refused


def accepted(values: dict[str, Any]) -> Configuration | None:
    try:
        return parse_configuration(values)
    except ConfigError:
        return None


VALUES = {
    "rate": st.floats(1, 10_000), "warmup_s": st.floats(5, 60), "state_mb": st.floats(0, 400),
    "checkpoint_interval_s": st.floats(0.5, 30), "duration_s": st.floats(400, 900), "skew": st.none() | st.floats(0, 3),
    "executors": st.integers(1, 8), "fault": st.sampled_from(["none", "executor"]), "seed": st.integers(0, 1000),
    "commit_mode": st.sampled_from(["aligned", "aligned-changelog"]),
}  # fmt: skip
ACCEPTED = st.fixed_dictionaries({}, optional=VALUES).filter(accepted)


@given(ACCEPTED)
def test_identity_is_independent_of_json_key_order_and_explicit_defaults(values: dict[str, Any]) -> None:
    config = parse_configuration(values)
    again = parse_configuration(json.loads(config.canonical_json()))
    assert again == config and again.config_id == config.config_id
    assert len(config.config_id) == 12 and int(config.config_id, 16) >= 0
    reordered = dict(reversed(list({**config.model_dump(), **values}.items())))
    assert parse_configuration({**reordered, "fault_at_s": config.fault_at_s}).config_id == config.config_id


@given(ACCEPTED)
def test_accepted_fault_leaves_time_for_baseline_and_recovery(values: dict[str, Any]) -> None:
    config = parse_configuration(values)
    assert (config.fault_at_s is None) == (config.fault == "none")
    if config.fault_at_s is not None:
        baseline_s = required_commits(config.checkpoint_interval_s) * config.checkpoint_interval_s
        assert config.warmup_s + baseline_s <= config.fault_at_s <= config.warmup_s + config.duration_s - 30


@given(st.floats(0, 2000), st.floats(0, 2000))
def test_different_values_have_different_identities(left: float, right: float) -> None:
    one, other = accepted({"state_mb": left}), accepted({"state_mb": right})
    if one and other:
        assert (one.config_id == other.config_id) == (left == right)


def test_numbers_as_text_give_the_same_configuration() -> None:
    assert parse_configuration({"state_mb": "8", "seed": "3"}) == parse_configuration({"state_mb": 8.0, "seed": 3})


STEP = {"kind": "step", "at_s": 5, "to": 600}
TWICE = {"faults": [{"victim": "executor", "action": "kill", "at_s": 45, "count": 2}]}


def plan(*faults: dict[str, object], **fault: object) -> dict[str, object]:
    """Return a fault plan; by default a fault kills an executor."""
    usual = {"victim": "executor", "action": "kill"}
    return {"faults": [{**usual, **one} for one in (faults or [fault])]}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"rate": 0}, ["rate: "]),
        ({"rate": -3}, ["rate", "-3"]),
        ({"rate": math.nan}, ["rate: "]),
        ({"rate": math.inf}, ["rate", "inf"]),
        ({"rate": 2e6}, ["rate", "500000"]),
        ({"rate": 2e9}, ["rate", "1000000000"]),
        ({"workload": "nexmark", "source": "kafka", "rate": 2e6}, ["rate", "500000"]),
        ({"workload": "nexmark", "query": "q4", "state_store": "memory"}, ["state_store: "]),
        ({"rate": "fast"}, ["rate: "]),
        ({"workload": "wordcount"}, ["workload", "did you mean word_count?"]),
        ({"state": 3}, ["state: unknown parameter", "did you mean state_mb?"]),
        ({"zzz": 3}, ["zzz: unknown parameter", "known: ", "rate"]),
        ({"fault_at_s": 10}, ["fault_at_s: ", "[40, 45]"]),
        ({"fault_at_s": 60}, ["fault_at_s: ", "[40, 45]"]),
        ({"fault": "none", "fault_at_s": 41}, ["fault_at_s: "]),
        ({"duration_s": 30}, ["duration_s", "at least 50"]),
        ({"state_mb": 600}, ["state_mb: "]),
        ({"executors": 0}, ["executors: "]),
        ({"fault": "executor", "fault_action": "cut"}, ["fault_action", "cut", "kill, term, pause"]),
        ({"fault": "executor", "fault_action": "clock"}, ["fault_action: "]),
        ({"fault": "executor", "fault_action": ["kill"]}, ["fault_action"]),
        ({"mbit_s": 5}, ["mbit_s: "]),
        ({"fault": "python_worker"}, ["fault", "word_count_python"]),
        ({"fault_plan": "{half"}, ["fault_plan: "]),
        ({"fault_plan": {"faults": []}}, ["fault_plan.faults: "]),
        ({"fault_plan": plan({"at_s": 1}, {"at_s": 41})}, ["fault_plan.faults.0.at_s", "[40, 45]"]),
        ({"fault_plan": plan({"at_s": 41}, {"at_s": 60})}, ["fault_plan.faults.1.at_s"]),
        ({"fault_plan": plan(victim="executr", at_s=41)}, ["fault_plan.faults.0.victim", "did you mean executor?"]),
        ({"fault_plan": plan(at_s=41, count=3)}, ["fault_plan.faults.0.count: "]),
        ({"fault_plan": plan(victim="worker", at_s=41, count=3)}, ["fault_plan.faults.0.count: "]),
        ({"fault_plan": plan({"at_s": 41}, {"at_s": 41})}, ["fault_plan.faults.1.at_s: "]),
        ({"fault_plan": plan(at_s=41, cycle="snapshot", phase=0)}, ["fault_plan"]),
        ({"fault_plan": plan(at_s=41, cycle="snapshot", phase=0), "duration_s": 200}, ["fault_plan", "-changelog"]),
        ({"truth": {}}, ["truth", "known_truth"]),
        ({"workload": "known_truth", "fault": "executor"}, ["fault: "]),
        ({"workload": "known_truth", "truth": {"latncy_ms": 3}}, ["truth.latncy_ms", "did you mean latency_ms?"]),
    ],
)
def test_invalid_input_names_key_in_one_line(values: dict[str, object], words: list[str]) -> None:
    with refused(*words):
        parse_configuration(values)


def test_equal_plans_give_one_configuration() -> None:
    """Short form, full form, JSON text and another order of the faults are equal."""
    short = parse_configuration({"fault": "driver", "fault_at_s": 41, "seed": 7})
    full = parse_configuration({"fault_plan": plan(victim="driver", at_s=41), "seed": "7"})
    assert full == short and hash(full) == hash(short) and full.fault_plan is None
    assert parse_configuration({"fault_plan": json.dumps(plan(victim="driver", at_s=41)), "seed": 7}) == short

    faults = [{"at_s": 41}, {"at_record": 25_001, "victim": "kafka"}]
    one = parse_configuration({"fault_plan": plan(*faults), "duration_s": 100})
    other = parse_configuration({"fault_plan": plan(*reversed(faults)), "duration_s": 100})
    assert one.config_id == other.config_id and len({one, other}) == 1
    assert (one.fault, one.fault_at_s) == ("executor", 41)
    assert [planned.earliest_s for planned in one.planned_faults()] == [41, 50]
    assert parse_configuration(one.model_dump(mode="json")) == one, "the configuration of a record is parsed unchanged"


def test_all_faults_share_one_control() -> None:
    kill = parse_configuration({"fault": "executor"})
    cut = parse_configuration({"fault": "kafka", "fault_action": "cut"})
    twice = parse_configuration({"fault_plan": plan({"at_s": 41}, {"at_s": 60}), "duration_s": 100})
    assert control_of(kill) == control_of(cut)
    assert control_of(twice) == parse_configuration({"fault": "none", "duration_s": 100})
    assert not control_of(twice).planned_faults()


def test_state_size_is_counted_in_words_of_1024_bytes() -> None:
    assert parse_configuration({"state_mb": 1}).filler_words == math.ceil(1e6 / 1024)
    assert parse_configuration({"state_mb": 0}).filler_words == 0


@pytest.mark.parametrize("name", sorted(Configuration.model_fields.keys() - FIRST_FIELDS))
def test_later_field_does_not_change_older_identities(name: str) -> None:
    assert name not in json.loads(parse_configuration({}).canonical_json())


def test_identities_of_first_records_are_unchanged() -> None:
    """Values from records written before `iterations` and later fields existed."""
    constant = {"rate_curve": {"kind": "constant"}, "injections": 1, "warmup_max_s": 120, "max_wait_s": 180}
    assert {parse_configuration(one).config_id for one in ({}, constant)} == {"c6f4a5a9ad98"}
    assert parse_configuration({"injections": 2}).config_id != "c6f4a5a9ad98"
    assert parse_configuration({"workload": "pi"}).state_mb == 0, "pi preloads no state"


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"iterations": 5}, "iterations"),
        ({"workload": "pi", "state_mb": 1}, "state_mb"),
        ({"workload": "pi", "skew": 1}, "skew"),
        ({"users": 5}, "users"),
        ({"workload": "stock_join", "slide_s": 20}, "slide_s"),
        ({"workload": "stock_join", "window_s": 600}, "slide_s"),
        ({"workload": "stock_join", "late": 0.6, "disorder": 0.6}, "late"),
        ({"workload": "stock_join", "commit_mode": "unaligned"}, "commit_mode"),
        ({"workload": "pi", "commit_mode": "unaligned"}, "checkpoint_interval_s"),
        ({"workload": "pi", "commit_mode": "unaligned", "checkpoint_interval_s": 5, "partitions": 3}, "partitions"),
        ({"skew_curve": {"kind": "step", "at_s": 5, "to": 1}}, "skew"),
        ({"rate_curve": {"kind": "wave"}}, "rate_curve.kind"),
        ({"rate_curve": {"kind": "step", "at_s": 0, "to": 0}, "fault": "none"}, "rate_curve"),
        ({"rate_curve": {**STEP, "to": 10**400}}, "rate_curve.to"),
        ({"rate_curve": STEP, "rate": -5}, "rate"),
        ({"rate_curve": STEP, "rate": "nan"}, "rate"),
        ({"rate_curve": STEP, "rate": 10**400}, "rate"),
        ({"rate_curve": "[" * 100_000}, "rate_curve"),
        ({"workload": "stock_join", "state_mb": 0, "commit_mode": "none"}, "late"),
        ({"rate_curve": STEP, "fault_plan": plan(at_record=20500)}, "fault_plan"),
    ],
)
def test_parameter_that_workload_ignores_is_refused(values: dict[str, object], key: str) -> None:
    with refused(f"{key}: "):
        parse_configuration({"duration_s": 100, **values})


@given(st.integers(1, 20), st.sampled_from([1.0, 2.0, 5.0, 15.0]))
@pytest.mark.parametrize("fault", [{}, {"workload": "word_count_python", "fault": "python_worker"}])
def test_default_window_contains_all_injections_in_order(
    fault: dict[str, str], injections: int, checkpoint_interval_s: float
) -> None:
    config = parse_configuration({**fault, "injections": injections, "checkpoint_interval_s": checkpoint_interval_s})
    planned = config.planned_faults()
    assert [one.index for one in planned] == list(range(injections))
    low, high = config.fault_window
    assert all(low <= one.earliest_s <= one.latest_s <= high for one in planned)
    assert all(later.earliest_s > earlier.earliest_s for earlier, later in itertools.pairwise(planned))
    assert 0 < expected_duration_s(config) <= config.duration_s


def test_refusal_of_too_many_injections_names_sufficient_duration() -> None:
    with pytest.raises(ConfigError, match=r"^injections: ") as refusal:
        parse_configuration({"injections": 4, "duration_s": 100})
    needed = re.search(r"duration_s to (\d+)", str(refusal.value))
    assert needed is not None
    assert parse_configuration({"injections": 4, "duration_s": float(needed[1])}).injections == 4


@pytest.mark.parametrize("values", [{"fault_plan": TWICE}, {"workload": "topology", "fault": "executor"}])
def test_injections_are_refused_without_commits(values: dict[str, Any]) -> None:
    parse_configuration({**values, "duration_s": 400.0})
    with refused("injections: "):
        parse_configuration({**values, "injections": 3, "duration_s": 400})
    assert parse_configuration({"fault": "none", "injections": 5}) == parse_configuration({"fault": "none"})


@pytest.mark.parametrize(
    ("values", "adaptive"),
    [
        ({}, True),
        ({"fault": "none"}, True),
        ({"warmup_max_s": 20}, False),
        ({"rate_curve": {"kind": "step", "at_s": 30, "to": 900}}, False),
        ({"fault_plan": TWICE}, False),
        ({"workload": "topology"}, False),
    ],
)  # fmt: skip
def test_warm_up_is_fixed_with_varying_load_or_fault_plan(values: dict[str, Any], adaptive: bool) -> None:
    config = parse_configuration(values)
    assert config.adaptive_warmup == adaptive
    assert config.longest_s == config.duration_s + (config.warmup_max_s if adaptive else config.warmup_s)


# ---- Named settings ----

ADAPTIVE = "spark_conf.spark.sql.adaptive.enabled"
NAMES = st.text("abc.", min_size=1).filter(lambda name: name.strip("."))


@given(
    st.dictionaries(st.sampled_from(sorted(OBJECTS)), st.dictionaries(NAMES, st.text("xyz", min_size=1), min_size=1))
)
def test_fold_settings_inverts_spread_settings(objects: dict[str, Any]) -> None:
    config = {"rate": 1.0, **objects}
    assert fold_settings(spread_settings(config)) == config


def test_settings_as_object_and_by_name_are_equal() -> None:
    whole = parse_configuration({"spark_conf": {"spark.sql.adaptive.enabled": False, "spark.b": 2}})
    named = parse_configuration({"spark_conf.spark.b": "2", ADAPTIVE: "false"})
    assert whole == named and whole.config_id == named.config_id
    assert whole.config_id != parse_configuration({}).config_id
    assert parse_configuration({"spark_conf": {}}) == parse_configuration({}), "an empty object equals none"


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"spark_conf": {"spark.x": "1"}, "spark_conf.spark.x": "2"}, "spark_conf.spark.x"),
        ({"spark_conf": '{"spark.x": 1}', "spark_conf.spark.y": "2"}, "spark_conf"),
        ({"spark_conf": {"spark.x": None}}, "spark_conf.spark.x"),
        ({"spark_conf": {"spark.x": "a\nb"}}, "spark_conf.spark.x"),
        ({"spark_conf": {"spark.x": "y" * 3000}}, "spark_conf.spark.x"),
        ({"spark_conf": "spark.x=1"}, "spark_conf"),
        ({"sparkconf": {}}, "sparkconf"),
        ({"topic_conf.retention.ms": 1}, "topic_conf.retention.ms"),
        ({"topic_conf.compresion.type": "lz4"}, "topic_conf.compresion.type"),
        ({"topic_conf.segment.ms": "1h"}, "topic_conf.segment.ms"),
        ({"workload": "nexmark", "topic_conf.segment.ms": 1}, "topic_conf"),
    ],
)
def test_invalid_setting_names_key(values: dict[str, Any], key: str) -> None:
    with refused(f"{key}: "):
        parse_configuration(values)


def test_setting_can_be_an_axis() -> None:
    spec = MATRICES["sweep"]
    params = spec.resolve({"axes": parse_axes(f"{ADAPTIVE}=true, false; rate=100, 200"), "fault": "none"})
    found = spec.matrix(params).configurations()
    assert [(one.rate, (one.spark_conf or {})["spark.sql.adaptive.enabled"]) for one in found] == [
        (100, "true"), (200, "true"), (100, "false"), (200, "false"),
    ]  # fmt: skip
    axes = axes_of([Point(one.config_id, one.model_dump(mode="json"), ()) for one in found])
    assert [(axis.key, axis.name, axis.values) for axis in axes] == [
        ("rate", "rate (records/s)", (100.0, 200.0)), (ADAPTIVE, "spark.sql.adaptive.enabled", ("false", "true")),
    ]  # fmt: skip


def test_settings_changed_together_are_one_axis_and_unset_ones_compare_as_default() -> None:
    found = MATRICES["spark_and_flink_recovery"].preset_matrix().configurations()
    points = [Point(one.config_id, one.model_dump(mode="json"), ()) for one in found]
    axes = axes_of(points)
    named = {axis.key: axis.values for axis in axes}
    assert named["flink_conf.heartbeat.interval"] == ("1s", "default")
    assert "flink_conf.heartbeat.timeout" not in named, "it always changes with the interval"
    engine = next(axis for axis in axes if axis.key == "engine")
    steps = axis_steps(points, engine, axes)
    assert len(steps) == 8, "each state, interval and victim, with the default settings of both engines"
    assert {step.before.config["flink_conf"] for step in steps} == {None}


# ---- 3,178 stored configurations with their identity or the key of their refusal ----

KNOWN = Path(__file__).with_name("refusals.json.gz")


def outcome_of(values: dict[str, object]) -> str:
    try:
        return f"ok {parse_configuration(values).config_id}"
    except ConfigError as error:
        key, separator, message = str(error).partition(": ")
        assert separator and message and "\n" not in message, error
        return f"refused {key}"


def test_identities_and_refused_keys_are_unchanged() -> None:
    known = json.loads(gzip.decompress(KNOWN.read_bytes()))
    assert len(known) > 3000 and sum(expected.startswith("ok") for _, expected in known) > 300
    changed = [(values, expected, outcome_of(values)) for values, expected in known if outcome_of(values) != expected]
    assert not changed, f"{len(changed)} differ, the first: {changed[0]}"
