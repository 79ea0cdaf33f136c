"""Nexmark's events as records: from equal numbers equal bytes, in order of time, and closed at the end."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from faultline.experiment.config import parse_configuration
from generators.journal import InputError
from generators.nexmark import CLOSING_MS, NexmarkEvents, rules_of
from generators.spec import GeneratorSpec
from generators.stream import make_nexmark, make_source

RULES = parse_configuration({"workload": "nexmark", "source": "kafka"}).input_source()["rules"]


def spec(**values: Any) -> GeneratorSpec:
    given = {"bootstrap": "x", "topic": "x", "partitions": 2, "rate": 1000, "seconds": 2, "source": "nexmark"}
    return GeneratorSpec.model_validate({**given, "rules": {**RULES, "rate": 1000.0}, "primer_lines": 100, **values})


def read(lines: list[bytes]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines]


def time_of(event: dict[str, Any]) -> str:
    return str(next(event[kind]["dateTime"] for kind in ("person", "auction", "bid") if kind in event))


def test_the_schedule_goes_on_where_the_primer_ends() -> None:
    source = make_source(spec())
    primer, sent = read(list(source.primer(100))), read(source.payloads(np.arange(2000, dtype=np.uint64)))
    both = [*primer, *sent]
    assert [event["n"] for event in both] == list(range(2100))
    times = [time_of(event) for event in both]
    assert times == sorted(times) and times[100] > times[99]
    kinds = [next(kind for kind in ("person", "auction", "bid") if kind in event) for event in both]
    assert [kinds.count(kind) / len(kinds) for kind in ("person", "auction", "bid")] == [0.02, 0.06, 0.92]


def test_event_time_follows_a_rate_that_moves() -> None:
    curve = {"kind": "step", "at_s": 1, "to": 100}
    source = make_source(spec(rate_curve=curve, seconds=3))
    times = [np.datetime64(time_of(event)[:-1]) for event in read(source.payloads(np.arange(1200, dtype=np.uint64)))]
    steps = np.diff(times).astype("int64")
    assert set(steps[:999].tolist()) == {1} and set(steps[1001:].tolist()) == {10}


def test_events_out_of_order_stay_within_half_the_watermark() -> None:
    source = make_source(spec(rules={**RULES, "rate": 1000.0, "disorder": 0.5}))
    straight = make_source(spec())
    numbers = np.arange(2000, dtype=np.uint64)
    moved, plain = (
        [np.datetime64(time_of(one)[:-1]) for one in read(it.payloads(numbers))] for it in (source, straight)
    )
    behind = (np.array(plain) - np.array(moved)).astype("int64")
    assert behind.min() == 0 and behind.max() < 2000 and 0.45 < (behind > 0).mean() < 0.55


def test_closing_events_are_of_all_kinds_and_far_ahead() -> None:
    source = make_nexmark(spec(closing=True))
    closing = read(source.closing(2000))
    last = np.datetime64(time_of(read(make_source(spec()).payloads(np.array([1999], dtype=np.uint64)))[0])[:-1])
    ahead = {(np.datetime64(time_of(event)[:-1]) - last).astype("int64") for event in closing}
    assert (
        ahead == {source.closing_ms}
        and source.closing_ms > CLOSING_MS + 4000
        and min(event["n"] for event in closing) >= 2100
    )
    assert {kind for event in closing for kind in event} == {"n", "person", "auction", "bid"}


def test_unknown_rules_are_named() -> None:
    with pytest.raises(InputError, match="rules: .*'speed'"):
        make_nexmark(spec(rules={**RULES, "speed": 3}))


def test_without_a_schedule_time_follows_the_number() -> None:
    source = NexmarkEvents(rules_of({**RULES, "rate": 10.0}), None, 0)
    times = [time_of(event) for event in read(source.payloads(np.arange(3, dtype=np.uint64)))]
    assert [text[17:] for text in times] == ["20.000Z", "20.100Z", "20.200Z"]
