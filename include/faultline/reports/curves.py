"""An attempt over time: as its judgement left it in `series.json`, else made of its raw files.

A bundle that was unpacked has no `series.json`: what a record can be made of, that can be, too.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

FILE = "series.json"
_TUPLES = Path("harvest", "tuples.parquet")
# A page is loaded more than once, and making them takes a second.
_KEPT = 8


def are_known(folder: Path) -> bool:
    """Whether `curves_of` has something to read in the attempt's folder."""
    return any((folder / name).exists() for name in (FILE, _TUPLES))


def curves_of(folder: Path) -> Any:
    """The content of `series.json`, or what it would be.

    Raises FileNotFoundError where there are no raw files either, InfrastructureError naming the raw file that nothing
    can be made of, and OSError, ValueError or RecursionError for a `series.json` that cannot be read.
    """
    try:
        return json.loads((folder / FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return _made(folder, (folder / _TUPLES).stat().st_mtime_ns)


@functools.lru_cache(maxsize=_KEPT)
def _made(folder: Path, mtime_ns: int) -> Any:
    # Most pages need nothing that judges.
    from faultline.records.judge.judge import course

    return course(folder)
