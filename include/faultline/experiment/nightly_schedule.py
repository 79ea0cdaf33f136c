"""When nights of the regression set are due."""

from __future__ import annotations

import os
from datetime import UTC, datetime

from croniter import croniter

from faultline.base.errors import ConfigError

NIGHTLY = "nightly_regression"
VARIABLE = "FAULTLINE_NIGHTLY_SCHEDULE"
# At two in the morning, UTC.
DEFAULT = "0 2 * * *"


def schedule() -> str:
    """The cron expression by which nights are due, UTC. Raises ConfigError for what is none."""
    cron = os.environ.get(VARIABLE) or DEFAULT
    if not croniter.is_valid(cron):
        raise ConfigError(f"{VARIABLE}: {cron!r} is no cron expression; write five fields, such as {DEFAULT}")
    return cron


def due_nights(cron: str, first: datetime, until: datetime) -> list[str]:
    """Logical dates of the nights that are due in (first, until), ISO 8601 in UTC."""
    found: list[str] = []
    nights = croniter(cron, first.astimezone(UTC))
    while (night := nights.get_next(datetime)) < until:
        found.append(night.isoformat(timespec="seconds"))
    return found
