"""Specifications with defaults for tests, and files for generators."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from generators.spec import GeneratorSpec


def written(folder: Path, name: str, content: str | bytes) -> str:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


def spec_of(**values: Any) -> GeneratorSpec:
    base = {"bootstrap": "b:1", "topic": "t", "partitions": 2, "rate": 500, "seconds": 2, "source": "zipf"}
    return GeneratorSpec.model_validate({**base, **values})
