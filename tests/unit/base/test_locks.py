"""The machine's lock, for which an experiment waits, and the window's, which keeps other work out."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from faultline.base.errors import InfrastructureError
from faultline.base.machine_lock import hold_lock, lock_holder
from faultline.base.window_lock import beside_windows, is_measured, window


def _hold(path: Path, attempt: str, ready: threading.Event, release: threading.Event) -> None:
    hold_lock(path, attempt)
    ready.set()
    release.wait(30)


@contextmanager
def held(path: Path, attempt: str) -> Iterator[threading.Event]:
    """A process that holds the machine; the event lets it go."""
    context = multiprocessing.get_context("spawn")
    ready, release = context.Event(), context.Event()
    process = context.Process(target=_hold, args=(path, attempt, ready, release))
    process.start()
    assert ready.wait(30)
    yield release  # type: ignore[misc]
    release.set()
    process.join(30)


def test_whoever_waits_gets_the_machine_as_soon_as_it_is_free_and_learns_whose_it_was(tmp_path: Path) -> None:
    lock, got = tmp_path / "machine.lock", list[str | None]()
    with held(lock, "a1") as release:
        assert lock_holder(lock) == "a1"
        with pytest.raises(InfrastructureError, match="machine: a1 is being measured"):
            hold_lock(lock, "a2", wait_s=0)
        waiting = threading.Thread(target=lambda: got.append(hold_lock(lock, "a2", wait_s=60)))
        waiting.start()
        release.set()
        waiting.join(30)
    assert got == ["a1"]
    assert lock_holder(lock) == "a2"


def test_waiting_for_the_machine_ends_when_nobody_wants_it_any_more(tmp_path: Path) -> None:
    lock = tmp_path / "machine.lock"
    with held(lock, "a1"), pytest.raises(InfrastructureError, match="a1 is being measured"):
        hold_lock(lock, "a2", wait_s=60, over=lambda: True)


def test_the_first_one_comes_after_nobody(tmp_path: Path) -> None:
    before = set(os.listdir("/proc/self/fd"))
    assert hold_lock(tmp_path / "machine.lock", "a1") is None
    assert len(set(os.listdir("/proc/self/fd")) - before) == 1, "held for this process's life"


def test_work_waits_for_the_end_of_a_window_and_a_window_for_the_end_of_work(tmp_path: Path) -> None:
    lock, order = tmp_path / "window.lock", list[str]()

    def work() -> None:
        with beside_windows(lock) as waited_s:
            assert waited_s is not None and waited_s > 0
            order.append("work")

    with window(lock) as waited_s:
        assert waited_s == 0.0 and is_measured(lock)
        worker = threading.Thread(target=work)
        worker.start()
        with beside_windows(lock, limit_s=0.3) as given_up:
            assert given_up is None, "after its limit it works all the same"
        order.append("window")
    worker.join(30)
    assert order == ["window", "work"] and not is_measured(lock)
    with beside_windows(lock) as first, beside_windows(lock) as second:
        assert (first, second) == (0.0, 0.0), "work does not wait for work"
        with pytest.raises(InfrastructureError, match="measure again when it is done"), window(lock, limit_s=0.2):
            pass
