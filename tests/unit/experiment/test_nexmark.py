"""Nexmark's parameters: what is refused by name, what is one configuration, and what the program is told."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.experiment.config import Configuration, parse_configuration
from faultline.experiment.workloads.nexmark import query_file
from faultline.experiment.workloads.nexmark_events import BATCH_EVENTS, QUERIES, Query, batch_events, pieces
from faultline.system.errors import ConfigError


def nexmark(**values: Any) -> Configuration:
    return parse_configuration({"workload": "nexmark", **values})


def test_every_query_can_be_asked_for_and_has_a_file() -> None:
    assert Query.__args__ == QUERIES and all(query_file(name) for name in QUERIES)  # type: ignore[attr-defined]
    assert not query_file("q24")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"query": "q99"}, "query: 'q99' is not known; did you mean q9?"),
        ({"events": {"shares": [2, 6, 93]}}, "events.shares: [2, 6, 93] add up to 101; let them add up to 100"),
        ({"events": {"shares": [2, 6]}}, "events.shares: [2, 6] is refused; give 3 whole numbers"),
        (
            {"events": {"bytes": [200, 500, 1]}},
            "events.bytes: [200, 500, 1] is refused; give 3 whole numbers from [100, 200, 40] to 800",
        ),
        ({"events": {"share": [2, 6, 92]}}, "events.share: unknown; known: shares, bytes, hot, active"),
        ({"events": "{"}, "events: not JSON"),
        ({"rate_curve": {"kind": "step", "at_s": 5, "to": 0}}, "rate_curve: a rate of 0 leaves a gap in event time"),
        ({"rate_curve": {"kind": "recorded", "points": [[0, 5], [3, -1]]}}, "rate_curve.points.1: -1 lies outside"),
        ({"rate_curve": {"kind": "sine", "period_s": 5, "amplitude": 9}}, "rate_curve: with source=engine a curve has"),
        ({"state_store": "redis"}, "state_store: 'redis' is not known; known: memory, rocksdb"),
        ({"source": "files"}, "source: 'files' is not known"),
        ({"fault": "executor"}, "fault: events from the engine keep no schedule"),
        ({"commit_mode": "none"}, "commit_mode: nexmark keeps its state; none is refused"),
        ({"state_mb": 1}, "state_mb: nexmark keeps no words"),
        ({"workload": "pi", "query": "q3"}, "query: only nexmark has it; leave it at q0"),
    ],
)
def test_bad_input_is_refused_by_name(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        nexmark(**values)
    assert str(refused.value).startswith(said)


def test_a_query_without_a_file_is_refused_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("faultline.experiment.workloads.nexmark.query_file", lambda name: False)
    with pytest.raises(ConfigError, match="query: q3 has no file in spark_jobs/nexmark/queries; restore it"):
        config = nexmark(query="q3")
        config.kind.check_here(config.own, config)


def test_the_suites_own_events_are_no_choice() -> None:
    assert nexmark(events={"shares": [2, 6, 92], "hot": [2, 4, 4]}) == nexmark() == nexmark(events={})
    assert nexmark(events={"hot": [3, 4, 4]}).events == {"hot": [3, 4, 4]}
    assert nexmark(query="q0").config_id == nexmark().config_id != nexmark(query="q1").config_id


def test_the_program_is_told_of_events_in_their_smallest_proportions() -> None:
    told = nexmark(events={"shares": [10, 30, 60], "active": [500, 50]}, disorder=0.2, seed=3).input_source(2)["rules"]
    assert told["proportions"] == [1, 3, 6] and (told["active_people"], told["in_flight"]) == (500, 50)
    assert told["sizes"] == [200, 500, 100] and told["disorder"] == 0.2
    assert told["seed"] != nexmark(seed=3).input_source(1)["rules"]["seed"]


def test_a_batch_is_as_large_as_asked_for_or_as_suits_the_query() -> None:
    assert batch_events(nexmark().own) == BATCH_EVENTS > batch_events(nexmark(query="q20").own)
    assert batch_events(nexmark(query="q20", batch_events=2000).own) == 2000


@given(at_s=st.floats(1, 50), to=st.floats(1, 1000))
def test_a_curve_becomes_pieces_that_follow_each_other(at_s: float, to: float) -> None:
    config = nexmark(rate=100.0, rate_curve={"kind": "ramp", "from_s": at_s, "until_s": at_s + 10, "to": to})
    if config.rate_curve is None:
        return  # it leads to where it begins
    found = pieces(config)
    assert found[0][0] == 0 and found[0][2] == 100 and found[-1][3] == pytest.approx(to)
    assert all(before[1] == after[0] for before, after in zip(found, found[1:], strict=False))
