"""When a gate may open."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from faultline.experiment.attempt import Attempt
from faultline.lifecycle.window import quiet_window as subject
from faultline.lifecycle.window.quiet_window import quiet_window
from faultline.system.locks import beside_windows, is_measured
from tests.support.fake_clock import FakeClock


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    """An attempt that got the machine after another one, `before`."""
    for name in ("before", "mine"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "attempt.json").write_text("{}")
    mine = Attempt(tmp_path / "mine")
    mine.recorder_journal.write_text(json.dumps({"kind": "start", "after": "before"}) + "\n")
    return mine


@pytest.mark.parametrize(
    ("before", "end"),
    [("before", "closed.json"), ("before", "unhealed.json"), ("elsewhere/attempts/before", "closed.json")],
)
def test_it_opens_when_the_one_before_is_over_of_whatever_installation(
    attempt: Attempt, tmp_path: Path, before: str, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, clock = tmp_path / before, FakeClock(monkeypatch)
    other.mkdir(parents=True, exist_ok=True)
    (other / "attempt.json").write_text("{}")
    after = other.name if other.parent == tmp_path else str(other)
    attempt.recorder_journal.write_text(json.dumps({"kind": "start", "after": after}) + "\n")
    clock.at(clock.mono_ns + 20 * 10**9, (other / end).touch)
    with quiet_window(attempt, None) as waited_s:
        assert 20 <= waited_s < 20 + 2 * subject.POLL_S


@pytest.mark.parametrize("after", [None, "unknown", "/nowhere/at/all"])
def test_it_waits_for_nobody_when_nobody_was_before(attempt: Attempt, after: str | None) -> None:
    attempt.recorder_journal.write_text(json.dumps({"kind": "start", "after": after}) + "\n")
    with quiet_window(attempt, None) as waited_s:
        assert waited_s < subject.CLOSE_S


def test_one_whose_run_died_does_not_hold_it_shut_for_ever(attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    FakeClock(monkeypatch)
    with quiet_window(attempt, None) as waited_s:
        assert subject.CLOSE_S <= waited_s < subject.CLOSE_S + 2 * subject.POLL_S


def test_other_work_holds_it_shut_and_is_kept_out_until_its_end(attempt: Attempt, tmp_path: Path) -> None:
    (tmp_path / "before" / "closed.json").touch()
    lock, working = tmp_path / "window.lock", threading.Event()

    def work() -> None:
        with beside_windows(lock):
            working.set()
            threading.Event().wait(0.3)

    worker = threading.Thread(target=work)
    worker.start()
    working.wait(120)
    with quiet_window(attempt, lock) as waited_s:
        assert waited_s > 0.1 and is_measured(lock)
    worker.join(120)
