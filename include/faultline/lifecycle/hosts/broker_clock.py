"""The clock of a target's broker, on whose host nobody can be asked: told by the times that it gives to records.

It ends the latencies there, so the recorder asks for it at its start and end, and writes down the same lines as of a
host.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fault.identity import KAFKA_HOST
from faultline.installation.targets.kafka_preflight import TargetBroker, check_rights
from faultline.system.endpoints import Endpoints
from faultline.system.errors import FaultlineError
from faultline.system.journal import Line


def broker_of(endpoints: Endpoints) -> TargetBroker:
    """The target's, as an attempt logs in there."""
    return TargetBroker(endpoints.kafka, Path(endpoints.logins), f"of {endpoints.target}")


def record_clock(endpoints: Endpoints, note: Callable[[Line], object]) -> None:
    """Asks and notes it; nothing where the broker's host is reached, and asked itself.

    Raises ConfigError or InfrastructureError for a broker that cannot be asked.
    """
    if KAFKA_HOST in endpoints.hosts:
        return
    found = check_rights(broker_of(endpoints))
    # As of a host: true within half of the round trip.
    round_trip_s = 2 * found.uncertain_ms / 1000
    note({"kind": "clock", "host": KAFKA_HOST, "offset_s": found.ahead_ms / 1000, "round_trip_s": round_trip_s})


def record_final_clock(endpoints: Endpoints, note: Callable[[Line], object]) -> None:
    """The same at the end. That a broker cannot be asked any more is noted: then nobody knows how far its clock
    moved."""
    try:
        record_clock(endpoints, note)
    except FaultlineError as error:
        note({"kind": "host_lost", "host": KAFKA_HOST, "message": str(error)})
