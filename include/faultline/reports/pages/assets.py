"""Style sheets and scripts of the pages. All of them are local: the pages need no network."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

import plotly

from faultline.reports.html import own_text

STYLE, SCRIPT = "text/css", "text/javascript"
PLOTLY = "plotly.min.js"
# Each of the project's own is made of these files, in order.
_OWN = {
    "style.css": (STYLE, ("report.css", "pages.css")),
    "pages.js": (SCRIPT, ("pages.js",)),
    "figures.js": (SCRIPT, ("report.js",)),
}


@dataclass(frozen=True)
class Asset:
    """A file to serve: its media type, and its text or where it lies."""

    media_type: str
    text: str = ""
    path: Path | None = None


@cache
def asset(name: str) -> Asset | None:
    """The asset of that name, or None; a name is looked up, never made into a path."""
    if name == PLOTLY:
        return Asset(SCRIPT, path=Path(str(files("plotly") / "package_data" / PLOTLY)))
    if name not in _OWN:
        return None
    media_type, parts = _OWN[name]
    return Asset(media_type, "\n".join(own_text(part) for part in parts))


@cache
def asset_version(name: str) -> str:
    """A short text that changes with the content."""
    found = asset(name)
    if found is None:
        raise KeyError(name)
    return str(plotly.__version__) if found.path else f"{zlib.crc32(found.text.encode()):08x}"
