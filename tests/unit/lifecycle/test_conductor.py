"""The conductor on a made-up attempt: real processes as victims, a made-up broker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from fault.errors import SignalRefused
from fault.identity import EXECUTOR, WORKER, Delivery, Presence, ProcessIdentity, Tokens
from fault.injector import Injector
from fault.plan import Fault, FaultPlan
from fault.procfs import read_process
from fault.victims import find_victims
from faultline.engines.spark.progress import CheckpointProgress
from faultline.experiment.attempt import Attempt
from faultline.experiment.config import Configuration
from faultline.lifecycle.assignment import Assignment, read_assignment
from faultline.lifecycle.conductor import Conductor, main
from faultline.lifecycle.daemons import seen
from faultline.lifecycle.healing import heal, unhealed
from faultline.system.errors import ConfigError, InfrastructureError
from faultline.system.journal import Journal, read_journal
from faultline.system.waiting import wait_until

PROGRAM = "import time; print('up', flush=True); time.sleep(900)"
AT_S = 0.4
END_S = 0.6


@pytest.fixture
def attempt() -> str:
    return f"20261121T061500Z-{uuid.uuid4().hex[:6]}"


class Executors:
    """Sleepers that look like the executors of an attempt."""

    def __init__(self, attempt: str) -> None:
        self._attempt = attempt
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, number: int, attempt: str | None = None) -> subprocess.Popen[bytes]:
        arguments = [f"-Dfaultline.run={attempt or self._attempt}", EXECUTOR.main, "--executor-id", str(number)]
        process = subprocess.Popen([sys.executable, "-c", PROGRAM, *arguments], stdout=subprocess.PIPE)
        self._started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        return process

    def stop(self) -> None:
        for process in self._started:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


@pytest.fixture
def executors(attempt: str) -> Iterator[Executors]:
    started = Executors(attempt)
    yield started
    started.stop()


class FakeOffsets:
    """A broker whose end offsets grow with each reading; `delay_s` and `error` hold from the third reading on.

    The first reading connects, the second one warms up, the third one counts.
    """

    def __init__(self, delay_s: float = 0.0, error: str = "") -> None:
        self.delay_s = delay_s
        self.error = error
        self.readings: list[int] = []

    def read(self, timeout_s: float) -> dict[str, int]:
        self.readings.append(time.monotonic_ns())
        count = len(self.readings)
        if count >= 3:
            time.sleep(self.delay_s)
            if self.error:
                raise InfrastructureError(self.error)
        return {"0": 100 * count, "1": 10 * count}


class Finding(Injector):
    """Signals for real; what it finds may come from a test's own function, by victim."""

    resolve: Callable[[], Sequence[ProcessIdentity]] | None = None

    def find(self, victim: str, tokens: Tokens) -> tuple[ProcessIdentity, ...]:
        return super().find(victim, tokens) if self.resolve is None else tuple(self.resolve())


class Stage:
    """One attempt directory and the conductor that works on it."""

    def __init__(self, directory: Path, attempt: str) -> None:
        self.directory = directory
        self.attempt = attempt
        self.offsets = FakeOffsets()
        self.injector = Finding()
        self.progress = CheckpointProgress(directory / "checkpoint", directory / "listener.jsonl")
        self.tokens = Tokens(attempt)

    def found(self) -> Sequence[ProcessIdentity]:
        return find_victims("executor", self.tokens)

    def conductor(self, *faults: Fault, duration_s: float = END_S, **given: Any) -> Conductor:
        plan = FaultPlan(faults, seed=1)
        planned = plan.resolve(rate=100, checkpoint_interval_s=0.2, snapshot_interval_s=0.4)
        fixed = {"attempt": self.attempt, "bootstrap": "127.0.0.1:1", "input_topic": "in", "snapshot_interval_s": 0.4}
        assignment = Assignment(
            planned=planned, duration_s=duration_s, repetition=1, seed=1, checkpoint_interval_s=0.2, **fixed, **given
        )
        return Conductor(
            assignment, self.directory, injector=self.injector, offsets=self.offsets, progress=self.progress
        )

    def run(self, *faults: Fault, duration_s: float = END_S, **given: Any) -> int:
        with Journal(self.directory / "conductor.jsonl") as journal:
            return self.conductor(*faults, duration_s=duration_s, **given).run(journal)

    def lines(self, event: str = "") -> list[dict[str, Any]]:
        lines = read_journal(self.directory / "conductor.jsonl")
        return [line for line in lines if not event or line["event"] == event]

    def line(self, event: str) -> dict[str, Any]:
        (line,) = self.lines(event)
        return line


