"""How the time of a job grows with the number of tuples: the slope of log time over log n."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.figure import Figure, summarise
from benchmarks.speed.spark_job import Cost

SIZES = (10**5, 10**6, 10**7)
QUICK_SIZES = (10**4, 10**5)
# Tuples of hours of measurement: run once, to see that time and memory stay in proportion.
HUGE = 10**8
REPETITIONS = 5


@dataclass(frozen=True)
class Size:
    """What was measured at one size: the tuples that there really were, and the cost of each repetition."""

    asked: int
    tuples: int
    costs: tuple[Cost, ...]


def exponent(times: Mapping[int, float]) -> float:
    """Least-squares slope of ln(time) over ln(n), for times by n; at least two different n, all positive."""
    logs = [(math.log(n), math.log(time)) for n, time in times.items()]
    mean_n, mean_time = (sum(values) / len(logs) for values in zip(*logs, strict=True))
    spread = math.fsum((n - mean_n) ** 2 for n, _ in logs)
    return math.fsum((n - mean_n) * (time - mean_time) for n, time in logs) / spread


def growth_figures(sizes: Sequence[Size]) -> dict[str, Figure]:
    """Figures of sizes in ascending order, at least two, with equally many repetitions.

    `exponent` is that of the time between the two largest sizes, `exponent_all` the one that fits all sizes best: the
    start of a JVM is part of every time, and hides the growth of the small ones. `cpu_exponent` is as `exponent`, of
    CPU seconds, which other work on the machine changes less. Each repetition gives an exponent of its own.
    """
    figures: dict[str, Figure] = {}
    for size in sizes:
        figures[f"time_{power(size.asked)}_s"] = summarise([cost.seconds for cost in size.costs], "s")
        figures[f"cpu_{power(size.asked)}_s"] = summarise([cost.cpu_s for cost in size.costs], "cpu-s")
        figures[f"peak_{power(size.asked)}_mb"] = summarise([cost.peak_mb for cost in size.costs], "MB")
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


def huge_figures(largest: Size, huge: Size) -> dict[str, Figure]:
    """Figures of the one run at HUGE; its exponent is that of the time since the `largest` of the usual sizes."""
    (cost,) = huge.costs
    usual = statistics.median(one.seconds for one in largest.costs)
    size = power(huge.asked)
    return {
        f"time_{size}_s": summarise([cost.seconds], "s"),
        f"cpu_{size}_s": summarise([cost.cpu_s], "cpu-s"),
        f"peak_{size}_mb": summarise([cost.peak_mb], "MB"),
        f"exponent_{size}": summarise([exponent({largest.tuples: usual, huge.tuples: cost.seconds})], "1"),
    }


def power(size: int) -> str:
    """A size in the name of a figure: 100000 is 1e5."""
    mantissa, exponent_text = f"{size:.0e}".split("e")
    return f"{mantissa}e{int(exponent_text)}"
