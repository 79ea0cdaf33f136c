"""The step `harvest`, without Spark: gathers what the run left on disk, and says what Spark is to read."""

from __future__ import annotations

import shutil
from pathlib import Path

from faultline.base.attempt import Attempt, write_json
from faultline.base.journal import read_journal, write_lines
from faultline.base.settings import Settings
from faultline.engines.batches import BATCHES
from faultline.engines.registry import engine_of
from faultline.engines.spark import checkpoint
from faultline.engines.spark.collect import worker_folders
from faultline.experiment.plan import configuration_of

# Above it, a harvest gains more from Spark's optimisations than they cost.
LARGE_RECORDS = 500_000


def gather(attempt: Attempt, settings: Settings) -> Path:
    """Has the engine gather its own, copies the starts of services; returns the harvest's configuration.

    Repeating it gives the same: it only reads what the run left.
    """
    description = attempt.read()
    config = configuration_of(attempt)
    engine_of(config).collect(attempt, settings, method=config.kind.latency_method_of(config.own))
    copy_service_starts(attempt, settings)
    configuration = attempt.folder / "harvest_config.json"
    write_json(
        configuration,
        {
            "bootstrap": description["kafka"]["bootstrap"],
            "input_topic": description["topics"]["input"],
            "output_topic": description["topics"]["output"],
            "batches": str(attempt.folder / BATCHES),
            "target": str(attempt.harvest),
            **config.kind.tuples(config.own),
        },
    )
    return configuration


def is_large(records: float) -> bool:
    """Whether a harvest of so many records is to have Spark's optimisations."""
    return records > LARGE_RECORDS


def copy_service_starts(attempt: Attempt, settings: Settings) -> None:
    """Copies the starts of services since the attempt was prepared: what a fault ended comes back there."""
    since = attempt.read()["prepared_wall_ns"]
    lines = [line for line in read_journal(settings.services_journal) if line["wall_ns"] >= since]
    write_lines(attempt.services_journal, lines)


def keep_logs_only(attempt: Attempt) -> None:
    """Takes a throw-away checkpoint off the RAM disk, and keeps its small logs where a later harvest looks for them."""
    if not attempt.checkpoint.is_symlink():
        return
    present = attempt.checkpoint.resolve()
    attempt.checkpoint.unlink()
    checkpoint.give_up(present, attempt.checkpoint)
    shutil.rmtree(attempt.throwaway, ignore_errors=True)


def remove_working_data(attempt: Attempt, settings: Settings) -> None:
    """Removes what the run made outside its raw files: the checkpoint and the workers' folders."""
    if attempt.checkpoint.is_symlink():
        attempt.checkpoint.unlink()
    for folder in (attempt.checkpoint, attempt.throwaway, attempt.folder / "warmup-checkpoint", attempt.scratch):
        shutil.rmtree(folder, ignore_errors=True)
    for folder in worker_folders(attempt, settings):
        shutil.rmtree(folder, ignore_errors=True)
