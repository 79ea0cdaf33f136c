"""What a run on Spark leaves outside its attempt's raw files: gathered for the harvest, and removed after it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from faultline.engines.batches import write_batches
from faultline.engines.spark import checkpoint
from faultline.engines.spark.gc_log import EXECUTOR_FILE
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

# The settings that a user's job or program runs under, as its application reports them.
APPLICATION = "application.json"
# Of the batches that a program makes itself warm with.
WARM_UP_CHECKPOINT = "warmup-checkpoint"
# Told by whoever answered at the driver's port; it becomes part of a path that is removed.
_APPLICATION = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
# The logs of a throw-away checkpoint while they are copied.
COPIED_CHECKPOINT = "checkpoint.kept"


def gather(run: Run) -> None:
    """Writes batches.json and checkpoint.json, and copies what the executors logged."""
    attempt, method = run.attempt, run.plan.method
    if (there := find_hdfs(attempt)) is not None:
        copy_logs(there / CHECKPOINT, attempt.checkpoint)
        copy_state(there / CHECKPOINT, attempt.checkpoint)
    topic = input_topic(run.plan)
    commits = checkpoint.commits_of(attempt.checkpoint, attempt.lineages, topic)
    write_batches(attempt.folder, commits, method=method, reached=checkpoint.latest_offsets(attempt.checkpoint, topic))
    write_json(attempt.folder / "checkpoint.json", checkpoint.state_document(attempt.checkpoint))
    copy_executor_logs(attempt, run.settings)


def input_topic(plan: AttemptPlan) -> str | None:
    """The input topic of a user's job or program, which may read other topics too; None for built-in workloads."""
    return plan.topics["input"].name if "job" in plan.tuples else None


def application_settings(folder: Path) -> dict[str, str] | None:
    """The settings that a user's job or program ran under; None if they were not collected."""
    path = folder / APPLICATION
    return dict(read_document(path)) if path.exists() else None


def copy_executor_logs(attempt: Attempt, settings: Settings) -> None:
    """Copies each executor's standard error and pauses to spark-logs/<application>/<executor>/{stderr,gc.log}."""
    for folder in worker_folders(attempt, settings):
        for log in (*folder.glob("*/stderr"), *folder.glob(f"*/{EXECUTOR_FILE}")):
            _copy(log, attempt.engine_logs / folder.name / log.parent.name / log.name)
    for application, executor, name, log in executor_logs(attempt):
        _copy(log, attempt.engine_logs / application / executor / name)


def _copy(log: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(log, target)


def keep_logs(attempt: Attempt) -> None:
    """Takes a throw-away checkpoint off the RAM disk, and keeps its small logs where a later harvest looks for them.

    Killed at any point, it goes on when it is called again.
    """
    if find_shared(attempt) is not None or has_disk_checkpoint(attempt):
        return  # on a target's disk it lies well, and on one of its own
    link, kept = attempt.checkpoint, attempt.folder / COPIED_CHECKPOINT
    if link.is_symlink():
        shutil.rmtree(kept, ignore_errors=True)
        checkpoint.copy_logs(link.resolve(), kept)
        link.unlink()
    if kept.exists() and not link.exists():
        kept.rename(link)
    remove_ephemeral_checkpoint(attempt)


def discard(attempt: Attempt, settings: Settings) -> None:
    """Removes the checkpoints and the workers' folders; of a target only what lies in the shared one."""
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
    """Removes what workers keep of a generator that ran on executors, but for what its processes said."""
    said = events(read_journal(attempt.generator_journal), "application")
    for name in (line["app_id"] for line in said if _APPLICATION.fullmatch(str(line["app_id"]))):
        for folder in settings.spark_work.glob(f"worker-*/{name}"):
            for log in folder.glob("*/stderr"):
                shutil.copyfile(log, attempt.logs / f"generator-{log.parent.name}.err")
            shutil.rmtree(folder, ignore_errors=True)


def worker_folders(attempt: Attempt, settings: Settings) -> Iterator[Path]:
    """What each Spark worker keeps of each application of the attempt."""
    # Those of another cluster may be called as some here.
    for application in application_ids(attempt) if find_shared(attempt) is None else ():
        yield from application_folders(application, settings)


def application_folders(application: str, settings: Settings) -> Iterator[Path]:
    """What each Spark worker keeps of an application; nothing for a text that is not a name of one."""
    if _APPLICATION.fullmatch(application):
        yield from settings.spark_work.glob(f"worker-*/{application}")
        yield from settings.spark_work.glob(f"build-*/worker-*/{application}")


def application_ids(attempt: Attempt) -> list[str]:
    """Spark applications of this attempt, one an incarnation of the driver, as the recorder saw them."""
    lines = read_journal(attempt.recorder_journal)
    named = dict.fromkeys(str(line["app_id"]) for line in lines if line.get("kind") == "executors")
    return [name for name in named if _APPLICATION.fullmatch(name)]
