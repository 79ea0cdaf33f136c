"""The record of an experiment that was refused before it had an attempt."""

from __future__ import annotations

from faultline.attempt import new_attempt_id
from faultline.closing import refused_record
from faultline.errors import FaultlineError
from faultline.preparing import Order, describe_order
from faultline.record import Record
from faultline.settings import Settings
from faultline.store import Store


def record_refusal(order: Order, settings: Settings, java: str, error: FaultlineError) -> Record:
    """Stores and returns a `failed` or `cancelled` record, so that a sweep learns why nothing was measured."""
    description = {**describe_order(order, settings, java), "attempt": new_attempt_id()}
    record = refused_record(description, error)
    Store(settings.results).write(record)
    return record
