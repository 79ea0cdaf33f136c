"""HTML rendering: templates, and figures as JSON data for the script of a page.

Plotly interprets some HTML, including links, in all texts. All figures pass through this module, which escapes their
texts; code that builds figures writes plain text with `\n` for line breaks. Only hover and text templates may contain
markup, but no text of a record.
"""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
import plotly
import plotly.graph_objects as go
from markupsafe import Markup

TEMPLATES = Path(__file__).parent / "templates"
# Keys of templates that plotly fills in; `_FOREIGN_MARKUP` matches all tags except plotly's own.
_TEMPLATE_KEYS = ("hovertemplate", "texttemplate")
_FOREIGN_MARKUP = re.compile(r"<(?!br>|/?extra>)")


@cache
def environment() -> jinja2.Environment:
    """Return the template environment, which escapes all texts and rejects undefined names."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True, undefined=jinja2.StrictUndefined
    )


@cache
def template_text(name: str) -> str:
    """Return a style sheet or script of the project."""
    return (TEMPLATES / name).read_text(encoding="utf-8")


def figures_json(figures: Mapping[str, go.Figure]) -> Markup:
    """Return traces and layout of each figure by name, as JSON for a script element."""
    return Markup(_as_json({name: _without_template(figure) for name, figure in figures.items()}))


def _without_template(figure: go.Figure) -> dict[str, Any]:
    """Return traces and layout without plotly's template, which the theme of the page replaces."""
    content: dict[str, Any] = figure.to_plotly_json()
    content["layout"].pop("template", None)
    return {name: _escaped_copy(value) for name, value in content.items()}


def _escaped_copy(content: Any) -> Any:
    """Return a copy with all texts escaped for plotly, except templates."""
    if isinstance(content, str):
        return escape(content, quote=False).replace("\n", "<br>")
    if isinstance(content, Mapping):
        return {
            name: _escaped_template(value) if name in _TEMPLATE_KEYS else _escaped_copy(value)
            for name, value in content.items()
        }
    if isinstance(content, list | tuple):
        return [_escaped_copy(value) for value in content]
    return content


def _escaped_template(text: Any) -> Any:
    return _FOREIGN_MARKUP.sub("&lt;", text) if isinstance(text, str) else _escaped_copy(text)


def _as_json(content: Any) -> str:
    """Return JSON without characters that could end its script element or look like an attribute."""
    try:
        text = json.dumps(content, allow_nan=False, separators=(",", ":"))
    except ValueError:
        # Non-finite numbers become gaps instead of an error.
        text = json.dumps(_finite_copy(content), allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026").replace("'", "\\u0027")


def _finite_copy(content: Any) -> Any:
    """Return a deep copy of `content` with None for each non-finite number."""
    if isinstance(content, Mapping):
        return {name: _finite_copy(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [_finite_copy(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


# Style sheets and scripts of the pages, all local.

STYLE, SCRIPT = "text/css", "text/javascript"
PLOTLY = "plotly.min.js"
# Media type and source files of each bundled asset.
_BUNDLES = {
    "style.css": (STYLE, ("report.css", "pages.css")),
    "pages.js": (SCRIPT, ("pages.js",)),
    "figures.js": (SCRIPT, ("report.js",)),
}


@dataclass(frozen=True)
class Asset:
    """File to serve: media type, and text or path."""

    media_type: str
    text: str = ""
    path: Path | None = None


@cache
def asset(name: str) -> Asset | None:
    """Return the asset of that name, or None; names are looked up and never used as paths."""
    if name == PLOTLY:
        return Asset(SCRIPT, path=Path(str(files("plotly") / "package_data" / PLOTLY)))
    if name not in _BUNDLES:
        return None
    media_type, parts = _BUNDLES[name]
    return Asset(media_type, "\n".join(template_text(part) for part in parts))


@cache
def asset_version(name: str) -> str:
    """Return a short version that changes with the content."""
    found = asset(name)
    if found is None:
        raise KeyError(name)
    return str(plotly.__version__) if found.path else f"{zlib.crc32(found.text.encode()):08x}"
