"""Tuples per second and core of each workload at its highest sustained rate on this machine."""

from __future__ import annotations

from functools import partial
from typing import Any

from benchmarks.figure import BenchmarkFigure, exact_figure
from faultline.cli.run_command import run_single
from faultline.cli.service_control import bring_up, require
from faultline.comparison.capacity import highest_sustained_near, search_capacity
from faultline.experiment.config import Configuration, parse_configuration
from faultline.lifecycle.environment import default_build
from faultline.records.record import Record
from faultline.records.store import Store
from faultline.system.settings import Settings
from faultline.system.text import Progress

# By name: parameters that differ from the defaults, and the first rate to try (Kafka records/s), an estimate for two
# cores.
WORKLOADS: dict[str, tuple[dict[str, Any], float]] = {
    "word_count": ({"workload": "word_count"}, 4000),
    "word_count_python": ({"workload": "word_count_python"}, 1000),
    "pi": ({"workload": "pi", "iterations": 1000}, 8000),
    "stock_group_by": ({"workload": "stock_group_by"}, 8000),
    "stock_join": ({"workload": "stock_join"}, 500),
}
PRECISION = 1.25
COMMON = {"fault": "none", "warmup_s": 15, "duration_s": 25, "checkpoint_interval_s": 2, "accept_overload": True}
QUICK = ("pi",)


def run(progress: Progress, quick: bool) -> dict[str, BenchmarkFigure]:
    """Find the highest sustained rate of each workload.

    Figures: tuples_per_s_per_core_WORKLOAD, sustained_rate_WORKLOAD. A tuple is the workload's unit: a word, a record,
    or a joined refresh. Cores are those of executors and their Python workers. Records of earlier calls are reused, so
    an interrupted benchmark resumes.
    """
    settings = bring_up(progress)
    figures: dict[str, BenchmarkFigure] = {}
    for name, (values, guess) in WORKLOADS.items():
        if quick and name not in QUICK:
            continue
        config = parse_configuration({**COMMON, **values})
        found, records = search_capacity(
            config,
            partial(highest_sustained_near, guess=guess, precision=PRECISION),
            lambda there: _known(settings, there),
            lambda there: _measure(there, progress),
        )
        progress(f"{name}: sustains {_text(found.sustained)} records/s, exceeded at {_text(found.exceeded)}")
        if found.sustained is None:
            continue
        highest = found.exceeded or found.sustained
        figures[f"sustained_rate_{name}"] = BenchmarkFigure(
            found.sustained, "records/s", found.sustained, highest, len(records)
        )
        per_core = tuples_per_s_per_core(records[found.sustained])
        if per_core is not None:
            figures[f"tuples_per_s_per_core_{name}"] = exact_figure(per_core, "tuples/s/core")
    return figures


def tuples_per_s_per_core(record: Record) -> float | None:
    """Return tuples of the measured window ÷ its seconds ÷ cores of executors and Python workers."""
    cores = (record.metrics.cpu_cores.executors or 0) + (record.metrics.cpu_cores.python_workers or 0)
    count = record.metrics.latency_ms.count
    return count / float(record.config["duration_s"]) / cores if count and cores else None


def _known(settings: Settings, config: Configuration) -> Record | None:
    """Return the newest record of this configuration and the installed build, outside of sweeps."""
    build = default_build(settings, require(settings).version)
    records = Store(settings.results).read(config.config_id).records
    found = [one for one in records if one.matrix is None and one.series == one.build == build]
    return found[-1] if found else None


def _measure(config: Configuration, progress: Progress) -> Record:
    values = config.model_dump(mode="json", exclude_defaults=True, exclude={"workload"})
    given = [f"{key}={'' if value is None else value}" for key, value in values.items()]
    record = run_single(config.workload, given, lambda text: None, keep_topics=False)
    progress(f"{config.workload} at {config.rate:g} records/s: {record.status}, sustained: {record.metrics.sustained}")
    return record


def _text(rate: float | None) -> str:
    return "nothing in range" if rate is None else f"{rate:g}"
