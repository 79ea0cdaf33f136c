"""Toy workload for a test: a new workload needs this file, a program, and their tests."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from faultline.experiment.common_parameters import Common
from faultline.experiment.prerequisites import Prepared
from faultline.experiment.workloads.protocol import Parameters, Workload


class EchoParameters(Parameters):
    """Number of copies of a line."""

    echoes: int = Field(1, ge=1, le=9, description="Copies of each line that `echo` emits.")


class Echo(Workload[EchoParameters]):
    """Workload that repeats lines unchanged."""

    name = "echo"
    section = "Echo"
    parameters = EchoParameters
    capabilities = frozenset({"skewed"})
    program = "echo"

    def check(self, own: EchoParameters, common: Common) -> None:
        if own.echoes > common.partitions:
            raise ValueError(f"echoes: got {own.echoes}; expected at most {common.partitions} (partitions)")

    def program_configuration(self, prepared: Prepared, own: EchoParameters, common: Common) -> dict[str, Any]:
        return {"echoes": own.echoes}


WORKLOADS = (Echo(),)
