"""The benchmarks by name, and the one form in which all of them answer."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import psutil

from faultline.system.errors import ConfigError
from faultline.system.text import Say, suggest

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
    """The figures as a table: value (a median unless its name says otherwise), least and greatest."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"bench {outcome['name']}")
    for column in ("figure", "value", "low", "high", "n", "unit"):
        # Scripts and readers go by the whole name.
        table.add_column(column, justify="left" if column in ("figure", "unit") else "right", no_wrap=True)
    for name, figure in outcome["figures"].items():
        numbers = [f"{figure[key]:,.4g}" if key != "n" else str(figure[key]) for key in ("value", "low", "high", "n")]
        table.add_row(name, *numbers, figure["unit"])
    Console(width=None if Console().is_terminal else 120).print(table)


def _module(name: str) -> Callable[[Say, bool], Figures]:
    """The benchmark of a module, which is loaded when it runs."""

    def run(say: Say, quick: bool) -> Figures:
        figures: Figures = import_module(f"benchmarks.{name}").run(say, quick)
        return figures

    return run


def _generator(say: Say, quick: bool) -> Figures:
    from benchmarks.speed.generator import run
    from faultline.cli.operations import bring_up, require
    from faultline.installation.jars import classpath
    from faultline.system.settings import load_settings

    java = require(load_settings())
    settings = bring_up(say, airflow=False)
    jars = [*classpath(settings.home, "kafka"), *classpath(settings.home, "kafka-tools")]
    return run(settings.endpoints.kafka, os.pathsep.join(map(str, jars)), str(java.executable), quick)


def _fault_timing(say: Say, quick: bool) -> Figures:
    from benchmarks.fault_timing import run
    from faultline.cli.operations import bring_up

    return run(bring_up(say, airflow=False), say, quick)


def _harvest(say: Say, quick: bool) -> Figures:
    from benchmarks.speed.harvest import run
    from faultline.cli.operations import bring_up

    return run(bring_up(say, airflow=False), say, quick)


BENCHMARKS: dict[str, Callable[[Say, bool], Figures]] = {
    "generator": _generator,
    "overhead": _module("speed.overhead"),
    "recorder": _module("speed.recorder"),
    "fault_timing": _fault_timing,
    "known_truth": _module("truth.known_truth"),
    "noise": _module("truth.noise"),
    "workloads": _module("workloads"),
    "nexmark": _module("nexmark"),
    "page": _module("speed.page"),
    "aggregate": _module("speed.aggregate"),
    "harvest": _harvest,
    "matrices": _module("matrices"),
    "crash": _module("crash"),
    "power_cut": _module("power.power_cut"),
    "sweep": _module("long_sweep"),
    "calibration": _module("calibration"),
    "verdicts": _module("verdicts"),
    "decide": _module("decide"),
    "gate": _module("gate"),
    "slowdowns": _module("slowdowns"),
    "disturbance": _module("neighbours.disturbance"),
    "authentication": _module("authentication"),
}
