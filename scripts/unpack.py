"""Unpack a bundle into a results folder.

.faultline/venv/bin/python scripts/unpack.py FILE.tar.xz FOLDER

FOLDER must not exist. Every command can read it: `FAULTLINE_RESULTS=FOLDER ./faultline explain last`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "include"), str(ROOT)]

from faultline.records.bundle import read_bundle
from faultline.system.errors import ConfigError, FaultlineError


def unpack(path: Path, folder: Path) -> None:
    """Write the content of a bundle to a new folder. Raises ConfigError if the folder exists."""
    if folder.exists():
        raise ConfigError(f"FOLDER: got {folder}, which exists; expected a new folder")
    read_bundle(path).unpack(folder)


def main(arguments: list[str] | None = None) -> int:
    """Unpack and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("bundle", type=Path, metavar="FILE.tar.xz")
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    given = parser.parse_args(arguments)
    try:
        unpack(given.bundle, given.folder)
    except FaultlineError as error:
        print(f"unpack: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
