"""Waits of the executor for the end of a task, with and without a measured window."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
from airflow.executors.local_executor import LocalExecutor
from airflow.sdk.api.client import Client

from faultline.installation import server_proof
from faultline.installation.airflow import configuration
from faultline.orchestration import executor as subject
from faultline.orchestration.executor import LIBRARIES, PROJECT_MODULES, EventExecutor
from faultline.system.hashes import LoadedCode
from faultline.system.locks import hold_measurement_lock
from faultline.system.settings import ROOT, Settings, load_settings
from tests.support.decoys import OTHER_UID


@pytest.fixture
def executor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Executor with queues, without workers."""
    monkeypatch.setenv("FAULTLINE_HOME", str(tmp_path))
    monkeypatch.setattr(LocalExecutor, "_spawn_workers_with_gc_freeze", lambda self, number: None)
    monkeypatch.setattr(subject, "IDLE_WAIT_S", 0.2)
    monkeypatch.setattr(Client, "send", Client.send)
    made = EventExecutor(parallelism=1)
    made.start()
    made.changes = []
    monkeypatch.setattr(made, "change_state", lambda key, state: made.changes.append((key, state)))
    yield made
    made.activity_queue.close()
    made.result_queue.close()


def test_the_scheduler_uses_it_and_preloads_the_imports_of_tasks(executor: Any, tmp_path: Path) -> None:
    assert {*LIBRARIES, *PROJECT_MODULES} <= set(sys.modules)
    secrets = dict.fromkeys(("fernet", "internal", "api", "jwt"), "")
    core = configuration(Settings(ROOT, tmp_path, tmp_path), secrets)["core"]
    assert core["executor"] == f"{EventExecutor.__module__}.{EventExecutor.__name__}"


def test_a_fork_reloads_a_changed_project(monkeypatch: pytest.MonkeyPatch, executor: Any) -> None:
    unloaded, forks = [], []
    monkeypatch.setattr(os, "register_at_fork", lambda *, after_in_child: forks.append(after_in_child))
    monkeypatch.setattr(LoadedCode, "unload", lambda self: unloaded.append(self.packages))
    executor.start()
    (forked,) = forks
    forked()
    assert not unloaded
    monkeypatch.setattr(LoadedCode, "is_stale", lambda self: True)
    forked()
    assert unloaded == [frozenset(subject.PACKAGES)]


def test_tasks_send_no_token_to_another_server_at_the_port(executor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_proof, "listener_of", lambda address: OTHER_UID)
    with Client(base_url=load_settings().endpoints.airflow, token="secret") as client:
        with pytest.raises(httpx.ConnectError, match=f"user {OTHER_UID}"):
            client.send(client.build_request("GET", "/x"))


def test_the_end_of_a_task_ends_the_wait(executor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "IDLE_WAIT_S", 60.0)
    threading.Timer(0.1, executor.result_queue.put, [("task", "success", None)]).start()
    executor.sync()
    assert executor.changes == [("task", "success")]


class Reader:
    """Empty reader that notes its timeouts."""

    def __init__(self, real: Any, waits: list[float]) -> None:
        self.close, self._waits = real.close, waits

    def poll(self, timeout: float = 0.0) -> bool:
        self._waits.append(timeout)
        return False


def test_without_news_it_waits_longer_while_a_window_is_measured(
    executor: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    reader = executor.result_queue._reader
    monkeypatch.setattr(executor.result_queue, "_reader", Reader(reader, waits))
    executor.sync()
    with hold_measurement_lock(tmp_path / "window.lock"):
        executor.sync()
    assert [wait for wait in waits if wait] == [0.2, subject.MEASURED_WAIT_S]
