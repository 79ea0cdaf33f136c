"""scripts/install-debian-packages: quiet when nothing is missing, and never fatal. apt-get and id are fakes."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

PROGRAM = Path(__file__).resolve().parents[2] / "scripts" / "install-debian-packages"


PRESENT = {"sshd": "", "pg_ctlcluster": "", "memcached": ""}


def run(directory: Path, fakes: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Runs the script with a PATH of the fakes and the few tools that it calls."""
    for name in ("bash", "tail", "mktemp", "rm"):
        found = shutil.which(name, path="/usr/bin:/bin")
        assert found, name
        (directory / name).symlink_to(found)
    for name, body in fakes.items():
        (directory / name).write_text(f"#!/bin/sh\n{body}\n")
        (directory / name).chmod(0o755)
    command = [str(directory / "bash"), str(PROGRAM)]
    return subprocess.run(
        command, env={"PATH": str(directory)}, capture_output=True, text=True, check=False, timeout=30
    )


def test_nothing_missing_nothing_said(tmp_path: Path) -> None:
    done = run(tmp_path, {**PRESENT, "chromium": "", "apt-get": f"touch '{tmp_path}/called'"})
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not (tmp_path / "called").exists()


def test_missing_packages_are_installed_and_lists_fetched_only_when_needed(tmp_path: Path) -> None:
    done = run(tmp_path, {**PRESENT, "id": "echo 0", "apt-get": f"echo \"$*\" >>'{tmp_path}/called'"})
    assert done.returncode == 0
    assert (tmp_path / "called").read_text() == "install -y --no-install-recommends chromium\n"


@pytest.mark.parametrize(
    ("fakes", "words"),
    [
        ({"id": "echo 0", "apt-get": "echo no network; exit 100"}, "that failed; run: apt-get update &&"),
        ({"id": "echo 1000", "apt-get": "exit 100"}, "not root; run: sudo apt-get install"),
        ({}, "no apt-get here"),
    ],
)
def test_what_cannot_be_installed_is_said_and_is_not_fatal(tmp_path: Path, fakes: dict[str, str], words: str) -> None:
    done = run(tmp_path, {**PRESENT, **fakes})
    assert done.returncode == 0
    assert words in done.stderr and "chromium" in done.stderr
