"""Fault scheduler on a simulated clock, with fake victims and broker."""

from __future__ import annotations

import json
import os
import signal
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from fault.errors import SignalRefused, WatchdogUnavailable
from fault.identity import DRIVER, EXECUTOR, PYTHON_WORKER, Delivery, Presence, ProcessIdentity
from fault.injector import Injector
from fault.plan import Fault, FaultPlan
from faultline.experiment.attempt import Attempt
from faultline.experiment.config import Configuration
from faultline.lifecycle import fault_scheduler as subject
from faultline.lifecycle.ending.undo_replay import pending_undos
from faultline.lifecycle.fault_scheduler import FaultScheduler, main
from faultline.lifecycle.scheduler_input import SchedulerInput, read_scheduler_input
from faultline.system.errors import ConfigError, InfrastructureError
from faultline.system.journal import Instant, Journal, read_journal
from tests.support.attempts import ENDPOINTS, prepared
from tests.support.fake_clock import FakeClock, SimulatedHost, executor_of

AT_S, END_S = 0.4, 0.6


@pytest.fixture
def attempt() -> str:
    return f"20261121T061500Z-{uuid.uuid4().hex[:6]}"


@dataclass
class Broker:
    """Fake of OffsetsWatch and its reader: the ends grow with each read.

    `late`: no reply at the injection. `error`: it fails then.
    """

    late: bool = False
    error: str = ""
    readings: int = 0

    def __call__(self, reader: Broker, due_ns: int) -> Broker:
        return self

    def read(self, timeout_s: float) -> dict[str, int]:
        self.readings += 1
        return {"0": 100 * self.readings, "1": 10 * self.readings}

    def result(self, timeout_s: float) -> tuple[dict[str, int], Instant] | None:
        if self.error and timeout_s:
            raise InfrastructureError(self.error)
        return None if (self.late or self.error) and not timeout_s else (self.read(timeout_s), Instant.now())


@dataclass
class Cycles:
    """Engine whose cycle starts `after` s after the requested instant; None: never."""

    after_ns: int | None = None
    began: list[int] = field(default_factory=list)

    def await_cycle(self, cycle: str, not_before_ns: int, until_mono_ns: int) -> int | None:
        if self.after_ns is not None:
            self.began.append(not_before_ns + self.after_ns)
        return self.began[-1] if self.began else None


class Stage:
    """Attempt folder with its fault scheduler."""

    def __init__(self, directory: Path, attempt: str, clock: FakeClock) -> None:
        self.directory, self.attempt, self.clock = directory, attempt, clock
        self.host, self.broker, self.cycles = SimulatedHost(), Broker(), Cycles()

    def executor(self, number: int) -> ProcessIdentity:
        self.host.start(made := executor_of(self.attempt, number))
        return made

    def run(self, *faults: Fault, duration_s: float = END_S, **more: Any) -> int:
        planned = FaultPlan(faults, seed=1).resolve(rate=100, checkpoint_interval_s=0.2, snapshot_interval_s=0.4)
        fixed: dict[str, Any] = {"bootstrap": "", "input_topic": "in", "repetition": 1, "seed": 1, **more}
        fixed |= {"checkpoint_interval_s": 0.2, "snapshot_interval_s": 0.4}
        assignment, given = SchedulerInput(self.attempt, planned, duration_s, **fixed), {"progress": self.cycles}
        injector = Injector(here=self.host)
        conductor = FaultScheduler(assignment, self.directory, injector=injector, offsets=self.broker, **given)  # type: ignore[arg-type]
        with Journal(self.directory / "conductor.jsonl") as journal:
            return conductor.run(journal)

    def lines(self, event: str = "") -> list[dict[str, Any]]:
        lines = read_journal(self.directory / "conductor.jsonl")
        return [line for line in lines if not event or line["event"] == event]

    def line(self, event: str) -> dict[str, Any]:
        (line,) = self.lines(event)
        return line

    def then(self, do: str, act: Callable[[], object], *, turn: int = 1) -> None:
        """Call `act` before the `turn`th request of this kind to the host."""
        asked = []

        def before(asked_for: str, fields: dict[str, Any]) -> object:
            asked.extend([do] if asked_for == do else [])
            return act() if asked_for == do and len(asked) == turn else None

        self.host.before = before


