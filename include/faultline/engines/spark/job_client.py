"""Client of the persistent Spark session (`spark_jobs/job_server.py`) for batch jobs."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import psutil

from fault.procfs import start_ticks
from faultline.engines.runtime import BatchJob, Runtime
from faultline.engines.spark.settings import (
    LOCAL_MASTER,
    batch_settings,
    program,
    properties_file,
    spark_environment,
)
from faultline.engines.spark.submission import SparkProgram, job_jars
from faultline.system.errors import FaultlineError
from faultline.system.locks import share_measurement_lock
from faultline.system.process_ledger import end_processes, is_marked
from faultline.system.process_tags import INSTANCE_MARK, RUN_MARK
from faultline.system.settings import Settings, instance

# An idle session answers in milliseconds; a starting or blocked session is not waited for.
GREETING_TIMEOUT_S = 2.0
# Several times the duration of a harvest of 10 million tuples.
LIMIT_S = 600.0


class JobServerUnavailable(FaultlineError):
    """The session did not complete the job and has stopped working on it; the message is one line."""


def run_in_session(
    settings: Settings,
    program: str,
    arguments: Sequence[str],
    *,
    progress: Callable[[str], None] = print,
    limit_s: float = LIMIT_S,
) -> None:
    """Run a program of `spark_jobs/` in the persistent session of this installation.

    `progress` receives the program's output. Raises JobServerUnavailable if there is no session, it is busy, the job
    failed, or it exceeded `limit_s` seconds. A session that failed or timed out is ended, and its launcher starts
    another.
    """
    deadline = time.monotonic() + limit_s
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(GREETING_TIMEOUT_S)
        try:
            connection.connect(str(settings.session_socket))
            answers = _lines(connection)
            greeting = next(answers)
            connection.sendall((json.dumps({"program": program, "arguments": list(arguments)}) + "\n").encode())
        except (OSError, ValueError, StopIteration) as error:
            raise JobServerUnavailable(f"persistent Spark session unavailable ({type(error).__name__})") from None
        try:
            outcome = _outcome(connection, answers, deadline, progress)
        except BaseException as error:
            # End the session even if this task is terminated: a repeated job needs exclusive access to its files.
            _end(greeting, settings)
            if isinstance(error, (OSError, ValueError)):
                raise JobServerUnavailable(f"persistent Spark session failed or exceeded {limit_s:g} s") from None
            raise
    if outcome["status"] != "done":
        raise JobServerUnavailable(f"persistent Spark session {outcome['status']}: {outcome['message']}")


def _outcome(
    connection: socket.socket, answers: Iterator[dict[str, Any]], deadline: float, progress: Callable[[str], None]
) -> dict[str, Any]:
    """Return the final answer of a job.

    Raises OSError if none arrives in time.
    """
    while True:
        rest_s = deadline - time.monotonic()
        if rest_s <= 0:
            raise TimeoutError
        connection.settimeout(rest_s)
        answer = next(answers, None)
        if answer is None:
            raise ConnectionError("session ended")
        if "status" in answer:
            return answer
        progress(answer["output"])


def _lines(connection: socket.socket) -> Iterator[dict[str, Any]]:
    """Yield JSON lines as they arrive; a file object is unusable after a timeout."""
    rest = b""
    while data := connection.recv(65536):
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            yield json.loads(line)


def _end(greeting: dict[str, Any], settings: Settings) -> None:
    """End the processes of the session that sent this greeting, if they belong to this installation."""
    tag, session = instance(settings).get("instance"), []
    for pid, ticks in greeting["processes"]:
        with contextlib.suppress(psutil.NoSuchProcess, OSError, TypeError):
            process = psutil.Process(pid)
            if tag and start_ticks(pid) == ticks and is_marked(process, INSTANCE_MARK, tag):
                session.append(process)
    end_processes(session)


# Batch jobs (harvest and aggregate), in the persistent session or through spark-submit.


def run_batch(job: BatchJob, settings: Settings, runtime: Runtime, submit: Callable[[SparkProgram], None]) -> None:
    """Run a job to its end, outside any measured window.

    The persistent session is tried first: it is started and compiled. `submit`: runs spark-submit if no session
    completed the job. Raises the errors of `submit`.
    """
    is_external = job.run is not None and job.run.plan.endpoints.is_external
    with share_measurement_lock(settings.window_lock) as waited_s:
        if waited_s:
            print(f"waited {waited_s:.1f} s for the end of a measured window")
        if not (job.is_user_job or is_external):
            try:
                run_in_session(settings, job.program, job.arguments)
                return
            except JobServerUnavailable as reason:
                print(f"{reason}; starting a new Spark")
        submit(batch_program(job, settings, runtime))


def batch_program(job: BatchJob, settings: Settings, runtime: Runtime) -> SparkProgram:
    """Return the spark-submit program of a job: one JVM with the harness's credentials."""
    target, run = settings if job.run is None else job.run.there, job.run
    conf = batch_settings(target, archive=runtime.cds_archive, attempt=None if run is None else run.attempt.id)
    if job.is_user_job and run is not None:
        conf = {**(run.config.spark_conf or {}), **job_jars(run.attempt, run.config), **conf}
    tag = {} if run is None else {RUN_MARK: run.attempt.id}
    return SparkProgram(
        role="batch",
        command=(str(program(settings, job.program)), *job.arguments),
        environment={**spark_environment(settings, runtime.java_home), **tag},
        name=job.name,
        settings=conf,
        properties=properties_file(settings),
        master=LOCAL_MASTER,
    )
