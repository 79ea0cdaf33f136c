"""A Spark that stays: harvests and aggregates for whoever asks, without the seconds that a start of Spark costs.

    spark-submit session.py --socket PATH

It listens at a Unix socket that only its user can open. To whoever connects it says who it is, then it takes one line
and answers with lines, all of them JSON:

    <- {"processes": [[pid, start_ticks], ...]}     its Python and its JVM
    -> {"program", "arguments"}         a program of PROGRAMS, and its command line
    <- {"said": text} ...               what the program prints
    <- {"status", "message"}            done | busy | stale | failed

Each job has a SQL session of its own. What cannot be trusted any more ends itself, and whoever keeps it running starts
another one: after a job that failed, or whose client went away, and when a program that it has loaded was changed
on disk. A client that gets no `done` runs the job by itself.
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
# A client that connects and asks nothing is let go.
ASK_S = 10.0
WAITING_CLIENTS = 8
# How often a session looks whether its JVM, which started it, is there.
LOOK_S = 5.0
BUSY, DONE, FAILED, STALE = "busy", "done", "failed", "stale"

Loaded = dict[str, tuple[int, int]]


def end() -> None:
    """Ends this process at once, and with it the JVM that waits for it."""
    os._exit(1)


class Session:
    """Runs one job at a time on one Spark."""

    def __init__(self, spark: SparkSession, folder: Path, end: Callable[[], None] = end) -> None:
        """`folder`: where the programs lie. `end`: does not return."""
        self._spark = spark
        self._end = end
        self._folder = folder
        self._loaded = loaded_from(folder)
        self._working = threading.Lock()

    def serve(self, listener: socket.socket) -> None:
        """Answers until this process or its JVM ends: each client in a thread, so that none waits unheard."""
        jvm = os.getppid()
        listener.settimeout(LOOK_S)
        while os.getppid() == jvm:
            with contextlib.suppress(TimeoutError):
                connection, _ = listener.accept()
                threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError, ValueError, KeyError):
            own = psutil.Process()
            _say(connection, processes=[[one.pid, start_ticks(one.pid)] for one in (own, own.parent()) if one])
            connection.settimeout(ASK_S)
            with connection.makefile("r", encoding="utf-8") as lines:
                asked = json.loads(lines.readline())
            connection.settimeout(None)
            if loaded_from(self._folder) != self._loaded:
                _say(connection, status=STALE, message="a program was changed since this session began")
                self._end()
            if not self._working.acquire(blocking=False):
                _say(connection, status=BUSY, message="another job runs in this session")
                return
            try:
                watcher = self._work(connection, asked)
            finally:
                self._working.release()
            # Whoever hears it may send the next job at once.
            _say(connection, status=DONE, message="")
            connection.shutdown(socket.SHUT_RD)
            watcher.join()

    def _work(self, connection: socket.socket, asked: dict[str, Any]) -> threading.Thread:
        """Does the job; returns who waits for the end of the client, of which nothing depends any more."""
        program, over = PROGRAMS[asked["program"]], threading.Event()
        watcher = threading.Thread(target=self._end_with, args=(connection, over), daemon=True)
        watcher.start()
        try:
            with contextlib.redirect_stdout(OutputForwarder(connection)):
                program(self._spark.newSession(), asked["arguments"])
        except BaseException as error:
            message = " ".join(f"{type(error).__name__}: {error}".split())[:500]
            _say(connection, status=FAILED, message=message)
            self._end()
        # What jobs have cached is kept for all sessions of one Spark.
        self._spark.catalog.clearCache()
        over.set()
        return watcher

    def _end_with(self, connection: socket.socket, over: threading.Event) -> None:
        """Ends this session when the client goes before its job is `over`: another may write where this one does."""
        with contextlib.suppress(OSError):
            connection.recv(1)
        if not over.is_set():
            self._end()


class OutputForwarder(io.TextIOBase):
    """Hands on what a job prints."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def write(self, text: str) -> int:
        if text.strip():
            _say(self._connection, said=text)
        return len(text)


def loaded_from(folder: Path) -> Loaded:
    """Size and time of change of each module that was loaded from `folder`, as it lies there now."""
    found: Loaded = {}
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if file and folder in Path(file).parents:
            with contextlib.suppress(FileNotFoundError):
                status = os.stat(file)
                found[file] = (status.st_size, status.st_mtime_ns)
    return found


def _say(connection: socket.socket, **line: Any) -> None:
    connection.sendall((json.dumps(line) + "\n").encode())


def start_ticks(pid: int) -> int:
    """When a process began, in ticks since the machine's start."""
    # The name in parentheses may hold anything; field 22 is the twentieth after it.
    return int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19])


def listen(path: Path) -> socket.socket:
    """Takes the place of an older session at `path`."""
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
