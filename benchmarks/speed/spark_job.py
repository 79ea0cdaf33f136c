"""A program of spark_jobs/ run by spark-submit, as the DAGs run harvest and aggregate, and its cost."""

from __future__ import annotations

import resource
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from benchmarks.figure import BenchmarkFigure, summarise
from faultline.engines.spark.engine import ENGINE
from faultline.engines.spark.settings import LOCAL_MASTER, batch_settings, program, spark_environment
from faultline.engines.supervisor_journal import exit_reason
from faultline.installation.cds_archive import find_archive
from faultline.installation.java import find_java
from faultline.installation.spark import spark_submit
from faultline.system.child_environment import clean_environment
from faultline.system.errors import InfrastructureError
from faultline.system.process_ledger import end_processes
from faultline.system.settings import Settings

TIMEOUT_S = 1800.0
_POLL_S = 0.5


@dataclass(frozen=True)
class Cost:
    """Cost of one run: seconds from start to exit, CPU seconds, and peak resident memory in MB (10⁶ bytes).

    CPU and memory are sums over its processes: the JVM and the program's Python.
    """

    seconds: float
    cpu_s: float
    peak_mb: float

    def __str__(self) -> str:
        return f"{self.seconds:.1f} s ({self.cpu_s:.1f} of CPU, {self.peak_mb:.0f} MB)"


def submit_command(settings: Settings, name: str, arguments: Sequence[str]) -> list[str]:
    """Return the spark-submit command of program `name`."""
    conf = batch_settings(settings, archive=find_archive(settings))
    return spark_submit(settings, conf, program(settings, name), *arguments, master=LOCAL_MASTER, name=f"bench {name}")


def run_job(settings: Settings, command: Sequence[str], folder: Path) -> Cost:
    """Run a command of `submit_command` in `folder`, which keeps its log.

    Raises InfrastructureError with the log's error line if it fails or takes half an hour. Its processes always end.
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
        raise InfrastructureError(
            f"{command[0]}: ended with status {process.returncode}: {exit_reason(log, ENGINE.error_line)}"
        )
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(seconds, cpu, peak / 1e6)


def _follow(process: psutil.Popen, deadline: float) -> int:
    """Wait for the end; return the peak resident bytes of the process and its children together."""
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
    """Return resident bytes with shared memory counted once, because a JVM that forks would count twice."""
    total = 0
    try:
        for one in (process, *process.children(recursive=True)):
            total += one.memory_full_info().pss
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        pass  # a process has just ended; the next sample counts the others
    return total


def _end(process: psutil.Popen) -> None:
    """End the process and its children, if they still run."""
    if process.poll() is None:
        end_processes((*process.children(recursive=True), process))
        process.wait()


# Growth of a job's time: slope of log time over log n


SIZES = (10**5, 10**6, 10**7)
QUICK_SIZES = (10**4, 10**5)
# As many tuples as hours of measurement produce; measured once, to verify that time and memory stay proportional.
HUGE = 10**8
REPETITIONS = 5


@dataclass(frozen=True)
class Size:
    """Measurements at one size: actual tuples, and the cost of each repetition."""

    asked: int
    tuples: int
    costs: tuple[Cost, ...]


def exponent(times: Mapping[int, float]) -> float:
    """Return the least-squares slope of ln(time) over ln(n), for times by n; at least two different positive n."""
    slope, _ = np.polyfit(np.log(list(times)), np.log(list(times.values())), 1)
    return float(slope)


def growth(measure: Callable[[int, int], Size], sizes: Sequence[int], *, huge: bool) -> dict[str, BenchmarkFigure]:
    """Measure each size five times, and HUGE once if `huge`; `measure` takes tuples and repetitions."""
    found = [measure(asked, REPETITIONS) for asked in sizes]
    return growth_figures(found) | (huge_figures(found[-1], measure(HUGE, 1)) if huge else {})


def growth_figures(sizes: Sequence[Size]) -> dict[str, BenchmarkFigure]:
    """Return the figures of at least two sizes in ascending order, with equal numbers of repetitions.

    `exponent`: growth of the time between the two largest sizes. `exponent_all`: the fit over all sizes, in which the
    JVM's start hides the growth at small ones. `cpu_exponent`: like `exponent`, for CPU seconds, which background load
    affects less. Each repetition has its own exponent.
    """
    figures = {name: figure for size in sizes for name, figure in _costs(size).items()}
    for name, chosen, attribute in (
        ("exponent", sizes[-2:], "seconds"),
        ("exponent_all", sizes, "seconds"),
        ("cpu_exponent", sizes[-2:], "cpu_s"),
    ):
        found = [
            exponent({size.tuples: getattr(size.costs[repetition], attribute) for size in chosen})
            for repetition in range(len(sizes[0].costs))
        ]
        figures[name] = summarise(found, "1")
    return figures


def huge_figures(largest: Size, huge: Size) -> dict[str, BenchmarkFigure]:
    """Return the figures of the run at HUGE; its exponent is that of the time since the `largest` other size."""
    usual = statistics.median(one.seconds for one in largest.costs)
    found = exponent({largest.tuples: usual, huge.tuples: huge.costs[0].seconds})
    return {**_costs(huge), f"exponent_{power(huge.asked)}": summarise([found], "1")}


def _costs(size: Size) -> dict[str, BenchmarkFigure]:
    name = power(size.asked)
    return {
        f"time_{name}_s": summarise([cost.seconds for cost in size.costs], "s"),
        f"cpu_{name}_s": summarise([cost.cpu_s for cost in size.costs], "cpu-s"),
        f"peak_{name}_mb": summarise([cost.peak_mb for cost in size.costs], "MB"),
    }


def power(size: int) -> str:
    """Return a size for the name of a figure: 100000 is 1e5."""
    mantissa, exponent_text = f"{size:.0e}".split("e")
    return f"{mantissa}e{int(exponent_text)}"
