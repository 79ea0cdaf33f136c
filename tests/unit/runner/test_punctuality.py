"""A rate that cannot be reached: told as soon as the judge's verdict is certain, and never before."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.base.attempt import Attempt
from faultline.base.errors import InvalidMeasurement
from faultline.base.journal import write_lines
from faultline.runner.punctuality import LATE_S, late_s, require_punctual

RATE = 1000.0


def attempt_that_is(folder: Path, late: Sequence[float]) -> Attempt:
    """An attempt whose generator was so many s behind, second by second."""
    attempt = Attempt(folder)
    lines = [{"event": "primed"}]
    lines += [
        {"event": "progress", "due": second * 1000, "sent": round((second - behind) * RATE)}
        for second, behind in enumerate(late, start=1)
    ]
    write_lines(attempt.generator_journal, lines)
    return attempt


def plan(window_s: float, generator: bool = True) -> Any:
    return SimpleNamespace(window_s=window_s, generator={"rate": RATE} if generator else None)


def test_a_rate_that_is_never_reached_is_told_within_seconds(tmp_path: Path) -> None:
    attempt = attempt_that_is(tmp_path, [0.3, 0.9, 1.4, 1.9, 2.4])
    assert late_s(attempt, RATE) == [0.3, 0.9, 1.4, 1.9, 2.4]
    with pytest.raises(InvalidMeasurement, match=r"^schedule-lag: 2\.4 s behind after 2,600 of 5,000 .* 1,000 records"):
        require_punctual(attempt, plan(75.0))


@pytest.mark.parametrize("late", [[], [0.0] * 60, [5.0, 4.0], [5.0, 0.0, 0.0, 4.0]])
def test_a_pause_that_is_made_up_for_is_left_to_the_judge(tmp_path: Path, late: list[float]) -> None:
    require_punctual(attempt_that_is(tmp_path, late), plan(75.0))


def test_what_has_no_generator_is_never_late(tmp_path: Path) -> None:
    require_punctual(Attempt(tmp_path), plan(75.0, generator=False))


@given(late=st.lists(st.floats(0, 10), max_size=300), window_s=st.floats(10, 86_400))
def test_it_is_told_only_when_more_than_a_hundredth_of_the_schedule_was_late(
    tmp_path_factory: pytest.TempPathFactory, late: list[float], window_s: float
) -> None:
    attempt = attempt_that_is(tmp_path_factory.mktemp("attempt"), late)
    seconds = sum(one > LATE_S for one in late_s(attempt, RATE))
    try:
        require_punctual(attempt, plan(window_s))
    except InvalidMeasurement:
        assert seconds > 0.01 * window_s
    else:
        assert seconds < max(3, 0.01 * window_s + 1)
