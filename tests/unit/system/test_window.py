"""The frame of an attempt in nanoseconds."""

from __future__ import annotations

from faultline.system.window import NS, Window


def test_a_window_begins_after_the_warm_up_and_is_watched_one_interval_longer() -> None:
    window = Window.of(7 * NS, 2.5, 10, 0.25)
    assert window == Window(7 * NS, 9_500_000_000, 19_500_000_000, 250_000_000)
    assert window.watched_until_ns == 19_750_000_000
    assert window.duration_s == 10
    assert (window.t_s(7 * NS), window.t_s(9_500_000_000), window.t_s(6 * NS)) == (0, 2.5, -1)
