"""Steps and the processes that they start: repeated ends, poll intervals, turns."""

from __future__ import annotations

import json
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from faultline.experiment.attempt import Attempt, write_json
from faultline.experiment.attempt_plan import read_plan
from faultline.experiment.config import parse_configuration
from faultline.installation.supervisord import Supervisor
from faultline.lifecycle import start as steps
from faultline.lifecycle import start as subject
from faultline.lifecycle.context import RunContext
from faultline.lifecycle.progress import current_attempt, phase_of
from faultline.lifecycle.start import _stop_recorder
from faultline.system.errors import Cancelled, InfrastructureError
from faultline.system.journal import write_lines
from faultline.system.measured_window import NS
from faultline.system.process_ledger import end_ledger
from faultline.system.settings import ROOT, Settings, load_settings
from tests.support.attempts import ID, prepared
from tests.support.plain_hooks import TestHooks, context_of
from tests.support.processes import detached


@pytest.mark.parametrize(("last", "problems"), [("machine", ["recorder: died before the end"]), ("stop", [])])
def test_a_stopped_recorder_did_not_die(tmp_path: Path, last: str, problems: list[str]) -> None:
    attempt = Attempt(tmp_path / "20261121T061500Z-3fa9c1")
    detached(attempt, "recorder", "pass")
    end_ledger(attempt.ledger)
    write_lines(attempt.recorder_journal, [{"kind": "start"}, {"kind": last}])
    found: list[str] = []
    _stop_recorder(attempt, found)
    assert found == problems


def test_journals_are_looked_at_seldom_inside_the_window_and_often_around_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt, plan = Attempt(tmp_path), SimpleNamespace(window_s=30.0)
    assert steps._poll_interval(attempt, plan)() == steps.END_POLL_S, "before the gate there is nothing to disturb"  # type: ignore[arg-type]
    write_lines(attempt.conductor_journal, [{"event": "gate", "t0_mono_ns": 5_000_000_000}])
    pace = steps._poll_interval(attempt, plan)  # type: ignore[arg-type]
    for mono_s in (5, 33.9, 34.1, 99):
        monkeypatch.setattr("time.monotonic_ns", lambda at=mono_s: round(at * 1e9))
        assert pace() == (steps.WINDOW_POLL_S if mono_s < 34 else steps.END_POLL_S), mono_s


def test_an_attempt_begins_when_its_turn_comes(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)
    write_json(tmp_path / "attempt.json", {"prepared_wall_ns": 7})
    assert attempt.begun_at_ns() == 7
    write_lines(
        attempt.recorder_journal, [{"kind": "start", "wall_ns": 9, "after": None}, {"kind": "machine", "wall_ns": 10}]
    )
    assert attempt.begun_at_ns() == 9


