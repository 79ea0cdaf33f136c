"""The persistent Spark session: it runs jobs, and is replaced after a failure."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest

from faultline.engines.spark.job_client import JobServerUnavailable, run_in_session
from faultline.installation.spark import is_session_ready, prepare_spark
from faultline.records.store import Store
from faultline.system.process_ledger import end_processes, start_identity
from faultline.system.process_tags import INSTANCE_MARK
from faultline.system.settings import Settings
from faultline.system.waiting import wait_until
from tests.support.installation import Installation, make_installation
from tests.unit.sample_records import sample

START_S = 120.0


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    made = make_installation(tmp_path_factory.mktemp("session"))
    instance = secrets.token_hex(8)
    (made.home / "instance.json").write_text(json.dumps({"instance": instance}))
    prepare_spark(made.settings)
    return replace(made, given={INSTANCE_MARK: instance})


@contextlib.contextmanager
def started(installation: Installation) -> Iterator[psutil.Process]:
    """Start the session, and stop leftover processes at the end."""
    log = installation.home / "session.log"
    with log.open("ab") as out:
        process = psutil.Popen(
            [sys.executable, "-P", "-m", "faultline.installation.start", "spark-session"],
            env=installation.environment, cwd=installation.home, stdout=out, stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        wait_until(
            lambda: is_session_ready(installation.settings),
            timeout_s=START_S,
            what="the session",
            alive=lambda: None if process.poll() is None else log.read_text()[-2000:],
        )
        yield process
    finally:
        end_processes([process, *process.children(recursive=True)] if process.poll() is None else [])
        process.wait(120)


def aggregate(settings: Settings) -> list[str]:
    return [
        *("--records", str(settings.records), "--attempts", str(settings.attempts)),
        *("--target", str(settings.results / "summary")),
    ]


def is_alive(pid: int, ticks: int) -> bool:
    with contextlib.suppress(OSError, psutil.NoSuchProcess):
        return start_identity(pid)[0] == ticks and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def session_processes(settings: Settings, client: socket.socket) -> list[tuple[int, int]]:
    """Connect, and return pid and start time (ticks) of the session's processes."""
    client.settimeout(120)
    client.connect(str(settings.session_socket))
    named = json.loads(client.makefile("r").readline())["processes"]
    return [(int(pid), int(ticks)) for pid, ticks in named]


def test_the_session_ends_after_a_failed_job(installation: Installation) -> None:
    settings = installation.settings
    store = Store(settings.results)
    with started(installation) as process:
        for number in (1, 2):
            store.write(sample(status="valid", attempt=f"20261121T06150{number}Z-00000{number}"))
            run_in_session(settings, "aggregate", aggregate(settings))
            rows = pq.read_table(settings.results / "summary" / "experiments.parquet").num_rows
            assert rows == number, "a job sees what is there when it runs"
        assert process.is_running()
        with pytest.raises(JobServerUnavailable, match="failed: FileNotFoundError"):
            run_in_session(settings, "harvest", ["--config", str(settings.home / "none")])
        process.wait(120)
    with pytest.raises(JobServerUnavailable, match="session unavailable"):
        run_in_session(settings, "aggregate", aggregate(settings))


@pytest.mark.thorough
def test_the_session_ends_with_its_client_or_jvm(installation: Installation) -> None:
    settings = installation.settings
    with started(installation) as process:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            named = session_processes(settings, client)
            # The client exits without waiting for the session.
            job = {"program": "aggregate", "arguments": aggregate(settings)}
            client.sendall((json.dumps(job) + "\n").encode())
        process.wait(120)
        wait_until(lambda: not any(is_alive(*one) for one in named), timeout_s=120, what="the end of its processes")
    with started(installation) as process:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            named = session_processes(settings, client)
        os.kill(process.pid, signal.SIGKILL)
        wait_until(lambda: not any(is_alive(*one) for one in named), timeout_s=120, what="the end of its processes")


@pytest.mark.thorough
def test_a_hanging_session_is_killed_and_the_job_can_be_retried(installation: Installation) -> None:
    settings = installation.settings
    with started(installation) as process:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            named = session_processes(settings, client)
        # The JVM is stopped, so the job makes no progress.
        os.kill(process.pid, signal.SIGSTOP)
        with pytest.raises(JobServerUnavailable, match="exceeded 1 s"):
            run_in_session(settings, "aggregate", aggregate(settings), limit_s=1.0)
        assert not any(is_alive(*one) for one in named)


def test_session_files_are_private(installation: Installation, tmp_path: Path) -> None:
    with started(installation):
        assert installation.settings.session_socket.stat().st_mode & 0o077 == 0
