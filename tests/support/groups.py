"""Scheduler of parallel tests: the tests of a file, or of a folder with shared fixtures, run in one process.

It is needed because the groups of pytest-xdist 3.8 have no effect with pytest 9.2.
"""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling

# Tests of these share a Spark session or parsed DAGs, or scan all processes and must not see those of other tests.
TOGETHER = ("tests/component/spark/", "tests/dags/", "tests/unit/fault/")


def group_of(nodeid: str) -> str:
    """Return the name of the group of a test."""
    file = nodeid.partition("::")[0]
    return next((folder for folder in TOGETHER if file.startswith(folder)), file)


class InGroups(LoadScopeScheduling):
    """Scheduler of whole groups in the order of collection."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)
