"""Clock of a target's broker whose host is not reached over SSH, measured by the timestamps of its records.

The clock matters where the broker stamps the outputs, which end the latencies. The recorder measures it at start and
end, and journals it like a host's clock.
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
    """Return the target's broker with the attempt's credentials."""
    return TargetBroker(endpoints.kafka, Path(endpoints.logins), f"of {endpoints.target}")


def record_clock(endpoints: Endpoints, note: Callable[[Line], object]) -> None:
    """Measure and journal the broker's clock, unless its host is measured over SSH.

    Raises ConfigError or InfrastructureError if the measurement fails.
    """
    if KAFKA_HOST in endpoints.hosts:
        return
    bound = check_rights(broker_of(endpoints))
    # Journalled like a host's clock, whose offset is exact within half a round trip.
    round_trip_s = 2 * bound.uncertain_ms / 1000
    note({"kind": "clock", "host": KAFKA_HOST, "offset_s": bound.ahead_ms / 1000, "round_trip_s": round_trip_s})


def record_final_clock(endpoints: Endpoints, note: Callable[[Line], object]) -> None:
    """Measure and journal the broker's clock at the end.

    A failure is journalled: the clock's drift is then unknown.
    """
    try:
        record_clock(endpoints, note)
    except FaultlineError as error:
        note({"kind": "host_lost", "host": KAFKA_HOST, "message": str(error)})