@pytest.fixture
def stage(tmp_path: Path, attempt: str, monkeypatch: pytest.MonkeyPatch) -> Stage:
    made = Stage(tmp_path, attempt, FakeClock(monkeypatch))
    monkeypatch.setattr(subject, "OffsetsWatch", made.broker)
    return made


def kill(at_s: float = AT_S, **more: Any) -> Fault:
    return Fault("executor", "kill", at_s, **more)


def pause(at_s: float = 0.1, duration_s: float = 0.1) -> Fault:
    return Fault("executor", "pause", at_s, duration_s=duration_s)


def refuse() -> None:
    raise SignalRefused("pid: refused: Operation not permitted")


def test_a_kill_from_gate_to_done_with_the_ends_of_the_input_right_before_it(stage: Stage) -> None:
    stage.executor(0), stage.executor(1)
    assert stage.run(kill()) == 0
    events = [line["event"] for line in stage.lines()]
    assert events == ["victims", "gate", "invoked", "delivered", "end_offsets", "settled", "done"]
    gate, delivered, offsets = stage.line("gate"), stage.line("delivered"), stage.line("end_offsets")
    assert json.loads((stage.directory / "gate.json").read_text()) == {
        key: gate[key] for key in ("t0_wall_ns", "t0_mono_ns")
    }
    assert 0.29e9 < gate["t0_mono_ns"] - gate["mono_ns"] <= 0.3e9
    (named,) = stage.line("victims")["victims"]
    assert named["role"] == "executor" and EXECUTOR.main in named["command"]
    assert delivered["victim"] == stage.line("invoked")["victim"] == named["pid"]
    assert stage.host.sent == [(named["pid"], signal.SIGKILL)]
    assert delivered["planned_mono_ns"] == gate["t0_mono_ns"] + round(AT_S * 1e9)
    assert delivered["planned_wall_ns"] == stage.line("invoked")["planned_wall_ns"]
    assert 0 <= delivered["mono_ns"] - delivered["planned_mono_ns"] < 1e6
    assert offsets["before_signal"] is True and offsets["offsets"] == {"0": 200, "1": 20}
    assert 0 < delivered["mono_ns"] - offsets["mono_ns"] < 10e6
    assert stage.line("settled")["outcome"] == "effective"
    assert stage.line("done")["mono_ns"] >= gate["t0_mono_ns"] + END_S * 1e9


def test_a_broker_that_is_late_delays_no_signal_and_one_that_fails_fails_the_attempt(stage: Stage) -> None:
    stage.executor(0), stage.executor(1)
    stage.broker.late = True
    assert stage.run(kill()) == 0
    delivered, offsets = stage.line("delivered"), stage.line("end_offsets")
    assert offsets["before_signal"] is False and offsets["mono_ns"] > delivered["mono_ns"]
    assert delivered["mono_ns"] - delivered["planned_mono_ns"] < 1e6
    stage.broker.error = "kafka: no end offsets of in: no answer"
    assert stage.run(kill()) == 1
    assert stage.line("failed")["message"] == stage.broker.error


def test_without_victims_the_gate_stays_shut_and_a_control_opens_it_and_breaks_nothing(stage: Stage) -> None:
    assert stage.run(kill()) == 1
    assert stage.line("failed")["message"].startswith("count: got 1")
    assert not (stage.directory / "gate.json").exists()
    (stage.directory / "conductor.jsonl").unlink()
    stage.executor(0)
    assert stage.run(duration_s=0.1) == 0
    assert [line["event"] for line in stage.lines()] == ["victims", "gate", "done"]
    assert stage.line("victims")["victims"] == []
    assert stage.broker.readings == 0 and stage.host.sent == []


