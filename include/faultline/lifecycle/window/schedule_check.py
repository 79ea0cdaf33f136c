"""Check of the generator's schedule lag while it sends: a rate that cannot be reached fails early."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from faultline.experiment.attempt import Attempt
from faultline.experiment.attempt_plan import AttemptPlan
from faultline.system.errors import InvalidMeasurement
from faultline.system.journal import JournalReader, events

# The judge limits the 99th percentile, which certainly exceeds the limit once this share of the schedule was late.
CERTAIN_SHARE = 0.01


class ScheduleCheck:
    """Schedule lag of an attempt's generator, from its journal lines per second; each call reads new ones."""

    def __init__(self, attempt: Attempt) -> None:
        self._journal = JournalReader(attempt.generator_journal)
        self._late = 0

    def late_count(self) -> int:
        """Return the number of records sent later than the schedule-lag limit."""
        if lines := events(self._journal.poll(), "progress"):
            self._late = int(lines[-1].get("late", 0))
        return self._late

    def require_on_time(self, plan: AttemptPlan) -> None:
        """Raise InvalidMeasurement as soon as the judge's verdict on the schedule lag is certain."""
        if plan.generator is not None and (late := self.late_count()):
            _require_few_late(late, plan.generator)


def _require_few_late(late: int, generator: Mapping[str, Any]) -> None:
    from generators.schedule_lag import LATE_MS
    from generators.spec import GeneratorSpec

    spec = GeneratorSpec.model_validate(generator)
    if late <= CERTAIN_SHARE * spec.total + 1:  # a percentile's rank is rounded
        return
    raise InvalidMeasurement(
        f"schedule-lag: {late:,} of {spec.total:,} records were more than {LATE_MS:.0f} ms late, so p99 exceeds it; "
        f"fix: lower rate (now {spec.rate:,.0f} records/s), raise generator_processes, or free CPU on this machine"
    )
