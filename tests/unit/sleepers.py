"""Idle processes with the command lines of executors and workers."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator

import pytest

from fault.identity import EXECUTOR, WORKER, ProcessIdentity, Tokens
from fault.victims import find_victims

# The node of this test process alone: an executor of another session on it would shield its worker.
NODE = f"127.0.0.1:{20_000 + os.getpid() % 40_000}"
PROGRAM = "import sys, time; print('up', flush=True); time.sleep(900)"

Spawn = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def run() -> str:
    return f"20261121T061500Z-{uuid.uuid4().hex[:6]}"


@pytest.fixture
def spawn(run: str) -> Iterator[Spawn]:
    """Starter of sleepers with the arguments of an executor; the rest is stopped at the end."""
    started: list[subprocess.Popen[bytes]] = []

    def start(
        token: str | None = None,
        main: str = EXECUTOR.main,
        number: int = 0,
        program: str = PROGRAM,
        mark: str = "-Dfaultline.run=",
        node: str = NODE,
    ) -> object:
        host, port = node.split(":")
        options = {
            EXECUTOR.main: ["--executor-id", str(number), "--worker-url", f"spark://Worker@{node}"],
            WORKER.main: ["--host", host, "--port", port],
        }
        arguments = [f"{mark}{token or run}", main, *options.get(main, [])]
        process = subprocess.Popen([sys.executable, "-c", program, *arguments], stdout=subprocess.PIPE)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        return process

    yield start  # type: ignore[misc]
    for process in started:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def only(run: str) -> ProcessIdentity:
    (found,) = find_victims("executor", Tokens(run))
    return found
