"""Consumer lag and latency from commits, and the rules of steadiness and recovery."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.engines.protocol import Commit
from faultline.experiment.attempt import Attempt
from faultline.lifecycle.window.schedule_check import ScheduleCheck
from faultline.lifecycle.window.signals import (
    CommitSignal,
    Load,
    SignalReader,
    Violation,
    recovered_since,
    steady_commits,
    thresholds_before,
)
from faultline.records.judge.steady import Limits
from faultline.system import journal
from faultline.system.errors import InvalidMeasurement
from faultline.system.journal import Instant, write_lines
from generators.pacing import SendSchedule
from generators.schedule_lag import LATE_MS, ScheduleLag, percentiles_ms

NS = 10**9
T0 = Instant(10**18, 10**12)
LIMITS = Limits(latency_ms=3000.0, lag=1200.0, hold_s=10.0, baseline_p99_ms=2400.0)
ENDS = {"0": 5000}


@dataclass
class Commits:
    """Engine with given commits."""

    made: list[Commit] = field(default_factory=list)

    def commits_since(self, wall_ns: int) -> Sequence[Commit]:
        return [one for one in self.made if one.committed_ns > wall_ns]


def commit(at_s: float, ends: dict[str, int]) -> Commit:
    return Commit(0, 0, None, T0.plus(at_s).wall_ns, ends)


def signal(at_s: float, *, lag: float = 1000, latency_ms: float = 2000, end: int = 9999) -> CommitSignal:
    return CommitSignal(T0.plus(at_s).wall_ns, lag, latency_ms, {"0": end})


def load(rate: int = 100, count: int = 10_000) -> Load:
    return Load(SendSchedule(Fraction(rate), count), {"0": 7, "1": 3}, float(rate))


def test_lag_and_latency_are_those_of_the_schedule_without_the_primer() -> None:
    engine = Commits([commit(2, {"0": 107, "1": 93}), commit(4, {"0": 207, "1": 193})])
    first, second = SignalReader(engine, load(), T0).poll()  # type: ignore[arg-type]
    # 190 records are committed of 201 that are due at 2 s (the one due then included).
    assert first.lag == 201 - 190
    assert first.latency_ms == pytest.approx(2000)
    # The oldest record of the second batch is number 190, due at 1.9 s.
    assert second.lag == 401 - 390
    assert second.latency_ms == pytest.approx(2100)


def test_a_poll_reads_what_is_new_and_an_empty_batch_has_no_latency() -> None:
    engine = Commits([commit(2, {"0": 107, "1": 93})])
    reader = SignalReader(engine, load(), T0)  # type: ignore[arg-type]
    assert len(reader.poll()) == 1
    engine.made.append(commit(4, {"0": 107, "1": 93}))
    assert math.isnan(reader.poll()[1].latency_ms)
    assert len(reader.poll()) == 2


def test_fewer_commits_than_a_baseline_are_not_steady() -> None:
    nine = [signal(2 * n) for n in range(9)]
    assert steady_commits(nine, 10, checkpoint_interval_s=2, offered_rps=500)[0] == 0
    assert steady_commits([*nine, signal(18)], 10, checkpoint_interval_s=2, offered_rps=500)[0] == 10
    assert steady_commits([], 10, checkpoint_interval_s=2, offered_rps=500) == (0, {})


def test_falling_latency_is_not_steady() -> None:
    falling = [signal(2 * n, latency_ms=4000 - 200 * n) for n in range(10)]
    commits, drifts = steady_commits(falling, 10, checkpoint_interval_s=2, offered_rps=500)
    assert commits == 0
    assert drifts["latency"] is not None and not drifts["latency"].steady


def test_limits_come_from_the_commits_before_the_fault_alone() -> None:
    seen = [signal(1, lag=9e9), signal(3, lag=800, latency_ms=2000), signal(5, latency_ms=2400), signal(7, lag=9e9)]
    found = thresholds_before(
        seen, T0.plus(2).wall_ns, T0.plus(6).wall_ns, checkpoint_interval_s=2, offered_rps=500, within=0.25
    )
    assert found is not None
    assert (found.lag, found.latency_ms) == (1250, 3000)
    assert thresholds_before([], 0, 10**19, checkpoint_interval_s=2, offered_rps=500, within=0.25) is None


def since(signals: list[CommitSignal], now_s: float) -> int | Violation:
    return recovered_since(signals, LIMITS, ENDS, fault_ns=T0.wall_ns, now_ns=T0.plus(now_s).wall_ns)


def test_normal_is_the_first_commit_that_covers_the_input_and_holds() -> None:
    signals = [signal(2, end=100), *(signal(2 * n) for n in range(2, 12))]
    assert since(signals, 30) == T0.plus(4).wall_ns


def test_what_is_out_is_named() -> None:
    assert since([signal(2, end=100)], 30) == Violation("commits", None, None)
    assert since([signal(2, lag=5000)], 30) == Violation("lag", 5000, 1200)
    assert since([signal(2, latency_ms=5000)], 30) == Violation("latency", 5000, 3000)
    # Nothing is out of its limit, but commits stopped: the hold time is not seen.
    assert since([signal(2)], 30) == Violation("commits", None, None)


@given(st.integers(1, 20), st.integers(1, 30))
def test_no_engine_is_normal_before_its_last_violation_or_before_the_hold_time(bad: int, good: int) -> None:
    signals = [signal(n, lag=5000) for n in range(1, bad + 1)] + [signal(bad + n) for n in range(1, good + 1)]
    found = since(signals, bad + good)
    if good < 1 + LIMITS.hold_s:
        assert isinstance(found, Violation)
    else:
        assert found == T0.plus(bad + 1).wall_ns


def test_a_single_slow_batch_does_not_undo_a_recovery() -> None:
    signals = [signal(n / 4, lag=5000 if n == 20 else 1000) for n in range(1, 60)]
    found = since(signals, 15)
    assert isinstance(found, int) and found < T0.plus(5).wall_ns


# --- a rate that cannot be reached fails as soon as the judge's verdict is certain, and not before


SPEC = {"bootstrap": "b:1", "topic": "t", "partitions": 2, "rate": 1000, "seconds": 75, "source": "zipf"}
TOTAL = 75_000


def attempt_with(folder: Path, *late: int, measured_from_s: float | None = None) -> Attempt:
    """Return an attempt with these generator reports, one per second from T0 on."""
    attempt = Attempt(folder)
    lines = [
        {"event": "progress", "wall_ns": n * NS, "due": n * 1000, "sent": n * 1000, "late": one}
        for n, one in enumerate(late)
    ]
    write_lines(attempt.generator_journal, [{"event": "primed"}, *lines])
    gate: list[dict[str, Any]] = [{"event": "gate", "t0_wall_ns": 0}]
    if measured_from_s is not None:
        gate.append({"event": "measured_from", "wall_ns": round(measured_from_s * NS)})
    write_lines(attempt.conductor_journal, gate)
    return attempt


def plan(spec: dict[str, Any] | None = SPEC, warmup_s: float = 0.0, warmup_max_s: float | None = None) -> Any:
    return SimpleNamespace(generator=spec, warmup_s=warmup_s, warmup_max_s=warmup_max_s)


def test_an_unreachable_rate_fails_within_seconds(tmp_path: Path) -> None:
    message = r"^schedule-lag: 900 of 75,000 records were more than 50 ms late, .* 1,000 records/s"
    with pytest.raises(InvalidMeasurement, match=message):
        ScheduleCheck(attempt_with(tmp_path, 0, 100, 900)).require_on_time(plan())


@pytest.mark.parametrize("late", [(), (0, 0), (0, 750)])
def test_a_pause_that_the_percentile_bears_is_left_to_the_judge(tmp_path: Path, late: tuple[int, ...]) -> None:
    ScheduleCheck(attempt_with(tmp_path, *late)).require_on_time(plan())


def test_only_records_of_the_measured_window_count(tmp_path: Path) -> None:
    late = (0, 900, 900, 900, 1800)
    ScheduleCheck(attempt_with(tmp_path, *late[:4])).require_on_time(plan(warmup_s=2.0))
    with pytest.raises(InvalidMeasurement, match="900 of 73,000 records"):
        ScheduleCheck(attempt_with(tmp_path, *late)).require_on_time(plan(warmup_s=2.0))
    waiting = plan(warmup_s=2.0, warmup_max_s=9.0)
    ScheduleCheck(attempt_with(tmp_path, *late)).require_on_time(waiting)
    with pytest.raises(InvalidMeasurement, match="900 of 72,000 records"):
        ScheduleCheck(attempt_with(tmp_path, *late, measured_from_s=3.0)).require_on_time(waiting)


def test_what_has_no_generator_or_one_of_before_is_never_late(tmp_path: Path) -> None:
    ScheduleCheck(Attempt(tmp_path)).require_on_time(plan(None))
    attempt = Attempt(tmp_path)
    write_lines(attempt.generator_journal, [{"event": "progress", "wall_ns": 0, "due": 1000, "sent": 1}])
    ScheduleCheck(attempt).require_on_time(plan())


def test_along_a_curve_the_share_is_of_what_the_curve_sends(tmp_path: Path) -> None:
    moving = SPEC | {"rate_curve": {"kind": "step", "at_s": 10, "to": 10_000}}
    ScheduleCheck(attempt_with(tmp_path, 0, 900)).require_on_time(plan(moving))  # of 660,000


def test_each_look_reads_what_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = attempt_with(tmp_path, 0, 100)
    followed = ScheduleCheck(attempt)
    assert (followed.late_count(), followed.late_count()) == (100, 100), "and knows what it has read"
    parsed: list[bytes] = []
    monkeypatch.setattr(journal, "parse_line", lambda raw: parsed.append(raw) or json.loads(raw))
    with attempt.generator_journal.open("a") as file:
        file.write('{"event":"progress","late":900}\n{"event":"progress","la')
    assert followed.late_count() == 900 and len(parsed) == 1


@given(late_ms=st.lists(st.floats(0, 200), min_size=1, max_size=400), more=st.integers(0, 200))
def test_it_is_certain_exactly_when_the_judge_would_say_so(
    tmp_path_factory: pytest.TempPathFactory, late_ms: list[float], more: int
) -> None:
    """If all later records are on time, the percentile is the judge's."""
    import numpy as np

    counted = ScheduleLag()
    for one in [*late_ms, *[0.0] * more]:
        counted.record(round(one * 1e6), np.zeros(1, dtype=np.int64))
    total = len(late_ms) + more
    spec = SPEC | {"rate": total, "seconds": 1}
    attempt = attempt_with(tmp_path_factory.mktemp("attempt"), 0, counted.count_late())
    try:
        ScheduleCheck(attempt).require_on_time(plan(spec))
    except InvalidMeasurement:
        # The histogram keeps three digits and reports the upper end of a percentile's slot.
        assert percentiles_ms(counted.histogram())["p99"] > LATE_MS * 0.999
