"""How long an engine may take, once the load has ended, to commit all of it: as long as it gets on."""

from __future__ import annotations

import time
from collections.abc import Callable

from faultline.engines.protocol import Offsets, Progress, covers
from faultline.experiment.attempt import Attempt
from faultline.experiment.attempt_plan import AttemptPlan
from faultline.lifecycle.attempt_processes import newest, seen, workload_trouble
from faultline.lifecycle.context import RunContext
from faultline.system.errors import InfrastructureError
from faultline.system.waiting import wait_until

DRAIN_LIMIT_S = 60.0
DRAIN_INTERVALS = 3
DRAIN_RESTARTS = 3
# Without a further commit for so long, and DRAIN_INTERVALS: without input an engine plans no batch.
SETTLED_S = 30.0
# In all: what has not ended by then gets on too slowly to wait for.
LONGEST_S = 600.0
# The longest batch of a query that runs as fast as it can.
LAST_BATCH_S = 120.0
# For one look at what there is, without waiting for more.
LOOK_NS = 1_000_000


class Advance:
    """Whether an engine still gets on: its committed offsets have grown within the last `limit_s` seconds."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s, self._furthest, self._since = limit_s, -1, time.monotonic()

    def stalled(self, committed: Offsets) -> str | None:
        """One line where they have not; one look, which is to be taken again and again."""
        now, reached = time.monotonic(), sum(committed.values())
        if reached > self._furthest:
            self._furthest, self._since = reached, now
        return None if now - self._since < self._limit_s else f"drain: no further commit within {self._limit_s:g} s"


def await_drained(run: RunContext, problems: list[str]) -> bool:
    """Waits until every record sent is committed, for as long as the engine gets on; whether it is. If not, `problems`
    says why."""
    attempt, plan, made = run.attempt, run.plan, run.progress
    done = seen(attempt.generator_journal, event="done")
    if not done:
        problems.append("drain: the generator left no end offsets to drain to")
        return False
    batches = plan.drained_batches
    advance = Advance(limit_s := drain_limit_s(attempt, plan, made))
    return _committed(
        run,
        "drain: the end offsets",
        lambda: (
            covers(made.committed(), done["end_offsets"])
            and (
                batches == 1
                or made.covering(done["end_offsets"]) >= batches
                or has_settled(made, plan.checkpoint_interval_s)
            )
        ),
        max(LONGEST_S, limit_s),
        problems,
        lambda: advance.stalled(made.committed()),
    )


def has_settled(made: Progress, checkpoint_interval_s: float) -> bool:
    """Whether a batch that shows where time stands will not come: a query without a watermark runs none without input,
    whatever its job declares."""
    since_s = (time.time_ns() - made.last_commit_ns()) / 1e9
    return since_s > SETTLED_S + DRAIN_INTERVALS * checkpoint_interval_s


def await_last_batch(run: RunContext, problems: list[str]) -> bool:
    """Waits for the batch in work at the window's end: its share of the window counts when it is committed."""
    end_ns, made = time.time_ns(), run.progress
    return _committed(
        run,
        "the batch in work at the end of the window",
        lambda: made.last_commit_ns() >= end_ns,
        LAST_BATCH_S,
        problems,
    )


def drain_limit_s(attempt: Attempt, plan: AttemptPlan, made: Progress) -> float:
    """Seconds without a further commit after which a drain ends: 60 s and three intervals, or three times as long as
    the engine took from the last fault to its next commit."""
    limit_s = DRAIN_LIMIT_S + DRAIN_INTERVALS * plan.checkpoint_interval_s
    delivered = seen(attempt.conductor_journal, event="delivered")
    if delivered is None:
        return limit_s
    since_ns = int(delivered["wall_ns"])
    again_ns = made.await_cycle("checkpoint", since_ns, time.monotonic_ns() + LOOK_NS)
    restart_s = ((time.time_ns() if again_ns is None else again_ns) - since_ns) / 1e9
    return max(limit_s, DRAIN_RESTARTS * restart_s)


def _committed(
    run: RunContext,
    what: str,
    condition: Callable[[], bool],
    timeout_s: float,
    problems: list[str],
    stalled: Callable[[], str | None] = lambda: None,
) -> bool:
    """Waits for a commit of the workload; whether it came. If not, `problems` says why."""
    try:
        wait_until(
            condition,
            timeout_s=timeout_s,
            what=what,
            alive=lambda: workload_trouble(run, newest(run.attempt, "supervisor")) or stalled(),
        )
    except InfrastructureError as error:
        problems.append(str(error))
        return False
    return True
