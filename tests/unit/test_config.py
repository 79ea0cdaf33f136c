"""The configuration: identity by content, and refusals that name the key and the remedy."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.config import Configuration, baseline_bins, parse_configuration
from faultline.errors import ConfigError

configurations = st.fixed_dictionaries(
    {},
    optional={
        "rate": st.floats(1, 10_000),
        "warmup_s": st.floats(5, 60),
        "state_mb": st.floats(0, 400),
        "checkpoint_interval_s": st.floats(0.5, 30),
        "duration_s": st.floats(400, 900),
        "skew": st.none() | st.floats(0, 3),
        "executors": st.integers(1, 8),
        "fault": st.sampled_from(["none", "executor"]),
        "commit_mode": st.sampled_from(["aligned", "aligned-changelog"]),
        "seed": st.integers(0, 1000),
    },
)


def accepted(values: dict[str, object]) -> Configuration | None:
    try:
        return parse_configuration(values)
    except ConfigError:
        return None


@given(configurations)
def test_the_identity_survives_a_round_trip_through_json(values: dict[str, object]) -> None:
    config = accepted(values)
    if config is None:
        return
    again = parse_configuration(json.loads(config.canonical_json()))
    assert again == config and again.config_id == config.config_id
    assert len(config.config_id) == 12 and int(config.config_id, 16) >= 0


@given(configurations)
def test_the_order_of_the_keys_and_written_out_defaults_do_not_change_the_identity(values: dict[str, object]) -> None:
    config = accepted(values)
    if config is None:
        return
    turned = dict(reversed(list({**config.model_dump(), **values}.items())))
    turned["fault_at_s"] = config.fault_at_s
    assert parse_configuration(turned).config_id == config.config_id


@given(configurations)
def test_an_accepted_fault_lies_where_a_recovery_can_be_seen(values: dict[str, object]) -> None:
    config = accepted(values)
    if config is None:
        return
    if config.fault == "none":
        assert config.fault_at_s is None
        return
    assert config.fault_at_s is not None
    bins = baseline_bins(config.checkpoint_interval_s)
    assert config.fault_at_s >= config.warmup_s + bins * config.checkpoint_interval_s
    assert config.fault_at_s <= config.warmup_s + config.duration_s - 30


@given(st.floats(0, 2000), st.floats(0, 2000))
def test_different_values_have_different_identities(left: float, right: float) -> None:
    one, other = accepted({"state_mb": left}), accepted({"state_mb": right})
    if one and other:
        assert (one.config_id == other.config_id) == (left == right)


def test_numbers_written_as_text_are_the_same_configuration() -> None:
    assert parse_configuration({"state_mb": "8", "seed": "3"}) == parse_configuration({"state_mb": 8.0, "seed": 3})


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"rate": 0}, ["rate", "greater than 0"]),
        ({"rate": -3}, ["rate", "-3"]),
        ({"rate": math.nan}, ["rate", "nan", "finite"]),
        ({"rate": math.inf}, ["rate", "inf"]),
        ({"rate": 2e6}, ["rate", "500000"]),
        ({"rate": "fast"}, ["rate", "'fast'", "number"]),
        ({"workload": "wordcount"}, ["workload", "did you mean word_count?"]),
        ({"state": 3}, ["state: unknown parameter", "did you mean state_mb?"]),
        ({"zzz": 3}, ["zzz: unknown parameter", "known: ", "rate"]),
        ({"fault_at_s": 10}, ["fault_at_s: 10", "[40, 45]"]),
        ({"fault_at_s": 60}, ["fault_at_s: 60", "[40, 45]"]),
        ({"fault": "none", "fault_at_s": 41}, ["fault_at_s", "control", "leave it empty"]),
        ({"duration_s": 30}, ["duration_s", "at least 50"]),
        ({"state_mb": 600}, ["state_mb: 600", "quarter", "executor_memory_mb"]),
        ({"executors": 0}, ["executors", "greater than or equal to 1"]),
    ],
)
def test_bad_input_gets_one_line_that_names_the_key(values: dict[str, object], words: list[str]) -> None:
    with pytest.raises(ConfigError) as refusal:
        parse_configuration(values)
    text = str(refusal.value)
    assert "\n" not in text
    for word in words:
        assert word in text


def test_the_state_is_counted_in_words_of_1024_bytes() -> None:
    assert parse_configuration({"state_mb": 1}).filler_words == math.ceil(1e6 / 1024)
    assert parse_configuration({"state_mb": 0}).filler_words == 0
