"""Job server: answers to clients and conditions of its exit, with a fake Spark."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import job_server as subject
import pytest
from job_server import Session, listen


class NoSpark:
    """Fake Spark that counts calls."""

    def __init__(self) -> None:
        self.sessions = self.cleared = 0
        self.catalog = self

    def newSession(self) -> NoSpark:
        self.sessions += 1
        return self

    def clearCache(self) -> None:
        self.cleared += 1


class Served:
    """Running job server, and the jobs that it received."""

    def __init__(self, folder: Path, path: Path) -> None:
        self.spark, self.path, self.ended = NoSpark(), path, threading.Event()
        self.jobs: list[list[str]] = []
        self.working, self.release = threading.Event(), threading.Event()
        self.session = Session(self.spark, folder, self.end)  # type: ignore[arg-type]
        self.listener = listen(path)
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            self.session.serve(self.listener)

    def close(self) -> None:
        """Release waiting jobs, and close the socket."""
        self.release.set()
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()

    def end(self) -> None:
        """Stand-in for the exit of the process."""
        self.ended.set()
        threading.Event().wait()

    def job(self, spark: Any, arguments: Sequence[str]) -> None:
        self.jobs.append(list(arguments))
        print("working")
        if "wait" in arguments:
            self.working.set()
            self.release.wait(120)
        if "fail" in arguments:
            raise ValueError("two\nlines")

    def connect(self) -> socket.socket:
        client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        client.settimeout(120)
        client.connect(str(self.path))
        return client

    def ask(self, *arguments: str) -> list[dict[str, Any]]:
        """Return all answers to a job, after the greeting."""
        with self.connect() as client:
            client.sendall((json.dumps({"program": "job", "arguments": arguments}) + "\n").encode())
            answers: list[dict[str, Any]] = []
            with client.makefile("r") as lines:
                greeting = json.loads(lines.readline())
                while not answers or "status" not in answers[-1]:
                    answers.append(json.loads(lines.readline()))
        assert [pid for pid, _ in greeting["processes"]] == [os.getpid(), os.getppid()]
        return answers


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    made = Served(Path(subject.__file__).parent, tmp_path / "s.sock")
    monkeypatch.setitem(subject.PROGRAMS, "job", made.job)
    yield made
    made.close()


def test_each_job_has_its_own_session_and_the_socket_is_private(served: Served) -> None:
    assert served.path.stat().st_mode & 0o777 == 0o600
    for number in (1, 2):
        assert served.ask(str(number)) == [{"output": "working"}, {"status": "done", "message": ""}]
    assert served.jobs == [["1"], ["2"]]
    assert (served.spark.sessions, served.spark.cleared) == (2, 2)
    assert not served.ended.is_set()


def test_the_next_job_can_follow_immediately(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    say, working = subject._send, list[bool]()

    def delayed_send(connection: socket.socket, **line: Any) -> None:
        if line.get("status") == subject.DONE:
            working.append(served.session._working.locked())
        say(connection, **line)

    monkeypatch.setattr(subject, "_send", delayed_send)
    served.ask("1")
    assert working == [False]


def test_a_second_client_gets_busy_immediately(served: Served) -> None:
    answers: list[list[dict[str, Any]]] = []
    first = threading.Thread(target=lambda: answers.append(served.ask("wait")))
    first.start()
    assert served.working.wait(120)
    assert served.ask("2") == [{"status": "busy", "message": "another job is running"}]
    served.release.set()
    first.join(120)
    assert answers[0][-1]["status"] == "done" and not served.ended.is_set()


def test_a_failed_job_is_reported_and_ends_the_server(served: Served) -> None:
    assert served.ask("fail")[-1] == {"status": "failed", "message": "ValueError: two lines"}
    assert served.ended.wait(120)


def test_a_disconnected_client_ends_the_server(served: Served) -> None:
    with served.connect() as client:
        client.sendall(b'{"program": "job", "arguments": ["wait"]}\n')
        assert served.working.wait(120)
    assert served.ended.wait(120)
    served.release.set()  # standard output is this process's: it is given back before the test ends
    with served.session._working:
        pass


def test_changed_programs_end_the_server(tmp_path: Path, served: Served) -> None:
    served.session._loaded = dict.fromkeys(served.session._loaded, (0, 0))
    assert served.ask("1") == [{"status": "stale", "message": "a program has changed since the session started"}]
    assert served.ended.wait(120) and served.jobs == []


@pytest.mark.parametrize("send", [b"", b"nonsense\n", b'{"program": "unknown", "arguments": []}\n'])
def test_invalid_requests_are_ignored(served: Served, send: bytes) -> None:
    with served.connect() as client:
        client.sendall(send)
    assert served.ask("1")[-1]["status"] == "done"
    assert not served.ended.is_set()


def test_the_server_ends_with_its_jvm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parents: Callable[[], int] = iter([1, 1, 2]).__next__
    monkeypatch.setattr(os, "getppid", parents)
    monkeypatch.setattr(subject, "PARENT_CHECK_S", 0.01)
    with listen(tmp_path / "s.sock") as listener:
        Session(NoSpark(), tmp_path).serve(listener)  # type: ignore[arg-type]
