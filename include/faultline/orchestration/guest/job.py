"""One piece of work that the conductor has at hand, and the thin task that waits for it, if there is one just now."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import IO, Any

from faultline.base.processes import end_processes


class Job:
    """Work in a process of its own, which goes on whether anybody waits or not.

    A task that comes for work that another one waits for takes its place: Airflow began it anew, and the other one is
    dead or about to be.
    """

    def __init__(self, process: BaseProcess, pipe: Connection) -> None:
        self.process, self.pipe = process, pipe
        self.outcome: dict[str, Any] | None = None
        # What the work said last and nobody has heard yet.
        self._unheard: dict[str, Any] | None = None
        self._talk: socket.socket | None = None
        self._guard, self._turn = threading.Lock(), threading.Lock()

    def attend(self, talk: socket.socket, stream: IO[Any]) -> dict[str, Any] | None:
        """Tells the task at the other end of `talk` what the work says, until it has ended: how it ended. None when the
        task went away before."""
        with self._guard:
            before, self._talk = self._talk, talk
        if before is not None:
            with contextlib.suppress(OSError):
                before.shutdown(socket.SHUT_RDWR)
        with self._turn:
            while self.outcome is None:
                try:
                    if not self._pass_on(talk, stream):
                        return None
                except (OSError, ValueError):
                    return None
            return self.outcome

    def end(self) -> None:
        """Ends the work and what it started, but nothing that it detached."""
        import psutil

        with contextlib.suppress(psutil.Error, TypeError):
            process = psutil.Process(self.process.pid)
            end_processes([process, *process.children(recursive=True)])

    def _pass_on(self, talk: socket.socket, stream: IO[Any]) -> bool:
        """Hands one word of the work's to the task; whether that one is still there."""
        if self._unheard is None:
            # A task says nothing that it was not asked: when there is something to read, it went away.
            if talk in wait([self.pipe, talk]):
                return False
            try:
                self._unheard = self.pipe.recv()
            except EOFError:
                self.process.join()
                why = f"its process ended without a word ({self.process.exitcode})"
                self._unheard = {"outcome": "error", "why": why}
        word = self._unheard
        if "outcome" in word:
            self.outcome = word
            return True
        write(stream, word)
        if "ask" in word:
            answer = stream.readline()
            if not answer:
                return False
            self.pipe.send(json.loads(answer))
        self._unheard = None
        return True


def write(stream: IO[Any], value: dict[str, Any]) -> None:
    """Sends a word over a socket."""
    stream.write(json.dumps(value, default=str) + "\n")
    stream.flush()
