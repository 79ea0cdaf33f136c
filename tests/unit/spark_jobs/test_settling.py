"""When the batches of a warm-up are said to have settled."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from settling import LEAST_BATCHES, STILL_FASTER, settled

DURATION = st.floats(1, 1e5)


@given(st.lists(DURATION, max_size=LEAST_BATCHES - 1))
def test_few_batches_have_never_settled(durations: list[float]) -> None:
    assert not settled(durations)


@given(st.lists(DURATION, min_size=1), DURATION)
def test_batches_that_are_no_faster_have(first: list[float], duration: float) -> None:
    assert settled([*first, *[duration] * LEAST_BATCHES])


@given(DURATION, st.integers(LEAST_BATCHES, 20))
def test_batches_that_get_faster_each_time_have_not(slowest: float, count: int) -> None:
    assert not settled([slowest * (1 - 2 * STILL_FASTER) ** number for number in range(count)])


def test_the_first_batch_tells_nothing() -> None:
    """It compiles; the real ones of a word count took 6.2, 1.1, 1.0, 0.9 and 1.3 s."""
    assert not settled([6.2, 1.1, 1.0])
    assert not settled([6.2, 1.1, 1.05, 0.9])
    assert settled([6.2, 1.1, 1.05, 0.9, 1.3])
