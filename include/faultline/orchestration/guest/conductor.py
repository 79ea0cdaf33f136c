"""The conductor: does the work of a guest's thin tasks, which come over a socket that only its user may open.

What an experiment starts lives with it, and not with a task: a task may be killed at any time, and the one that Airflow
begins in its place finds the work again.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import socketserver
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import IO, Any

from faultline.experiment.attempt import Attempt
from faultline.experiment.cell import EXPERIMENT
from faultline.installation.users import only_conductor
from faultline.lifecycle.steps import STEPS
from faultline.lifecycle.teardown import note_failure
from faultline.orchestration.guest.job import Job, write
from faultline.system.errors import InfrastructureError
from faultline.system.settings import Settings

WORK = "faultline.orchestration.guest.work"
# Done once an attempt: what is begun twice would be measured twice.
ONCE = frozenset(name for name, step in STEPS.items() if not step.repeatable)
LAST = "teardown"
# A plan of the largest sweep is some megabytes.
LONGEST_REQUEST = 64 * 2**20
# Does the work of a request, and says at the other end of the pipe how it goes.
Work = Callable[[dict[str, Any], Connection], None]


class Conductor:
    """The work at hand, by whose it is. `work`: what does it, by default that of Faultline's own DAGs."""

    def __init__(self, settings: Settings, work: Work | None = None) -> None:
        self.settings = settings
        self._work = work
        self._jobs: dict[Key, Job] = {}
        # Those that were begun under this conductor, and by which guest.
        self._attempts: dict[str, tuple[str, str]] = {}
        self._guard = threading.Lock()
        # Each piece of work is forked from a process that has imported it, but for the judge's libraries.
        self._processes = multiprocessing.get_context("forkserver")
        self._processes.set_forkserver_preload([work.__module__] if work else [WORK, "faultline.lifecycle.steps"])

    def serve(self, talk: Any) -> None:
        """Answers one task, until its work has ended or it went away.

        Raises OSError or ValueError for a task that went away in the middle of a word.
        """
        with talk.makefile("rw", encoding="utf-8") as stream:
            try:
                self._answer(talk, stream)
            except (OSError, ValueError):
                raise
            except Exception as error:
                traceback.print_exc()
                write(stream, {"outcome": "error", "why": f"conductor: {type(error).__name__}: {error}; see its log"})
                stream.readline()

    def _answer(self, talk: Any, stream: IO[Any]) -> None:
        request = json.loads(stream.readline(LONGEST_REQUEST))
        if why := self._lost(request) or self._beside(request):
            write(stream, {"outcome": "fail", "why": why})
            stream.readline()
            return
        key = key_of(request)
        job = self._job(key, request)
        end = job.attend(talk, stream)
        if end is None:
            return
        if request["task"] == "prepare" and end["outcome"] == "done":
            self._attempts[str(end["value"])] = guest_of(request)
        write(stream, self._final(request, end))
        if stream.readline():
            self._forget(key, request)

    def end(self) -> None:
        """Ends all work at hand."""
        with self._guard:
            jobs, self._jobs = list(self._jobs.values()), {}
        for job in jobs:
            job.end()

    def _job(self, key: Key, request: dict[str, Any]) -> Job:
        """The work that was begun for this task before, or else begins it."""
        with self._guard:
            over = [] if key in self._jobs else [one for one in self._jobs if self._is_over(one, key, request)]
            jobs = [self._jobs.pop(one) for one in over]
        # Takes seconds, in which others are answered.
        for job in jobs:
            job.end()
        with self._guard:
            if key not in self._jobs:
                self._jobs[key] = self._begin(request)
            return self._jobs[key]

    def _is_over(self, other: Key, key: Key, request: dict[str, Any]) -> bool:
        """Whether nobody comes for other work any more, once this is asked for."""
        attempt = attempt_of(request)
        # Whoever waits for a step of an attempt at its teardown was stopped.
        stopped = request["task"] == LAST and attempt is not None and other.attempt == attempt
        return stopped or other.task == key.task

    def _begin(self, request: dict[str, Any]) -> Job:
        if self._work is None:
            from faultline.orchestration.guest.work import run

            self._work = run
        ours, theirs = self._processes.Pipe()
        process = self._processes.Process(target=self._work, args=(request, theirs), daemon=False)
        process.start()
        theirs.close()
        return Job(process, ours)

    def _lost(self, request: dict[str, Any]) -> str | None:
        """Why a step cannot be done: the conductor that began its attempt is gone, and what it owned with it."""
        attempt = attempt_of(request)
        if request["task"] not in ONCE or attempt is None or attempt in self._attempts:
            return None
        why = f"{attempt}: the conductor was started anew since it began; what it measured is lost"
        folder = self.settings.attempts / attempt
        if Attempt(folder).over is None:
            note_failure(folder, str(request["task"]), InfrastructureError(why))
        return why

    def _beside(self, request: dict[str, Any]) -> str | None:
        """Why no experiment can begin: another guest's goes on, whose Airflow this one cannot ask, so that it would
        take it for a dead one and close it."""
        if request["task"] != "prepare":
            return None
        for attempt, guest in list(self._attempts.items()):
            if guest != guest_of(request) and Attempt(self.settings.attempts / attempt).over is None:
                place, prefix = guest
                return (
                    f"{attempt}: goes on here for DAGs {prefix}… of {place}; begin again when it is over, or, when "
                    "nobody ends it, start the conductor anew"
                )
        return None

    def _final(self, request: dict[str, Any], end: dict[str, Any]) -> dict[str, Any]:
        """How a task is told the end: a step that may be done once has no other try, however it failed."""
        once = request["task"] in ONCE or (request["dag"] == EXPERIMENT and request["task"] == "prepare")
        return {**end, "outcome": "fail"} if once and end["outcome"] == "error" else end

    def _forget(self, key: Key, request: dict[str, Any]) -> None:
        """After a task has heard how its work ended. How a step ended that is done once is kept till its attempt is
        closed, for a task that heard it and was killed before Airflow did."""
        with self._guard:
            if request["task"] not in ONCE:
                self._jobs.pop(key, None)
            if request["task"] == LAST and (attempt := attempt_of(request)):
                self._attempts.pop(attempt, None)
                for other in [one for one in self._jobs if one.attempt == attempt]:
                    self._jobs.pop(other)


