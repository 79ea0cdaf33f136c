"""What a sweep is asked to decide: taken as it is meant, or refused by the name of the key."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.experiment.decide import ERROR, EXAMPLE, Decide, parse_decide
from faultline.system.errors import ConfigError

FIGURES = ("cpu_cores.total", "latency_ms.p50")
AXES = {"rate": [1.0, 2.0], "state_mb": [1.0]}
GOOD: dict[str, Any] = {"figure": "latency_ms.p50", "along": "rate", "smallest": 0.1, "experiments": 40}


def parsed(**changed: Any) -> Decide | None:
    return parse_decide({**GOOD, **changed}, figures=FIGURES, axes=AXES)


def test_nothing_asked_is_nothing_to_decide() -> None:
    assert parse_decide(None, figures=FIGURES, axes=AXES) is None


def test_the_example_of_the_messages_is_a_legal_one() -> None:
    given = json.loads(EXAMPLE)
    assert parse_decide(given, figures=FIGURES, axes={given["along"]: [1, 2]}) is not None


@given(
    st.floats(0.001, 1),
    st.none() | st.floats(0.001, 0.49),
    st.none() | st.integers(1, 10**6),
    st.none() | st.floats(0.1, 1e3),
)
def test_what_is_in_range_is_taken(
    smallest: float, error: float | None, experiments: int | None, hours: float | None
) -> None:
    if experiments is None and hours is None:
        with pytest.raises(ConfigError, match="has no budget"):
            parsed(experiments=None)
        return
    one = parsed(smallest=smallest, error=error, experiments=experiments, hours=hours)
    expected = Decide("latency_ms.p50", "rate", smallest, ERROR if error is None else error, experiments, hours)
    assert one == expected


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
        ({"smalest": 1}, "decide.smalest: is not known; did you mean smallest"),
    ],
)
def test_what_is_wrong_is_refused_by_its_key(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parsed(**changed)


def test_a_list_is_no_question() -> None:
    with pytest.raises(ConfigError, match="decide: .* is no object; give one such as"):
        parse_decide([1], figures=FIGURES, axes=AXES)
