"""The benchmarks by name, and the one form in which all of them answer."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping
from typing import Any

import psutil

from faultline.config import suggest
from faultline.errors import ConfigError

Say = Callable[[str], None]
Figures = Mapping[str, Mapping[str, Any]]


def run_benchmark(name: str, say: Say, *, quick: bool) -> dict[str, Any]:
    """{"name", "figures": {FIGURE: {"value", "unit", "low", "high", "n"}}, "machine"}.

    Raises ConfigError for an unknown name, with the nearest known one.
    """
    if name not in BENCHMARKS:
        raise ConfigError(f"bench: {name!r} is not known{suggest(name, BENCHMARKS)}")
    return {"name": name, "figures": BENCHMARKS[name](say, quick), "machine": machine()}


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    return {
        "cores": os.cpu_count(),
        "memory_mb": psutil.virtual_memory().total // 2**20,
        "system": platform.platform(),
        "python": platform.python_version(),
        "load_1m": round(os.getloadavg()[0], 2),
    }


def print_figures(outcome: Mapping[str, Any]) -> None:
    """The figures as a table: median, and least to greatest of the repetitions."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"bench {outcome['name']}")
    for column in ("figure", "median", "low", "high", "n", "unit"):
        table.add_column(column, justify="left" if column in ("figure", "unit") else "right")
    for name, figure in outcome["figures"].items():
        numbers = [f"{figure[key]:,.4g}" if key != "n" else str(figure[key]) for key in ("value", "low", "high", "n")]
        table.add_row(name, *numbers, figure["unit"])
    Console().print(table)


def _generator(say: Say, quick: bool) -> Figures:
    from faultline.bench.generator import run
    from faultline.jars import classpath
    from faultline.operations import bring_up, require
    from faultline.settings import load_settings

    java = require(load_settings())
    settings = bring_up(say, airflow=False)
    jars = [*classpath(settings.home, "kafka"), *classpath(settings.home, "kafka-tools")]
    return run(settings.kafka_bootstrap, os.pathsep.join(map(str, jars)), str(java.executable), quick)


def _overhead(say: Say, quick: bool) -> Figures:
    from faultline.bench.overhead import run

    return run(say, quick)


def _fault_timing(say: Say, quick: bool) -> Figures:
    from faultline.bench.fault_timing import run
    from faultline.operations import bring_up

    return run(bring_up(say, airflow=False), say, quick)


def _known_truth(say: Say, quick: bool) -> Figures:
    from faultline.bench.known_truth import run

    return run(say, quick)


def _workloads(say: Say, quick: bool) -> Figures:
    from faultline.bench.workloads import run

    return run(say, quick)


def _page(say: Say, quick: bool) -> Figures:
    from faultline.bench.page import run

    return run(say, quick)


def _aggregate(say: Say, quick: bool) -> Figures:
    from faultline.bench.aggregate import run

    return run(say, quick)


def _harvest(say: Say, quick: bool) -> Figures:
    from faultline.bench.harvest import run
    from faultline.operations import bring_up

    return run(bring_up(say, airflow=False), say, quick)


def _matrices(say: Say, quick: bool) -> Figures:
    from faultline.bench.matrices import run

    return run(say, quick)


def _crash(say: Say, quick: bool) -> Figures:
    from faultline.bench.crash import run

    return run(say, quick)


def _sweep(say: Say, quick: bool) -> Figures:
    from faultline.bench.long_sweep import run

    return run(say, quick)


def _verdicts(say: Say, quick: bool) -> Figures:
    from faultline.bench.verdicts import run

    return run(say, quick)


BENCHMARKS: dict[str, Callable[[Say, bool], Figures]] = {
    "generator": _generator,
    "overhead": _overhead,
    "fault_timing": _fault_timing,
    "known_truth": _known_truth,
    "workloads": _workloads,
    "page": _page,
    "aggregate": _aggregate,
    "harvest": _harvest,
    "matrices": _matrices,
    "crash": _crash,
    "sweep": _sweep,
    "verdicts": _verdicts,
}
