"""Checkpoints in an external HDFS: copies of them, and an experiment."""

from __future__ import annotations

import importlib
import json
import os
import time
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from faultline.engines.spark.checkpoint import committed_batches, latest_offsets, state_document
from faultline.engines.spark.hdfs import HdfsFolder, copy_logs, copy_state
from faultline.engines.spark.progress import CheckpointProgress
from faultline.installation.targets.machines import check_storage
from faultline.system.endpoints import Endpoints
from faultline.system.errors import ConfigError, InfrastructureError
from faultline.system.files import write_private
from tests.support.external_cluster import SECRET, conf, external_kafka, external_spark
from tests.support.external_hdfs import ExternalHdfs, external_hdfs
from tests.support.installation import Installation

# The jar of a name node has 56 MB.
pytestmark = [pytest.mark.thorough, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExternalHdfs]:
    with external_hdfs(tmp_path_factory.mktemp("others") / "hdfs") as made:
        yield made


@pytest.fixture
def endpoints(cluster: ExternalHdfs) -> Endpoints:
    return Endpoints(
        kafka="", kafka_detoured="", kafka_detour="", engine="", engine_ui="", airflow="",
        storage=cluster.url, storage_web=cluster.web,
    )  # fmt: skip


def client(cluster: ExternalHdfs) -> Any:
    address = urlsplit(cluster.web)
    web_hdfs: Any = importlib.import_module("fsspec.implementations.webhdfs")
    return web_hdfs.WebHDFS(address.hostname, address.port, user="root", skip_instance_cache=True)


def batch(checkpoint: Path, number: int) -> None:
    for log in ("offsets", "commits"):
        (checkpoint / log).mkdir(parents=True, exist_ok=True)
    (checkpoint / "offsets" / str(number)).write_text(f'v1\n{{}}\n{{"in":{{"0":{100 * number},"1":7}}}}\n')
    (checkpoint / "commits" / str(number)).write_text("v1\n{}\n")
    (checkpoint / "commits" / f".{number}.crc").write_text("sum")


def state(checkpoint: Path) -> None:
    """Write the checkpoint of two operators; the first has a store in each layout."""
    for store in ("state/0/0", "state/0/1/left", "state/1/0"):
        folder = checkpoint / store
        folder.mkdir(parents=True)
        for version, size in ((3, 100), (10, 5000)):
            with zipfile.ZipFile(folder / f"{version}.zip", "w") as archive:
                archive.writestr("metadata", "v1\n" + json.dumps({"sstFiles": [{"sizeBytes": size}]}))
                archive.writestr("rest", os.urandom(size))
        (folder / "11_abc.changelog").write_bytes(b"x" * 321)
        (folder / "4.changelog").write_bytes(b"x" * 9)
    (checkpoint / "state" / "0" / "_metadata").mkdir()
    (checkpoint / "state" / "0" / "_metadata" / "metadata").write_text("v1")


def without_times(document: dict[str, Any]) -> dict[str, Any]:
    return {**document, "snapshots": [{**one, "wall_ns": None} for one in document["snapshots"]]}


def test_a_copy_has_the_contents_of_the_checkpoint(cluster: ExternalHdfs, tmp_path: Path) -> None:
    made, here, hdfs = tmp_path / "made", tmp_path / "here", client(cluster)
    there = HdfsFolder(f"{cluster.url}/attempt/checkpoint", cluster.web)
    assert latest_offsets(here) == {} and there.entries() == {}
    copy_logs(there, here)
    assert not here.exists()

    for number in (0, 1):
        batch(made, number)
    state(made)
    hdfs.put(f"{made}/", there.path, recursive=True)
    copy_logs(there, here)
    copy_state(there, here)
    assert latest_offsets(here) == latest_offsets(made) == {"0": 100, "1": 7}
    assert without_times(state_document(here)) == without_times(state_document(made))
    seen = {int(name): one["modificationTime"] * 1_000_000 for name, one in (there / "commits").entries().items()
            if name.isdigit()}  # fmt: skip
    assert {one.number: one.committed_ns for one in committed_batches(here)} == seen
    assert sorted(path.name for path in (here / "commits").iterdir()) == ["0", "1"]

    # One more batch, and one purged by Spark.
    batch(made, 2)
    hdfs.put(f"{made}/offsets/2", f"{there.path}/offsets/2")
    hdfs.put(f"{made}/commits/2", f"{there.path}/commits/2")
    hdfs.rm(f"{there.path}/commits/0")
    before = {path: path.stat().st_ino for path in here.rglob("*") if path.is_file()}
    copy_logs(there, here)
    copy_state(there, here)
    assert [one.number for one in committed_batches(here)] == [0, 1, 2]
    assert {path: path.stat().st_ino for path in before} == before, "what is there is not copied again"
    # The same version again, as after a killed batch.
    (made / "state" / "0" / "0" / "11_abc.changelog").write_bytes(b"x" * 5000)
    hdfs.rm(f"{there.path}/state/0/0/11_abc.changelog")
    hdfs.put(f"{made}/state/0/0/11_abc.changelog", f"{there.path}/state/0/0/11_abc.changelog")
    copy_state(there, here, operators=("1",))
    assert without_times(state_document(here)) != without_times(state_document(made))
    copy_state(there, here)
    assert without_times(state_document(here)) == without_times(state_document(made))
    # With two archives of the newest version, the one that Spark reads is unknown.
    (made / "state" / "1" / "0" / "10.zip").rename(made / "state" / "1" / "0" / "12_a.zip")
    hdfs.put(f"{made}/state/1/0/12_a.zip", f"{there.path}/state/1/0/12_a.zip")
    hdfs.put(f"{made}/state/1/0/12_a.zip", f"{there.path}/state/1/0/12_b.zip")
    copy_state(there, here)
    for name in ("12_a.zip", "12_b.zip"):
        assert zipfile.is_zipfile(here / "state" / "1" / "0" / name)
    there.remove()
    assert there.entries() == {}
    there.remove()
    with pytest.raises(InfrastructureError, match=r"^storage: .*: 127\.0\.0\.1:1 does not answer; "):
        replace(there, web="http://127.0.0.1:1").remove()


