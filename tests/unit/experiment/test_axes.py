"""An axis as people write it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.experiment.axes import axis_text, parse_axes, parse_axis
from faultline.system.errors import ConfigError

NUMBERS = st.one_of(
    st.integers(-(10**9), 10**9), st.floats(-1e9, 1e9, allow_nan=False).map(lambda value: round(value, 6))
)
NAMES = st.from_regex(r"[a-z][a-z0-9_-]{0,12}", fullmatch=True).filter(
    lambda name: name not in ("null", "true", "false")
)


def distinct(values: list[Any]) -> list[Any]:
    return list({float(value) if isinstance(value, int | float) else value: value for value in values}.values())


@given(st.lists(NUMBERS, min_size=1, max_size=12).map(distinct))
def test_numbers_come_back_from_their_text_as_from_their_list(values: list[Any]) -> None:
    assert parse_axis("rate", axis_text(values)) == values == parse_axis("rate", values)
    assert parse_axis("rate", json.dumps(values)) == values, "as JSON, too"
    assert parse_axis("rate", f"[{axis_text(values)}]") == values


@given(st.lists(NAMES, min_size=1, max_size=6, unique=True))
def test_names_come_back_from_their_text(values: list[str]) -> None:
    assert parse_axis("fault", axis_text(values)) == values


@given(st.integers(0, 50), st.integers(1, 9), st.integers(0, 100))
def test_a_range_with_a_step_is_what_range_makes(low: int, step: int, many: int) -> None:
    high = low + step * many
    assert parse_axis("seed", f"{low}..{high} +{step}") == list(range(low, high + 1, step))


@given(st.integers(1, 50), st.integers(2, 5), st.integers(0, 8))
def test_a_range_with_a_factor_grows_by_it_and_holds_its_end(low: int, factor: int, many: int) -> None:
    high = low * factor**many
    for sign in "x×*":
        assert parse_axis("rate", f"{low}..{high} {sign}{factor}") == [low * factor**n for n in range(many + 1)]


def test_ranges_and_values_may_stand_together_and_rounding_does_not_add_up() -> None:
    assert parse_axis("seed", "1..3, 10") == [1, 2, 3, 10]
    assert parse_axis("recovered_within", "0.1..0.5 +0.1") == [0.1, 0.2, 0.3, 0.4, 0.5]
    assert parse_axis("checkpoint_interval_s", "[1..60x2]") == [1, 2, 4, 8, 16, 32]
    assert parse_axis("parallelism", "1-2-2, 1-1-1") == ["1-2-2", "1-1-1"]
    assert parse_axis("corpus", "1, 2") == ["1", "2"], "a name stays a name"
    assert parse_axis("skew", "null, 1.5") == [None, 1.5]


def test_objects_keep_their_commas() -> None:
    plan = {"faults": [{"victim": "driver", "at_s": 45}]}
    assert parse_axis("fault_plan", f"{json.dumps(plan)}, null") == [plan, None]
    assert parse_axes(f"fault_plan={json.dumps(plan)}; seed=1, 2") == {"fault_plan": [plan], "seed": [1, 2]}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "rate: the axis is empty"),
        ("[]", "rate: the axis is empty"),
        ("1, 1", "rate: 1 stands twice"),
        ("0.5..2", "rate: 0.5..2 has no step; write 0.5..2 +0.5, say, or 0.5..2 ×2"),
        ("8..1", "rate: 8..1 runs backwards"),
        ("1..8 x1", "rate: 1..8 x1 never reaches its end"),
        ("0..8 x2", "rate: 0..8 x2 never reaches its end"),
        ("1..100000", "rate: more than 1024 values"),
        ('{"a": 1', "rate: '{\"a\": 1' lacks a closing }"),
    ],
)
def test_what_makes_no_axis_is_refused_by_its_name(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_axis("rate", text)
    assert str(refused.value).startswith(said)
    with pytest.raises(ConfigError, match="rates: unknown parameter; did you mean rate"):
        parse_axis("rates", "1")
    with pytest.raises(ConfigError, match="axes: seed is given twice"):
        parse_axes("seed=1; seed=2")
