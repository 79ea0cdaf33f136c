"""The noisy engine follows its distributions, and its benchmark finds planted values."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.ground_truth.noisy_engine import Noise, batches_of, noise_factors, run
from benchmarks.ground_truth.recovery_rule_noise import (
    BATCHES,
    figures,
    limits_at,
    random_case,
    recovered_at,
    slow_case,
)
from faultline.experiment.common_parameters import RECOVERED_WITHIN


@given(st.integers(0, 10_000), st.sampled_from([0.0, 0.1, 0.3]))
def test_every_tuple_is_in_one_batch_and_batches_do_not_overlap(seed: int, variation: float) -> None:
    random = np.random.default_rng(seed)
    case = random_case(random)
    batches = list(batches_of(case, noise_factors(Noise(variation, 0.3), BATCHES, random)))
    for before, after in itertools.pairwise(batches):
        assert after.begin == before.planned < after.planned
        assert before.committed <= after.started
        assert after.started >= after.planned
    assert batches[-1].planned >= case.end_s
    assert not [one for one in batches if case.t0_s < one.committed < case.t0_s + case.outage_s], "nothing is done then"


@given(st.integers(0, 10_000))
def test_the_folded_tuples_are_those_that_were_produced(seed: int) -> None:
    random = np.random.default_rng(seed)
    case = random_case(random)
    seen, calm = run(case, np.ones(BATCHES))
    assert seen.produced.equals(calm.produced), "without noise a run is its own average"
    assert seen.produced["n"].sum() == pytest.approx(case.rate * min(case.end_s, seen.bins["end_ns"].max()), rel=0.02)
    assert (seen.produced["latency_ms"] > 0).all()


@pytest.mark.parametrize("variation", [0.05, 0.2])
@pytest.mark.parametrize("correlation", [0.0, 0.4])
def test_the_noise_is_as_large_and_as_alike_as_was_asked(variation: float, correlation: float) -> None:
    values = noise_factors(Noise(variation, correlation), 20_000, np.random.default_rng(1))
    assert values.mean() == pytest.approx(1, abs=0.01)
    assert values.std() == pytest.approx(variation, rel=0.05)
    assert np.corrcoef(np.log(values[1:]), np.log(values[:-1]))[0, 1] == pytest.approx(correlation, abs=0.03)


def test_an_engine_that_stays_slow_is_never_back() -> None:
    random = np.random.default_rng(4)
    for _ in range(5):
        case = slow_case(random, RECOVERED_WITHIN)
        seen, calm = run(case, np.ones(BATCHES))
        assert case.slower > 1
        assert limits_at(case, seen, RECOVERED_WITHIN, 1.0) is not None
        assert recovered_at(case, calm, RECOVERED_WITHIN, 1.0) is None


def test_the_rule_is_seldom_wrong() -> None:
    found = figures(4)
    assert found["false_unrecovered"].value <= 0.05
    assert found["false_recovered"].value <= 0.05
    assert found["macro_error"].value <= 1
