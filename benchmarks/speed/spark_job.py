"""One program of spark_jobs/ handed to spark-submit, as the DAGs hand harvest and aggregate to it; and its cost."""

from __future__ import annotations

import re
import resource
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from faultline.engines.spark.settings import LOCAL_MASTER, batch_settings, program, spark_environment
from faultline.installation.class_data import archive_here
from faultline.installation.java import find_java
from faultline.installation.spark import spark_submit
from faultline.system.environment import clean_environment
from faultline.system.errors import InfrastructureError
from faultline.system.settings import Settings

TIMEOUT_S = 1800.0
_POLL_S = 0.5
_THROWN = re.compile(r"(Caused by: )?[\w.$]+(Error|Exception)\b")


@dataclass(frozen=True)
class Cost:
    """What one run took: seconds from start to exit, CPU seconds, and the greatest resident memory in MB (10⁶ bytes).

    CPU and memory are of all its processes together: the JVM and the program's Python.
    """

    seconds: float
    cpu_s: float
    peak_mb: float

    def __str__(self) -> str:
        return f"{self.seconds:.1f} s ({self.cpu_s:.1f} of CPU, {self.peak_mb:.0f} MB)"


def submit_command(settings: Settings, name: str, arguments: Sequence[str], *, large: bool = False) -> list[str]:
    """The spark-submit of program `name`; `large` as in `batch_settings`."""
    conf = batch_settings(settings, archive=archive_here(settings), large=large)
    return spark_submit(settings, conf, program(settings, name), *arguments, master=LOCAL_MASTER, name=f"bench {name}")


def run_job(settings: Settings, command: Sequence[str], folder: Path) -> Cost:
    """Runs a command of `submit_command` in `folder`, where its log stays.

    Raises InfrastructureError with the line of its log that says most when it fails or takes half an hour. Whatever
    ends the wait, no process of it is left.
    """
    log = folder / "spark.log"
    environment = {**clean_environment(), **spark_environment(settings, find_java(settings.home / "java.json").home)}
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    with log.open("wb") as out:
        process = psutil.Popen(
            list(command), cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT
        )
    try:
        peak = _follow(process, began + TIMEOUT_S)
    finally:
        _end(process)
    seconds, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if process.returncode != 0:
        raise InfrastructureError(f"{command[0]}: ended with status {process.returncode}: {_last_words(log)}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(seconds, cpu, peak / 1e6)


def _follow(process: psutil.Popen, deadline: float) -> int:
    """Waits for the end; returns the greatest number of resident bytes of the process and its children together."""
    peak = 0
    while True:
        peak = max(peak, _resident(process))
        try:
            process.wait(_POLL_S)
            return peak
        except psutil.TimeoutExpired:
            if time.monotonic() > deadline:
                raise InfrastructureError(f"spark-submit: not done within {TIMEOUT_S:g} s") from None


def _resident(process: psutil.Popen) -> int:
    """Resident bytes, with what processes share counted once: a JVM that forks would otherwise count twice."""
    total = 0
    try:
        for one in (process, *process.children(recursive=True)):
            total += one.memory_full_info().pss
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        pass  # it is ending; the next look sees what is left
    return total


def _end(process: psutil.Popen) -> None:
    """Ends the process and its children, if they still run."""
    if process.poll() is not None:
        return
    for one in (*process.children(recursive=True), process):
        try:
            one.kill()
        except psutil.NoSuchProcess:
            continue
    process.wait()


def _last_words(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    # What was thrown begins a line, or stands behind `Caused by`; frames of a stack name classes of errors, too.
    errors = [line for line in lines if _THROWN.match(line)]
    return (errors or lines or ["(no output)"])[-1][:300]