def test_who_waits_for_services_starts_those_that_were_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example after a full disk."""
    states = {"kafka": "FATAL", "spark-worker-1": "BACKOFF", "spark-worker-2": "RUNNING", "kafka-gate": "STOPPED"}
    started: list[str] = []

    def call(_: Supervisor, method: str, *words: object) -> object:
        if method == "supervisor.startProcess":
            started.append(str(words[0]))
            states[str(words[0])] = "RUNNING"
        return [{"name": name, "statename": state, "pid": 1} for name, state in states.items()]

    run: Any = context_of(prepared(tmp_path / ID), Settings(ROOT, tmp_path, tmp_path / "results"))
    vars(run)["engine"] = SimpleNamespace(startup_blocker=lambda *_: None)
    monkeypatch.setattr(Supervisor, "call", call)
    monkeypatch.setattr(steps, "kafka_ready", lambda *_: states["kafka"] == "RUNNING")
    monkeypatch.setattr(steps, "SERVICES_TIMEOUT_S", 1.0)
    steps.await_services(run)
    assert started == ["kafka"]


@pytest.mark.parametrize("waits_for", ["primer", "commit"])
def test_a_cancelled_workload_is_not_awaited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits_for: str) -> None:
    attempt, settings = prepared(tmp_path / ID), Settings(ROOT, tmp_path, tmp_path / "results")
    run: Any = RunContext(settings, attempt, read_plan(attempt), TestHooks(settings, stopped=True))
    vars(run)["engine"] = SimpleNamespace(while_starting=lambda run: lambda: None)
    vars(run)["progress"] = SimpleNamespace(covering=lambda offsets: 0)
    monkeypatch.setattr(steps, "_start_supervisor", lambda *_: None)
    monkeypatch.setattr(steps, "workload_failure", lambda *_: "it ended")
    monkeypatch.setattr(steps, "exit_message", lambda *_: "it ended")
    if waits_for == "commit":
        write_lines(attempt.generator_journal, [{"event": "primed", "end_offsets": {"0": 7}}])
    with pytest.raises(Cancelled):
        steps._start_with_primer(run)


@pytest.mark.parametrize("when", ["window", "drain"])
def test_a_job_that_the_engine_gave_up_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    """Other processes that die are noted, and the measurement is kept."""
    attempt, settings = prepared(tmp_path / ID), Settings(ROOT, tmp_path, tmp_path / "results")
    run: Any = RunContext(settings, attempt, read_plan(attempt), TestHooks(settings))
    monkeypatch.setattr(steps, "final_failure", lambda _: "gave up")
    monkeypatch.setattr(steps, "exit_message", lambda *_: None)
    monkeypatch.setattr(steps, "await_drained", lambda *_: when == "window")
    if when == "drain":
        for journal in (attempt.conductor_journal, attempt.generator_journal):
            write_lines(journal, [{"event": "done"}])
    with pytest.raises(InfrastructureError, match="^gave up$"):
        steps.await_end(run)
    assert not attempt.stop_file.exists() and not (attempt.folder / "end.json").exists()


# --- topics of an attempt keep what they are given until they are deleted


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("varied", [None, {"segment.bytes": "1048576"}])
def test_records_stay_however_long_the_run_and_however_late_its_harvest(
    monkeypatch: pytest.MonkeyPatch, varied: dict[str, str] | None, several: bool
) -> None:
    made: list[Any] = []
    done: Future[None] = Future()
    done.set_result(None)

    def create(topics: list[Any], **limits: float) -> dict[str, Future[None]]:
        made.extend(topics)
        return {topic.topic: done for topic in topics}

    monkeypatch.setattr(subject, "grant_workload_rights", lambda client: None)
    settings = load_settings()
    topics = {role: SimpleNamespace(name=f"t-{role}", partitions=4) for role in ("input", "output")}
    run: Any = SimpleNamespace(
        plan=SimpleNamespace(topics=topics, stamped_by_broker=several),
        there=settings,
        config=parse_configuration({"topic_conf": varied}),
        hooks=SimpleNamespace(kafka_admin=lambda: SimpleNamespace(create_topics=create)),
    )
    subject.provision_topics(run)
    assert [topic.topic for topic in made] == ["t-input", "t-output"]
    for topic, by_broker in zip(made, (False, several), strict=True):
        stamp = "LogAppendTime" if by_broker else "CreateTime"
        kept = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
        assert topic.config == {"message.timestamp.type": stamp, **kept, **(varied or {})}


# --- description of a running experiment after its fault


T0 = 1_795_241_700 * NS


@pytest.mark.parametrize(
    ("action", "victim", "words"),
    [
        ("kill", 12, "killed pid 12"),
        ("term", 12, "terminated pid 12"),
        ("pause", 12, "paused pid 12"),
        ("delay", None, "delayed the connections to Kafka"),
        ("reset", None, "reset the connections to Kafka"),
        ("cut", None, "cut the connections to Kafka"),
        ("melted", 12, "hit pid 12"),  # of an attempt whose action is there no more
    ],
)
def test_a_fault_is_described_by_action_and_victim(tmp_path: Path, action: str, victim: int | None, words: str) -> None:
    attempt = Attempt(tmp_path)
    prepared(tmp_path)

    def at(seconds: float, event: str, **fields: Any) -> str:
        wall_ns = T0 + round(seconds * NS)
        return json.dumps({"wall_ns": wall_ns, "mono_ns": wall_ns, "event": event, **fields}) + "\n"

    gate = at(0, "gate", t0_wall_ns=T0, t0_mono_ns=T0)
    attempt.conductor_journal.write_text(gate + at(41, "delivered", fault=0, victim=victim, action=action))
    phase = phase_of(attempt, T0 + 45 * NS)
    assert phase.name == "measuring"
    assert phase.detail == f"T0 + 45 s; {words} 4 s ago; recorder not started"
    # The end of the window is written in advance, after the last injection.
    with attempt.conductor_journal.open("a") as journal:
        journal.write(at(47, "measured_until"))
    assert [phase_of(attempt, T0 + second * NS).name for second in (45, 48)] == ["measuring", "draining"]


def test_of_two_attempts_in_work_the_one_whose_turn_it_is_is_shown(tmp_path: Path) -> None:
    settings = Settings(root=tmp_path, home=tmp_path / "home", results=tmp_path)
    assert current_attempt(settings, "mine") is None

    def made(name: str, sweep_id: str = "mine") -> Attempt:
        return prepared(settings.attempts / name, sweep_id=sweep_id)

    def shown() -> str:
        attempt = current_attempt(settings, "mine")
        assert attempt is not None
        return attempt.id

    first = made("1")
    assert shown() == "1", "nothing of it has begun"
    first.recorder_journal.touch()
    second = made("2")
    made("3", sweep_id="another")
    assert shown() == "1"
    second.recorder_journal.touch()
    assert shown() == "2", "starts during the harvest of the first"
    first.closed.touch()
    second.closed.touch()
    assert shown() == "2"
    made("4")
    assert shown() == "4"
