"""Steps beside the processes that they start: ending an attempt twice, looking at it seldom, its turn."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from faultline.experiment.attempt import Attempt, write_json
from faultline.installation.supervisord import Supervisor
from faultline.lifecycle import start as steps
from faultline.lifecycle.start import _stop_recorder
from faultline.system.journal import write_lines
from faultline.system.processes import end_ledger, spawn_detached
from faultline.system.settings import ROOT, Settings
from tests.support.attempts import ID, prepared
from tests.support.plain_hooks import context_of


@pytest.mark.parametrize(
    ("lines", "problems"),
    [
        ([{"kind": "start"}, {"kind": "machine"}], ["recorder: died before the end"]),
        ([{"kind": "start"}, {"kind": "machine"}, {"kind": "stop"}], []),
    ],
)
def test_a_recorder_that_was_told_to_stop_did_not_die(
    tmp_path: Path, lines: list[dict[str, Any]], problems: list[str]
) -> None:
    attempt = Attempt(tmp_path / "20261121T061500Z-3fa9c1")
    attempt.logs.mkdir(parents=True)
    spawn_detached(
        [sys.executable, "-c", "pass"],
        role="recorder",
        attempt=attempt.id,
        ledger=attempt.ledger,
        stdout=attempt.logs / "recorder.out",
        stderr=attempt.logs / "recorder.err",
        cwd=tmp_path,
    )
    end_ledger(attempt.ledger)
    write_lines(attempt.recorder_journal, lines)
    found: list[str] = []
    _stop_recorder(attempt, found)
    assert found == problems


def test_journals_are_looked_at_seldom_inside_the_window_and_often_around_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt, plan = Attempt(tmp_path), SimpleNamespace(window_s=30.0)
    assert steps._pace(attempt, plan)() == steps.AT_END_S, "before the gate there is nothing to disturb"  # type: ignore[arg-type]
    write_lines(attempt.conductor_journal, [{"event": "gate", "t0_mono_ns": 5_000_000_000}])
    pace = steps._pace(attempt, plan)  # type: ignore[arg-type]
    for mono_s, wanted in (
        (5, steps.IN_WINDOW_S),
        (33.9, steps.IN_WINDOW_S),
        (34.1, steps.AT_END_S),
        (99, steps.AT_END_S),
    ):
        monkeypatch.setattr("time.monotonic_ns", lambda at=mono_s: round(at * 1e9))
        assert pace() == wanted, mono_s


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
    """As after a disk was full for minutes, when it has room again."""
    states = {"kafka": "FATAL", "spark-worker-1": "BACKOFF", "spark-worker-2": "RUNNING", "kafka-gate": "STOPPED"}
    started: list[str] = []

    def call(_: Supervisor, method: str, *words: object) -> object:
        if method == "supervisor.startProcess":
            started.append(str(words[0]))
            states[str(words[0])] = "RUNNING"
        return [{"name": name, "statename": state, "pid": 1} for name, state in states.items()]

    run: Any = context_of(prepared(tmp_path / ID), Settings(ROOT, tmp_path, tmp_path / "results"))
    vars(run)["engine"] = SimpleNamespace(ready=lambda *_: None)
    monkeypatch.setattr(Supervisor, "call", call)
    monkeypatch.setattr(steps, "kafka_ready", lambda *_: states["kafka"] == "RUNNING")
    monkeypatch.setattr(steps, "SERVICES_TIMEOUT_S", 1.0)
    steps.await_services(run)
    assert started == ["kafka"]