@pytest.fixture
def stage(tmp_path: Path, attempt: str, monkeypatch: pytest.MonkeyPatch) -> Stage:
    # A busy machine makes an act late; which one missed its window is for the tests that say so.
    monkeypatch.setattr("faultline.lifecycle.conductor.MISSED_WINDOW_S", 60.0)
    return Stage(tmp_path, attempt)


def await_event(journal: Path, event: str) -> dict[str, Any]:
    """The conductor's line of this event, once it is there."""
    return wait_until(lambda: seen(journal, event=event), timeout_s=120, every_s=0.01, what=f"{journal}: {event}")


def kill(at_s: float = AT_S) -> Fault:
    return Fault("executor", "kill", at_s)


def test_a_kill_from_gate_to_done(
    stage: Stage, executors: Executors, record_property: Callable[[str, object], None]
) -> None:
    processes = {process.pid: process for process in (executors.start(0), executors.start(1))}
    decoy = executors.start(0, attempt="20261121T061500Z-000000")
    assert stage.run(kill()) == 0

    events = [line["event"] for line in stage.lines()]
    assert events == ["victims", "gate", "invoked", "delivered", "end_offsets", "settled", "done"]
    gate, delivered, invoked = stage.line("gate"), stage.line("delivered"), stage.line("invoked")
    assert json.loads((stage.directory / "gate.json").read_text()) == {
        key: gate[key] for key in ("t0_wall_ns", "t0_mono_ns")
    }
    assert gate["t0_mono_ns"] - gate["mono_ns"] <= 0.31e9

    (named,) = stage.line("victims")["victims"]
    assert named["role"] == "executor"
    assert EXECUTOR.main in named["command"]
    assert delivered["victim"] == invoked["victim"] == named["pid"]
    victim = processes.pop(named["pid"])
    assert victim.wait(120) == -signal.SIGKILL
    assert decoy.poll() is None
    assert [process.poll() for process in processes.values()] == [None]

    assert delivered["planned_mono_ns"] == gate["t0_mono_ns"] + round(AT_S * 1e9)
    assert delivered["planned_wall_ns"] == invoked["planned_wall_ns"] == gate["t0_wall_ns"] + round(AT_S * 1e9)
    error_ms = (delivered["mono_ns"] - delivered["planned_mono_ns"]) / 1e6
    record_property("timing_error_ms", error_ms)
    print(f"timing error of the signal: {error_ms:.3f} ms")
    assert error_ms >= 0
    assert stage.line("settled")["outcome"] == "effective"
    assert stage.line("done")["mono_ns"] >= gate["t0_mono_ns"] + END_S * 1e9


def test_the_end_offsets_are_read_just_before_the_signal(stage: Stage, executors: Executors) -> None:
    executors.start(0)
    assert stage.run(kill()) == 0
    line, delivered = stage.line("end_offsets"), stage.line("delivered")
    assert line["offsets"] == {"0": 300, "1": 30}
    # Where the reading had no core in time, the signal does not wait for it.
    assert line["before_signal"] is (line["mono_ns"] < delivered["mono_ns"])


