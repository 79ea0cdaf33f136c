"""How long the drain may take, and that it lasts while there is progress."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.experiment.attempt import Attempt
from faultline.experiment.plan import AttemptPlan, read_plan
from faultline.lifecycle.ending import drain
from faultline.lifecycle.ending.drain import Advance, drain_limit_s, has_settled
from tests.support.attempts import prepared

NS = 10**9


@dataclass(frozen=True)
class Again:
    """An engine of which only its first commit after the fault is asked; None: none so far."""

    committed_ns: int | None

    def await_cycle(self, cycle: str, not_before_ns: int, until_mono_ns: int) -> int | None:
        return self.committed_ns


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    return prepared(tmp_path, {"checkpoint_interval_s": 4.0})


@pytest.fixture
def plan(attempt: Attempt) -> AttemptPlan:
    return read_plan(attempt)


def limit_s(attempt: Attempt, plan: AttemptPlan, committed_ns: int | None) -> float:
    engine: Any = Again(committed_ns)
    return drain_limit_s(attempt, plan, engine)


def test_without_a_fault_it_is_a_minute_and_three_intervals(attempt: Attempt, plan: AttemptPlan) -> None:
    assert limit_s(attempt, plan, None) == 72.0


def test_after_a_fault_it_is_three_restarts_when_that_is_more(attempt: Attempt, plan: AttemptPlan) -> None:
    hit_ns = time.time_ns() - 50 * NS
    lines = [{"event": "delivered", "wall_ns": hit_ns - 90 * NS}, {"event": "delivered", "wall_ns": hit_ns}]
    attempt.conductor_journal.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert limit_s(attempt, plan, hit_ns + 5 * NS) == 72.0
    assert limit_s(attempt, plan, hit_ns + 40 * NS) == pytest.approx(120.0), "from the last fault on"
    assert limit_s(attempt, plan, None) == pytest.approx(150.0, abs=15), "and it is not back yet"


@given(st.lists(st.tuples(st.floats(0.1, 30), st.integers(0, 3)), min_size=1), st.floats(10, 100))
def test_it_ends_only_where_nothing_more_was_committed_for_as_long_as_the_limit(
    looks: list[tuple[float, int]], limit_s: float
) -> None:
    """Also where a new state lineage begins before what was committed: that is no progress, and no harm."""
    now = grown = 0.0
    committed = {"0": 5, "1": 0}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drain.time, "monotonic", lambda: now)
        advance = Advance(limit_s)
        assert advance.stalled(committed) is None
        for waited, more in looks:
            now += waited
            committed["1"] += more
            grown = now if more else grown
            assert (advance.stalled(committed) is None) == (now - grown < limit_s)
            assert (advance.stalled({"0": 1}) is None) == (now - grown < limit_s)


def test_a_query_without_a_watermark_has_settled_when_no_batch_comes_any_more() -> None:
    def settled(ago_s: float) -> bool:
        engine: Any = SimpleNamespace(last_commit_ns=lambda: time.time_ns() - round(ago_s * NS))
        return has_settled(engine, 2.0)

    assert settled(37.0) and not settled(30.0) and not settled(0.0)
