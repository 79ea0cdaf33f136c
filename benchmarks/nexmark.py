"""Events per second of each Nexmark query, per core and per machine, and the cost of creating events."""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.figure import BenchmarkFigure, summarise
from benchmarks.speed.spark_job import run_job, submit_command
from faultline.cli.nexmark_sweep import parse_nexmark
from faultline.cli.sweep_runner import run_request
from faultline.comparison.findings.nexmark import per_core, per_machine
from faultline.engines.spark.settings import NEXMARK_SETTINGS
from faultline.experiment.config import parse_configuration
from faultline.experiment.workloads.nexmark_events import QUERIES, reads
from faultline.records.record import Record
from faultline.system.errors import InfrastructureError
from faultline.system.settings import Settings, load_settings
from faultline.system.text import Progress

EVENTS, QUICK_EVENTS, REPETITIONS, WARM_UPS = 20_000_000, 2_000_000, 3, 3
# Combinations of streams that queries read.
READ = tuple(dict.fromkeys(map(reads, QUERIES)))


def run(progress: Progress, quick: bool) -> dict[str, BenchmarkFigure]:
    """Run all queries of the matrix's preset `default`, or of `smoke` if `quick`.

    Figures: events_per_s_QUERY, events_per_s_per_core_QUERY, events_per_s_per_core_with_driver_QUERY; for event
    generation source_share_QUERY and source_events_per_s_per_core_READ, where READ names the streams that are read.
    Valid records of this build are reused. Raises InfrastructureError if no query has a usable record.
    """
    records: list[Record] = []
    run_request(parse_nexmark(["preset=smoke"] if quick else []), progress, show=records.extend)
    found = figures(records)
    if not found:
        raise InfrastructureError("bench nexmark: no usable record; see the failed runs in the UI")
    progress("nexmark: measuring event generation")
    found |= source_figures(source_per_core(load_settings(), quick), per_core(records))
    return found


def figures(records: Sequence[Record]) -> dict[str, BenchmarkFigure]:
    """Return the figures by name."""
    kinds = (
        ("events_per_s", "events/s", per_machine(records)),
        ("events_per_s_per_core", "events/s/core", per_core(records)),
        ("events_per_s_per_core_with_driver", "events/s/core", per_core(records, driver=True)),
    )
    return {
        f"{name}_{query}": summarise(values, unit) for name, unit, found in kinds for query, values in found.items()
    }


def source_per_core(settings: Settings, quick: bool) -> dict[tuple[str, ...], list[float]]:
    """Return events of the generator per CPU second, by the streams that are read; one value per repetition.

    All events are generated; those of a stream that is read are also passed on.
    """
    events = QUICK_EVENTS if quick else EVENTS
    config = parse_configuration({"workload": "nexmark", "query": "q0"})
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        target, config_file = folder / "found.json", folder / "config.json"
        what = {
            "rules": {**config.input_source()["rules"], "curve": []},
            "events": events,
            "repetitions": REPETITIONS,
            "warm_ups": WARM_UPS,
        }
        config_file.write_text(json.dumps({**what, "reads": READ, "target": str(target)}))
        command = submit_command(settings, "nexmark_generation_cost", ["--config", str(config_file)])
        own = [part for key, value in NEXMARK_SETTINGS.items() for part in ("--conf", f"{key}={value}")]
        run_job(settings, [command[0], *own, *command[1:]], folder)
        found: dict[tuple[str, ...], list[float]] = {}
        for one in json.loads(target.read_text()):
            found.setdefault(tuple(one["reads"]), []).append(events / one["cpu_s"])
    return found


def source_figures(
    source: Mapping[tuple[str, ...], Sequence[float]], queries: Mapping[str, Sequence[float]]
) -> dict[str, BenchmarkFigure]:
    """Return source_events_per_s_per_core_READ, and source_share_QUERY: CPU time of events ÷ CPU time of the query.

    `queries`: events per second and core of each query, from `per_core`.
    """
    found = {
        f"source_events_per_s_per_core_{'_'.join(names)}": summarise(values, "events/s/core")
        for names, values in source.items()
    }
    for query, values in queries.items():
        alone = statistics.median(source[reads(query)])
        found[f"source_share_{query}"] = summarise([value / alone for value in values], "1")
    return found
