"""A real Chromium, Debian's own, without a network."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's Chromium; a machine without it fails here, naming the package."""
    program = shutil.which("chromium")
    if program is None:
        pytest.fail("chromium is missing; install the Debian package: apt-get install -y chromium", pytrace=False)
    # Chromium refuses its sandbox to root. No name resolves, so that nothing outside can be reached by accident.
    options = ["--host-resolver-rules=MAP * ~NOTFOUND", "--disable-dev-shm-usage"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program, args=options, chromium_sandbox=os.geteuid() != 0, timeout=30_000
        )
        yield browser
        browser.close()


@pytest.fixture
def artefacts(request: pytest.FixtureRequest) -> Path:
    """A folder for screenshots that outlives the test, one for each test."""
    home = Path(os.environ.get("FAULTLINE_HOME") or ROOT / ".faultline")
    folder = home / "test-artefacts" / request.node.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
