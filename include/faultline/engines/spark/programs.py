"""What the program of a workload is told: one JSON file, written from the configuration of the attempt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from faultline.base.attempt import Attempt, write_json
from faultline.engines.spark.lineages import lineage_files
from faultline.experiment.config import Configuration
from faultline.experiment.plan import configuration_of


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
    own = config.kind.program_configuration(attempt, config.own, config)
    write_json(path, {**common, **_usual(attempt, config), **own})
    return path


def _usual(attempt: Attempt, config: Configuration) -> dict[str, Any]:
    """What a program is told that reads what a generator sends, and makes itself warm by the primer before the gate."""
    if config.kind.warms_itself or not config.paced or config.kind.program is None:
        return {}
    lineages = {name: str(file) for name, file in lineage_files(attempt).items()}
    return {
        "real_time_s": config.checkpoint_interval_s if config.commit_mode == "unaligned" else None,
        "executors": config.executors,
        "lineages": lineages if config.commit_mode == "none" else None,
        # Made by the first incarnation: a restarted driver is measured as cold as it is.
        "first": str(attempt.folder / "warmed"),
        "warm_up": {
            "topic": attempt.read()["topics"]["warmup"],
            "checkpoint": str(attempt.folder / "warmup-checkpoint"),
            "records_per_batch": -(-config.primer_records // config.kind.warm_up_batches),
        },
    }
