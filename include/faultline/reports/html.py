"""Making HTML: the templates, and figures as data that a page's own script draws.

Plotly reads a little HTML in whatever text it draws, links among it. So here, where every figure passes, all texts of a
figure are escaped: who makes one writes them as they are, and a new line as `\n`. Only templates may hold markup, and
nothing that comes from a record.
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
# What plotly fills in itself, and the only marks in it.
_TEMPLATE_KEYS = ("hovertemplate", "texttemplate")
_FOREIGN_MARKUP = re.compile(r"<(?!br>|/?extra>)")


@cache
def environment() -> jinja2.Environment:
    """The templates. All texts are escaped, and a name that a template does not get is an error."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True, undefined=jinja2.StrictUndefined
    )


@cache
def template_text(name: str) -> str:
    """A style sheet or script of the project's own."""
    return (TEMPLATES / name).read_text(encoding="utf-8")


def figures_json(figures: Mapping[str, go.Figure]) -> Markup:
    """Traces and layout of each figure by name, for a script element that holds data.

    Without plotly's template, which the page's own theme replaces.
    """
    return Markup(_as_json({name: _without_template(figure) for name, figure in figures.items()}))


def _without_template(figure: go.Figure) -> dict[str, Any]:
    """Traces and layout without plotly's template, which the page's own theme replaces."""
    content: dict[str, Any] = figure.to_plotly_json()
    content["layout"].pop("template", None)
    return {name: _escaped_copy(value) for name, value in content.items()}


def _escaped_copy(content: Any) -> Any:
    """A copy in which plotly reads each text as it is written, but for templates."""
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
    """JSON that cannot end the script element it stands in, nor be taken for an attribute by what looks for links."""
    try:
        text = json.dumps(content, allow_nan=False, separators=(",", ":"))
    except ValueError:
        # What is not finite has no place in a figure, and must not cost the page.
        text = json.dumps(_finite_copy(content), allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026").replace("'", "\\u0027")


def _finite_copy(content: Any) -> Any:
    """A copy of `content`, however deep, with None in place of each number that is not finite."""
    if isinstance(content, Mapping):
        return {name: _finite_copy(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [_finite_copy(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


# Style sheets and scripts of the pages. All of them are local: the pages need no network.

STYLE, SCRIPT = "text/css", "text/javascript"
PLOTLY = "plotly.min.js"
# Each of the project's own is made of these files, in order.
_BUNDLES = {
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
    if name not in _BUNDLES:
        return None
    media_type, parts = _BUNDLES[name]
    return Asset(media_type, "\n".join(template_text(part) for part in parts))


@cache
def asset_version(name: str) -> str:
    """A short text that changes with the content."""
    found = asset(name)
    if found is None:
        raise KeyError(name)
    return str(plotly.__version__) if found.path else f"{zlib.crc32(found.text.encode()):08x}"
