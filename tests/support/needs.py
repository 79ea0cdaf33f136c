"""Optional programs: a test that needs a missing one is skipped; the summary has one line per Debian package."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from tests import run as debian


class Missing(pytest.skip.Exception):
    """Skip because of a missing program."""


def needed(program: str) -> str:
    """Return the path of a program; if it is missing, skip the test, or all tests of the calling fixture."""
    found = debian.find_program(program)
    if found is None:
        raise Missing(f"{program} is missing: {debian.INSTALL} {debian.package_of(program)}")
    return found


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Give skips for missing programs one location, so that the summary folds them into one line."""
    report = yield
    if call.excinfo and isinstance(call.excinfo.value, Missing):
        report.longrepr = (__file__, needed.__code__.co_firstlineno, f"Skipped: {call.excinfo.value}")
    return report
