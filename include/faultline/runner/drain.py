"""How long an engine may take, once the load has ended, to commit all of it."""

from __future__ import annotations

import time

from faultline.base.attempt import Attempt
from faultline.engines.base import Progress
from faultline.experiment.plan import AttemptPlan
from faultline.runner.daemons import seen

DRAIN_LIMIT_S = 60.0
DRAIN_INTERVALS = 3
DRAIN_RESTARTS = 3
# For one look at what there is, without waiting for more.
LOOK_NS = 1_000_000


def drain_limit_s(attempt: Attempt, plan: AttemptPlan, made: Progress) -> float:
    """60 s and three intervals, or three times as long as the engine took from the last fault to its next commit."""
    limit_s = DRAIN_LIMIT_S + DRAIN_INTERVALS * plan.interval_s
    delivered = seen(attempt.conductor_journal, event="delivered")
    if delivered is None:
        return limit_s
    since_ns = int(delivered["wall_ns"])
    again_ns = made.await_cycle("checkpoint", since_ns, time.monotonic_ns() + LOOK_NS)
    restart_s = ((time.time_ns() if again_ns is None else again_ns) - since_ns) / 1e9
    return max(limit_s, DRAIN_RESTARTS * restart_s)
