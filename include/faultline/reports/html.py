"""Making HTML: the templates, and figures as data that a page's own script draws."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import plotly.graph_objects as go
from markupsafe import Markup

TEMPLATES = Path(__file__).parent / "templates"


@cache
def environment() -> jinja2.Environment:
    """The templates. All texts are escaped, and a name that a template does not get is an error."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True, undefined=jinja2.StrictUndefined
    )


@cache
def own_text(name: str) -> str:
    """A style sheet or script of the project's own."""
    return (TEMPLATES / name).read_text(encoding="utf-8")


def figures_json(figures: Mapping[str, go.Figure]) -> Markup:
    """Traces and layout of each figure by name, for a script element that holds data.

    Without plotly's template, which the page's own theme replaces.
    """
    return Markup(_as_json({name: _stripped(figure) for name, figure in figures.items()}))


def _stripped(figure: go.Figure) -> dict[str, Any]:
    """Traces and layout without plotly's template, which the page's own theme replaces."""
    content: dict[str, Any] = figure.to_plotly_json()
    content["layout"].pop("template", None)
    return content


def _as_json(content: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    try:
        text = json.dumps(content, allow_nan=False, separators=(",", ":"))
    except ValueError:
        # What is not finite has no place in a figure, and must not cost the page.
        text = json.dumps(_finite(content), allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _finite(content: Any) -> Any:
    """A copy of `content`, however deep, with None in place of each number that is not finite."""
    if isinstance(content, Mapping):
        return {name: _finite(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content
