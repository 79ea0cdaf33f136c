"""What a generator is told, with everything that a test does not name."""

from __future__ import annotations

from typing import Any

from generators.spec import GeneratorSpec


def spec_of(**values: Any) -> GeneratorSpec:
    base = {"bootstrap": "b:1", "topic": "t", "partitions": 2, "rate": 500, "seconds": 2, "source": "zipf"}
    return GeneratorSpec.model_validate({**base, **values})
