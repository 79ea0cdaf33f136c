"""Pi: sum terms of the Gregory-Leibniz series per record; computation without state."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from faultline.experiment.common_parameters import Common
from faultline.experiment.workloads.protocol import PRIMER_LINES, WARM_UP_BATCHES, Parameters, Workload

# Upper bound on the terms of the whole preload; this many take some seconds on one core.
PRIMER_TERMS = 10_000_000


class PiParameters(Parameters):
    """Cost of a record."""

    iterations: int = Field(1000, ge=1, le=10_000_000, description="Terms of the series that `pi` sums per record.")


class Pi(Workload[PiParameters]):
    """Sum `iterations` terms of the Gregory–Leibniz series per record; outputs carry the id of their input."""

    name = "pi"
    order = 20
    parameters = PiParameters
    capabilities = frozenset({"real_time"})
    program = "pi"
    latency_method = "id"
    carries_ids = True

    def source(self, own: PiParameters, common: Common, repetition: int) -> dict[str, Any]:
        return {"source": "ids", "iterations": own.iterations}

    def primer_lines(self, own: PiParameters) -> int:
        return max(WARM_UP_BATCHES, min(PRIMER_LINES, PRIMER_TERMS // own.iterations))

    def tuples(self, own: PiParameters) -> dict[str, Any]:
        return {"tuples": "pi"}


WORKLOADS = (Pi(),)
