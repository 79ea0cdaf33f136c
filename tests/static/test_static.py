"""The linter, the formatter and the type checker find nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest

from faultline.base.settings import ROOT, load_settings


@pytest.mark.timeout(300)
@pytest.mark.parametrize("command", ["ruff check .", "ruff format --check .", "mypy"])
def test_nothing_to_complain_about(command: str) -> None:
    # What did not change since the last time is not looked at again.
    cache = ["--cache-dir", str(load_settings().home / "caches" / command.split()[0])]
    whole = [sys.executable, "-m", *command.split(), *cache]
    done = subprocess.run(whole, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
