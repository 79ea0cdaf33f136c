"""Time limits for the drain, the wait until all input is committed: it may last as long as commits advance."""

from __future__ import annotations

import time
from collections.abc import Callable

from faultline.engines.protocol import Offsets, Progress, covers
from faultline.experiment.attempt import Attempt
from faultline.experiment.attempt_plan import AttemptPlan
from faultline.lifecycle.attempt_processes import last_line, newest_entry, workload_failure
from faultline.lifecycle.context import RunContext
from faultline.system.errors import InfrastructureError
from faultline.system.waiting import wait_until

# Limits without a commit: see `drain_limit_s`.
DRAIN_LIMIT_S = 60.0
DRAIN_INTERVALS = 3
DRAIN_RESTARTS = 3
# An engine counts as idle after this time, plus DRAIN_INTERVALS checkpoint intervals, without a commit.
IDLE_S = 30.0
# Upper bound of the whole drain.
MAX_DRAIN_S = 600.0
# Timeout of the last batch of a query that runs as fast as it can.
LAST_BATCH_S = 120.0
# Duration of one non-blocking poll.
POLL_NS = 1_000_000


class StallDetector:
    """Detector of an engine whose committed offsets did not grow for `limit_s` seconds."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s, self._furthest, self._since = limit_s, -1, time.monotonic()

    def stall_message(self, committed: Offsets) -> str | None:
        """Return one line if the offsets stalled, else None; call it repeatedly."""
        now, reached = time.monotonic(), sum(committed.values())
        if reached > self._furthest:
            self._furthest, self._since = reached, now
        return None if now - self._since < self._limit_s else f"drain: no commit within {self._limit_s:g} s"


def await_drained(run: RunContext, problems: list[str]) -> bool:
    """Wait, while commits advance, until every sent record is committed; return whether that happened.

    If not, append the reason to `problems`.
    """
    attempt, plan, progress = run.attempt, run.plan, run.progress
    done = last_line(attempt.generator_journal, event="done")
    if not done:
        problems.append("drain: generator end offsets missing")
        return False
    batches = plan.drained_batches
    detector = StallDetector(limit_s := drain_limit_s(attempt, plan, progress))
    return _await_commit(
        run,
        "drain: the end offsets",
        lambda: (
            covers(progress.committed(), done["end_offsets"])
            and (
                batches == 1
                or progress.covering(done["end_offsets"]) >= batches
                or is_idle(progress, plan.checkpoint_interval_s)
            )
        ),
        max(MAX_DRAIN_S, limit_s),
        problems,
        lambda: detector.stall_message(progress.committed()),
    )


def is_idle(progress: Progress, checkpoint_interval_s: float) -> bool:
    """Return whether no further batch is expected: a query without a watermark runs none without input."""
    since_s = (time.time_ns() - progress.last_commit_ns()) / 1e9
    return since_s > IDLE_S + DRAIN_INTERVALS * checkpoint_interval_s


def await_last_batch(run: RunContext, problems: list[str]) -> bool:
    """Wait for the commit of the batch that was running when the window ended.

    Its share within the window counts once it is committed.
    """
    end_ns, progress = time.time_ns(), run.progress
    return _await_commit(
        run,
        "workload: the commit of the last batch of the window",
        lambda: progress.last_commit_ns() >= end_ns,
        LAST_BATCH_S,
        problems,
    )


def drain_limit_s(attempt: Attempt, plan: AttemptPlan, progress: Progress) -> float:
    """Return the seconds without a commit after which a drain ends.

    This is 60 s plus three checkpoint intervals, or if longer, three times the delay from the last fault to the next
    checkpoint cycle.
    """
    limit_s = DRAIN_LIMIT_S + DRAIN_INTERVALS * plan.checkpoint_interval_s
    delivered = last_line(attempt.conductor_journal, event="delivered")
    if delivered is None:
        return limit_s
    since_ns = int(delivered["wall_ns"])
    cycle_ns = progress.await_cycle("checkpoint", since_ns, time.monotonic_ns() + POLL_NS)
    restart_s = ((time.time_ns() if cycle_ns is None else cycle_ns) - since_ns) / 1e9
    return max(limit_s, DRAIN_RESTARTS * restart_s)


def _await_commit(
    run: RunContext,
    what: str,
    condition: Callable[[], bool],
    timeout_s: float,
    problems: list[str],
    stall_message: Callable[[], str | None] = lambda: None,
) -> bool:
    """Wait for a commit of the workload; return whether it came, else append the reason to `problems`."""
    try:
        wait_until(
            condition,
            timeout_s=timeout_s,
            what=what,
            alive=lambda: workload_failure(run, newest_entry(run.attempt, "supervisor")) or stall_message(),
        )
    except InfrastructureError as error:
        problems.append(str(error))
        return False
    return True
