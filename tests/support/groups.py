"""Which tests stay together when several processes run them: those of a file, and those of a folder that shares a cost.

A scheduler of our own, since the groups of pytest-xdist 3.8 do nothing with pytest 9.2.
"""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling

# One Spark session; one reading of all DAGs; looks at all processes of the machine, in which others' must not appear.
TOGETHER = ("tests/component/spark/", "tests/dags/", "tests/unit/fault/")


def group_of(nodeid: str) -> str:
    """Return the name of the group of a test."""
    file = nodeid.partition("::")[0]
    return next((folder for folder in TOGETHER if file.startswith(folder)), file)


class InGroups(LoadScopeScheduling):
    """Hands out whole groups, in the order in which they were collected."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)
