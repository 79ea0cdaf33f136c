"""Client of the persistent Spark session, and JIT priority."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import psutil
import pytest

from fault.procfs import start_ticks
from faultline.engines.spark import jit_priority as own_compilers
from faultline.engines.spark import job_client as subject
from faultline.engines.spark.jit_priority import C2_THREAD, LOWEST_PRIORITY, JitPriority
from faultline.engines.spark.job_client import JobServerUnavailable, run_in_session
from faultline.experiment.attempt import Attempt
from faultline.system.child_environment import can_raise_priority
from faultline.system.errors import InfrastructureError
from faultline.system.process_ledger import is_marked
from faultline.system.process_tags import INSTANCE_MARK
from faultline.system.settings import ROOT, Settings
from faultline.system.waiting import wait_until
from tests.support.decoys import OTHER_UID, decoy, only_root

INSTANCE = "0123456789abcdef"
Answer = Callable[[socket.socket, dict[str, Any]], None]
Serve = Callable[[Answer], Settings]
Process = subprocess.Popen[bytes]


@pytest.fixture
def session() -> Iterator[Process]:
    """Process that stands in for the session."""
    environment = {**os.environ, INSTANCE_MARK: INSTANCE}
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(900)"], env=environment)
    wait_until(lambda: is_marked(psutil.Process(process.pid), INSTANCE_MARK, INSTANCE), timeout_s=120, what="its start")
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def named(session: Process) -> list[list[Any]]:
    """Return the processes in the session's greeting."""
    return [[session.pid, start_ticks(session.pid)]]


@pytest.fixture
def serve(tmp_path: Path, named: list[list[Any]]) -> Iterator[Serve]:
    """Start a server at the installation's session socket that answers one client."""
    settings = Settings(ROOT, tmp_path, tmp_path / "results")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(settings.session_socket))
    listener.listen()
    (tmp_path / "instance.json").write_text(json.dumps({"instance": INSTANCE}))

    def begin(answer: Answer) -> Settings:
        def run() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall((json.dumps({"processes": named}) + "\n").encode())
                answer(connection, json.loads(connection.recv(65536)))

        threading.Thread(target=run, daemon=True).start()
        return settings

    yield begin
    listener.close()


def send(connection: socket.socket, **line: Any) -> None:
    connection.sendall((json.dumps(line) + "\n").encode())


def test_a_completed_job_forwards_its_output(serve: Serve, session: Process) -> None:
    requests, output = list[dict[str, Any]](), list[str]()

    def answer(connection: socket.socket, job: dict[str, Any]) -> None:
        requests.append(job)
        send(connection, output="no records yet")
        send(connection, status="done", message="")

    run_in_session(serve(answer), "aggregate", ("--records", "x"), progress=output.append)
    assert requests == [{"program": "aggregate", "arguments": ["--records", "x"]}]
    assert output == ["no records yet"] and session.poll() is None


@pytest.mark.parametrize("status", ["busy", "stale", "failed"])
def test_a_rejected_or_failed_job_raises(serve: Serve, session: Process, status: str) -> None:
    with pytest.raises(JobServerUnavailable, match=f"{status}: why"):
        run_in_session(serve(lambda connection, job: send(connection, status=status, message="why")), "harvest", ())
    assert session.poll() is None, "the session decides itself whether it continues"


def stop(text: str) -> None:
    raise KeyboardInterrupt


LOST = pytest.raises(JobServerUnavailable, match="failed or exceeded")
SLOW = pytest.raises(JobServerUnavailable, match=r"exceeded 0\.3 s")


@pytest.mark.parametrize(
    ("answer", "options", "expectation"),
    [
        (lambda c, job: None, {}, LOST),
        (lambda c, job: c.sendall(b"{half"), {}, LOST),
        (lambda c, job: c.sendall(b"?\n"), {}, LOST),
        (lambda c, job: threading.Event().wait(120), {"limit_s": 0.3}, SLOW),
        (lambda c, job: send(c, output="x"), {"progress": stop}, pytest.raises(KeyboardInterrupt)),
    ],
    ids=["silent", "half a line", "no JSON", "slow", "the task is stopped"],
)
def test_a_failed_or_slow_session_is_ended_before_a_retry(
    serve: Serve, session: Process, answer: Answer, options: dict[str, Any], expectation: AbstractContextManager[object]
) -> None:
    with expectation:
        run_in_session(serve(answer), "harvest", (), **options)
    session.wait(120)


@pytest.mark.parametrize("lie", ["its birth", "its tag", "no process"])
def test_foreign_processes_in_a_greeting_are_not_ended(serve: Serve, named: list[list[Any]], lie: str) -> None:
    """Any server at the socket can send any pid."""
    with decoy() as session:
        named[:] = {
            "its birth": [[named[0][0], named[0][1] - 1]],
            "its tag": [[session.pid, start_ticks(session.pid)]],
            "no process": [[2**22 + 1, 1], ["x", 1]],
        }[lie]
        ours = psutil.Process(named[0][0] if psutil.pid_exists(named[0][0]) else None)
        with pytest.raises(JobServerUnavailable, match="failed or exceeded"):
            run_in_session(serve(lambda c, job: None), "harvest", ())
        assert ours.is_running() and ours.status() != psutil.STATUS_ZOMBIE


