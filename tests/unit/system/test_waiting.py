"""Waiting for a quiet machine: it ends with the wave or with the limit, and only where it is asked for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.system.errors import Cancelled, ConfigError
from faultline.system.waiting import (
    QUIET,
    SAMPLE_S,
    SAMPLES,
    STOLEN_CORES,
    await_quiet,
    longest_wait_s,
    stolen_by_host_s,
)


class Host:
    """Steals `waves[i]` cores during sample i, and nothing after the last."""

    def __init__(self, waves: list[float]) -> None:
        self.waves, self.now, self.stolen = list(waves), 0.0, 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.stolen += (self.waves.pop(0) if self.waves else 0.0) * seconds

    def wait(self, limit_s: float, cancelled: bool = False) -> float:
        return await_quiet(
            limit_s,
            cancelled=lambda: cancelled,
            stolen_s=lambda: self.stolen,
            clock=lambda: self.now,
            sleep=self.sleep,
        )


@given(st.lists(st.floats(0, 2), max_size=40), st.integers(0, 300))
def test_it_ends_when_the_wave_is_over_and_never_much_later_than_the_limit(waves: list[float], limit_s: int) -> None:
    waited = Host(waves).wait(limit_s)
    loud = [number for number, cores in enumerate(waves, start=1) if cores >= STOLEN_CORES]
    runs = [0, *loud, 10**6]
    first_rest = next(a for a, b in zip(runs, runs[1:], strict=False) if b - a > SAMPLES)
    assert waited == pytest.approx(min((first_rest + SAMPLES) * SAMPLE_S, -(-limit_s // SAMPLE_S) * SAMPLE_S))


def test_a_stopped_sweep_waits_no_longer() -> None:
    with pytest.raises(Cancelled, match="quiet"):
        Host([1.0]).wait(60, cancelled=True)


def test_a_system_that_does_not_count_it_never_waits() -> None:
    assert await_quiet(60, cancelled=lambda: True, stolen_s=lambda: None, clock=lambda: 1.0) == 0


def test_this_machine_counts_upwards() -> None:
    first, second = stolen_by_host_s(), stolen_by_host_s()
    assert first is None or second is None or first <= second


@pytest.mark.parametrize("value", ["ten", "-1", "1.5", ""])
def test_a_wait_that_is_no_number_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv(QUIET, value)
    with pytest.raises(ConfigError, match=QUIET):
        longest_wait_s()


def test_nobody_waits_unless_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(QUIET, raising=False)
    assert longest_wait_s() == 0
    monkeypatch.setenv(QUIET, "600")
    assert longest_wait_s() == 600
