"""Measured window: starts with a steady engine, ends after the last recovery."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from fault.plan import Fault, FaultPlan
from faultline.engines.protocol import Commit
from faultline.experiment.attempt import Attempt
from faultline.experiment.attempt_plan import FaultPhase
from faultline.lifecycle.scheduler_input import SchedulerInput
from faultline.lifecycle.window.measured_window import MeasuredWindow
from faultline.lifecycle.window.signals import Load, SignalReader
from faultline.system.journal import Instant, Journal, read_journal
from generators.pacing import SendSchedule
from generators.start_barrier import LOAD_END, LoadEnd
from tests.support.fake_clock import FakeClock

INTERVAL_S, RATE = 0.05, 1000


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    return FakeClock(monkeypatch)


class Engine:
    """Engine that commits all due records every INTERVAL_S.

    `stalls`: spans after T0, in s, without a commit.
    """

    def __init__(self, t0: Instant, stalls: Sequence[tuple[float, float]] = ()) -> None:
        self._t0, self._stalls = t0, stalls

    def commits_since(self, wall_ns: int) -> list[Commit]:
        now_ns, made = time.time_ns(), []
        for number in range(1, 100_000):
            at_s = number * INTERVAL_S
            at_ns = self._t0.plus(at_s).wall_ns
            if at_ns > now_ns:
                return made
            if at_ns > wall_ns and not any(begin <= at_s < end for begin, end in self._stalls):
                made.append(Commit(0, number, None, at_ns, {"0": int(at_s * RATE)}))
        return made


class Stage:
    """Window that is open since now."""

    def __init__(self, folder: Path, *, stalls: Sequence[tuple[float, float]] = (), **given: Any) -> None:
        fault = FaultPlan((Fault("executor", "kill", at_s=1.0),))
        (self.planned,) = fault.resolve(rate=RATE, checkpoint_interval_s=INTERVAL_S, snapshot_interval_s=1)
        planned = tuple(replace(self.planned, index=number) for number in range(given.pop("injections", 1)))
        usual: dict[str, Any] = {"duration_s": 60.0, "checkpoint_interval_s": INTERVAL_S, "warmup_s": 0.2}
        usual |= {"warmup_max_s": 30.0, "max_wait_s": 60.0, "target_phase": FaultPhase(0.5, 10, 30.0, (0.25,))}
        self.t0, self.folder = Instant.now(), folder
        self.journal = Journal(folder / "conductor.jsonl")
        reader = SignalReader(Engine(self.t0, stalls), Load(SendSchedule(Fraction(RATE), 10**6), {}, RATE), self.t0)  # type: ignore[arg-type]
        assignment = SchedulerInput("a", planned, bootstrap="b", input_topic="in", **{**usual, **given})
        self.window = MeasuredWindow(Attempt(folder), self.journal, self.t0, assignment, reader)

    def lines(self, event: str) -> list[dict[str, Any]]:
        return [line for line in read_journal(self.folder / "conductor.jsonl") if line["event"] == event]


def test_it_starts_once_the_engine_is_steady_and_journals_it(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.window.await_start()
    (line,) = stage.lines("measured_from")
    assert line["steady"] and line["commits"] >= 10
    assert line["wall_ns"] == stage.window.start.wall_ns
    # Ten commits are needed, which takes longer than the warm-up.
    assert stage.window.delay_s >= 10 * INTERVAL_S - 0.2
    assert line["waited_s"] == pytest.approx(stage.window.delay_s)


def test_an_engine_that_never_settles_starts_it_at_the_bound(tmp_path: Path) -> None:
    stage = Stage(tmp_path, stalls=[(0.0, 99.0)], warmup_max_s=0.6)
    stage.window.await_start()
    (line,) = stage.lines("measured_from")
    assert not line["steady"] and line["commits"] == 0
    assert stage.window.start == stage.t0.plus(0.6)


def test_a_fixed_warm_up_leaves_it_where_it_was_planned(tmp_path: Path) -> None:
    stage = Stage(tmp_path, warmup_max_s=None)
    stage.window.await_start()
    assert stage.lines("measured_from") == []
    assert stage.window.start == stage.t0.plus(0.2)


def test_the_next_injection_comes_when_the_engine_is_normal_and_a_baseline_has_passed(tmp_path: Path) -> None:
    stage = Stage(tmp_path, injections=2, stalls=[(1.5, 2.0)])
    stage.window.await_start()
    signal = stage.window.await_baseline()
    assert signal is not None
    limits = stage.window.limits(signal)
    assert limits is not None
    limits = replace(limits, hold_s=0.5)
    ready = stage.window.await_recovery(limits, {"0": 100}, signal, next_index=1)
    assert ready is not None
    (line,) = stage.lines("injection")
    assert line["fault"] == 1 and line["baseline_commits"] == 10
    assert line["waited_s"] >= line["normal_s"] + 0.5
    aim = stage.window.phase_of(1, ready)
    assert aim is not None and (aim.phase, aim.commits) == (0.25, 0)
    assert stage.window.shifted(stage.planned, ready).earliest_s >= 1.0


def test_the_load_ends_with_the_window(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.window.await_start()
    end = stage.window.close(early=True)
    assert end.mono_ns < stage.window.end.mono_ns
    (line,) = stage.lines("measured_until")
    assert line["mono_ns"] == end.mono_ns
    assert json.loads((tmp_path / LOAD_END).read_text()) == {"end_mono_ns": end.mono_ns}
    assert LoadEnd(tmp_path / "gate.json").at_ns(0) == end.mono_ns
    assert Attempt(tmp_path).load_end.name == LOAD_END


def test_an_end_that_is_not_there_yet_is_seen_later(tmp_path: Path) -> None:
    load_end = LoadEnd(tmp_path / "gate.json")
    assert load_end.at_ns(0) is None
    (tmp_path / LOAD_END).write_text('{"end_mono_ns": 7}')
    assert load_end.at_ns(1) is None  # looked for every tenth of a second
    assert load_end.at_ns(10**9) == 7
    assert LoadEnd(None).at_ns(0) is None
