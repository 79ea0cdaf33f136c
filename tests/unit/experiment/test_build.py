"""Builds under test, as a form names them, and what is refused about them."""

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
def test_a_build_survives_its_own_json(revision: str | None, settings: dict[str, Any]) -> None:
    build = parse_build({"revision": revision, "settings": settings}, "baseline")
    assert parse_build(json.loads(json.dumps(build.as_mapping())), "baseline") == build
    assert parse_build(json.dumps(build.as_mapping()), "baseline") == build
    assert build.installed is (revision is None and not settings)
    assert all(isinstance(value, str) and value == value.strip() for value in build.settings.values())


def test_nothing_is_the_checkout_as_it_is() -> None:
    for nothing in (None, {}, "", " ", {"revision": None}, {"revision": "", "settings": {}}):
        assert parse_build(nothing, "baseline") == BuildSpec() and BuildSpec().installed


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("{", "baseline: is no JSON"),
        ([1], "baseline: .* is no object; give one such as"),
        ({"revison": "v1"}, "baseline.revison: .*did you mean revision"),
        ({"revision": "--all"}, "baseline.revision: '--all' is no revision; give a tag"),
        ({"revision": 3}, "baseline.revision: 3 is no revision"),
        ({"settings": ["a"]}, "baseline.settings: .* is no object"),
        ({"settings": {"sql.x": "1"}}, "baseline.settings.sql.x: "),
        ({"settings": {"spark.x": None}}, "baseline.settings.spark.x: None is no value"),
        ({"settings": {"spark.x": "a\nb"}}, "baseline.settings.spark.x: 'a.*is no value"),
        ({"settings": {"spark.faultline.busy": "1"}}, "spark.faultline.busy: .*did you mean"),
        ({"settings": {BUSY: "-1"}}, f"{BUSY}: .*'-1'"),
        ({"settings": {BUSY: "nan"}}, f"{BUSY}: .*'nan'"),
    ],
)
def test_what_is_refused_names_its_key(given: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        check_build(parse_build(given, "baseline"), parse_configuration({}), key="baseline")


@pytest.mark.parametrize("mode", ["aligned", "aligned-changelog", "none"])
def test_what_the_configuration_or_faultline_sets_is_no_builds_to_set(mode: str) -> None:
    config = parse_configuration({"commit_mode": mode})
    decided = reserved_names(config)
    assert {"spark.executor.memory", "spark.executorEnv.PYTHONPATH", "spark.driver.host", "spark.ui.port"} <= decided
    assert RESERVED.keys() <= decided and "spark.sql.adaptive.enabled" not in decided
    for name in sorted(decided):
        with refused(f"baseline.settings.{name}: "):
            reject_reserved(parse_build({"settings": {name: "1"}}, "baseline"), "baseline", decided)
    reject_reserved(parse_build({"settings": {"spark.sql.adaptive.enabled": True}}, "baseline"), "baseline", decided)


def test_an_engine_without_programs_of_a_build_and_work_that_nobody_plants_are_refused() -> None:
    some, busy = ({"settings": {name: "1"}} for name in ("spark.sql.adaptive.enabled", BUSY))
    for build, workload, said in (
        (some, "known_truth", "baseline: .*known_truth"),
        ({}, "known_truth", None),
        (busy, "nexmark", f"baseline.settings.{BUSY}: .*nexmark"),
        ({**busy, "revision": "v1"}, "word_count", "busy_us_per_record: .*revision"),
        (busy, "word_count", None),
    ):
        with pytest.raises(ConfigError, match=said) if said else nullcontext():
            check_build(parse_build(build, "baseline"), parse_configuration({"workload": workload}), key="baseline")
    assert parse_build({"revision": "v1", **some}, "x").text == "v1 with spark.sql.adaptive.enabled=1"


# ---- What a sweep is asked to decide: taken as it is meant, or refused by the name of the key ----

FIGURES = ("cpu_cores.total", "latency_ms.p50")
AXES = {"rate": [1.0, 2.0], "state_mb": [1.0]}
GOOD: dict[str, Any] = {"figure": "latency_ms.p50", "along": "rate", "smallest": 0.1, "experiments": 40}


def parsed(**changed: Any) -> Decide | None:
    return parse_decide({**GOOD, **changed}, figures=FIGURES, axes=AXES)


def test_the_example_of_the_messages_is_legal_nothing_asks_nothing_and_a_list_is_no_question() -> None:
    example = json.loads(EXAMPLE)
    assert parse_decide(example, figures=FIGURES, axes={example["along"]: [1, 2]}) is not None
    assert parse_decide(None, figures=FIGURES, axes=AXES) is None
    with pytest.raises(ConfigError, match="decide: .* is no object; give one such as"):
        parse_decide([1], figures=FIGURES, axes=AXES)


BUDGETS = st.tuples(st.none() | st.integers(1, 10**6), st.none() | st.floats(0.1, 1e3)).filter(any)


@given(st.floats(0.001, 1), st.none() | st.floats(0.001, 0.49), BUDGETS)
def test_what_is_in_range_is_taken(smallest: float, error: float | None, budget: tuple[Any, Any]) -> None:
    one = parsed(smallest=smallest, error=error, experiments=budget[0], hours=budget[1])
    assert one == Decide("latency_ms.p50", "rate", smallest, ERROR if error is None else error, *budget)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"figure": "latency_ms.p5"}, "decide.figure: 'latency_ms.p5' is no figure .*; did you mean latency_ms.p50"),
        ({"figure": None}, "decide.figure: is missing"),
        ({"along": "rte"}, "decide.along: 'rte' is no axis of this sweep; did you mean rate"),
        ({"along": "state_mb"}, "decide.along: state_mb has one value only"),
        ({"smallest": 0}, "decide.smallest: 0 is no share above 0"),
        ({"smallest": 1.5}, "decide.smallest: 1.5 is no share"),
        ({"smallest": "10 %"}, "decide.smallest: '10 %' is no number"),
        ({"smallest": float("nan")}, "decide.smallest: nan is no number"),
        ({"smallest": True}, "decide.smallest: True is no number"),
        ({"error": 0.5}, "decide.error: 0.5 is not between 0 and 0.5"),
        ({"error": 0}, "decide.error: 0 is not between"),
        ({"experiments": 2.5}, "decide.experiments: 2.5 is no whole number"),
        ({"experiments": 0}, "decide.experiments: 0 is no whole number"),
        ({"experiments": None}, "decide: has no budget; give experiments, hours, or both"),
        ({"hours": -1}, "decide.hours: -1 is not above 0"),
        ({"smalest": 1}, "decide.smalest: .*did you mean smallest"),
    ],
)
def test_what_is_wrong_is_refused_by_its_key(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parsed(**changed)
