"""Fixtures: Debian's Chromium without network access, and a real Airflow."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from faultline.cli.sweep_runner import await_dags
from faultline.experiment.matrices import MATRICES
from faultline.orchestration.airflow_api import AirflowApi
from tests.support.airflow_ui import STEP_MS, Ui, window
from tests.support.installation import Installation
from tests.support.needs import needed

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's Chromium."""
    program = needed("chromium")
    # Chromium cannot run its sandbox as root. No host name resolves, so that no external host is reachable.
    options = ["--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--disable-dev-shm-usage"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program, args=options, chromium_sandbox=os.geteuid() != 0, timeout=STEP_MS
        )
        expect.set_options(timeout=STEP_MS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def airflow(shared_installation: Installation) -> Installation:
    """The shared installation, with all DAGs unpaused."""
    up = shared_installation.run("up")
    assert up.returncode == 0, up.stderr
    await_dags(AirflowApi(shared_installation.settings), "experiment", *MATRICES)
    return shared_installation


@pytest.fixture(scope="module")
def ui(browser: Browser, airflow: Installation) -> Iterator[Ui]:
    """A window on Airflow's UI after login."""
    with window(browser, airflow) as ui:
        ui.open("/")
        ui.log_in()
        yield ui


@pytest.fixture
def artefacts(request: pytest.FixtureRequest) -> Path:
    """An empty folder for screenshots, kept after the test."""
    return artefact_folder(request.node.name)


def artefact_folder(name: str) -> Path:
    """Return an empty folder for files that tests leave behind."""
    home = Path(os.environ.get("FAULTLINE_HOME") or ROOT / ".faultline")
    folder = home / "test-artefacts" / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
