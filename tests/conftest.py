"""Settings and hooks for all tests."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.run import COUNTED, SUMMARY

# A hook: pytest calls it because it is imported here.
from tests.support.needs import pytest_runtest_makereport as pytest_runtest_makereport

pytest_plugins = ("tests.support.services",)

# A machine lock of its own isolates the tests from experiments on this machine.
os.environ["FAULTLINE_MACHINE"] = f"tests-{os.getpid()}"

# Default limit per test in seconds, longer than any wait for an event, whose own timeout has a more specific message.
os.environ.setdefault("PYTEST_TIMEOUT", "900")

# No deadlines, because the machine may be busy. The examples are the same in each run, but random with --thorough.
settings.register_profile(
    "faultline", deadline=None, max_examples=15, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("thorough", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("faultline")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--thorough", action="store_true", help="Also run tests marked thorough, and all random examples.")


def pytest_configure(config: pytest.Config) -> None:
    """Select the profile before collection, since tests take their settings from it."""
    settings.load_profile("thorough" if config.getoption("--thorough") else "faultline")


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    """Restore the umask after the test, since commands that start services change it."""
    before = os.umask(0o022)
    os.umask(before)
    yield
    os.umask(before)


@pytest.fixture(scope="session")
def share(pytestconfig: pytest.Config) -> int:
    """Divisor of the size of the largest random tests: 1 with --thorough, else 20."""
    return 1 if pytestconfig.getoption("--thorough") else 20


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect thorough tests unless requested, and sort the others.

    Tests with the fixture `airflow` run late, since other tests of the shared installation start while Airflow is down.
    Tests that stop the installation run last.
    """
    if not config.getoption("--thorough"):
        left_out = [item for item in items if item.get_closest_marker("thorough")]
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=left_out)
    items.sort(key=lambda item: (item.get_closest_marker("last") is not None, "airflow" in _fixtures(item)))


def _fixtures(item: pytest.Item) -> Sequence[str]:
    """Return all fixtures of a test, including indirect ones."""
    return getattr(item, "fixturenames", ())


# A hook of pytest-xdist, which may be inactive.
@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Return the scheduler that keeps tests with shared fixtures in one process."""
    from tests.support.groups import InGroups

    return InGroups(config, log)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Write the outcome counts and the failed tests for `./faultline test`."""
    if SUMMARY in os.environ:
        reports = {end: terminalreporter.getreports(end) for end in COUNTED}
        bad = [report.nodeid for end in ("failed", "error") for report in reports[end]]
        counts = {end: len(found) for end, found in reports.items()}
        Path(os.environ[SUMMARY]).write_text(json.dumps({"counts": counts, "bad": bad}))
