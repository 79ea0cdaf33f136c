"""Waits for low steal: they end with the wave or at the limit, and only if requested."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.system.errors import Cancelled, ConfigError
from faultline.system.kafka import OFFSETS_LEAD_S, OffsetsWatch
from faultline.system.measured_window import NS, Window, clock_step_ms
from faultline.system.waiting import (
    SAMPLE_S,
    SAMPLES,
    STEAL_CORES,
    STEAL_WAIT,
    await_low_steal,
    host_steal_s,
    max_wait_s,
)


class Host:
    """Host that steals `waves[i]` cores during sample i, and nothing afterwards."""

    def __init__(self, waves: list[float]) -> None:
        self.waves, self.now, self.stolen = list(waves), 0.0, 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.stolen += (self.waves.pop(0) if self.waves else 0.0) * seconds

    def wait(self, limit_s: float, cancelled: bool = False) -> float:
        arguments = {"read_steal_s": lambda: self.stolen, "clock": lambda: self.now, "sleep": self.sleep}
        return await_low_steal(limit_s, cancelled=lambda: cancelled, **arguments)


@given(st.lists(st.floats(0, 2), max_size=40), st.integers(0, 300))
def test_it_ends_when_the_wave_is_over_and_never_much_later_than_the_limit(waves: list[float], limit_s: int) -> None:
    waited = Host(waves).wait(limit_s)
    loud = [number for number, cores in enumerate(waves, start=1) if cores >= STEAL_CORES]
    runs = [0, *loud, 10**6]
    first_rest = next(a for a, b in zip(runs, runs[1:], strict=False) if b - a > SAMPLES)
    assert waited == pytest.approx(min((first_rest + SAMPLES) * SAMPLE_S, -(-limit_s // SAMPLE_S) * SAMPLE_S))


def test_a_stopped_sweep_waits_no_longer_and_a_system_that_does_not_count_never() -> None:
    with pytest.raises(Cancelled, match="steal"):
        Host([1.0]).wait(60, cancelled=True)
    assert await_low_steal(60, cancelled=lambda: True, read_steal_s=lambda: None, clock=lambda: 1.0) == 0
    first, second = host_steal_s(), host_steal_s()
    assert first is None or second is None or first <= second


def test_waiting_requires_a_whole_number_of_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(STEAL_WAIT, raising=False)
    assert max_wait_s() == 0
    monkeypatch.setenv(STEAL_WAIT, "600")
    assert max_wait_s() == 600
    for value in ("ten", "-1", "1.5", ""):
        monkeypatch.setenv(STEAL_WAIT, value)
        with pytest.raises(ConfigError, match=STEAL_WAIT):
            max_wait_s()


# ---- The frame of an attempt in nanoseconds ----


def test_a_window_begins_after_the_warm_up_and_is_watched_one_interval_longer() -> None:
    window = Window.of(7 * NS, 2.5, 10, 0.25)
    assert window == Window(7 * NS, 9_500_000_000, 19_500_000_000, 250_000_000)
    assert window.watched_until_ns == 19_750_000_000
    assert window.duration_s == 10
    assert (window.t_s(7 * NS), window.t_s(9_500_000_000), window.t_s(6 * NS)) == (0, 2.5, -1)


# ---- The wall clock ----


START = 1_795_000_000_000_000_000


def lines(ahead_ms: list[float]) -> list[dict[str, Any]]:
    """Return samples every 0.5 s with these offsets of the wall clock."""
    return [
        {"wall_ns": START + number * 500_000_000 + round(ahead * 1e6), "mono_ns": 7 + number * 500_000_000}
        for number, ahead in enumerate(ahead_ms)
    ]


@given(st.lists(st.floats(0, 40), min_size=5, max_size=60), st.integers(0, 50), st.floats(0, 5000))
def test_delays_between_two_clocks_are_no_jump(delays: list[float], place: int, long: float) -> None:
    delays[place % len(delays)] = long
    seen = clock_step_ms(lines(delays))
    assert seen is not None and abs(seen) <= 40


def test_a_delay_that_many_lines_share_is_no_jump() -> None:
    seen = [*lines([0.0] * 10), *[lines([0.0] * 10 + [5000.0])[-1]] * 20, *lines([0.0] * 21)[11:]]
    assert clock_step_ms(seen) == 0


@given(st.floats(-1e6, 1e6), st.integers(5, 30), st.integers(5, 30))
def test_a_jump_is_seen_with_its_direction(jump: float, before: int, after: int) -> None:
    assert clock_step_ms(lines([0.0] * before + [jump] * after)) == pytest.approx(jump, abs=1e-5)


def test_a_clock_set_forth_and_back_is_detected_if_samples_suffice() -> None:
    assert clock_step_ms(lines([0.0] * 10 + [-3000.0] * 8 + [0.0] * 10)) == pytest.approx(-3000)
    assert clock_step_ms(lines([0.0] * 4)) is None
    assert clock_step_ms([{"kind": "start"}] * 9) is None


# ---- When the broker is asked for its end offsets before a fault ----


class Broker:
    """Broker whose offsets grow by one with each reading."""

    def __init__(self) -> None:
        self.asked_ns: list[int] = []

    def read(self, timeout_s: float) -> dict[str, int]:
        self.asked_ns.append(time.monotonic_ns())
        return {"0": len(self.asked_ns)}


@pytest.mark.parametrize(("in_s", "readings"), [(OFFSETS_LEAD_S / 2, 1), (OFFSETS_LEAD_S + 0.1, 2)])
def test_where_there_is_no_time_to_warm_up_the_first_answer_counts(in_s: float, readings: int) -> None:
    broker, due_ns = Broker(), time.monotonic_ns() + round(in_s * 1e9)
    answer = OffsetsWatch(broker, due_ns).result(5.0)
    assert answer is not None and answer[0] == {"0": readings}
    assert len(broker.asked_ns) == readings
    if readings == 2:
        assert broker.asked_ns[1] >= due_ns - round(OFFSETS_LEAD_S * 1e9)
