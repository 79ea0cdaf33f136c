"""Evidence of a Spark run outside its attempt's raw files: collection for the harvest and removal."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from faultline.engines.batches import write_batches
from faultline.engines.gc_log import EXECUTOR_FILE
from faultline.engines.spark import checkpoint
from faultline.engines.spark.hdfs import copy_logs, copy_state
from faultline.engines.spark.shared_storage import (
    CHECKPOINT,
    executor_logs,
    find_hdfs,
    find_shared,
    has_disk_checkpoint,
    remove_disk_checkpoint,
    remove_ephemeral_checkpoint,
    remove_shared,
)
from faultline.experiment.attempt import Attempt, write_json
from faultline.experiment.attempt_plan import AttemptPlan
from faultline.experiment.run import Run
from faultline.system.files import read_document
from faultline.system.journal import events, read_journal
from faultline.system.settings import Settings

# Settings of a user job or program, as its application reports them.
APPLICATION = "application.json"
# Checkpoint of the batches that warm up a program.
WARM_UP_CHECKPOINT = "warmup-checkpoint"
# Application ids are validated: any process at the driver's port could report one, and it becomes part of a path that
# is removed.
_APPLICATION = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
# Logs of an ephemeral checkpoint during the copy.
COPIED_CHECKPOINT = "checkpoint.kept"


def gather(run: Run) -> None:
    """Write batches.json and checkpoint.json, and copy the executors' logs."""
    attempt, method = run.attempt, run.plan.method
    if (remote := find_hdfs(attempt)) is not None:
        copy_logs(remote / CHECKPOINT, attempt.checkpoint)
        copy_state(remote / CHECKPOINT, attempt.checkpoint)
    topic = input_topic(run.plan)
    commits = checkpoint.commits_of(attempt.checkpoint, attempt.lineages, topic)
    write_batches(attempt.folder, commits, method=method, reached=checkpoint.latest_offsets(attempt.checkpoint, topic))
    write_json(attempt.folder / "checkpoint.json", checkpoint.state_document(attempt.checkpoint))
    copy_executor_logs(attempt, run.settings)


def input_topic(plan: AttemptPlan) -> str | None:
    """Return the input topic of a user job or program, which may read others; None for built-in workloads."""
    return plan.topics["input"].name if "job" in plan.tuples else None


def application_settings(folder: Path) -> dict[str, str] | None:
    """Return the settings that a user job or program ran under; None if they were not collected."""
    path = folder / APPLICATION
    return dict(read_document(path)) if path.exists() else None


def copy_executor_logs(attempt: Attempt, settings: Settings) -> None:
    """Copy each executor's stderr and GC log to spark-logs/<application>/<executor>/{stderr,gc.log}."""
    for folder in worker_folders(attempt, settings):
        for log in (*folder.glob("*/stderr"), *folder.glob(f"*/{EXECUTOR_FILE}")):
            _copy(log, attempt.engine_logs / folder.name / log.parent.name / log.name)
    for application, executor, name, log in executor_logs(attempt):
        _copy(log, attempt.engine_logs / application / executor / name)


def _copy(log: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(log, target)


def keep_logs(attempt: Attempt) -> None:
    """Replace an ephemeral checkpoint on the RAM disk by a copy of its logs, for a later harvest.

    An interrupted call is completed by the next one.
    """
    if find_shared(attempt) is not None or has_disk_checkpoint(attempt):
        return  # these checkpoints are not on the RAM disk
    link, kept = attempt.checkpoint, attempt.folder / COPIED_CHECKPOINT
    if link.is_symlink():
        shutil.rmtree(kept, ignore_errors=True)
        checkpoint.copy_logs(link.resolve(), kept)
        link.unlink()
    if kept.exists() and not link.exists():
        kept.rename(link)
    remove_ephemeral_checkpoint(attempt)


def discard(attempt: Attempt, settings: Settings) -> None:
    """Remove the checkpoints and the workers' folders; on a target, only the attempt's shared folder."""
    if find_shared(attempt) is not None:
        attempt.checkpoint.unlink(missing_ok=True)
        remove_shared(attempt)
        return
    if attempt.checkpoint.is_symlink():
        attempt.checkpoint.unlink()
    made = (WARM_UP_CHECKPOINT, COPIED_CHECKPOINT)
    for folder in (attempt.checkpoint, *(attempt.folder / name for name in made)):
        shutil.rmtree(folder, ignore_errors=True)
    remove_ephemeral_checkpoint(attempt)
    remove_disk_checkpoint(attempt)
    for folder in worker_folders(attempt, settings):
        shutil.rmtree(folder, ignore_errors=True)
    _clear_generator(attempt, settings)


def _clear_generator(attempt: Attempt, settings: Settings) -> None:
    """Remove the workers' folders of a generator on executors, after copying its logs."""
    lines = events(read_journal(attempt.generator_journal), "application")
    for name in (line["app_id"] for line in lines if _APPLICATION.fullmatch(str(line["app_id"]))):
        for folder in settings.spark_work.glob(f"worker-*/{name}"):
            for log in folder.glob("*/stderr"):
                shutil.copyfile(log, attempt.logs / f"generator-{log.parent.name}.err")
            shutil.rmtree(folder, ignore_errors=True)


def worker_folders(attempt: Attempt, settings: Settings) -> Iterator[Path]:
    """Yield the folders of the attempt's applications on each Spark worker."""
    # Applications of a target may have the same names as local ones.
    for application in application_ids(attempt) if find_shared(attempt) is None else ():
        yield from application_folders(application, settings)


def application_folders(application: str, settings: Settings) -> Iterator[Path]:
    """Yield the folders of an application on each Spark worker; nothing for an invalid name."""
    if _APPLICATION.fullmatch(application):
        yield from settings.spark_work.glob(f"worker-*/{application}")
        yield from settings.spark_work.glob(f"build-*/worker-*/{application}")


def application_ids(attempt: Attempt) -> list[str]:
    """Return the Spark applications of this attempt, one per driver incarnation, as recorded."""
    lines = read_journal(attempt.recorder_journal)
    names = dict.fromkeys(str(line["app_id"]) for line in lines if line.get("kind") == "executors")
    return [name for name in names if _APPLICATION.fullmatch(name)]
