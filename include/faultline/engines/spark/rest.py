"""Spark's REST, as the driver serves it."""

from __future__ import annotations

from typing import Any

from faultline.system.http import fetch


def fetch_list(url: str) -> list[dict[str, Any]]:
    """A JSON array from Spark's REST; empty when the driver does not answer."""
    value: Any = fetch(url, timeout_s=1.0)
    return value if isinstance(value, list) else []
