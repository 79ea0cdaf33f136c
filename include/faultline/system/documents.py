"""Raw files that hold one JSON object each, and what is said of one that is missing or broken."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from faultline.system.errors import InfrastructureError


def require(path: Path) -> None:
    """Raises InfrastructureError, naming the file and a remedy, when it is missing."""
    if not path.exists():
        raise InfrastructureError(f"{path}: missing; clear the task that writes it, or run the experiment again")


def read_document(path: Path) -> dict[str, Any]:
    """The object in a file. Raises InfrastructureError when the file is missing or holds anything else."""
    require(path)
    try:
        value = json.loads(path.read_text())
    except ValueError:
        raise InfrastructureError(f"{path}: not JSON; clear the task that writes it") from None
    if not isinstance(value, dict):
        raise InfrastructureError(f"{path}: not a JSON object; clear the task that writes it")
    return value
