"""`KEY=VALUE` words of the command line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from faultline.experiment.config import BUILT_IN_PATHS
from faultline.experiment.named_settings import require_known
from faultline.system.errors import ConfigError


def from_here(key: str, value: Any) -> Any:
    """The value of a parameter; a relative path is meant from here, wherever the experiment will run."""
    own = key in BUILT_IN_PATHS and isinstance(value, str) and value != BUILT_IN_PATHS[key]
    return str(Path(value).absolute()) if own else value


def split_words(given: Sequence[str], known: Sequence[str], *, example: str) -> dict[str, str]:
    """`key=value` words by key. Raises ConfigError for one that is none, is not `known`, or comes twice."""
    values: dict[str, str] = {}
    for item in given:
        key, separator, text = item.partition("=")
        if not separator:
            raise ConfigError(f"{item}: give KEY=VALUE, such as {example}")
        require_known(key, known)
        if key in values:
            raise ConfigError(f"{key}: given twice; keep one")
        values[key] = text
    return values
