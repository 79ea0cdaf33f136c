"""Whether the generator keeps its schedule while it sends: a rate that this machine cannot reach is told at once."""

from __future__ import annotations

from faultline.base.attempt import Attempt
from faultline.base.errors import InvalidMeasurement
from faultline.base.journal import events, read_journal
from faultline.experiment.plan import AttemptPlan

# The verdict is about the 99th percentile: it is certain once so large a share of the schedule was late.
CERTAIN_SHARE = 0.01


def number_late(attempt: Attempt) -> int:
    """How many records the generator has sent so late that they count against it; it says so about each second."""
    said = events(read_journal(attempt.generator_journal), "progress")
    return int(said[-1].get("late", 0)) if said else 0


def require_punctual(attempt: Attempt, plan: AttemptPlan) -> None:
    """Raises InvalidMeasurement with the judge's verdict once it is certain: the rest would be measured for nothing."""
    if plan.generator is None or not (late := number_late(attempt)):
        return
    from generators.lateness import LATE_MS
    from generators.spec import GeneratorSpec

    spec = GeneratorSpec.model_validate(plan.generator)
    if late <= CERTAIN_SHARE * spec.total + 1:  # which record a percentile is, is rounded
        return
    raise InvalidMeasurement(
        f"schedule-lag: {late:,} of {spec.total:,} records were more than {LATE_MS:.0f} ms late, so p99 will be; the "
        f"generator cannot send {spec.rate:,.0f} records/s here: lower rate, raise generator_processes, or leave it "
        "more of the machine"
    )
