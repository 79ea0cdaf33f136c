"""Benchmarks by name, and their common result format."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import asdict
from importlib import import_module
from typing import Any

import psutil

from faultline.system.errors import ConfigError
from faultline.system.text import Progress, suggest


def run_benchmark(name: str, progress: Progress, *, quick: bool) -> dict[str, Any]:
    """Return {"name", "figures": {FIGURE: {"value", "unit", "low", "high", "n"}}, "machine"}.

    Raises ConfigError for an unknown name, with the nearest known one.
    """
    if name not in BENCHMARKS:
        raise ConfigError(f"bench: got {name!r}; expected a benchmark{suggest(name, BENCHMARKS)}")
    benchmark = import_module(f"benchmarks.{BENCHMARKS[name]}")
    figures = {key: asdict(figure) for key, figure in benchmark.run(progress, quick).items()}
    return {"name": name, "figures": figures, "machine": machine()}


def machine() -> dict[str, Any]:
    """Return the machine's properties."""
    return {
        "cores": os.cpu_count(),
        "memory_mb": psutil.virtual_memory().total // 2**20,
        "system": platform.platform(),
        "python": platform.python_version(),
        "load_1m": round(os.getloadavg()[0], 2),
    }


def print_figures(outcome: Mapping[str, Any]) -> None:
    """Print the figures as a table: value (a median unless the name states otherwise), minimum and maximum."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"bench {outcome['name']}")
    for column in ("figure", "value", "low", "high", "n", "unit"):
        # Figure names must not be truncated.
        table.add_column(column, justify="left" if column in ("figure", "unit") else "right", no_wrap=True)
    for name, figure in outcome["figures"].items():
        numbers = [f"{figure[key]:,.4g}" if key != "n" else str(figure[key]) for key in ("value", "low", "high", "n")]
        table.add_row(name, *numbers, figure["unit"])
    Console(width=None if Console().is_terminal else 120).print(table)


# Module by benchmark; its `run(progress, quick)` returns figures by name.
BENCHMARKS: Mapping[str, str] = {
    "generator": "speed.generator",
    "overhead": "speed.overhead",
    "recorder": "speed.recorder",
    "fault_timing": "fault_timing",
    "known_truth": "ground_truth.known_truth",
    "noise": "ground_truth.recovery_rule_noise",
    "workloads": "workloads",
    "nexmark": "nexmark",
    "nexmark_both": "nexmark_both.comparison",
    "page": "speed.page_latency",
    "aggregate": "speed.aggregate",
    "harvest": "speed.harvest",
    "matrices": "matrices",
    "crash": "crash",
    "power_cut": "power_loss.power_cut",
    "sweep": "long_sweep",
    "calibration": "calibration",
    "verdicts": "comparison_error_rate",
    "decide": "sequential_error_rate",
    "gate": "gate_error_rate",
    "slowdowns": "slowdowns",
    "disturbance": "neighbours.disturbance",
    "authentication": "authentication",
}
