"""Shared folder and checkpoint disk of an attempt."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from faultline.engines.spark.collect import copy_executor_logs, discard, keep_logs
from faultline.engines.spark.hdfs import HdfsFolder
from faultline.engines.spark.settings import workload_settings
from faultline.engines.spark.shared_storage import (
    EXECUTORS,
    checkpoint_url,
    find_hdfs,
    find_shared,
    has_disk_checkpoint,
    make_disk_checkpoint,
    make_shared,
)
from faultline.experiment.attempt import Attempt, write_json
from faultline.experiment.config import parse_configuration
from faultline.system.endpoints import Endpoints
from faultline.system.errors import InfrastructureError
from faultline.system.settings import Settings


@pytest.fixture
def endpoints(tmp_path: Path) -> Endpoints:
    return Endpoints(
        kafka="b:1", kafka_detoured="", kafka_detour="", engine="spark://m:7077", engine_ui="", airflow="",
        here="10.0.0.9", target="lab", logins=str(tmp_path / "home" / "targets" / "lab"), storage=str(tmp_path / "nfs"),
    )  # fmt: skip


@pytest.fixture
def attempt(settings: Settings) -> Attempt:
    made = Attempt(settings.attempts / "20261121T061500Z-3fa9c1")
    made.folder.mkdir(parents=True)
    write_json(made.folder / "attempt.json", {"attempt": made.id})
    return made


def test_executor_logs_are_copied_from_the_shared_folder(
    settings: Settings, endpoints: Endpoints, attempt: Attempt
) -> None:
    folder = make_shared(attempt, endpoints)
    assert make_shared(attempt, endpoints) == folder == find_shared(attempt)
    (folder / "checkpoint" / "commits").mkdir()
    assert (attempt.checkpoint / "commits").is_dir()
    (folder / EXECUTORS / "app-20261121061501-0007_3.stderr").write_text("text")
    (folder / EXECUTORS / "app-20261121061501-0007_3.gc.log").write_text("paused")
    (folder / EXECUTORS / "notes").touch()
    copy_executor_logs(attempt, settings)
    logs = attempt.engine_logs / "app-20261121061501-0007" / "3"
    assert {path.name: path.read_text() for path in logs.iterdir()} == {"stderr": "text", "gc.log": "paused"}

    keep_logs(attempt)
    assert (attempt.checkpoint / "commits").is_dir()
    another = folder.parent / "20261121T061500Z-000000"
    another.mkdir()
    # A local application with the same name as one of the target.
    alike = settings.spark_work / "worker-1" / "app-20261121061501-0007"
    alike.mkdir(parents=True)
    discard(attempt, settings)
    assert not folder.exists() and not attempt.checkpoint.is_symlink() and another.exists() and alike.exists()
    discard(attempt, settings)


def test_hdfs_storage_holds_only_checkpoints(
    settings: Settings, endpoints: Endpoints, attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_hdfs(attempt) is None and checkpoint_url(attempt, "checkpoint") == str(attempt.checkpoint)
    folder = make_shared(attempt, replace(endpoints, storage="hdfs://n:1/lab", storage_web="http://n:2"))
    assert folder.is_relative_to(endpoints.logins) and (folder / EXECUTORS).is_dir() and attempt.checkpoint.is_dir()
    there = f"hdfs://n:1/lab/faultline/{attempt.id}"
    assert find_hdfs(attempt) == HdfsFolder(there, "http://n:2")
    assert checkpoint_url(attempt, "checkpoint") == f"{there}/checkpoint"

    removed: list[str] = []
    monkeypatch.setattr(HdfsFolder, "remove", lambda self: removed.append(self.url))
    discard(attempt, settings)
    assert removed == [there] and not folder.exists() and not attempt.checkpoint.exists()
    discard(attempt, settings)
    assert removed == [there]


def test_executors_of_a_target_get_no_local_paths(settings: Settings, endpoints: Endpoints, attempt: Attempt) -> None:
    there, folder = settings.for_target(endpoints), make_shared(attempt, endpoints)
    conf = workload_settings(there, attempt, parse_configuration({"target": "lab"}), 4040, shared=folder)
    assert conf["spark.driver.host"] == conf["spark.driver.bindAddress"] == "10.0.0.9"
    executors, driver = conf["spark.executor.extraJavaOptions"], conf["spark.driver.extraJavaOptions"]
    assert executors.count("-Dlog4j2.configurationFile=") == executors.count("-Xlog:gc") == 1
    assert f"-Dfaultline.log={folder}/executors/{{{{APP_ID}}}}_{{{{EXECUTOR_ID}}}}.stderr" in executors
    assert str(settings.spark_logging) in driver and str(settings.spark_logging) not in executors
    assert f"-Dfaultline.run={attempt.id}" in executors and f"-Dfaultline.run={attempt.id}" in driver
    assert str(there.logins / "workload.jaas") in executors and str(settings.secrets) not in executors


# Checkpoint on a separate disk.


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = tmp_path / "checkpoints"
    made.mkdir()
    monkeypatch.setattr(Path, "is_mount", lambda self: self == made)
    return made


def test_a_checkpoint_is_on_the_disk_until_teardown(attempt: Attempt, disk: Path, settings: Settings) -> None:
    folder = make_disk_checkpoint(attempt, disk)
    assert folder.parent == disk and make_disk_checkpoint(attempt, disk) == folder, (
        "the same for each life of the driver"
    )
    (folder / "offsets").mkdir()
    (folder / "offsets" / "0").write_text("v1")
    keep_logs(attempt)
    assert (attempt.checkpoint / "offsets" / "0").read_text() == "v1" and has_disk_checkpoint(attempt)
    for _ in range(2):
        discard(attempt, settings)
    assert list(disk.iterdir()) == [] and not has_disk_checkpoint(attempt)
    assert not attempt.checkpoint.is_symlink()


def test_an_unmounted_disk_is_rejected_before_writing(attempt: Attempt, tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError, match="checkpoints: not mounted"):
        make_disk_checkpoint(attempt, tmp_path / "checkpoints")
    assert [one.name for one in attempt.folder.iterdir()] == ["attempt.json"]
