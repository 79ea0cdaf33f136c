"""Persistent Spark session that runs harvests and aggregates without the start-up time of Spark.

    spark-submit job_server.py --socket PATH

It listens at a Unix socket that only its user can open. It sends a greeting, then reads one line and answers with
lines, all JSON:

<- {"processes": [[pid, start_ticks], ...]} its Python and its JVM -> {"program", "arguments"} a program of PROGRAMS,
and its command line <- {"output": text} ... output of the program <- {"status", "message"} done | busy | stale | failed

Each job has its own SQL session. The server exits, and its launcher starts another one, after a failed job, a lost
client, or a change of a loaded program on disk. A client without a `done` runs the job itself.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
from aggregate import aggregate
from harvest import harvest_topics
from pyspark.sql import SparkSession

# Program -> (SparkSession, command line) -> nothing.
PROGRAMS: dict[str, Callable[[SparkSession, Sequence[str]], None]] = {
    "aggregate": aggregate,
    "harvest": harvest_topics,
}
# Time limit for a client's request.
REQUEST_TIMEOUT_S = 10.0
WAITING_CLIENTS = 8
# Interval of checks whether the parent JVM is alive.
PARENT_CHECK_S = 5.0
BUSY, DONE, FAILED, STALE = "busy", "done", "failed", "stale"

ModuleVersions = dict[str, tuple[int, int]]


def exit_process() -> None:
    """Exit immediately; the JVM, which waits for this process, exits too."""
    os._exit(1)


class Session:
    """Server that runs one job at a time on one Spark."""

    def __init__(self, spark: SparkSession, folder: Path, end: Callable[[], None] = exit_process) -> None:
        """Create the server.

        `folder`: of the programs. `end`: exits the process; does not return.
        """
        self._spark = spark
        self._end = end
        self._folder = folder
        self._loaded = module_versions(folder)
        self._working = threading.Lock()

    def serve(self, listener: socket.socket) -> None:
        """Answer until this process or its JVM ends, each client in a thread, so that none blocks others."""
        jvm = os.getppid()
        listener.settimeout(PARENT_CHECK_S)
        while os.getppid() == jvm:
            with contextlib.suppress(TimeoutError):
                connection, _ = listener.accept()
                threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError, ValueError, KeyError):
            own = psutil.Process()
            _send(connection, processes=[[one.pid, start_ticks(one.pid)] for one in (own, own.parent()) if one])
            connection.settimeout(REQUEST_TIMEOUT_S)
            with connection.makefile("r", encoding="utf-8") as lines:
                request = json.loads(lines.readline())
            connection.settimeout(None)
            if module_versions(self._folder) != self._loaded:
                _send(connection, status=STALE, message="a program has changed since the session started")
                self._end()
            if not self._working.acquire(blocking=False):
                _send(connection, status=BUSY, message="another job is running")
                return
            try:
                watcher = self._work(connection, request)
            finally:
                self._working.release()
            # Sent after the release, because the client may send the next job at once.
            _send(connection, status=DONE, message="")
            connection.shutdown(socket.SHUT_RD)
            watcher.join()

    def _work(self, connection: socket.socket, request: dict[str, Any]) -> threading.Thread:
        """Run the job and return the thread that watches the client."""
        program, over = PROGRAMS[request["program"]], threading.Event()
        watcher = threading.Thread(target=self._end_with, args=(connection, over), daemon=True)
        watcher.start()
        try:
            with contextlib.redirect_stdout(OutputForwarder(connection)):
                program(self._spark.newSession(), request["arguments"])
        except BaseException as error:
            message = " ".join(f"{type(error).__name__}: {error}".split())[:500]
            _send(connection, status=FAILED, message=message)
            self._end()
        # The cache is shared by all sessions of one Spark.
        self._spark.catalog.clearCache()
        over.set()
        return watcher

    def _end_with(self, connection: socket.socket, over: threading.Event) -> None:
        """Exit if the client disconnects before its job is `over`, because a retry needs the same files."""
        with contextlib.suppress(OSError):
            connection.recv(1)
        if not over.is_set():
            self._end()


class OutputForwarder(io.TextIOBase):
    """Stream that forwards a job's output to the client."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def write(self, text: str) -> int:
        if text.strip():
            _send(self._connection, output=text)
        return len(text)


def module_versions(folder: Path) -> ModuleVersions:
    """Return current size and modification time of each module loaded from `folder`."""
    found: ModuleVersions = {}
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if file and folder in Path(file).parents:
            with contextlib.suppress(FileNotFoundError):
                status = os.stat(file)
                found[file] = (status.st_size, status.st_mtime_ns)
    return found


def _send(connection: socket.socket, **line: Any) -> None:
    connection.sendall((json.dumps(line) + "\n").encode())


def start_ticks(pid: int) -> int:
    """Return the start of a process, in ticks since boot."""
    # The name in parentheses may contain any character; field 22 is the twentieth after it.
    return int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19])


def listen(path: Path) -> socket.socket:
    """Listen at `path`, replacing an earlier server's socket."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    previous = os.umask(0o177)
    try:
        listener.bind(str(path))
    finally:
        os.umask(previous)
    listener.listen(WAITING_CLIENTS)
    return listener


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--socket", type=Path, required=True)
    options, _ = parser.parse_known_args()
    spark = SparkSession.builder.getOrCreate()
    Session(spark, Path(__file__).resolve().parent).serve(listen(options.socket))


if __name__ == "__main__":
    main()
