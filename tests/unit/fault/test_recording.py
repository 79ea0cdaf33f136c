"""Recordings of a host with real processes, and counters of control groups."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from fault import host_recorder
from fault.errors import VictimRefused
from fault.host_recorder import group_usage
from tests.unit.fault.conftest import until

MARK = f"of-{uuid.uuid4().hex}"
RULES = [{"role": "executors", "main": "Main", "mark": MARK}]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of recordings, which sample ten times per second here."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(host_recorder, "PERIOD_S", 0.1)
    return tmp_path


@pytest.fixture
def spinning() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "while True: pass", "Main", MARK]) as process:
        yield process
        process.kill()


def lines(folder: str) -> list[dict[str, object]]:
    text, size = b"", 1000
    while part := base64.b64decode(host_recorder.read_part(folder, len(text), size)):
        text += part
    return [json.loads(line) for line in text.splitlines()]


def test_recording_continues_until_stopped(place: Path, spinning: subprocess.Popen[bytes]) -> None:
    own = psutil.Process()
    before = own.children()
    folder = host_recorder.start_recording(RULES, {}, 60.0, 60.0)
    assert own.children() == before, "it is detached"
    assert Path(folder).stat().st_mode & 0o777 == 0o700
    until(lambda: any(float(str(line.get("cpu_s", 0))) > 0.2 and "pid" in line for line in lines(folder)), "work")
    spinning.kill()
    spinning.wait()
    until(lambda: any(line.get("final") for line in lines(folder)), "the last of it")
    assert host_recorder.stop_recording(folder)
    found = lines(folder)
    assert found[0]["kind"] == "start" and found[-1]["kind"] == "stop"
    of_it = [line for line in found if line["kind"] == "proc"]
    assert {line["pid"] for line in of_it} == {spinning.pid} and {line["role"] for line in of_it} == {"executors"}
    used = [float(str(line["cpu_s"])) for line in of_it]
    assert used == sorted(used) and used[-1] > 0.2 and of_it[-1]["final"]
    walls = [int(str(line["wall_ns"])) for line in found]
    assert walls == sorted(walls)
    assert {"machine", "group"} <= {str(line["kind"]) for line in found}
    host_recorder.remove_recording(folder)
    assert not Path(folder).exists()
    host_recorder.remove_recording(folder)


def test_recording_ends_after_its_maximum_time(place: Path) -> None:
    folder = host_recorder.start_recording(RULES, {}, 60.0, 0.3)
    until(lambda: lines(folder)[-1]["kind"] == "stop", "its end")
    host_recorder.remove_recording(folder)


def test_a_recording_whose_folder_was_removed_ends(place: Path) -> None:
    folder = host_recorder.start_recording(RULES, {}, 60.0, 60.0)
    open_files = [(one, one.info["open_files"] or ()) for one in psutil.process_iter(["open_files"])]
    (own,) = [one for one, files in open_files if any(folder in file.path for file in files)]
    shutil.rmtree(folder)
    own.wait(120)


def test_only_recordings_are_read_or_removed(place: Path) -> None:
    (place / "other").mkdir()
    (place / "faultline-record-link").symlink_to(place / "other")
    (place / "faultline-record-file").touch()
    outside = place / "below"
    outside.mkdir()
    (outside / "faultline-record-x").mkdir()
    for folder in ("other", "faultline-record-link", "faultline-record-file", "below/faultline-record-x", "."):
        for act in (
            host_recorder.stop_recording,
            host_recorder.remove_recording,
            lambda one: host_recorder.read_part(one, 0, 1),
        ):
            with pytest.raises(VictimRefused, match="^record: "):
                act(str(place / folder))
    assert (place / "other").is_dir() and (outside / "faultline-record-x").is_dir()
    if os.geteuid() == 0:
        (place / "faultline-record-foreign").mkdir()
        os.chown(place / "faultline-record-foreign", 65534, 65534)
        with pytest.raises(VictimRefused):
            host_recorder.remove_recording(str(place / "faultline-record-foreign"))


def test_cgroups_v1_and_v2_are_read(tmp_path: Path) -> None:
    own, root = tmp_path / "own", tmp_path / "root"
    first = root / "cpu,cpuacct" / "a" / "b"
    first.mkdir(parents=True)
    (first / "cpuacct.usage").write_text("2500000000\n")
    (root / "memory" / "m").mkdir(parents=True)
    (root / "memory" / "m" / "memory.usage_in_bytes").write_text("4096\n")
    own.write_text("4:memory:/m\n3:cpu,cpuacct:/a/b\n0::/\n")
    assert group_usage(own, root) == {"path": "/a/b", "cpu_s": 2.5, "memory_bytes": 4096}
    second = tmp_path / "second" / "x.slice"
    second.mkdir(parents=True)
    (second / "cpu.stat").write_text("usage_usec 1500000\nuser_usec 1\n")
    (second / "memory.current").write_text("8192\n")
    own.write_text("0::/x.slice\n")
    assert group_usage(own, tmp_path / "second") == {"path": "/x.slice", "cpu_s": 1.5, "memory_bytes": 8192}
    own.write_text("")
    assert group_usage(own, root) == {"path": None, "cpu_s": None, "memory_bytes": None}
    assert group_usage(tmp_path / "none", root) == {"path": None, "cpu_s": None, "memory_bytes": None}
