"""The linter, the formatter and the type checker find nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from faultline.base.settings import ROOT


@pytest.mark.timeout(300)
@pytest.mark.parametrize("command", ["ruff check .", "ruff format --check .", "mypy"])
def test_nothing_to_complain_about(command: str, tmp_path: Path) -> None:
    arguments = command.split()
    cache = {"ruff": ["--no-cache"], "mypy": ["--cache-dir", str(tmp_path)]}[arguments[0]]
    whole = [sys.executable, "-m", *arguments, *cache]
    done = subprocess.run(whole, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
