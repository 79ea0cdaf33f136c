"""Ground truth: a script plants the outputs, whose known values the measuring chain must reproduce."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

from fault.plan import PlannedFault
from faultline.experiment.common_parameters import Common
from faultline.experiment.prerequisites import Prepared
from faultline.experiment.workloads.known_truth_script import parse_script, require_fit
from faultline.experiment.workloads.protocol import Parameters, Workload


class TruthParameters(Parameters):
    """Planted values."""

    truth: dict[str, Any] | None = Field(None, description="Script of `known_truth`: the values it plants.")


class GroundTruthWorkload(Workload[TruthParameters]):
    """Answer each record by a script (`truth`), without Spark, to check the measuring chain."""

    name = "known_truth"
    order = 90
    parameters = TruthParameters
    capabilities = frozenset({"preloaded_state", "stateful"})
    carries_ids = True

    def defaults(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"fault": "driver"}  # its only process

    def take(self, values: dict[str, Any]) -> None:
        values["truth"] = parse_script(values["truth"] or {}).as_mapping()

    def check_faults(self, own: TruthParameters, common: Common, planned: Sequence[PlannedFault]) -> None:
        kills = all(
            (one.fault.victim, one.fault.action, one.fault.cycle) == ("driver", "kill", None) for one in planned
        )
        if not kills or len(planned) != common.injections:
            raise ValueError("fault: got an unsupported fault for known_truth; expected kill of the driver, or none")

    def check_whole(self, own: TruthParameters, common: Common) -> None:
        if common.commit_mode != "aligned":
            raise ValueError(f"commit_mode: got {common.commit_mode}; expected aligned for known_truth")
        require_fit(parse_script(own.truth or {}), common)

    def primer_lines(self, own: TruthParameters) -> int:
        return 0  # no JVM to warm up

    def tuples(self, own: TruthParameters) -> dict[str, Any]:
        return {"tuples": "id"}

    def latency_method_of(self, own: TruthParameters) -> str:
        return "rank" if (own.truth or {}).get("style") == "record" else self.latency_method

    def program_configuration(self, prepared: Prepared, own: TruthParameters, common: Common) -> dict[str, Any]:
        return {
            "partitions": common.partitions,
            "rate": common.rate,
            "warmup_s": common.warmup_s,
            "duration_s": common.duration_s,
            "fault_at_s": common.fault_at_s,
            "gate": str(prepared.attempt.gate),
            "conductor_journal": str(prepared.attempt.conductor_journal),
            "supervisor_journal": str(prepared.attempt.supervisor_journal),
            "traces": str(prepared.attempt.traces),
            "truth": own.truth,
        }


WORKLOADS = (GroundTruthWorkload(),)
