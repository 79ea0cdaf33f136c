"""Whether the generator keeps its schedule while it sends: a rate that this machine cannot reach is told at once."""

from __future__ import annotations

from faultline.base.attempt import Attempt
from faultline.base.errors import InvalidMeasurement
from faultline.base.journal import events, read_journal
from faultline.experiment.plan import AttemptPlan

# So far behind, what is sent is the load of another moment.
LATE_S = 1.0
# The verdict is about the 99th percentile: it is certain once so large a share of the schedule was late.
CERTAIN_SHARE = 0.01
LEAST_LOOKS = 3


def late_s(attempt: Attempt, rate: float) -> list[float]:
    """How far the generator was behind its schedule, in s of records at `rate`, about each second since the gate."""
    lines = events(read_journal(attempt.generator_journal), "progress")
    return [(int(line["due"]) - int(line["sent"])) / rate for line in lines]


def require_punctual(attempt: Attempt, plan: AttemptPlan) -> None:
    """Raises InvalidMeasurement with the judge's verdict once it is certain: the rest would be measured for nothing."""
    if plan.generator is None:
        return
    rate = float(plan.generator["rate"])
    late = [one for one in late_s(attempt, rate) if one > LATE_S]
    if len(late) < max(LEAST_LOOKS, CERTAIN_SHARE * plan.window_s + 1):
        return
    sent = events(read_journal(attempt.generator_journal), "progress")[-1]
    raise InvalidMeasurement(
        f"schedule-lag: {late[-1]:.1f} s behind after {sent['sent']:,} of {sent['due']:,} records that were due: "
        f"{rate:,.0f} records/s cannot be reached here; lower rate, or raise generator_processes"
    )
