"""Power loss: synced data survives, a replaced file is old or new, and partial writes are rejected."""

from __future__ import annotations

import json
import mmap
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from benchmarks.power_loss.disk import Disk, own_disk
from benchmarks.power_loss.durability_check import (
    DurableRecords,
    InstallationProcesses,
    broken_databases,
    broken_tables,
    index_differences,
)
from faultline.experiment.attempt import write_json
from faultline.installation.java import find_java
from faultline.installation.kafka import prepare_kafka
from faultline.installation.supervision import _claim_ports
from faultline.records.index import Index
from faultline.records.store import Store
from faultline.system.errors import ConfigError, InfrastructureError
from faultline.system.files import make_folder
from faultline.system.journal import Journal, read_journal
from faultline.system.process_ledger import live_process
from faultline.system.process_tags import INSTANCE_MARK, RUN_MARK
from faultline.system.settings import DEFAULT_PORTS, ROOT, Settings, free_port, load_settings
from spark_jobs.aggregate import swap
from tests.unit.sample_records import sample


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    try:
        with own_disk(tmp_path / "disk", 64) as made:
            yield made
    except ConfigError as error:
        pytest.skip(str(error))


@pytest.fixture
def settings(disk: Disk) -> Settings:
    made = Settings(ROOT, disk.folder / "home", disk.folder / "results")
    made.home.mkdir()
    return made


def fail(disk: Disk) -> None:
    disk.cut()
    disk.detach()
    disk.attach()


def put(settings: Settings, *numbers: int) -> None:
    for number in numbers:
        Store(settings.results).write(sample(attempt=f"20261121T0615{number:02d}Z-000001", repetition=number))


def sync(path: Path) -> None:
    opened = os.open(path, os.O_RDONLY)
    os.fsync(opened)
    os.close(opened)


def test_only_what_was_synced_is_kept(disk: Disk) -> None:
    (disk.folder / "forgotten").write_text("x")
    (disk.folder / "half").write_text("x" * 9)
    sync(disk.folder)
    write_json(disk.folder / "whole", {"a": 1})
    (disk.folder / "new").write_text("y")
    (disk.folder / "new").rename(disk.folder / "whole")
    disk.cut()
    for act in (lambda: (disk.folder / "whole").read_text(), lambda: (disk.folder / "late").touch()):
        with pytest.raises(OSError, match="Input/output"):
            act()
    disk.detach()
    disk.attach()
    assert json.loads((disk.folder / "whole").read_text()) == {"a": 1}
    assert not (disk.folder / "new").exists() and (disk.folder / "half").read_text() == ""
    disk.attach()  # no effect on an existing one


def test_an_interrupted_power_loss_is_repaired(disk: Disk) -> None:
    write_json(disk.folder / "whole", {})
    disk.cut()
    disk.attach()
    assert (disk.folder / "whole").exists()


