"""Settings that hold for all tests, how thorough they are, and what a layer tells of its end."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.run import COUNTED, SUMMARY

# A hook: that it is here makes pytest call it.
from tests.support.needs import pytest_runtest_makereport as pytest_runtest_makereport

pytest_plugins = ("tests.support.services",)

# What an experiment of this very machine does meanwhile is none of their business; that of a test's installation is.
os.environ["FAULTLINE_MACHINE"] = f"tests-{os.getpid()}"

# Seconds for one test that sets none: above every wait for an event, whose own message says more.
os.environ.setdefault("PYTEST_TIMEOUT", "900")

# No example is timed, and none is too slow to draw: a busy machine makes it slow, not wrong. The same examples in each
# run; other ones with --thorough.
settings.register_profile(
    "faultline", deadline=None, max_examples=15, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("thorough", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("faultline")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--thorough", action="store_true", help="Also the tests that are marked so, and all seeds of the random ones."
    )


def pytest_configure(config: pytest.Config) -> None:
    """Before the tests are read, which take over what holds for all."""
    settings.load_profile("thorough" if config.getoption("--thorough") else "faultline")


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    """A command that starts something makes the files of its process private, which here others go on in."""
    before = os.umask(0o022)
    os.umask(before)
    yield
    os.umask(before)


@pytest.fixture(scope="session")
def share(pytestconfig: pytest.Config) -> int:
    """Divides the size of the largest random tests: 1 with --thorough, else 20."""
    return 1 if pytestconfig.getoption("--thorough") else 20


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the thorough tests out unless they were asked for, and puts those that others must not wait for last.

    What looks at Airflow comes late: other users of the shared installation begin while Airflow is down. At the very
    end comes what takes that installation down.
    """
    if not config.getoption("--thorough"):
        left_out = [item for item in items if item.get_closest_marker("thorough")]
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=left_out)
    items.sort(key=lambda item: (item.get_closest_marker("last") is not None, "airflow" in _fixtures(item)))


def _fixtures(item: pytest.Item) -> Sequence[str]:
    """Return all that the test uses, also through other fixtures."""
    return getattr(item, "fixturenames", ())


# Of pytest-xdist, which is there for several processes only.
@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Tests that share a cost or look at the same things stay in one process."""
    from tests.support.groups import InGroups

    return InGroups(config, log)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Tell `./faultline test` how many tests had which end, and which of them badly."""
    if SUMMARY in os.environ:
        reports = {end: terminalreporter.getreports(end) for end in COUNTED}
        bad = [report.nodeid for end in ("failed", "error") for report in reports[end]]
        counts = {end: len(found) for end, found in reports.items()}
        Path(os.environ[SUMMARY]).write_text(json.dumps({"counts": counts, "bad": bad}))
