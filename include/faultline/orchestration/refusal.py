"""The record of an experiment that was refused before it had an attempt."""

from __future__ import annotations

from faultline.attempt import new_attempt_id
from faultline.closing import refused_record
from faultline.errors import FaultlineError
from faultline.preparing import Order, describe_order
from faultline.settings import Settings
from faultline.store import Store


def record_refusal(order: Order, settings: Settings, java: str, error: FaultlineError) -> None:
    """Stores a `failed` or `cancelled` record, so that a sweep learns why nothing was measured."""
    description = {**describe_order(order, settings, java), "attempt": new_attempt_id()}
    Store(settings.results).write(refused_record(description, error))
