"""Settings that hold for all tests, and how thorough they are."""

from __future__ import annotations

import pytest
from hypothesis import settings

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
