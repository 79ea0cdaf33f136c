"""One attempt with its plan, read once per process."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from faultline.experiment.attempt import Attempt
from faultline.experiment.attempt_plan import AttemptPlan, read_plan
from faultline.system.settings import Settings

if TYPE_CHECKING:
    from faultline.experiment.config import Configuration


@dataclass(frozen=True)
class Run:
    """Attempt with its plan and the settings of its installation."""

    settings: Settings
    attempt: Attempt
    plan: AttemptPlan

    @cached_property
    def config(self) -> Configuration:
        """Configuration. Raises InfrastructureError for one that this version rejects."""
        return self.plan.configuration()

    @cached_property
    def there(self) -> Settings:
        """Settings for the plan's endpoints: those of the embedded services or of a target."""
        return self.settings.for_target(self.plan.endpoints)


def run_of(attempt: Attempt, settings: Settings) -> Run:
    """Return the run of a prepared attempt. Raises InfrastructureError for a missing or damaged plan."""
    return Run(settings, attempt, read_plan(attempt))