def attempt_of(request: dict[str, Any]) -> str | None:
    """The attempt that a task is a step of."""
    return next((str(one) for one in request.get("arguments", ())), None)


def guest_of(request: dict[str, Any]) -> tuple[str, str]:
    """The file of which Airflow a task comes from, and its prefix."""
    return str(request["place"]), str(request["prefix"])


@dataclass(frozen=True)
class Key:
    """Whose work it is, the same for each try of a task. `task`: of which Airflow and run it is one. `attempt`: that it
    is a step of. `since`: tells one time that the task is to be done from the next."""

    task: tuple[Any, ...]
    attempt: str | None
    since: tuple[Any, ...]


def key_of(request: dict[str, Any]) -> Key:
    """How an outcome that nobody heard is told from that of a run which was cleared since, and begins anew."""
    ended = "ended" in request
    names = ("dag", "run_id", "task", "map_index")
    since: tuple[Any, ...] = ()
    if request["task"] not in ONCE:
        # Airflow renews it as it clears a run; each try of a cell measures once, and then asks how that ended.
        since = (request["start_date"], request["try_number"] if ended else None)
    return Key((*guest_of(request), *(request[name] for name in names), ended), attempt_of(request), since)


class Server(socketserver.ThreadingUnixStreamServer):
    """Listens where only this user may connect."""

    daemon_threads = True

    def server_bind(self) -> None:
        super().server_bind()
        # Nobody can connect before it listens, which comes next.
        os.chmod(str(self.server_address), 0o600)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A task that went away in the middle of a word is nothing to tell."""
        if not isinstance(sys.exception(), OSError | ValueError):
            super().handle_error(request, client_address)


@contextlib.contextmanager
def listening(settings: Settings, work: Work | None = None) -> Iterator[tuple[Server, Conductor]]:
    """A conductor's server, to be run by whoever asked for it; its work ends with it.

    Raises ConfigError when another conductor serves this installation.
    """
    with only_conductor(settings):
        settings.conductor_socket.unlink(missing_ok=True)
        conductor = Conductor(settings, work)

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                conductor.serve(self.request)

        try:
            with Server(str(settings.conductor_socket), Handler) as server:
                yield server, conductor
        finally:
            conductor.end()
            settings.conductor_socket.unlink(missing_ok=True)
