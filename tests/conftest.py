"""Settings that hold for all tests, how thorough they are, and the installation that many of them share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import settings

from tests.integration.installation import Installation, make_installation

# A hook: that it is here makes pytest call it.
from tests.needs import pytest_runtest_makereport as pytest_runtest_makereport

# No test is timed: a busy machine makes an example slow, not wrong.
settings.register_profile("faultline", deadline=None)
settings.load_profile("faultline")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--thorough", action="store_true", help="All 10,000 seeds and 1,000 fault rounds instead of a fifth of each."
    )


@pytest.fixture(scope="session")
def share(pytestconfig: pytest.Config) -> int:
    """Divides the size of the largest random tests: 1 with --thorough, else 5."""
    return 1 if pytestconfig.getoption("--thorough") else 5


# Fixtures that are costly to make: all tests that use one run in the same process.
SHARED = ("shared_installation", "spark", "bag")


# Before pytest-xdist reads the groups.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What looks at Airflow comes last: other users of the shared installation begin while Airflow is down.

    For `--dist=loadgroup`, with which several processes run them, all tests of a costly fixture are one group, and so
    are the others of a module.
    """
    items.sort(key=lambda item: "airflow" in _fixtures(item))
    for item in items:
        group = next((name for name in SHARED if name in _fixtures(item)), item.path.stem)
        item.add_marker(pytest.mark.xdist_group(group))


def _fixtures(item: pytest.Item) -> Sequence[str]:
    """All that the test uses, also through other fixtures."""
    return getattr(item, "fixturenames", ())


@pytest.fixture(scope="session")
def shared_installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """One installation for all tests that need no fresh one, since its start costs a minute; ended at the end."""
    made = make_installation(tmp_path_factory.mktemp("installation"))
    yield made
    made.run("down")