def test_a_slow_broker_does_not_delay_the_signal(stage: Stage, executors: Executors) -> None:
    stage.offsets = FakeOffsets(delay_s=2.0)
    executors.start(0)
    assert stage.run(kill(), duration_s=1.0) == 0
    delivered, line = stage.line("delivered"), stage.line("end_offsets")
    assert line["before_signal"] is False
    assert line["mono_ns"] > delivered["mono_ns"]


def test_a_broker_that_fails_at_the_fault_fails_the_attempt(stage: Stage, executors: Executors) -> None:
    stage.offsets = FakeOffsets(error="kafka: no end offsets of in: no answer")
    executors.start(0)
    assert stage.run(kill()) == 1
    assert stage.line("failed")["message"] == "kafka: no end offsets of in: no answer"


def test_a_control_opens_the_gate_and_breaks_nothing(stage: Stage, executors: Executors) -> None:
    process = executors.start(0)
    assert stage.run(duration_s=0.1) == 0
    assert [line["event"] for line in stage.lines()] == ["victims", "gate", "done"]
    assert stage.line("victims")["victims"] == []
    assert stage.offsets.readings == []
    assert process.poll() is None


def test_without_victims_the_gate_stays_shut(stage: Stage) -> None:
    assert stage.run(kill()) == 1
    assert stage.line("failed")["message"].startswith("count: 1 victims are asked for, but only 0")
    assert not (stage.directory / "gate.json").exists()


def test_a_victim_replaced_meanwhile_is_chosen_anew(stage: Stage, executors: Executors) -> None:
    first = executors.start(0)
    calls = 0
    replacement: subprocess.Popen[bytes] | None = None

    def resolve() -> Sequence[ProcessIdentity]:
        nonlocal calls, replacement
        calls += 1
        if calls == 2:
            first.kill()
            first.wait()
            replacement = executors.start(2)
        return stage.found()

    stage.injector.resolve = resolve
    assert stage.run(kill()) == 0
    assert replacement is not None
    assert [line.get("reason") for line in stage.lines("victims")] == [None, "replaced"]
    assert stage.line("delivered")["victim"] == replacement.pid
    assert stage.line("settled")["outcome"] == "effective"


def test_a_victim_that_still_lives_is_kept_when_others_change(stage: Stage, executors: Executors) -> None:
    executors.start(0)
    executors.start(1)
    calls = 0

    def resolve() -> Sequence[ProcessIdentity]:
        nonlocal calls
        calls += 1
        if calls == 2:
            for number in range(2, 6):
                executors.start(number)
        return stage.found()

    stage.injector.resolve = resolve
    assert stage.run(kill()) == 0
    (named,) = stage.line("victims")["victims"]
    assert stage.line("delivered")["victim"] == named["pid"]


def test_nobody_left_to_kill_is_no_effect(stage: Stage, executors: Executors) -> None:
    process = executors.start(0)
    calls = 0

    def resolve() -> Sequence[ProcessIdentity]:
        nonlocal calls
        calls += 1
        if calls == 2:
            process.kill()
            process.wait()
        return stage.found()

    stage.injector.resolve = resolve
    assert stage.run(kill()) == 0
    assert stage.line("settled")["outcome"] == "no-effect"
    assert stage.lines("delivered") == []


class Interfering(Finding):
    """Does something at the very last moment before the signal."""

    def __init__(self, act: Callable[[], object]) -> None:
        super().__init__()
        self._act = act

    def signal(self, victim: ProcessIdentity, signum: int) -> Delivery:
        self._act()
        return super().signal(victim, signum)


def test_a_victim_gone_at_the_last_moment_is_no_effect(stage: Stage, executors: Executors) -> None:
    process = executors.start(0)
    stage.injector = Interfering(lambda: (process.kill(), process.wait()))
    assert stage.run(kill()) == 0
    assert stage.line("settled")["outcome"] == "no-effect"
    assert stage.lines("delivered") == []