def test_a_replaced_victim_is_selected_again(stage: Stage) -> None:
    first = stage.executor(0)
    stage.then("find", lambda: (stage.host.end(first), stage.executor(2)) and None, turn=2)
    assert stage.run(kill(0.1)) == 0
    assert [line.get("reason") for line in stage.lines("victims")] == [None, "replaced"]
    assert stage.line("delivered")["victim"] == 4_194_402
    assert stage.line("settled")["outcome"] == "effective"


def test_a_victim_that_still_lives_is_kept_when_others_change(stage: Stage) -> None:
    stage.executor(0), stage.executor(1)
    stage.then("find", lambda: [stage.executor(number) for number in range(2, 6)] and None, turn=2)
    assert stage.run(kill()) == 0
    (named,) = stage.line("victims")["victims"]
    assert stage.line("delivered")["victim"] == named["pid"]


@pytest.mark.parametrize(("do", "turn"), [("find", 2), ("signal", 1)], ids=["at the second look", "at the last moment"])
def test_a_victim_that_is_gone_by_then_is_no_effect(stage: Stage, do: str, turn: int) -> None:
    victim = stage.executor(0)
    stage.then(do, lambda: stage.host.end(victim), turn=turn)
    assert stage.run(kill()) == 0
    assert stage.line("settled")["outcome"] == "no-effect"
    assert stage.lines("delivered") == []


def test_a_refused_signal_fails_the_attempt_after_what_was_hit_is_journalled(stage: Stage) -> None:
    stage.executor(0), stage.executor(1)
    stage.then("signal", refuse, turn=2)
    assert stage.run(kill(count=2)) == 1
    assert stage.line("failed")["message"] == "pid: refused: Operation not permitted"
    assert [line["victim"] for line in stage.lines("delivered")] == [pid for pid, _ in stage.host.sent]
    assert len(stage.host.sent) == 1


def test_an_act_behind_its_instant_missed_its_window_and_is_undone_under_its_own_number(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "MISSED_WINDOW_S", 0.0)
    stage.executor(0)
    assert stage.run(pause(0.1, 0.05), pause(0.3, 0.05)) == 0
    assert [line["outcome"] for line in stage.lines("settled")] == ["missed-window"] * 2
    assert [line["fault"] for line in stage.lines("undo_registered")] == [0, 1]
    assert [(line["fault"], line["error"]) for line in stage.lines("undone")] == [(0, None), (1, None)]
    assert stage.lines("delivered") == [] and stage.host.sent == []


def test_a_pause_ends_after_its_duration_and_its_undo_was_registered_before(stage: Stage) -> None:
    victim = stage.executor(0)
    assert stage.run(pause(0.3, 0.3), duration_s=0.7) == 0
    events = [line["event"] for line in stage.lines()]
    assert events.index("undo_registered") < events.index("invoked") < events.index("undone") < events.index("done")
    assert stage.line("settled")["outcome"] == "effective"
    assert 0.3e9 < stage.line("undone")["mono_ns"] - stage.line("delivered")["planned_mono_ns"] < 0.31e9
    assert stage.host.states[victim] is Presence.ALIVE and not stage.host.watched


def test_a_failed_undo_fails_the_attempt(stage: Stage) -> None:
    stage.executor(0)
    stage.host.before = lambda do, asked: refuse() if asked.get("signum") == signal.SIGCONT else None
    assert stage.run(pause()) == 1
    assert stage.line("failed")["message"].startswith("undo SIGCONT to executor 0 ")
    assert stage.line("failed")["message"].endswith("failed: pid: refused: Operation not permitted")
    assert stage.lines("done") == []
    assert stage.host.watched, "the watchdog stays"


