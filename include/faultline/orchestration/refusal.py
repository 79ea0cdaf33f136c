"""The record of an experiment that was refused before it had an attempt."""

from __future__ import annotations

import time

from faultline.attempt import new_attempt_id
from faultline.closing import refused_record
from faultline.environment import default_build, describe
from faultline.errors import FaultlineError
from faultline.preparing import Order
from faultline.settings import Settings
from faultline.store import Store


def record_refusal(order: Order, settings: Settings, java: str, error: FaultlineError) -> None:
    """Stores a `failed` or `cancelled` record, so that a sweep learns why nothing was measured."""
    build = order.build or default_build(settings, java)
    description = {
        "attempt": new_attempt_id(),
        "config": order.config.model_dump(mode="json"),
        "config_id": order.config.config_id,
        "repetition": order.repetition,
        "series": order.series or build,
        "build": build,
        "matrix": order.matrix,
        "sweep_id": order.sweep_id,
        "logical_date": order.logical_date,
        "prepared_wall_ns": time.time_ns(),
        "environment": describe(settings, order.config, java),
    }
    Store(settings.results).write(refused_record(description, error))
