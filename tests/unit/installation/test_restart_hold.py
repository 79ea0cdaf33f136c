"""A hold keeps a service down until its instant, and ends by its own clock."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from faultline.installation.start import lay_hold, wait_out
from faultline.system.journal import read_journal


def test_without_a_hold_nothing_waits(tmp_path: Path) -> None:
    assert wait_out(tmp_path / "kafka.json") < 60


def test_a_hold_lasts_until_its_instant_and_a_past_one_not_at_all(tmp_path: Path) -> None:
    until = time.monotonic_ns() + 300_000_000
    lay_hold(tmp_path / "holds" / "kafka.json", until)
    wait_out(tmp_path / "holds" / "kafka.json")
    assert time.monotonic_ns() >= until
    assert wait_out(tmp_path / "holds" / "kafka.json") < 60


def test_a_hold_without_end_or_sense_does_not_keep_a_service_for_ever(tmp_path: Path) -> None:
    lay_hold(tmp_path / "kafka.json", time.monotonic_ns() + 10**13)
    assert 0.1 <= wait_out(tmp_path / "kafka.json", longest_s=0.1) < 60
    (tmp_path / "kafka.json").write_text("{half a")
    assert wait_out(tmp_path / "kafka.json") < 60


def start(folder: Path, journal: Path) -> int:
    """Starts a service that ends at once; the pid of its start."""
    specification = {
        "service": "kafka",
        "command": [sys.executable, "-c", "import os; print(os.getpid())"],
        "hold": str(folder / "hold.json"),
        "journal": str(journal),
    }
    (folder / "kafka.json").write_text(json.dumps(specification))
    command = [sys.executable, "-P", "-m", "faultline.installation.start", "held", str(folder / "kafka.json")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0 and int(output) == process.pid, "supervisord watches the service itself"
    return process.pid


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device here that is always full")
def test_a_service_starts_also_where_there_is_no_room_to_journal_it(tmp_path: Path) -> None:
    start(tmp_path, Path("/dev/full"))


def test_the_service_takes_the_place_of_its_start_and_the_start_is_journalled(tmp_path: Path) -> None:
    pid = start(tmp_path, tmp_path / "services.jsonl")
    (line,) = read_journal(tmp_path / "services.jsonl")
    assert (line["event"], line["service"], line["pid"]) == ("started", "kafka", pid)
