"""Progress of a job on Flink, read from its checkpoints, or from its logs if it takes none."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from faultline.engines.flink.checkpoints import completed_in, numbers_in, offsets_or_none
from faultline.engines.flink.live import LogTails
from faultline.engines.flink.traces import TASK_MANAGER_LOGS, positions_of
from faultline.engines.protocol import Commit, Offsets

POLL_S = 0.003


class CheckpointCommits:
    """Reader of the completed checkpoints in `folder` as commits; `topic`: the input.

    Checkpoints that Flink has removed since the first call are remembered.
    """

    def __init__(self, folder: Path, topic: str) -> None:
        self._folder, self._topic = folder, topic
        self._commits: dict[int, Commit] = {}

    def __call__(self) -> list[Commit]:
        for one in completed_in(self._folder):
            if one.number not in self._commits and (ends := offsets_or_none(one, self._topic)):
                self._commits[one.number] = Commit(0, one.number, None, one.completed_ns, ends)
        return [commit for _, commit in sorted(self._commits.items())]


class LoggedPositions:
    """Reader of the source positions that TaskManagers log, in place of commits; `folder`: of the logs."""

    def __init__(self, folder: Path) -> None:
        self._logs = LogTails(folder)

    def __call__(self) -> list[Commit]:
        return positions_of(self._logs.read(TASK_MANAGER_LOGS))


class JobProgress:
    """Progress of a job; see `faultline.engines.protocol.Progress`. `read` returns its commits so far.

    `folder`: of its checkpoints.
    """

    def __init__(self, folder: Path, read: Callable[[], list[Commit]]) -> None:
        self._folder, self._read = folder, read

    def committed(self) -> Offsets:
        commits = self._read()
        return commits[-1].ends if commits else {}

    def covering(self, offsets: Offsets) -> int:
        return sum(one.covers(offsets) for one in self._read())

    def commits_since(self, wall_ns: int) -> Sequence[Commit]:
        return [one for one in self._read() if one.committed_ns > wall_ns]

    def runs(self) -> int:
        """Return at most 1: a restarted job continues the work of the killed one."""
        return min(1, len(self._read()))

    def last_commit_ns(self) -> int:
        commits = self._read()
        return commits[-1].committed_ns if commits else 0

    def await_cycle(self, cycle: str, not_before_ns: int, until_mono_ns: int) -> int | None:
        """Return when the next checkpoint was triggered: its folder appears."""
        known: set[int] | None = None
        while True:
            seen_ns, found = time.time_ns(), set(numbers_in(self._folder))
            if known is not None and found - known and seen_ns >= not_before_ns:
                return seen_ns
            # Folders that appear before `not_before_ns` are not awaited.
            known = found if known is None or seen_ns < not_before_ns else known | found
            if time.monotonic_ns() >= until_mono_ns:
                return None
            time.sleep(POLL_S)