def test_a_refused_signal_fails_the_attempt_with_its_reason(stage: Stage, executors: Executors) -> None:
    process = executors.start(0)

    def refuse() -> None:
        raise SignalRefused("pid: SIGKILL is refused: Operation not permitted")

    stage.injector = Interfering(refuse)
    assert stage.run(kill()) == 1
    assert stage.line("failed")["message"] == "pid: SIGKILL is refused: Operation not permitted"
    assert process.poll() is None


def test_an_act_far_behind_its_instant_missed_its_window(
    stage: Stage, executors: Executors, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("faultline.lifecycle.conductor.MISSED_WINDOW_S", 0.0)
    process = executors.start(0)
    assert stage.run(kill()) == 0
    assert stage.line("settled")["outcome"] == "missed-window"
    assert stage.lines("delivered") == []
    assert process.poll() is None


def test_what_a_missed_fault_had_registered_is_undone_under_its_own_number(
    stage: Stage, executors: Executors, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("faultline.lifecycle.conductor.MISSED_WINDOW_S", 0.0)
    executors.start(0)
    pauses = [Fault("executor", "pause", at_s=at_s, duration_s=0.05) for at_s in (0.1, 0.3)]
    assert stage.run(*pauses) == 0
    assert [line["fault"] for line in stage.lines("undo_registered")] == [0, 1]
    assert [(line["fault"], line["error"]) for line in stage.lines("undone")] == [(0, None), (1, None)]
    assert stage.lines("delivered") == []


def test_a_pause_ends_after_its_duration_and_its_undo_was_registered_before(stage: Stage, executors: Executors) -> None:
    process = executors.start(0)
    assert stage.run(Fault("executor", "pause", at_s=0.3, duration_s=0.3), duration_s=0.7) == 0
    events = [line["event"] for line in stage.lines()]
    assert events.index("undo_registered") < events.index("invoked") < events.index("undone") < events.index("done")
    assert stage.line("settled")["outcome"] == "effective"
    paused_s = (stage.line("undone")["mono_ns"] - stage.line("delivered")["mono_ns"]) / 1e9
    assert paused_s > 0.25
    live = read_process(process.pid)
    assert live is not None and not live.stopped


def test_a_healing_that_fails_fails_the_attempt(stage: Stage, executors: Executors) -> None:
    class Unhealing(Finding):
        def signal(self, victim: ProcessIdentity, signum: int) -> Delivery:
            if signum == signal.SIGCONT:
                raise SignalRefused("pid: SIGCONT is refused")
            return super().signal(victim, signum)

    executors.start(0)
    stage.injector = Unhealing()
    assert stage.run(Fault("executor", "pause", at_s=0.1, duration_s=0.1)) == 1
    assert stage.line("failed")["message"].startswith("healing by SIGCONT to executor 0 ")
    assert stage.line("failed")["message"].endswith("failed: pid: SIGCONT is refused")
    assert stage.lines("done") == []


def test_what_was_hit_is_journalled_when_the_next_victim_cannot_be(stage: Stage, executors: Executors) -> None:
    executors.start(0)
    executors.start(1)
    refused = iter([False, True])

    def refuse_second() -> None:
        if next(refused):
            raise SignalRefused("pid: SIGKILL is refused")

    stage.injector = Interfering(refuse_second)
    assert stage.run(Fault("executor", "kill", 0.1, count=2)) == 1
    assert len(stage.lines("delivered")) == 1
    assert stage.line("failed")["message"] == "pid: SIGKILL is refused"


def test_sigterm_during_a_pause_heals_and_fails(stage: Stage, executors: Executors) -> None:
    process = executors.start(0)
    path = stage.directory / "conductor.jsonl"

    def end() -> None:
        await_event(path, "settled")
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=end)
    thread.start()
    assert stage.run(Fault("executor", "pause", at_s=0.1, duration_s=60), duration_s=90) == 1
    thread.join()
    assert stage.line("undone")["error"] is None
    assert stage.line("failed")["message"] == "the conductor was told to end before its work was done"
    assert Injector().probe(stage.found()[0]) is Presence.ALIVE
    assert process.poll() is None


def test_simultaneous_victims_all_fall(stage: Stage, executors: Executors) -> None:
    processes = [executors.start(number) for number in range(3)]
    assert stage.run(Fault("executor", "kill", AT_S, count=2)) == 0
    assert len(stage.lines("delivered")) == 2
    assert stage.line("settled")["outcome"] == "effective"
    deadline = time.monotonic() + 120
    while sum(process.poll() is None for process in processes) > 1 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert sum(process.poll() is None for process in processes) == 1


def attempt_json(directory: Path, attempt: str, **config: Any) -> None:
    values = Configuration(**{"fault": "none", **config}).model_dump(mode="json")
    data = {
        "schema": 1,
        "attempt": attempt,
        "config": values,
        "repetition": 1,
        "kafka": {"bootstrap": "127.0.0.1:1"},
        "topics": {"input": "in", "output": "out"},
    }
    (directory / "attempt.json").write_text(json.dumps(data))


def test_the_program_ends_on_sigterm_with_its_reason(tmp_path: Path, attempt: str) -> None:
    attempt_json(tmp_path, attempt)
    command = [sys.executable, "-m", "faultline.lifecycle.conductor", "--attempt-dir", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen([*command, f"faultline-run={attempt}"], env=environment, stderr=subprocess.PIPE)
    await_event(tmp_path / "conductor.jsonl", "gate")
    process.terminate()
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 1
    assert stderr.decode().strip() == "the conductor was told to end before its work was done"
    assert read_journal(tmp_path / "conductor.jsonl")[-1]["event"] == "failed"


def test_the_program_ends_a_control_with_done(tmp_path: Path, attempt: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assignment = Assignment(attempt, (), duration_s=0.1, bootstrap="127.0.0.1:1", input_topic="in")
    attempt_json(tmp_path, attempt)
    monkeypatch.setattr("faultline.lifecycle.conductor.read_assignment", lambda directory: assignment)
    assert main(["--attempt-dir", str(tmp_path), f"faultline-run={attempt}"]) == 0
    assert read_journal(tmp_path / "conductor.jsonl")[-1]["event"] == "done"


def test_a_dry_run_names_the_victim_and_touches_nothing(
    tmp_path: Path, attempt: str, executors: Executors, capsys: pytest.CaptureFixture[str]
) -> None:
    process = executors.start(7)
    attempt_json(tmp_path, attempt, fault="executor", fault_at_s=41)
    assert main(["--attempt-dir", str(tmp_path), "--dry-run"]) == 0
    expected = f"would kill executor 7 (pid {process.pid}, run {attempt}) at T0 + 41 s\n"
    assert capsys.readouterr().out == expected
    assert process.poll() is None
    assert [path.name for path in tmp_path.iterdir()] == ["attempt.json"]


def test_the_token_of_another_run_is_refused(tmp_path: Path, attempt: str, capsys: pytest.CaptureFixture[str]) -> None:
    attempt_json(tmp_path, attempt)
    assert main(["--attempt-dir", str(tmp_path), "faultline-run=another"]) == 1
    assert capsys.readouterr().err.startswith("token: faultline-run=another does not belong")
    assert read_journal(tmp_path / "conductor.jsonl")[-1]["event"] == "failed"
    assert not (tmp_path / "gate.json").exists()


def test_a_wrong_assignment_is_refused_with_its_key(tmp_path: Path, attempt: str) -> None:
    attempt_json(tmp_path, attempt)
    data = json.loads((tmp_path / "attempt.json").read_text())
    data["config"] |= {"fault": "moon", "fault_at_s": 41}
    (tmp_path / "attempt.json").write_text(json.dumps(data))
    with pytest.raises(ConfigError, match="moon"):
        read_assignment(tmp_path)


def commit(directory: Path, number: int) -> int:
    """A commit file as Spark makes it; the wall instant that it carries."""
    folder = directory / "checkpoint" / "commits"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ".tmp").write_text("v1")
    (folder / ".tmp").rename(folder / str(number))
    return (folder / str(number)).stat().st_mtime_ns


def test_a_fault_aimed_at_a_cycle_waits_for_its_phase(stage: Stage, executors: Executors) -> None:
    executors.start(0)
    commit(stage.directory, 0)  # long before: not the cycle that is waited for
    instants: list[int] = []

    def engine() -> None:
        gate = await_event(stage.directory / "conductor.jsonl", "gate")
        time.sleep(max(0.0, (gate["t0_mono_ns"] - time.monotonic_ns()) / 1e9 + 0.15))
        instants.append(commit(stage.directory, 1))

    thread = threading.Thread(target=engine)
    thread.start()
    assert stage.run(Fault("executor", "kill", at_s=0.1, cycle="checkpoint", phase=0.5), duration_s=0.5) == 0
    thread.join()
    planned, delivered = stage.line("planned"), stage.line("delivered")
    assert planned["cycle_wall_ns"] == instants[0]
    assert planned["planned_wall_ns"] - instants[0] >= 0.1e9, "half of a cycle of 0.2 s, or later when seen late"
    assert delivered["planned_mono_ns"] == planned["planned_mono_ns"] <= delivered["mono_ns"]


def test_a_cycle_that_never_comes_is_a_missed_window(stage: Stage, executors: Executors) -> None:
    process = executors.start(0)
    assert stage.run(Fault("executor", "kill", at_s=0.1, cycle="snapshot", phase=0.0), duration_s=1.2) == 0
    assert stage.line("settled")["outcome"] == "missed-window"
    assert process.poll() is None


def test_recurring_faults_settle_one_by_one(stage: Stage, executors: Executors) -> None:
    for number in range(3):
        executors.start(number)
    assert stage.run(Fault("executor", "kill", at_s=0.2, times=2, every_s=0.3), duration_s=0.8) == 0
    assert [line["fault"] for line in stage.lines("settled")] == [0, 1]
    assert {line["outcome"] for line in stage.lines("settled")} == {"effective"}
    assert len({line["victim"] for line in stage.lines("delivered")}) == 2


def test_a_dead_conductors_pause_is_healed_by_the_teardown(tmp_path: Path, attempt: str, executors: Executors) -> None:
    """SIGKILL in the middle of a pause: the journal tells the healer who is to be continued."""
    process = executors.start(0)
    attempt_json(tmp_path, attempt, fault="executor", fault_action="pause")
    command = [sys.executable, "-c", f"{PAUSING}", str(tmp_path), attempt]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    conductor = subprocess.Popen(command, env=environment)
    await_event(tmp_path / "conductor.jsonl", "settled")
    conductor.kill()
    conductor.wait()
    stopped = read_process(process.pid)
    assert stopped is not None and stopped.stopped
    assert heal(Attempt(tmp_path)) == [f"SIGCONT to executor 0 (pid {process.pid}, run {attempt})"]
    live = read_process(process.pid)
    assert live is not None and not live.stopped
    assert heal(Attempt(tmp_path)) == []


def test_the_undo_of_every_pause_counts_by_itself(tmp_path: Path, attempt: str) -> None:
    """Two pauses of one process: the first one's undo says nothing of the second."""
    folder = Attempt(tmp_path)
    with Journal(folder.conductor_journal) as journal:
        for fault in (0, 1):
            journal.write("undo_registered", fault=fault, undo="SIGCONT to kafka", pid=1)
            if fault == 0:
                journal.write("undone", fault=0, undo="SIGCONT to kafka", error=None)
        assert [line["fault"] for line in unhealed(folder)] == [1]
        journal.write("undone", fault=1, undo="SIGCONT to kafka", error="no connection")
        assert [line["fault"] for line in unhealed(folder)] == [1]
        journal.write("undone", fault=1, undo="SIGCONT to kafka", error=None)
        assert unhealed(folder) == []


class Deaf(Finding):
    """Loses the first word of every SIGCONT, as a broken connection would."""

    def __init__(self) -> None:
        super().__init__()
        self.lost = 0

    def signal(self, victim: ProcessIdentity, signum: int) -> Delivery:
        if signum == signal.SIGCONT and not self.lost:
            self.lost += 1
            return Delivery.UNKNOWN
        return super().signal(victim, signum)


def test_an_unacknowledged_undo_is_settled_by_a_probe_and_sent_again(stage: Stage, executors: Executors) -> None:
    process = executors.start(0)
    stage.injector = Deaf()
    assert stage.run(Fault("executor", "pause", at_s=0.1, duration_s=0.1), duration_s=0.3) == 0
    assert stage.injector.lost == 1
    assert stage.line("undone")["error"] is None
    live = read_process(process.pid)
    assert live is not None and not live.stopped


def test_a_worker_is_named_with_the_executors_that_it_hosts_now(stage: Stage) -> None:
    """An earlier fault has replaced an executor of the worker: the journal must not speak of the dead one."""
    instance, node = "0" * 16, "127.0.0.1:17081"
    command = (f"-Dfaultline.instance={instance}", WORKER.main, "--host", "127.0.0.1", "--port", "17081")
    worker = ProcessIdentity(4000, 1.0, WORKER, instance, command, 1, node=node)

    def executor(number: str) -> ProcessIdentity:
        marks = (f"-Dfaultline.run={stage.attempt}", EXECUTOR.main, "--executor-id", number)
        return ProcessIdentity(5000 + int(number), 1.0, EXECUTOR, stage.attempt, marks, 1, node=node)

    class Cluster(Finding):
        executors = (executor("1"),)

        def find(self, victim: str, tokens: Tokens) -> tuple[ProcessIdentity, ...]:
            return (worker,) if victim == "worker" else self.executors

    stage.injector = Cluster()
    act = stage.conductor(Fault("worker", "kill", at_s=0.1), services=instance)._turns()[0].act
    assert act.find() and act.victims()[0]["executors"] == ["1"]
    assert not act.find(), "nothing has changed"
    stage.injector.executors = (executor("2"),)
    assert act.find() and act.victims()[0]["executors"] == ["2"]


def test_a_random_process_is_chosen_by_node_first(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr("fault.actions.processes.choose", lambda candidates, count, **how: asked.append(how) or ())
    stage.tokens = Tokens(stage.attempt, "0" * 16)
    stage.injector.resolve = lambda: ()
    for victim in ("any", "executor"):
        act = stage.conductor(Fault(victim, "kill", at_s=0.1), services="0" * 16)._turns()[0].act
        act.find()
    assert [how["by_node"] for how in asked] == [True, False]


PAUSING = """
import sys
from pathlib import Path
from fault.injector import Injector
from fault.plan import Fault, FaultPlan
from faultline.lifecycle.assignment import Assignment
from faultline.lifecycle.conductor import Conductor
from faultline.system.journal import Journal

class Offsets:
    def read(self, timeout_s):
        return {"0": 1}

fault = Fault("executor", "pause", at_s=0.1, duration_s=60)
planned = FaultPlan((fault,)).resolve(rate=1, checkpoint_interval_s=1, snapshot_interval_s=1)
given = Assignment(sys.argv[2], planned, duration_s=90, bootstrap="", input_topic="in")
with Journal(Path(sys.argv[1]) / "conductor.jsonl") as journal:
    Conductor(given, Path(sys.argv[1]), injector=Injector(), offsets=Offsets(), progress=None).run(journal)
"""


def test_a_missing_attempt_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="^attempt.json: cannot be used"):
        read_assignment(tmp_path)
    (tmp_path / "attempt.json").write_text('{"attempt": "a"}')
    with pytest.raises(ConfigError, match="^config: missing in attempt.json"):
        read_assignment(tmp_path)