def test_without_a_greeting_the_client_fails_fast(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "GREETING_TIMEOUT_S", 0.2)
    settings = Settings(ROOT, tmp_path, tmp_path / "results")
    with pytest.raises(JobServerUnavailable, match="session unavailable"):
        run_in_session(settings, "harvest", ())
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as hung:
        hung.bind(str(settings.session_socket))
        hung.listen()
        with pytest.raises(JobServerUnavailable, match="session unavailable"):
            run_in_session(settings, "harvest", ())


def test_long_paths_use_a_private_socket_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder is private, and must not have been created by another user."""
    monkeypatch.setattr(tempfile, "tempdir", "/dev/shm")
    far = Settings(ROOT, tmp_path / ("x" * 100), tmp_path)
    far.home.mkdir()
    assert far.session_socket.parent == far.home, "no server listens yet"
    try:
        for _ in range(2):
            far.make_socket_folder()
            sockets = {str(far.session_socket), str(far.supervisor_socket)}
            assert len(sockets) == 2 and all(len(os.fsencode(one)) < 100 for one in sockets)
            (folder,) = {Path(one).parent for one in sockets}
            assert folder.parent == Path("/dev/shm") and folder.stat().st_mode & 0o777 == 0o700
        folder.chmod(0o755)
        with pytest.raises(InfrastructureError, match=f"^{folder}: "):
            far.session_socket  # noqa: B018
    finally:
        folder.rmdir()
    near = Settings(ROOT, Path("/h"), tmp_path)
    near.make_socket_folder()
    assert near.session_socket == Path("/h/session.sock")


# JIT priority, with real threads.

# Two threads, one named like an optimising compiler; prints their ids, and ends with its standard input.
PROGRAM = f"""
import ctypes, sys, threading
def named(name):
    ctypes.CDLL(None).prctl(15, name.encode())
    sys.stdout.write(str(threading.get_native_id()) + "\\n")
    sys.stdout.flush()
    threading.Event().wait()
for name in ("{C2_THREAD}", "C1 CompilerThre"):
    threading.Thread(target=named, args=(name,), daemon=True).start()
sys.stdin.read()
"""


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, int]]:
    """Thread ids of the optimising compiler and of the other thread, in a process of the attempt `mine`."""
    monkeypatch.setattr(own_compilers, "MIN_AGE_S", 0.0)
    command = [sys.executable, "-c", PROGRAM, "-Dfaultline.run=mine"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdin is not None
        one, other = int(process.stdout.readline()), int(process.stdout.readline())
        found: list[int] = []
        wait_until(lambda: found.extend(compilers("mine")) or found, timeout_s=120, what="its compiler")
        yield found[0], ({one, other} - set(found)).pop()
        process.stdin.close()


def compilers(attempt: str) -> list[int]:
    return list(JitPriority(Attempt(Path(attempt))).threads(C2_THREAD))


def niceness(thread: int) -> int:
    return os.getpriority(os.PRIO_PROCESS, thread)


@only_root
def test_processes_of_other_users_are_unchanged(threads: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    with decoy("-Dfaultline.run=mine", user=OTHER_UID) as planted:
        asked = [psutil.Process(planted.pid), *psutil.process_iter()]
        monkeypatch.setattr(psutil, "process_iter", lambda: iter(asked))
        priority = JitPriority(Attempt(Path("mine")))
        assert list(priority.threads("sh")) == [] and list(priority.threads(C2_THREAD)) == [threads[0]]


@pytest.mark.skipif(not can_raise_priority(), reason="this user may not raise a priority again")
def test_compilers_have_low_priority_until_restored(threads: tuple[int, int]) -> None:
    compiler, other = threads
    usual = niceness(other)
    priority = JitPriority(Attempt(Path("mine")))
    priority.lower()
    assert (niceness(compiler), niceness(other)) == (LOWEST_PRIORITY, usual)
    JitPriority(Attempt(Path("mine"))).restore()
    assert (niceness(compiler), niceness(other)) == (usual, usual)


def test_compilers_of_other_attempts_are_unchanged(threads: tuple[int, int]) -> None:
    usual = niceness(threads[0])
    JitPriority(Attempt(Path("another"))).lower()
    assert niceness(threads[0]) == usual and compilers("another") == []


def test_priority_is_kept_without_the_privilege_to_restore_it(
    threads: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_compilers, "can_raise_priority", lambda: False)
    usual = niceness(threads[0])
    JitPriority(Attempt(Path("mine"))).lower()
    assert niceness(threads[0]) == usual
