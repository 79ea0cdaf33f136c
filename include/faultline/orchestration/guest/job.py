"""One piece of work that the conductor has at hand, and the thin task that waits for it, if there is one just now."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections import deque
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import IO, Any

import psutil

from faultline.system.processes import birth, end_processes, live_process

# Lines that are kept for a task that comes later; of more, the oldest are left out.
MOST_UNHEARD = 2000


class Job:
    """Work in a process of its own, which goes on whether anybody waits or not.

    A task that comes for work that another one waits for takes its place: Airflow began it anew, and the other one is
    dead or about to be.
    """

    def __init__(self, process: BaseProcess, pipe: Connection) -> None:
        self.process, self.pipe = process, pipe
        self.outcome: dict[str, Any] | None = None
        self._birth: tuple[int, str] | None = None
        with contextlib.suppress(OSError):  # it has ended already
            self._birth = birth(process.pid or 0)
        # The word that is being passed on, till the task has taken it.
        self._word: dict[str, Any] | None = None
        self._heard = Heard()
        self._talk: socket.socket | None = None
        self._guard, self._turn = threading.Lock(), threading.Lock()
        threading.Thread(target=self._listen, daemon=True).start()

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
        """Ends the work and what it started, but nothing that it detached; nothing once the work has ended itself."""
        if self._birth is None or not self.process.is_alive():
            return
        # Somebody else may have its number by now.
        process = live_process(self.process.pid or 0, 0.0, *self._birth)
        if process is not None:
            with contextlib.suppress(psutil.Error):
                end_processes([process, *process.children(recursive=True)])

    def _listen(self) -> None:
        """Takes what the work says as it says it: with nobody there to hear, it would wait in the middle of a word."""
        while True:
            try:
                word = self.pipe.recv()
            except (EOFError, OSError):
                self.process.join()
                why = f"its process ended without a word ({self.process.exitcode})"
                word = {"outcome": "error", "why": why}
            self._heard.put(word)
            if "outcome" in word:
                return

    def _pass_on(self, talk: socket.socket, stream: IO[Any]) -> bool:
        """Hands one word of the work's to the task; whether that one is still there."""
        if self._word is None:
            # A task says nothing that it was not asked: when there is something to read, it went away.
            if talk in wait([self._heard.news, talk]):
                return False
            self._word = self._heard.take()
        word = self._word
        if "outcome" in word:
            self.outcome = word
            return True
        write(stream, word)
        if "ask" in word:
            answer = stream.readline()
            if not answer:
                return False
            said = json.loads(answer)
            with contextlib.suppress(OSError):  # who asked died meanwhile: how it ended comes next
                self.pipe.send(said)
        self._word = None
        return True


class Heard:
    """Words of the work, in their order, till they are taken: all but the oldest lines where there are too many."""

    def __init__(self) -> None:
        self._words: deque[dict[str, Any]] = deque()
        self._left_out = 0
        self._guard = threading.Lock()
        # Can be read as long as there is a word.
        self.news, self._tell = Pipe(duplex=False)

    def put(self, word: dict[str, Any]) -> None:
        with self._guard:
            if not self._words:
                self._tell.send_bytes(b".")
            self._words.append(word)
            # A question is the last word till it is answered, an outcome the last of all: the first one is a line.
            if len(self._words) > MOST_UNHEARD:
                self._words.popleft()
                self._left_out += 1

    def take(self) -> dict[str, Any]:
        """The next one; to be called when there is `news`."""
        with self._guard:
            if self._left_out:
                left_out, self._left_out = self._left_out, 0
                return {"log": f"({left_out} lines that nobody was there to hear are left out)"}
            word = self._words.popleft()
            if not self._words:
                self.news.recv_bytes()
            return word


def write(stream: IO[Any], value: dict[str, Any]) -> None:
    """Sends a word over a socket."""
    stream.write(json.dumps(value, default=str) + "\n")
    stream.flush()
