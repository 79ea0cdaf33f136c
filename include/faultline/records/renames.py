"""Names of schema 2 that schema 3 writes otherwise. Readers accept both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

RENAMED_SCHEMA: Final = 2
STATUSES: Final = {"unsound": "invalid"}


def renamed_record(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record of schema 2 under the names of schema 3; `values` stay as they are."""
    return {**values, "schema": RENAMED_SCHEMA + 1, "status": renamed_status(values.get("status"))}


def renamed_status(status: Any) -> Any:
    """Return the current name of a status; anything else is returned unchanged."""
    return STATUSES.get(status, status) if isinstance(status, str) else status
