"""JSON over HTTP, from services of this installation."""

from __future__ import annotations

import json
import urllib.request
from typing import Any


def fetch(url: str, *, timeout_s: float = 3.0) -> Any:
    """GET of a loopback address, never through a proxy; None when it does not answer with JSON."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=timeout_s) as answer:
            return json.load(answer)
    except (OSError, ValueError):
        return None


def fetch_json(url: str, *, timeout_s: float = 3.0) -> dict[str, object] | None:
    """GET of a loopback address; None when it does not answer with a JSON object."""
    value = fetch(url, timeout_s=timeout_s)
    return value if isinstance(value, dict) else None