def test_a_started_cycle_is_detected_at_once(cluster: ExternalHdfs, tmp_path: Path) -> None:
    made, there = tmp_path / "made", HdfsFolder(f"{cluster.url}/cycles", cluster.web)
    batch(made, 0)
    client(cluster).put(f"{made}/", there.path, recursive=True)
    progress = CheckpointProgress(tmp_path / "here", tmp_path / "none", there)
    at = progress.await_cycle("checkpoint", 0, time.monotonic_ns() + 10**9)
    assert at == (there / "commits" / "0").modified_ms() * 1_000_000 == progress.last_commit_ns()
    assert progress.await_cycle("checkpoint", at + 1, time.monotonic_ns() + 10**8) is None
    # The drain waits for the present input only.
    assert CheckpointProgress(tmp_path / "new", tmp_path / "none", there).await_cycle("checkpoint", 0, 0) == at
    there.remove()


def test_the_storage_is_checked(cluster: ExternalHdfs, endpoints: Endpoints) -> None:
    result = check_storage(endpoints, "faultline_storage")
    assert result.startswith(f"{cluster.url} is writable, ")
    assert not [name for name in HdfsFolder(cluster.url, cluster.web).entries() if "probe" in name]
    with pytest.raises(InfrastructureError, match=r"^Connection faultline_storage: .*: 127\.0\.0\.1:1 does not answer"):
        check_storage(replace(endpoints, storage_web="http://127.0.0.1:1"), "faultline_storage")
    with pytest.raises(ConfigError, match=r"^Connection faultline_storage: .*/another: missing; "):
        check_storage(replace(endpoints, storage=f"{cluster.url}/another"), "faultline_storage")


def test_an_experiment_stores_its_checkpoint_in_hdfs(
    cluster: ExternalHdfs, installation: Installation, tmp_path: Path
) -> None:
    # A target is not checked while another experiment runs.
    installation.given["FAULTLINE_MACHINE"] = str(tmp_path)
    login, more = tmp_path / "kafka.json", tmp_path / "spark.json"
    with external_kafka(tmp_path / "kafka") as broker, external_spark(tmp_path / "spark") as engine:
        write_private(login, json.dumps(broker.login()))
        write_private(more, json.dumps({"secret": SECRET, "ui": engine.ui, "conf": conf()}))
        options = ("--kafka", str(login), "--spark", engine.master, "--spark-file", str(more))
        added = installation.run(
            "target", "add", "lab", *options, "--storage", cluster.url, "--storage-web", cluster.web
        )
        assert added.returncode == 0 and added.stderr.count(": created") == 3, added.stderr
        checked = installation.run("target", "check", "lab")
        assert checked.returncode == 0 and f"share {cluster.url}" in checked.stdout, checked.stdout + checked.stderr
        done = installation.run("run", "word_count", "target=lab", "fault=executor")
        record = json.loads(done.stdout)
    assert record["status"] in ("valid", "unmet", "invalid"), record["reasons"]
    metrics = record["metrics"]
    assert metrics["audit"]["expected"] > 0
    assert metrics["audit"]["lost"] == metrics["audit"]["overcounted"] == metrics["audit"]["unexpected"] == 0
    assert metrics["state_bytes"]["checkpoint"] > 0 and metrics["recovery"]["detection_s"] is not None
    assert HdfsFolder(f"{cluster.url}/faultline", cluster.web).entries() == {}
