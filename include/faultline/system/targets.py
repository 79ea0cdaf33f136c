"""Files that a command is told to write: looked at before it works, so that it need not find out afterwards."""

from __future__ import annotations

import os
from pathlib import Path

from faultline.system.errors import ConfigError


def check_target(path: Path, option: str) -> None:
    """Raises ConfigError naming the `option` where no file can be written at `path`. Makes nothing."""

    def refuse(why: str) -> ConfigError:
        return ConfigError(f"{option} {path}: {why}; name a file that can be written")

    if path.is_dir() or not path.name:
        raise refuse("is a folder")
    if path.exists():
        if not os.access(path, os.W_OK):
            raise refuse("cannot be written")
        return
    # The folder may be made by whoever writes; then it is the nearest one there is that must take it.
    folder = path.absolute().parent
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir():
        raise refuse(f"{folder} is no folder")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise refuse(f"{folder} cannot be written to")
