"""The record of an experiment that was refused before it had an attempt."""

from __future__ import annotations

from faultline.experiment.attempt import new_attempt_id
from faultline.system.errors import FaultlineError
from faultline.system.settings import Settings
from faultline.records.record import Record
from faultline.records.store import Store
from faultline.lifecycle.prepare import Order, describe_order
from faultline.lifecycle.teardown import refused_record


def record_refusal(order: Order, settings: Settings, java: str, error: FaultlineError) -> Record:
    """Stores and returns a `failed` or `cancelled` record, so that a sweep learns why nothing was measured."""
    description = {**describe_order(order, settings, java), "attempt": new_attempt_id(settings.attempts)}
    record = refused_record(description, error)
    Store(settings.results).write(record)
    return record
