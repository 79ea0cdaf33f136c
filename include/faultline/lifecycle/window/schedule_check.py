"""Whether the generator keeps its schedule while it sends: a rate that this machine cannot reach is told at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from faultline.experiment.attempt import Attempt
from faultline.experiment.attempt_plan import AttemptPlan
from faultline.system.errors import InvalidMeasurement
from faultline.system.journal import JournalReader, events

# The verdict is about the 99th percentile: it is certain once so large a share of the schedule was late.
CERTAIN_SHARE = 0.01


class ScheduleCheck:
    """What the generator of an attempt says, about each second, of its schedule; each look reads what is new."""

    def __init__(self, attempt: Attempt) -> None:
        self._journal = JournalReader(attempt.generator_journal)
        self._late = 0

    def late_count(self) -> int:
        """How many records it has sent so late that they count against it."""
        if lines := events(self._journal.poll(), "progress"):
            self._late = int(lines[-1].get("late", 0))
        return self._late

    def require_on_time(self, plan: AttemptPlan) -> None:
        """Raises InvalidMeasurement with the judge's verdict once it is certain: the rest would be measured for
        nothing."""
        if plan.generator is not None and (late := self.late_count()):
            _require_few_late(late, plan.generator)


def _require_few_late(late: int, generator: Mapping[str, Any]) -> None:
    from generators.schedule_lag import LATE_MS
    from generators.spec import GeneratorSpec

    spec = GeneratorSpec.model_validate(generator)
    if late <= CERTAIN_SHARE * spec.total + 1:  # which record a percentile is, is rounded
        return
    raise InvalidMeasurement(
        f"schedule-lag: {late:,} of {spec.total:,} records were more than {LATE_MS:.0f} ms late, so p99 will be; the "
        f"generator cannot send {spec.rate:,.0f} records/s here: lower rate, raise generator_processes, or leave it "
        "more of the machine"
    )
