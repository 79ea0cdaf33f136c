"""What a workload's program is told: one JSON file in the attempt's folder, whichever engine runs it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from faultline.experiment.attempt import Attempt, write_json

if TYPE_CHECKING:
    from faultline.experiment.plan import AttemptPlan


def write_program_configuration(attempt: Attempt, plan: AttemptPlan, by_engine: Mapping[str, Any]) -> Path:
    """Writes the plan's part for the program, and what the engine adds; what both name is the workload's."""
    path = attempt.folder / "workload_config.json"
    write_json(path, {**by_engine, **plan.program})
    return path
