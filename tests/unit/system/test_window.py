"""The frame of an attempt in nanoseconds."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.system.window import NS, Window, jump_ms


def test_a_window_begins_after_the_warm_up_and_is_watched_one_interval_longer() -> None:
    window = Window.of(7 * NS, 2.5, 10, 0.25)
    assert window == Window(7 * NS, 9_500_000_000, 19_500_000_000, 250_000_000)
    assert window.watched_until_ns == 19_750_000_000
    assert window.duration_s == 10
    assert (window.t_s(7 * NS), window.t_s(9_500_000_000), window.t_s(6 * NS)) == (0, 2.5, -1)


# ---- The wall clock ----


START = 1_795_000_000_000_000_000


def lines(ahead_ms: list[float]) -> list[dict[str, Any]]:
    """Samples every 0.5 s, at which the wall clock is so far ahead."""
    return [
        {"wall_ns": START + number * 500_000_000 + round(ahead * 1e6), "mono_ns": 7 + number * 500_000_000}
        for number, ahead in enumerate(ahead_ms)
    ]


@given(st.lists(st.floats(0, 40), min_size=5, max_size=60), st.integers(0, 50), st.floats(0, 5000))
def test_delays_between_two_clocks_are_no_jump(delays: list[float], place: int, long: float) -> None:
    delays[place % len(delays)] = long
    seen = jump_ms(lines(delays))
    assert seen is not None and abs(seen) <= 40


@given(st.floats(-1e6, 1e6), st.integers(5, 30), st.integers(5, 30))
def test_a_jump_is_seen_with_its_direction(jump: float, before: int, after: int) -> None:
    assert jump_ms(lines([0.0] * before + [jump] * after)) == pytest.approx(jump, abs=1e-5)


def test_a_clock_that_is_set_and_set_back_is_seen() -> None:
    assert jump_ms(lines([0.0] * 10 + [-3000.0] * 8 + [0.0] * 10)) == pytest.approx(-3000)


def test_too_few_samples_tell_nothing() -> None:
    assert jump_ms(lines([0.0] * 4)) is None
    assert jump_ms([{"kind": "start"}] * 9) is None
