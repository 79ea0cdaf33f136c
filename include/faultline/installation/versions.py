"""Versions of the engines, of the broker, and of what drives them."""

from __future__ import annotations

import platform
from importlib.metadata import version

from faultline.engines.registry import ENGINES
from faultline.system.settings import Settings


def versions(settings: Settings, java: str) -> dict[str, str]:
    """By name, of what is installed here; those of engines as their packages are called."""
    engines = [name for engine in ENGINES.by_name.values() for name in engine.packages]
    found = {name: _installed(name) for name in ("apache-airflow", *engines, "confluent-kafka", "faultline")}
    return {**found, "kafka": kafka_version(settings), "java": java, "python": platform.python_version()}


def kafka_version(settings: Settings) -> str:
    """Version of the broker, from its jar's name."""
    for jar in sorted((settings.jars / "kafka").glob("kafka_2.13-*.jar")):
        return jar.stem.split("-", 1)[1]
    return "unknown"


def _installed(name: str) -> str:
    from importlib.metadata import PackageNotFoundError

    try:
        return version(name)
    except PackageNotFoundError:
        from faultline import __version__

        return __version__ if name == "faultline" else "unknown"
