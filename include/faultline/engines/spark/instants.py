"""Instants as Spark writes them."""

from __future__ import annotations

from datetime import datetime


def spark_instant_ns(text: str) -> int:
    """Nanoseconds of a UTC time as Spark writes it: `…T05:55:03.123GMT` or `…T05:55:03.123Z`."""
    moment = datetime.fromisoformat(text.replace("GMT", "+00:00").replace("Z", "+00:00"))
    return round(moment.timestamp() * 1000) * 1_000_000
