"""Capacity search: it finds the threshold of any engine in few steps."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.comparison.capacity import (
    PRECISION,
    Capacity,
    at_rate,
    highest_sustained,
    highest_sustained_near,
    is_sustained,
    search_capacity,
)
from faultline.experiment.config import Configuration, parse_configuration
from faultline.experiment.workloads.protocol import MAX_RATE
from faultline.records.record import Record
from faultline.records.work_parts import BackgroundCpuPart
from faultline.system.errors import InfrastructureError
from tests.unit.sample_records import sample

RATES = st.floats(min_value=0.5, max_value=1e6)


@given(limit=RATES, low=RATES, span=st.floats(min_value=1.01, max_value=1e4))
def test_the_answer_brackets_the_limit(limit: float, low: float, span: float) -> None:
    high = low * span
    found = highest_sustained(lambda rate: rate <= limit, low, high)
    if limit < low:
        assert (found.sustained, found.exceeded) == (None, low)
    elif limit >= high:
        assert (found.sustained, found.exceeded) == (high, None)
    else:
        assert found.sustained is not None and found.exceeded is not None
        assert found.sustained <= limit < found.exceeded
        # One rounding to three digits is the slack of the last step.
        assert found.exceeded / found.sustained <= PRECISION * 1.01
    assert len(found.tried) <= 2 + math.ceil(math.log2(max(1.0, math.log(span) / math.log(PRECISION)))) + 2
    assert len({rate for rate, _ in found.tried}) == len(found.tried), "no rate is measured twice"


@given(limit=st.floats(1.0, 1e6), guess=st.floats(1.0, 5e5))
def test_a_guess_is_enough(limit: float, guess: float) -> None:
    found = highest_sustained_near(lambda rate: rate <= limit, guess, 1.25)
    assert found.sustained is None or found.sustained <= limit
    assert found.exceeded is None or found.exceeded > limit
    if found.sustained is None:
        assert limit < guess / 500
    elif found.exceeded is None:
        assert found.sustained == MAX_RATE
    else:
        assert found.exceeded / found.sustained <= 1.25 * 1.01
        if guess / 2 < limit < guess * 2:
            assert len(found.tried) <= 4
    assert len({rate for rate, _ in found.tried}) == len(found.tried), "no rate is measured twice"


@pytest.mark.parametrize("guess", [0.0, -1.0, 1e9])
def test_a_senseless_guess_is_refused(guess: float) -> None:
    with pytest.raises(ValueError, match="guess"):
        highest_sustained_near(lambda rate: True, guess)


@pytest.mark.parametrize(("low", "high", "precision"), [(0, 1, 1.1), (2, 2, 1.1), (3, 2, 1.1), (1, 2, 1.0)])
def test_senseless_bounds_are_refused(low: float, high: float, precision: float) -> None:
    with pytest.raises(ValueError, match="expected"):
        highest_sustained(lambda rate: True, low, high, precision)


def measured(
    status: str,
    *reasons: str,
    sustained: bool | None = True,
    effective_s: float | None = 2.0,
    **background: float | None,
) -> Record:
    """Return a record with an interval of 2 s; `besides`: background CPU by `processes` and `steal`."""
    record = sample(status=status, reasons=list(reasons), checkpoint_interval_s=2)
    figures: dict[str, object] = {"sustained": sustained, "effective_interval_s": effective_s}
    if background:
        figures["background_cpu"] = BackgroundCpuPart(**{"steal": 0.0, **background})
    return record.model_copy(update={"metrics": record.metrics.model_copy(update=figures)})


def late(effective_s: float | None, *reasons: str, **background: float | None) -> Record:
    return measured("invalid", "schedule-lag: p99 1 s", *reasons, effective_s=effective_s, **background)


SLOW = ("interval-not-held: 9 s", "drain-incomplete: 3", "backlog-at-t0: 900")


@pytest.mark.parametrize(
    ("record", "answer"),
    [
        (measured("valid"), True),
        (measured("valid", sustained=False), False),
        (measured("valid", sustained=None), None),  # too few bins
        (measured("valid", sustained=None, effective_s=16.7), False),  # too few because each was slow
        (measured("valid", effective_s=None), None),
        # A commit may be a fifth late.
        (measured("valid", effective_s=2.4), True),
        (measured("valid", effective_s=2.5), False),
        # Too slow for less than was asked; others may have had a third of a core.
        (late(19.5, processes=0.1), False),
        (late(19.5, processes=0.3), False),
        (late(19.5, processes=0.31), None),
        (late(19.5, processes=0.2, steal=0.2), None),
        (late(19.5, processes=None), None),
        (late(19.5, processes=0.0, steal=None), None),
        (late(2.4, processes=0.1), None),
        (late(None, "interval-not-held: none", processes=0.1), False),
        (late(2.0, *SLOW, processes=0.9), None),
        (measured("invalid", "not-steady: lag", effective_s=19.5, processes=0.1), None),
        (measured("invalid", "interval-not-held: 9 s", "schedule-lag: p99 99 ms"), None),
        # All signs of an engine that is too slow may stand together.
        (measured("invalid", *SLOW[:2]), False),
        (measured("invalid", *SLOW), False),
        (measured("invalid", *SLOW, "not-steady: lag"), None),
        (measured("unmet", "overloaded: lag grew by 20 to 30 of 500 records/s > 1%"), False),
        (measured("failed", "generator: dead"), None),
    ],
)
def test_a_record_shows_whether_its_rate_was_sustained(record: Record, answer: bool | None) -> None:
    assert is_sustained(record) is answer


def search(
    measure: Callable[[Configuration], Record],
    *,
    known: Callable[[Configuration], Record | None] = lambda there: None,
    by: Callable[[Callable[[float], bool]], Capacity] = lambda ask: highest_sustained(ask, 100, 1000),
) -> tuple[Capacity, dict[float, Record]]:
    return search_capacity(parse_configuration({}), by, known, measure)


@pytest.mark.parametrize("reason", ["schedule-lag: p99 99 ms > 50 ms", "not-steady: lag has a trend"])
def test_a_rate_that_never_answers(reason: str) -> None:
    """A rate that the generator misses three times is not sustained; another failure ends the search."""
    asked: list[float] = []

    def measure(there: Configuration) -> Record:
        asked.append(there.rate)
        return measured("invalid", reason) if there.rate > 300 else measured("valid")

    if reason.startswith("schedule-lag"):
        found, records = search(measure)
        assert found.sustained is not None and found.sustained <= 300 < (found.exceeded or 0)
        assert asked.count(1000) == 3 and set(records) == {rate for rate, _ in found.tried}
    else:
        with pytest.raises(InfrastructureError, match="rate 1000: no result"):
            search(measure)


def test_a_search_by_guess_ends_at_a_thousandth_and_at_the_most() -> None:
    lowest = highest_sustained_near(lambda rate: False, 1000.0, 1.25)
    rates = [rate for rate, _ in lowest.tried]
    assert lowest.sustained is None and lowest.exceeded == rates[-1] <= 1.0 < rates[-2]
    assert rates[:3] == [1000.0, 500.0, 250.0]
    all_of_it = highest_sustained_near(lambda rate: True, 300.0, most=1000.0)
    assert [rate for rate, _ in all_of_it.tried] == [300.0, 600.0, 1000.0]
    assert (all_of_it.sustained, all_of_it.exceeded) == (1000.0, None)
    assert [rate for rate, _ in highest_sustained_near(lambda rate: True, 1000.0, most=1000.0).tried] == [1000.0]


def test_the_answer_is_known_to_a_tenth_and_rates_have_three_digits() -> None:
    found = highest_sustained(lambda rate: rate <= 733.3, 100, 12_500)
    assert found.sustained is not None and found.exceeded is not None
    assert 1.0 < found.exceeded / found.sustained <= 1.1
    between = [rate for rate, _ in found.tried][2:]
    assert between == [float(f"{rate:.3g}") for rate in between] and any(rate % 10 for rate in between)
    # Near ends are not divided further.
    assert len(highest_sustained(lambda rate: rate <= 100, 100, 110).tried) == 2
    assert len(highest_sustained(lambda rate: rate <= 100, 100, 111).tried) == 3


@pytest.mark.parametrize("known", [True, False])
def test_a_record_that_answers_is_not_measured_again(known: bool) -> None:
    measurements: list[float] = []

    def measure(there: Configuration) -> Record:
        measurements.append(there.rate)
        return measured("valid", sustained=there.rate <= 200)

    def find(there: Configuration) -> Record | None:
        return measured("valid", sustained=there.rate <= 200) if known else measured("failed", "generator: dead")

    found, _ = search(measure, known=find)
    assert measurements == ([] if known else [rate for rate, _ in found.tried])
    with pytest.raises(InfrastructureError, match="rate 100: no result after 3 measurements: generator: dead"):
        search(lambda there: measured("failed", "generator: dead"))


def test_the_last_of_three_measurements_may_answer() -> None:
    answers = [measured("valid", sustained=None), measured("valid", sustained=None), measured("valid", sustained=True)]
    found, _ = search(lambda there: answers.pop(0), by=lambda ask: highest_sustained_near(ask, 100, most=100))
    assert found.sustained == 100 and answers == []


def test_a_rate_that_is_never_shown_to_be_kept_up_with_does_not_count_as_held() -> None:
    found, records = search(lambda there: measured("valid", sustained=True if there.rate < 200 else None))
    assert found.sustained is not None and found.sustained < 200
    assert found.exceeded is not None and records[found.exceeded].metrics.sustained is None


@pytest.mark.parametrize(("low", "high"), [(1000, 1004), (1006, 1010)])
def test_rates_equal_in_three_digits_are_not_repeated(low: float, high: float) -> None:
    """Their middle is one of the two ends again: the search ends there, however precise it was to be."""
    found = highest_sustained(lambda rate: rate <= low, low, high, precision=1.0001)
    assert [rate for rate, _ in found.tried] == [low, high]
    assert (found.sustained, found.exceeded) == (low, high)


def test_an_overloaded_engine_with_background_cpu_is_not_sustained() -> None:
    slow = late(2.0, *SLOW, processes=0.9)
    found, records = search(lambda there: slow, by=lambda ask: highest_sustained_near(ask, 1.0, most=1.0))
    assert found.sustained is None and set(records) == {rate for rate, _ in found.tried}


def test_a_search_breaks_nothing_and_takes_being_too_slow_for_a_result() -> None:
    config = parse_configuration({"rate": 700, "fault": "executor", "duration_s": 100, "fault_at_s": 60, "state_mb": 8})
    there = at_rate(config, 900)
    assert (there.rate, there.fault, there.accept_overload) == (900, "none", True)
    assert there.state_mb == 8 and there.fault_plan is None
