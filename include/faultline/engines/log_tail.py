"""Logs that are being written."""

from __future__ import annotations

from pathlib import Path


class LogTail:
    """Reader of a log that is being written; yields each complete line once."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset = path, 0

    def new_lines(self) -> list[str]:
        """Return the lines completed since the last call; none if the log cannot be read."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except OSError:
            return []
        complete = data[: data.rfind(b"\n") + 1]
        self._offset += len(complete)
        return complete.decode(errors="replace").splitlines()
