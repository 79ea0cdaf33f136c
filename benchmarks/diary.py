"""What a long benchmark has done, a line each on disk, so that it goes on where it was interrupted."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from faultline.system.journal import Journal, read_journal


class Diary:
    """Acts and sweeps that are done. A crash of the benchmark itself loses none.

    An act is what is done to a sweep, such as `kill`, with a `number`.
    """

    def __init__(self, path: Path, act: str) -> None:
        # Benchmarks of before there was a journal said `kind`.
        self._lines = [{"event": line.get("kind"), **line} for line in read_journal(path)]
        self._journal = Journal(path)
        self._act = act

    def note(self, kind: str, **facts: Any) -> None:
        """Adds a line and writes it to disk."""
        self._lines.append({"event": kind, **facts})
        self._journal.append(self._lines[-1], sync=True)

    @property
    def acts(self) -> list[dict[str, Any]]:
        return [line for line in self._lines if line["event"] == self._act]

    @property
    def done(self) -> set[int]:
        """Numbers of the acts that were done."""
        return {line["number"] for line in self.acts}

    @property
    def sweeps(self) -> list[dict[str, Any]]:
        return [line for line in self._lines if line["event"] == "sweep"]

    @property
    def unfinished(self) -> list[dict[str, Any]]:
        """Runs of sweeps that were triggered and not counted, as an interrupted call leaves them; by series."""
        counted = {line["series"] for line in self.sweeps}
        runs = [line for line in self._lines if line["event"] == "run" and line["series"] not in counted]
        series = dict.fromkeys(line["series"] for line in runs)
        return [{"series": one, "runs": [line["run_id"] for line in runs if line["series"] == one]} for one in series]

    def move_aside(self) -> None:
        """Keeps the journal under the present time; the next one begins empty."""
        self._journal.close()
        path = self._journal.path
        path.rename(path.with_name(f"{path.stem}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.jsonl"))
