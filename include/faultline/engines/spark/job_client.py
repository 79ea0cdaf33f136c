"""Jobs for the Spark that stays (`spark_jobs/job_server.py`): harvest and aggregate without a start of Spark."""

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

# A session that is there answers in milliseconds; one that is starting, or held up, is not waited for.
GREETING_TIMEOUT_S = 2.0
# A small harvest takes seconds. A session that takes longer is not what it should be; Spark anew takes half a minute.
LIMIT_S = 150.0


class JobServerUnavailable(FaultlineError):
    """The job was not done by a session, and nothing of one is at work on it any more; the reason in one line."""


def run_in_session(
    settings: Settings,
    program: str,
    arguments: Sequence[str],
    *,
    say: Callable[[str], None] = print,
    limit_s: float = LIMIT_S,
) -> None:
    """Runs a program of `spark_jobs/` in the session of this installation.

    `say` gets what the program prints. Raises NoSession when there is none, it is at another job, the job failed in it,
    or took longer than `limit_s` seconds; such a session is ended, and its keeper starts another.
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
            raise JobServerUnavailable(f"no warm Spark answers ({type(error).__name__})") from None
        try:
            outcome = _outcome(connection, answers, deadline, say)
        except BaseException as error:
            # Also when this task is told to end: whoever does the job again must be alone with its files.
            _end(greeting, settings)
            if isinstance(error, (OSError, ValueError)):
                raise JobServerUnavailable(f"the warm Spark was lost, or not done within {limit_s:g} s") from None
            raise
    if outcome["status"] != "done":
        raise JobServerUnavailable(f"the warm Spark is {outcome['status']}: {outcome['message']}")


def _outcome(
    connection: socket.socket, answers: Iterator[dict[str, Any]], deadline: float, say: Callable[[str], None]
) -> dict[str, Any]:
    """The answer that says how the job ended. Raises OSError when none comes in time."""
    while True:
        rest_s = deadline - time.monotonic()
        if rest_s <= 0:
            raise TimeoutError
        connection.settimeout(rest_s)
        answer = next(answers, None)
        if answer is None:
            raise ConnectionError("the session ended")
        if "status" in answer:
            return answer
        say(answer["said"])


def _lines(connection: socket.socket) -> Iterator[dict[str, Any]]:
    """Each line as it arrives; a file object would be of no use any more after the first timeout."""
    rest = b""
    while data := connection.recv(65536):
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            yield json.loads(line)


def _end(greeting: dict[str, Any], settings: Settings) -> None:
    """Ends the session that has greeted so, if it still lives; what is no process of this installation is left alone,
    whoever named it."""
    mark, doomed = instance(settings).get("instance"), []
    for pid, ticks in greeting["processes"]:
        with contextlib.suppress(psutil.NoSuchProcess, OSError, TypeError):
            process = psutil.Process(pid)
            if mark and start_ticks(pid) == ticks and is_marked(process, INSTANCE_MARK, mark):
                doomed.append(process)
    end_processes(doomed)


# Short batch jobs on Spark, harvest and aggregate: in the persistent session, or handed to spark-submit.


def run_batch(job: BatchJob, settings: Settings, runtime: Runtime, submit: Callable[[SparkProgram], None]) -> None:
    """Runs a job and waits for its end, not beside a window that is measured.

    Starting a JVM takes longer than most jobs, so a small job goes to the persistent session first. `submit`: hands
    the job to spark-submit when no session has done it. Raises what `submit` raises.
    """
    elsewhere = job.run is not None and job.run.plan.endpoints.is_external
    with share_measurement_lock(settings.window_lock) as waited_s:
        if waited_s:
            print(f"waited {waited_s:.1f} s for the end of a window")
        if not (job.large or job.is_user_job or elsewhere):
            try:
                run_in_session(settings, job.program, job.arguments)
                return
            except JobServerUnavailable as reason:
                print(f"{reason}; started anew instead")
        submit(batch_program(job, settings, runtime))


def batch_program(job: BatchJob, settings: Settings, runtime: Runtime) -> SparkProgram:
    """What is handed to spark-submit for a job: one JVM, with the harness's login."""
    there, run = settings if job.run is None else job.run.there, job.run
    conf = batch_settings(
        there, archive=runtime.cds_archive, large=job.large, attempt=None if run is None else run.attempt.id
    )
    if job.is_user_job and run is not None:
        conf = {**(run.config.spark_conf or {}), **job_jars(run.attempt, run.config), **conf}
    marked = {} if run is None else {RUN_MARK: run.attempt.id}
    return SparkProgram(
        role="batch",
        command=(str(program(settings, job.program)), *job.arguments),
        environment={**spark_environment(settings, runtime.java_home), **marked},
        name=job.name,
        settings=conf,
        properties=properties_file(settings),
        master=LOCAL_MASTER,
    )