def test_a_new_mount_namespace_does_not_block_the_disk(disk: Disk) -> None:
    # From outside, like a container that starts now.
    held = subprocess.Popen(
        ["nsenter", "--target", str(os.getppid()), "--mount", "unshare", "--mount", "sh", "-c", "echo up; read x"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert held.stdout is not None and held.stdout.readline() == b"up\n"
        fail(disk)
        write_json(disk.folder / "written", {})
    finally:
        held.kill()
        held.communicate()


def test_a_disk_in_use_is_kept_and_its_user_named(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.power_loss.disk._BUSY_S", 0.3)
    with (
        (disk.folder / "held").open("w"),
        pytest.raises(InfrastructureError, match=rf"used by {os.getpid()} \("),
    ):
        disk.detach()


def test_synced_journals_and_records_survive(settings: Settings, disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    put(settings, 1, 2)
    with Journal(settings.home / "diary.jsonl") as journal:
        journal.write("first", sync=True)
        journal.write("second")
        kept = DurableRecords.of(settings)
        assert not kept.records and len(kept.young) == 2
        monkeypatch.setattr("benchmarks.power_loss.durability_check.SETTLED_S", 0.0)
        kept = DurableRecords.of(settings)
        assert len(kept.records) == 2
        disk.cut()
    disk.detach()
    disk.attach()
    assert [line["event"] for line in read_journal(settings.home / "diary.jsonl")] == ["first"]
    assert kept.damage(settings) == []
    one, other = (settings.records / name for name in sorted(kept.records))
    one.write_bytes(one.read_bytes() + b" ")
    other.write_bytes(b"")
    changed, too, unreadable = kept.damage(settings)
    assert "changed" in changed and "changed" in too and other.name in unreadable
    one.unlink()
    assert "missing" in kept.damage(settings)[0]


def test_a_port_list_is_whole(settings: Settings, disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    given = Settings(ROOT, settings.home, settings.results, {name: free_port() for name in DEFAULT_PORTS})
    chosen = _claim_ports(given, {}, lambda text: None)
    fail(disk)
    monkeypatch.setenv("FAULTLINE_HOME", str(settings.home))
    assert load_settings().ports == chosen.ports


@pytest.mark.thorough
def test_an_index_with_stale_pages_is_rebuilt(settings: Settings, disk: Disk) -> None:
    """The kernel writes pages back in any order, and power may fail meanwhile."""
    put(settings, *range(8))
    index = Index(settings.results, settings.home)
    assert index.file is not None
    index.refresh()
    index.close()
    sync(index.file)
    put(settings, *range(8, 24))
    index.refresh()
    index.close()
    size = 4096
    with closing(sqlite3.connect(index.file)) as connection:
        roots = {
            root for (root,) in connection.execute("SELECT rootpage FROM sqlite_master WHERE tbl_name = 'contents'")
        }
    with index.file.open("r+b") as file, mmap.mmap(file.fileno(), 0) as pages:
        for start in range(0, len(pages), size):
            # SQLite detects a file that is shorter than its header states.
            is_last, page = start + size == len(pages), start // size + 1
            if is_last or (page not in roots and b"workload" not in pages[start : start + size]):
                pages.flush(start, size)
    fail(disk)
    assert index_differences(settings) == []


def test_missing_index_entries_are_detected(settings: Settings) -> None:
    put(settings, 1)
    assert index_differences(settings) == []
    index = Index(settings.results, settings.home)
    index.refresh()
    assert index.file is not None
    index.close()
    with closing(sqlite3.connect(index.file)) as connection, connection:
        connection.execute("UPDATE entries SET status = 'failed'")
        connection.execute("DELETE FROM contents")
    assert index_differences(settings) == ["index: 20261121T061501Z-000001 is None, its record valid"]


def test_summary_tables_are_replaced_after_their_sync(settings: Settings, disk: Disk) -> None:
    for number in (1, 2):
        new = settings.results / f"summary-{number}"
        make_folder(new)
        (new / "cells.csv").write_text("a,b\n")
        swap(new, settings.results / "summary")
        sync(settings.results)
    fail(disk)
    assert broken_tables(settings) == []
    assert (settings.results / "summary" / "cells.csv").read_text() == "a,b\n"
    (settings.results / "summary" / "cells.csv").write_text("")
    (settings.results / "summary" / "cells.parquet").write_text("PAR1")
    assert [line.split(":")[0] for line in broken_tables(settings)] == ["table cells.csv", "table cells.parquet"]


def test_a_damaged_database_is_detected(settings: Settings) -> None:
    settings.airflow_home.mkdir()
    database = settings.airflow_home / "airflow.db"
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("CREATE TABLE runs (id TEXT PRIMARY KEY)")
        connection.executemany("INSERT INTO runs VALUES (?)", [(f"run-{number}" * 99,) for number in range(99)])
    assert broken_databases(settings) == []
    with database.open("r+b") as file:
        file.seek(3 * 4096)
        file.write(bytes(4096))
    assert [line.split(":")[0] for line in broken_databases(settings)] == ["database airflow.db"]


def test_a_formatted_kafka_storage_is_complete(settings: Settings, disk: Disk) -> None:
    (settings.home / "jars").symlink_to(load_settings().jars)
    java = find_java().executable
    prepare_kafka(settings, java)
    data = settings.home / "kafka" / "data"
    made = {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}
    assert len(made) > 1 and all(made.values())
    fail(disk)
    prepare_kafka(settings, java)
    assert {path: path.read_bytes() for path in data.rglob("*") if path.is_file()} == made


def test_an_incomplete_kafka_storage_is_formatted_again(settings: Settings) -> None:
    (settings.home / "jars").symlink_to(load_settings().jars)
    java, data = find_java().executable, settings.home / "kafka" / "data"
    prepare_kafka(settings, java)
    (data / "meta.properties").unlink()
    (data / "bootstrap.checkpoint").write_bytes(b"")
    prepare_kafka(settings, java)
    assert (data / "meta.properties").exists() and (data / "bootstrap.checkpoint").read_bytes()


def test_only_processes_of_the_installation_are_killed(settings: Settings) -> None:
    write_json(settings.home / "instance.json", {"instance": "cut-1"})
    attempt = settings.attempts / "20261121T061500Z-000001"
    make_folder(attempt)
    program = "import sys; sys.stdin.readline()"
    child = "import subprocess, sys; subprocess.Popen(['sleep', '600'], env={}); print(flush=True); sys.stdin.read()"

    def start(text: str, **environment: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-c", text], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    processes = InstallationProcesses.of(settings)
    service, run = start(child, **{INSTANCE_MARK: "cut-1"}), start(program, **{RUN_MARK: attempt.name})
    other = start(program, **{INSTANCE_MARK: "cut-2"})
    try:
        assert service.stdout is not None and service.stdout.readline()
        there = processes.alive()
        assert {service.pid, run.pid} < {one.pid for one in there} and len(there) == 3
        # One of them was not known yet.
        assert processes.kill([one for one in there if one.pid != run.pid]) == 3
        assert not [one for one in there if live_process(one.pid, one.create_time())]
        assert other.poll() is None
    finally:
        for process in (service, run, other):
            process.kill()
            process.communicate()
