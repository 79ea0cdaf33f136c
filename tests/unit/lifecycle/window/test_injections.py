"""Fault scheduler with several injections, on fake processes and an engine with the same clock."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from fault.injector import Injector
from fault.plan import Fault, FaultPlan
from faultline.engines.protocol import Commit
from faultline.experiment.attempt_plan import FaultPhase
from faultline.experiment.config import parse_configuration
from faultline.experiment.injections import repeat_fault
from faultline.lifecycle import fault_scheduler as subject
from faultline.lifecycle.fault_scheduler import FaultScheduler
from faultline.lifecycle.scheduler_input import SchedulerInput
from faultline.lifecycle.window.measured_window import JUDGE_MARGIN_S
from faultline.records.judge import steady
from faultline.system.journal import Instant, Journal, find_last, read_journal
from tests.support.fake_clock import FakeClock, SimulatedHost, executor_of

INTERVAL_S, RATE = 0.1, 1000.0
ATTEMPT = "20261121T061500Z-3fa9c1"


class Engine:
    """Broker and engine that commits all due records every INTERVAL_S; a kill costs `outage_s`.

    `dies`: it never recovers from the first.
    """

    def __init__(
        self, folder: Path, clock: FakeClock, host: SimulatedHost, *, dies: bool, outage_s: float = 0.5
    ) -> None:
        self._gate, self._clock, self._host = folder / "gate.json", clock, host
        self._dies, self._outage_s, self._kills = dies, outage_s, 0
        self.commits: list[Commit] = []
        self._work_in(INTERVAL_S)

    def _work_in(self, seconds: float) -> None:
        self._clock.at(self._clock.mono_ns + round(seconds * 1e9), self._work)

    def _work(self) -> None:
        if len(self._host.sent) > self._kills:
            self._kills = len(self._host.sent)
            if not self._dies:
                self._work_in(self._outage_s)
            return
        self.commits.append(Commit(0, len(self.commits), None, time.time_ns(), self.read(0.0)))
        self._work_in(INTERVAL_S)

    def read(self, timeout_s: float) -> dict[str, int]:
        """Return the records due by now."""
        t0_ns = json.loads(self._gate.read_text())["t0_mono_ns"] if self._gate.exists() else self._clock.mono_ns
        return {"0": max(0, int((self._clock.mono_ns - t0_ns) * RATE / 1e9))}

    def __call__(self, reader: object, due_ns: int) -> Engine:
        return self

    def result(self, timeout_s: float) -> tuple[dict[str, int], Instant]:
        return self.read(timeout_s), Instant.now()

    def commits_since(self, wall_ns: int) -> list[Commit]:
        return [one for one in self.commits if one.committed_ns > wall_ns]

    def await_cycle(self, cycle: str, not_before_ns: int, until_mono_ns: int) -> int | None:
        while time.monotonic_ns() < until_mono_ns:
            if found := self.commits_since(not_before_ns - 1):
                return found[0].committed_ns
            time.sleep(0.01)
        return None


def conducted(
    folder: Path, patch: pytest.MonkeyPatch, *, dies: bool = False, **given: Any
) -> tuple[list[dict[str, Any]], SimulatedHost]:
    """Return the journal of a run with two injections, and the host of its three executors."""
    (folder / "generator.jsonl").write_text('{"event": "primed", "end_offsets": {"0": 0}}\n')
    config = parse_configuration({"injections": 2})
    planned = FaultPlan((Fault("executor", "kill", at_s=1.0),), seed=1).resolve(
        rate=RATE, checkpoint_interval_s=INTERVAL_S, snapshot_interval_s=1
    )
    generator = {"bootstrap": "127.0.0.1:1", "topic": "in", "partitions": 1, "rate": RATE, "seconds": 260.0}
    usual: dict[str, Any] = {"duration_s": 200.0, "checkpoint_interval_s": INTERVAL_S, "warmup_s": 0.5}
    usual |= {
        "warmup_max_s": 60.0,
        "max_wait_s": 90.0,
        "target_phase": FaultPhase(0.5, 10, 60.0, (0.25,)),
        "generator": generator,
    }
    usual |= {"bootstrap": "127.0.0.1:1", "input_topic": "in", **given}
    assignment = SchedulerInput(ATTEMPT, repeat_fault(planned, config), **usual)
    host, clock = SimulatedHost(), FakeClock(patch)
    host.start(*(executor_of(ATTEMPT, number) for number in range(3)))
    engine = Engine(folder, clock, host, dies=dies)
    patch.setattr(subject, "OffsetsWatch", engine)
    conductor = FaultScheduler(
        assignment,
        folder,
        injector=Injector(here=host),
        offsets=engine,
        progress=engine,  # type: ignore[arg-type]
    )
    with Journal(folder / "conductor.jsonl") as journal:
        assert conductor.run(journal) == 0
    return read_journal(folder / "conductor.jsonl"), host


def test_each_injection_hits_another_executor_once_the_engine_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steady, "MIN_HOLD_S", 1.0)
    lines, host = conducted(tmp_path, monkeypatch)
    names = [line["event"] for line in lines]
    course = ["gate", "measured_from", "settled", "injection", "settled", "measured_until"]
    assert [name for name in names if name in course] == course
    assert [line["outcome"] for line in lines if line["event"] == "settled"] == ["effective", "effective"]
    assert len({line["victim"] for line in lines if line["event"] == "delivered"}) == 2
    assert len({pid for pid, _ in host.sent}) == 2
    injection = find_last(lines, event="injection")
    assert injection is not None
    assert injection["fault"] == 1
    # The outage, then what must hold, and what the next fault can make late.
    assert injection["normal_s"] >= 0.5
    assert injection["waited_s"] >= injection["normal_s"] + 1.0 + INTERVAL_S + JUDGE_MARGIN_S
    assert json.loads((tmp_path / "load_end.json").read_text())["end_mono_ns"] > lines[-1]["mono_ns"] - 30e9


def test_an_engine_that_never_comes_back_ends_the_run_with_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines, host = conducted(tmp_path, monkeypatch, dies=True, max_wait_s=1.0)
    assert [line["event"] for line in lines].count("settled") == 1
    trouble = find_last(lines, event="not_normal")
    assert trouble is not None
    assert (trouble["fault"], trouble["signal"]) == (1, "commits") and trouble["waited_s"] >= 1.0
    assert lines[-1]["event"] == "done"
    assert len(host.sent) == 1
