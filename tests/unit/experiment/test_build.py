"""Builds under test and questions of sequential sweeps: parsing and validation."""

from __future__ import annotations

import json
from contextlib import nullcontext
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.engines.spark.build_rules import reject_reserved
from faultline.engines.spark.conf_rules import BUSY, RESERVED
from faultline.engines.spark.settings import reserved_names
from faultline.experiment.build import BuildSpec, parse_build
from faultline.experiment.config import parse_configuration
from faultline.experiment.decide import ERROR, EXAMPLE, Decide, parse_decide
from faultline.lifecycle.build_checkout import check_build
from faultline.system.errors import ConfigError
from tests.support.refusals import refused

NAMES = st.from_regex(r"spark\.[a-z]{1,8}(\.[a-zA-Z]{1,8}){0,3}", fullmatch=True).filter(
    lambda name: not name.startswith("spark.faultline")
)
TEXTS = st.text("abc019._-/ ", min_size=1, max_size=12).filter(str.strip)
VALUES = st.one_of(TEXTS, st.integers(), st.booleans())


@given(
    st.none() | st.from_regex(r"[a-z0-9][a-z0-9./~^]{0,20}", fullmatch=True), st.dictionaries(NAMES, VALUES, max_size=4)
)
def test_build_round_trips_through_json(revision: str | None, settings: dict[str, Any]) -> None:
    build = parse_build({"revision": revision, "settings": settings}, "baseline")
    assert parse_build(json.loads(json.dumps(build.as_mapping())), "baseline") == build
    assert parse_build(json.dumps(build.as_mapping()), "baseline") == build
    assert build.installed is (revision is None and not settings)
    assert all(isinstance(value, str) and value == value.strip() for value in build.settings.values())


def test_empty_value_means_the_unchanged_checkout() -> None:
    for empty in (None, {}, "", " ", {"revision": None}, {"revision": "", "settings": {}}):
        assert parse_build(empty, "baseline") == BuildSpec() and BuildSpec().installed


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ("{", "baseline"),
        ([1], "baseline"),
        ({"revison": "v1"}, "baseline.revison"),
        ({"revision": "--all"}, "baseline.revision"),
        ({"revision": 3}, "baseline.revision"),
        ({"settings": ["a"]}, "baseline.settings"),
        ({"settings": {"sql.x": "1"}}, "baseline.settings.sql.x"),
        ({"settings": {"spark.x": None}}, "baseline.settings.spark.x"),
        ({"settings": {"spark.x": "a\nb"}}, "baseline.settings.spark.x"),
        ({"settings": {"spark.faultline.busy": "1"}}, "baseline.settings.spark.faultline.busy"),
        ({"settings": {BUSY: "-1"}}, f"baseline.settings.{BUSY}"),
        ({"settings": {BUSY: "nan"}}, f"baseline.settings.{BUSY}"),
    ],
)
def test_refusal_names_key(given: Any, key: str) -> None:
    with pytest.raises(ConfigError, match=f"^{key}: "):
        check_build(parse_build(given, "baseline"), parse_configuration({}), key="baseline")


@pytest.mark.parametrize("mode", ["aligned", "aligned-changelog", "none"])
def test_build_cannot_set_reserved_settings(mode: str) -> None:
    config = parse_configuration({"commit_mode": mode})
    reserved = reserved_names(config)
    assert {"spark.executor.memory", "spark.executorEnv.PYTHONPATH", "spark.driver.host", "spark.ui.port"} <= reserved
    assert RESERVED.keys() <= reserved and "spark.sql.adaptive.enabled" not in reserved
    for name in sorted(reserved):
        with refused(f"baseline.settings.{name}: "):
            reject_reserved(parse_build({"settings": {name: "1"}}, "baseline"), "baseline", reserved)
    reject_reserved(parse_build({"settings": {"spark.sql.adaptive.enabled": True}}, "baseline"), "baseline", reserved)


def test_build_that_engine_or_workload_cannot_apply_is_refused() -> None:
    some, busy = ({"settings": {name: "1"}} for name in ("spark.sql.adaptive.enabled", BUSY))
    for build, workload, pattern in (
        (some, "known_truth", "^baseline: "),
        ({}, "known_truth", None),
        (busy, "nexmark", rf"^baseline\.settings\.{BUSY}: "),
        ({**busy, "revision": "v1"}, "word_count", "busy_us_per_record: "),
        (busy, "word_count", None),
    ):
        with pytest.raises(ConfigError, match=pattern) if pattern else nullcontext():
            check_build(parse_build(build, "baseline"), parse_configuration({"workload": workload}), key="baseline")
    assert parse_build({"revision": "v1", **some}, "x").text == "v1 with spark.sql.adaptive.enabled=1"


# ---- The question of a sequential sweep ----

FIGURES = ("cpu_cores.total", "latency_ms.p50")
AXES = {"rate": [1.0, 2.0], "state_mb": [1.0]}
GOOD: dict[str, Any] = {"figure": "latency_ms.p50", "along": "rate", "smallest": 0.1, "experiments": 40}


def parsed(**changed: Any) -> Decide | None:
    return parse_decide({**GOOD, **changed}, figures=FIGURES, axes=AXES)


def test_example_is_valid_none_is_empty_and_list_is_refused() -> None:
    example = json.loads(EXAMPLE)
    assert parse_decide(example, figures=FIGURES, axes={example["along"]: [1, 2]}) is not None
    assert parse_decide(None, figures=FIGURES, axes=AXES) is None
    with refused("decide: "):
        parse_decide([1], figures=FIGURES, axes=AXES)


BUDGETS = st.tuples(st.none() | st.integers(1, 10**6), st.none() | st.floats(0.1, 1e3)).filter(any)


@given(st.floats(0.001, 1), st.none() | st.floats(0.001, 0.49), BUDGETS)
def test_value_in_range_is_accepted(smallest: float, error: float | None, budget: tuple[Any, Any]) -> None:
    one = parsed(smallest=smallest, error=error, experiments=budget[0], hours=budget[1])
    assert one == Decide("latency_ms.p50", "rate", smallest, ERROR if error is None else error, *budget)


@pytest.mark.parametrize(
    ("changed", "key"),
    [
        ({"figure": "latency_ms.p5"}, "decide.figure"),
        ({"figure": None}, "decide.figure"),
        ({"along": "rte"}, "decide.along"),
        ({"along": "state_mb"}, "decide.along"),
        ({"smallest": 0}, "decide.smallest"),
        ({"smallest": 1.5}, "decide.smallest"),
        ({"smallest": "10 %"}, "decide.smallest"),
        ({"smallest": float("nan")}, "decide.smallest"),
        ({"smallest": True}, "decide.smallest"),
        ({"error": 0.5}, "decide.error"),
        ({"error": 0}, "decide.error"),
        ({"experiments": 2.5}, "decide.experiments"),
        ({"experiments": 0}, "decide.experiments"),
        ({"experiments": None}, "decide"),
        ({"hours": -1}, "decide.hours"),
        ({"smalest": 1}, "decide.smalest"),
    ],
)
def test_invalid_question_names_key(changed: dict[str, Any], key: str) -> None:
    with refused(f"{key}: "):
        parsed(**changed)