def test_an_unacknowledged_undo_is_settled_by_a_probe_and_sent_again(stage: Stage) -> None:
    victim = stage.executor(0)
    stage.then("signal", lambda: Delivery.UNKNOWN, turn=2)
    assert stage.run(pause(), duration_s=0.3) == 0
    assert stage.host.sent == [(victim.pid, signal.SIGSTOP), (victim.pid, signal.SIGCONT)]
    assert stage.line("undone")["error"] is None


def test_sigterm_during_a_pause_undoes_it_and_fails(stage: Stage) -> None:
    victim = stage.executor(0)
    stage.clock.at(stage.clock.mono_ns + 30 * 10**9, lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert stage.run(pause(0.1, 60.0), duration_s=90) == 1
    assert stage.line("undone")["error"] is None
    assert stage.line("failed")["message"].startswith("conductor: ")
    assert stage.host.states[victim] is Presence.ALIVE and not stage.host.watched


def test_simultaneous_and_recurring_victims_all_fall(stage: Stage) -> None:
    for number in range(5):
        stage.executor(number)
    assert stage.run(kill(0.2, count=2, times=2, every_s=0.3), duration_s=0.8) == 0
    assert [line["fault"] for line in stage.lines("settled")] == [0, 1]
    assert {line["outcome"] for line in stage.lines("settled")} == {"effective"}
    assert len({line["victim"] for line in stage.lines("delivered")}) == 4


def test_a_fault_aimed_at_a_cycle_waits_for_its_phase(stage: Stage) -> None:
    stage.executor(0)
    stage.cycles.after_ns = 50_000_000
    assert stage.run(kill(0.1, cycle="checkpoint", phase=0.5), duration_s=0.5) == 0
    planned, delivered = stage.line("planned"), stage.line("delivered")
    assert planned["cycle_wall_ns"] == stage.cycles.began[0] == stage.line("gate")["t0_wall_ns"] + 150_000_000
    assert planned["planned_wall_ns"] - stage.cycles.began[0] == pytest.approx(0.1e9, abs=1), "half of 0.2 s"
    assert delivered["planned_mono_ns"] == planned["planned_mono_ns"] <= delivered["mono_ns"]


def test_a_cycle_that_never_comes_is_a_missed_window(stage: Stage) -> None:
    stage.executor(0)
    assert stage.run(kill(0.1, cycle="snapshot", phase=0.0), duration_s=1.2) == 0
    assert stage.line("settled")["outcome"] == "missed-window"
    assert stage.host.sent == []


def test_the_undo_of_every_pause_counts_by_itself(tmp_path: Path, attempt: str) -> None:
    """The undo of the first pause does not cover the second pause of the process."""
    folder = Attempt(tmp_path)
    with Journal(folder.conductor_journal) as journal:
        for fault in (0, 1):
            journal.write("undo_registered", fault=fault, undo="SIGCONT to kafka", pid=1)
            if fault == 0:
                journal.write("undone", fault=0, undo="SIGCONT to kafka", error=None)
        assert [line["fault"] for line in pending_undos(folder)] == [1]
        journal.write("undone", fault=1, undo="SIGCONT to kafka", error="no connection")
        assert [line["fault"] for line in pending_undos(folder)] == [1]
        journal.write("undone", fault=1, undo="SIGCONT to kafka", error=None)
        assert pending_undos(folder) == []


# --- the program


NOWHERE = replace(ENDPOINTS, kafka="127.0.0.1:1")


def attempt_json(directory: Path, attempt: str, **config: Any) -> None:
    prepared(directory, Configuration(**{"fault": "none", **config}), facts={"attempt": attempt}, endpoints=NOWHERE)


def test_the_program_ends_a_control_with_done(tmp_path: Path, attempt: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assignment = SchedulerInput(attempt, (), duration_s=0.1, bootstrap="127.0.0.1:1", input_topic="in")
    attempt_json(tmp_path, attempt)
    monkeypatch.setattr("faultline.lifecycle.fault_scheduler.read_scheduler_input", lambda directory: assignment)
    assert main(["--attempt-dir", str(tmp_path), f"faultline-run={attempt}"]) == 0
    assert read_journal(tmp_path / "conductor.jsonl")[-1]["event"] == "done"


def test_a_dry_run_names_the_victim_and_touches_nothing(
    stage: Stage, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = stage.executor(7)
    attempt_json(stage.directory, stage.attempt, fault="executor", fault_at_s=41)
    monkeypatch.setattr(subject, "injector_of", lambda assignment: Injector(here=stage.host))
    assert main(["--attempt-dir", str(stage.directory), "--dry-run"]) == 0
    assert capsys.readouterr().out == f"would kill executor 7 (pid {victim.pid}, run {stage.attempt}) at T0 + 41 s\n"
    assert stage.host.sent == []
    assert sorted(path.name for path in stage.directory.iterdir()) == ["attempt.json", "plan.json"]


def test_the_token_of_another_run_is_refused(tmp_path: Path, attempt: str, capsys: pytest.CaptureFixture[str]) -> None:
    attempt_json(tmp_path, attempt)
    assert main(["--attempt-dir", str(tmp_path), "faultline-run=another"]) == 1
    assert capsys.readouterr().err.startswith("token: got faultline-run=another")
    assert read_journal(tmp_path / "conductor.jsonl")[-1]["event"] == "failed"
    assert not (tmp_path / "gate.json").exists()


def test_a_missing_attempt_and_a_wrong_assignment_are_refused(tmp_path: Path, attempt: str) -> None:
    with pytest.raises(ConfigError, match=r": attempt\.json"):
        read_scheduler_input(tmp_path)
    attempt_json(tmp_path, attempt)
    data = json.loads((tmp_path / "plan.json").read_text())
    (tmp_path / "plan.json").write_text(json.dumps({**data, "faults": [{"fault": {"victim": "moon"}}]}))
    with pytest.raises(ConfigError, match=r"plan\.json: "):
        read_scheduler_input(tmp_path)


def test_without_a_watchdog_nothing_is_done_to_a_host(stage: Stage) -> None:
    def refused() -> None:
        raise WatchdogUnavailable("watchdog: it does not answer")

    command = (DRIVER.main, f"faultline-run={stage.attempt}")
    stage.host.start(ProcessIdentity(4_194_400, 1.0, DRIVER, stage.attempt, command, 1))
    stage.then("watch", refused)
    assert stage.run(Fault("driver", "disk_full", AT_S, duration_s=0.1), disks={"": "/checkpoints"}) == 1
    assert stage.line("failed")["message"] == "watchdog: it does not answer"
    assert stage.host.times("check") and not stage.host.times("do") and stage.lines("delivered") == []
    assert pending_undos(Attempt(stage.directory)) == []


def test_a_pause_of_a_python_worker_leaves_no_watchdog(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    command = ("python3", "-m", "pyspark.daemon")
    living = [ProcessIdentity(pid, 1.0, PYTHON_WORKER, stage.attempt, command, pid) for pid in (4_194_401, 4_194_402)]
    stage.host.start(*living)
    found = iter([(), tuple(living[1:])])
    monkeypatch.setattr("fault.actions.processes.await_busy", lambda *asked, **how: next(found))
    faults = [Fault("python_worker", "pause", at_s, duration_s=0.1) for at_s in (0.1, 1.1)]
    assert stage.run(*faults, duration_s=3.0) == 0
    assert [line["outcome"] for line in stage.lines("settled")] == ["missed-window", "effective"]
    assert stage.host.watched == {} and stage.host.times("watch") == 5, "two each, and a look before the signal"
    assert [pid for pid, _ in stage.host.sent] == [4_194_402] * 2
