"""Programs that a machine may lack: what needs one skips, and the summary has one line for each Debian package."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from tests import run as debian


class Missing(pytest.skip.Exception):
    """A program is not there."""


def needed(program: str) -> str:
    """Return the program's path; skip the test, or each test of the fixture, if it is missing."""
    found = debian.find_program(program)
    if found is None:
        raise Missing(f"{program} is missing: {debian.INSTALL} {debian.package_of(program)}")
    return found


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Give all that lack a program the same place: the summary folds skips of one place and reason into a line."""
    report = yield
    if call.excinfo and isinstance(call.excinfo.value, Missing):
        report.longrepr = (__file__, needed.__code__.co_firstlineno, f"Skipped: {call.excinfo.value}")
    return report
