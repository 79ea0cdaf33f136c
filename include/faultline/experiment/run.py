"""One attempt in one process: what it is to do is read once, and asked for wherever it is needed."""

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
    """An attempt with its plan, and the settings of the installation that runs it."""

    settings: Settings
    attempt: Attempt
    plan: AttemptPlan

    @cached_property
    def config(self) -> Configuration:
        """The configuration. Raises InfrastructureError for one that this version refuses."""
        return self.plan.configuration()

    @cached_property
    def there(self) -> Settings:
        """The settings at the plan's endpoints: the embedded services', or a target's."""
        return self.settings.for_target(self.plan.endpoints)


def run_of(attempt: Attempt, settings: Settings) -> Run:
    """Return the run of an attempt that is prepared. Raises InfrastructureError for a plan that is missing or
    damaged."""
    return Run(settings, attempt, read_plan(attempt))
