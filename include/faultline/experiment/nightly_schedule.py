"""When nights of the regression set are due."""

from __future__ import annotations

import os
from datetime import UTC, datetime

from croniter import croniter

from faultline.system.errors import ConfigError

NIGHTLY = "nightly_regression"
VARIABLE = "FAULTLINE_NIGHTLY_SCHEDULE"
# At two in the morning, UTC.
DEFAULT = "0 2 * * *"
# Faultline's own speed, when the night of the experiments is over.
SPEED = "nightly_speed"
SPEED_VARIABLE = "FAULTLINE_SPEED_SCHEDULE"
SPEED_DEFAULT = "0 5 * * *"


def schedule() -> str:
    """The cron expression by which nights are due, UTC. Raises ConfigError for what is none."""
    return _cron(VARIABLE, DEFAULT)


def speed_schedule() -> str:
    """The same for the nights of Faultline's own speed."""
    return _cron(SPEED_VARIABLE, SPEED_DEFAULT)


def _cron(variable: str, default: str) -> str:
    cron = os.environ.get(variable) or default
    if not croniter.is_valid(cron):
        raise ConfigError(f"{variable}: {cron!r} is no cron expression; write five fields, such as {default}")
    return cron


def due_nights(cron: str, first: datetime, until: datetime) -> list[str]:
    """Logical dates of the nights that are due in (first, until), ISO 8601 in UTC."""
    found: list[str] = []
    nights = croniter(cron, first.astimezone(UTC))
    while (night := nights.get_next(datetime)) < until:
        found.append(night.isoformat(timespec="seconds"))
    return found


# Pairs that a night measures by default. One configuration alone can be certain beyond doubt from 14 pairs on, each of
# two from 15; ten percent more work is suspected in four nights of five from 12 on, and with fewer than eight of two
# nothing could be: docs/explanation/comparing.md.
PAIRS = 15
