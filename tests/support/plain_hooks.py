"""Hooks of a process outside Airflow; the test determines the state of other runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from faultline.experiment.attempt import Attempt
from faultline.experiment.attempt_plan import read_plan
from faultline.lifecycle.context import RunContext
from faultline.lifecycle.hooks import PlainHooks
from faultline.system.settings import Settings


@dataclass
class TestHooks(PlainHooks):
    """Hooks for tests. `alive`: answers whether a run is active; `asked`: run ids of all queries."""

    __test__ = False
    _settings: Settings
    alive: Callable[[], bool] = lambda: False
    stopped: bool = False
    asked: list[str] = field(default_factory=list)

    def is_run_active(self, run_id: str) -> bool:
        self.asked.append(run_id)
        return self.alive()

    def is_cancelled(self) -> bool:
        return self.stopped


def context_of(attempt: Attempt, settings: Settings) -> RunContext:
    """Return the context of an attempt that this process runs."""
    return RunContext(settings, attempt, read_plan(attempt), TestHooks(settings))
