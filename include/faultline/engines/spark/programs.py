"""What the program of a workload is told: one JSON file, written from the configuration of the attempt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from faultline.base.attempt import Attempt, write_json
from faultline.engines.known_truth.traces import FILE as TRACES
from faultline.engines.spark.lineages import lineage_files
from faultline.experiment.config import Configuration
from faultline.experiment.plan import configuration_of
from faultline.experiment.sources import primer_records, warm_up_batches
from faultline.experiment.workloads import nexmark, topology


def workload_configuration(attempt: Attempt) -> Path:
    """Writes the one JSON file that the workload reads, and returns its path."""
    description = attempt.read()
    config = configuration_of(attempt)
    throw_away = config.commit_mode == "none"
    path = attempt.folder / "workload_config.json"
    common = {
        "bootstrap": description["kafka"]["workload_bootstrap"],
        "input_topic": description["topics"]["input"],
        "output_topic": description["topics"]["output"],
        "checkpoint": str(attempt.throwaway if throw_away else attempt.checkpoint),
        "listener_log": str(attempt.listener_journal),
        "trigger_s": config.checkpoint_interval_s,
        "stop_file": str(attempt.stop_file),
    }
    special = {
        "known_truth": _known_truth,
        "nexmark": _nexmark,
        "topology": topology.program_configuration,
    }.get(config.workload, _spark)
    write_json(path, {**common, **special(attempt, config)})
    return path


def _spark(attempt: Attempt, config: Configuration) -> dict[str, Any]:
    lineages = {name: str(file) for name, file in lineage_files(attempt).items()}
    return {
        "python": config.workload == "word_count_python",
        "window_s": config.window_s,
        "slide_s": config.slide_s,
        "watermark_s": config.watermark_s,
        "real_time_s": config.checkpoint_interval_s if config.commit_mode == "unaligned" else None,
        "executors": config.executors,
        "lineages": lineages if config.commit_mode == "none" else None,
        # Made by the first incarnation: a restarted driver is measured as cold as it is.
        "first": str(attempt.folder / "warmed"),
        "warm_up": {
            "topic": attempt.read()["topics"]["warmup"],
            "checkpoint": str(attempt.folder / "warmup-checkpoint"),
            "records_per_batch": -(-primer_records(config) // warm_up_batches(config)),
        },
    }


def _nexmark(attempt: Attempt, config: Configuration) -> dict[str, Any]:
    common = {"query": config.query, "source": config.source}
    if config.source == "kafka":
        return {**_spark(attempt, config), **common}
    return {
        **common,
        "watermark_s": config.watermark_s,
        "rules": {**nexmark.rules(config, attempt.read()["repetition"]), "curve": nexmark.pieces(config)},
        "reads": nexmark.reads(config.query),
        "batch_events": nexmark.batch_events(config),
        "preload_batches": nexmark.preload_batches(config),
        "executors": config.executors,
        "slots": config.executors * config.executor_cores,
    }


def _known_truth(attempt: Attempt, config: Configuration) -> dict[str, Any]:
    return {
        "partitions": config.partitions,
        "rate": config.rate,
        "warmup_s": config.warmup_s,
        "duration_s": config.duration_s,
        "fault_at_s": config.fault_at_s,
        "gate": str(attempt.gate),
        "conductor_journal": str(attempt.conductor_journal),
        "supervisor_journal": str(attempt.supervisor_journal),
        "traces": str(attempt.folder / TRACES),
        "truth": config.truth,
    }
