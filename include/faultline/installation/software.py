"""Software of an installation: versions, and one hash per set of jars.

The hashes reveal files that were changed in place. Reading all jars takes a second, so results are cached by path, size
and modification time.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import platform
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from faultline.engines.registry import ENGINES
from faultline.installation.spark import spark_home
from faultline.system.errors import InfrastructureError
from faultline.system.files import write_json
from faultline.system.hashes import file_hash, list_hash
from faultline.system.settings import ROOT, Settings

LOCKS = ("requirements.lock", "jars.lock")


def hashes(settings: Settings) -> dict[str, str]:
    """Return SHA-256 by name: of both locks, and of each existing jar set: `spark`, `spark-kafka`, `kafka`."""
    sets = {"spark": spark_home() / "jars", **{name: settings.jars / name for name in ("spark-kafka", "kafka")}}
    found = {name: file_hash(ROOT / name) for name in LOCKS if (ROOT / name).is_file()}
    return {**found, **set_hashes(sets, settings.home / "jar-hashes.json")}


def set_hashes(sets: Mapping[str, Path], cache: Path) -> dict[str, str]:
    """Return per set the hash of its jar list (SHA-256 and name per line); omit sets without jars."""
    known = _read(cache)
    found: dict[str, dict[str, str]] = {}
    for name, folder in sets.items():
        jars = sorted(folder.resolve().glob("*.jar"))
        if not jars:
            continue
        facts = [f"{jar} {status.st_size} {status.st_mtime_ns}" for jar in jars for status in [jar.stat()]]
        identity = hashlib.sha256("\n".join(facts).encode()).hexdigest()
        cached = known.get(name)
        digest = cached.get("hash") if isinstance(cached, dict) and cached.get("identity") == identity else None
        found[name] = {"identity": identity, "hash": digest if isinstance(digest, str) else list_hash(jars)}
    if found != known:
        # A failed write of the cache costs only time.
        with contextlib.suppress(InfrastructureError):
            write_json(cache, found)
    return {name: one["hash"] for name, one in found.items()}


def _read(cache: Path) -> dict[str, Any]:
    try:
        known = json.loads(cache.read_text())
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


# ---- Versions of engines, broker and Airflow ----


def versions(settings: Settings, java: str) -> dict[str, str]:
    """Return the installed versions by name; engines by the names of their packages."""
    engines = [name for engine in ENGINES.by_name.values() for name in engine.packages]
    found = {name: _installed(name) for name in ("apache-airflow", *engines, "confluent-kafka", "faultline")}
    return {**found, "kafka": kafka_version(settings), "java": java, "python": platform.python_version()}


def kafka_version(settings: Settings) -> str:
    """Return the broker's version, from its jar's name."""
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
