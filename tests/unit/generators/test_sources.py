"""All sources: equal specifications send equal bytes in any chunks, and invalid ones are refused."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from faultline.experiment.config import parse_configuration
from generators.counter_rng import partition_of
from generators.nexmark import CLOSING_MS, NexmarkEvents, rules_of
from generators.pacing import Shard
from generators.send_progress import InputError
from generators.spec import GeneratorSpec, read_spec
from generators.stream import RecordChunk, Stream, make_nexmark, make_source, make_state_keys
from tests.unit.generators.conftest import spec_of

RULES = parse_configuration({"workload": "nexmark", "source": "kafka"}).input_source()["rules"]
SINE = {"kind": "sine", "period_s": 5, "amplitude": 400}
STREAMS = ("STOCK", "TRANSACTION", "POSITION")
# Hashes of the first records: they must never change, since records of older runs are compared.
RISING = {"kind": "ramp", "from_s": 0, "until_s": 9, "to": 2}
WAVE = {"kind": "sine", "period_s": 7, "amplitude": 0.5}
SOURCES: dict[str, tuple[dict[str, Any], str]] = {
    "text": ({"state_mb": 0.01, "state_touch": 0.1}, "118608c92fd1c3fe"),
    "zipf": ({"state_mb": 0.01, "state_touch": 0.1}, "8221e2eb85849e18"),
    "moving": ({"source": "zipf", "vocabulary": 500, "skew_curve": RISING}, "5ed27d1dc04495b0"),
    "constant": ({}, "a173b3e469d180bd"),
    "ids": ({}, "3b63a2cc1f6c79c4"),
    "stock": ({"streams": STREAMS}, "fae7c9fc583c1f88"),
    "skewed": ({"source": "stock", "streams": STREAMS, "skew": 1.0, "skew_curve": WAVE}, "4f33b850f91eba24"),
    "nexmark": ({"rules": {**RULES, "rate": 500.0}, "primer_lines": 100}, "cf7f85455e292770"),
    "data": ({"data_key": "k", "numbered": True}, "6b4ac74580044526"),
}


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("data") / "a.jsonl"
    path.write_text("".join(json.dumps({"k": f"key{n % 4}", "n": n}) + "\n" for n in range(30)))
    return str(path)


def spec(name: str, rows: str, **values: Any) -> GeneratorSpec:
    data = {"data": rows} if name == "data" else {}
    return spec_of(**{"source": name, "partitions": 3, "seconds": 20, **data, **SOURCES[name][0], **values})


def chunks(wanted: GeneratorSpec, shard: Shard, n: int) -> list[RecordChunk]:
    stream, found = Stream(make_source(wanted), make_state_keys(wanted), wanted, shard), list[RecordChunk]()
    while (left := min(n, stream.total) - sum(len(one.payloads) for one in found)) > 0:
        found.append(stream.take(min(left, 97)))
    return found


def sent(wanted: GeneratorSpec, shard: Shard = Shard(), n: int = 10**6) -> list[tuple[Any, ...]]:  # noqa: B008
    """Return (due, partition, key, value, headers) of the first n records of a shard."""
    return [
        row
        for one in chunks(wanted, shard, n)
        for row in zip(
            one.due_ns.tolist(), one.partitions, one.keys or [None] * len(one.payloads), one.payloads,
            map(str, one.headers or one.partitions), strict=True,
        )
    ]  # fmt: skip


@pytest.mark.parametrize("name", SOURCES)
def test_records_stay_the_same(name: str, rows: str) -> None:
    wanted = spec(name, rows, seed=5, repetition=2, rate_curve=SINE)
    found = hashlib.sha256(repr([*make_source(wanted).preload(100), *sent(wanted)]).encode()).hexdigest()[:16]
    assert found == SOURCES[name][1]


@pytest.mark.parametrize("name", SOURCES)
@given(seed=st.integers(0, 2**31), cut=st.integers(1, 199), step=st.integers(1, 40), of=st.integers(2, 4))
@settings(max_examples=5, deadline=None)
def test_chunks_and_processes_do_not_change_records(
    name: str, rows: str, seed: int, cut: int, step: int, of: int
) -> None:
    wanted = spec(name, rows, seed=seed, rate_curve=SINE, seconds=1)
    source, records = make_source(wanted), np.arange(200, dtype=np.uint64)
    whole = source.payloads(records)
    assert source.payloads(records[:cut]) + source.payloads(records[cut:]) == whole
    assert source.payloads(records[::step]) == whole[::step] and source.payloads(records[:0]) == []
    shared = wanted.model_copy(update={"processes": of})
    parts = [row for index in range(of) for row in sent(shared, Shard(index, of))]
    assert sorted(parts, key=repr) == sorted(sent(wanted), key=repr) and len(parts) == wanted.total
    for _, partition, key, *_ in parts:
        assert key is None or partition == partition_of(key, 3)


@pytest.mark.parametrize("name", ["text", "zipf", "stock", "state"])
def test_seed_and_repetition_change_the_records(name: str, rows: str) -> None:
    more = {"state_touch": 1.0} if name == "state" else {"state_mb": 0}
    wanted = [spec("text" if name == "state" else name, rows, seed=s, repetition=r, **more) for s, r in SEEDS]
    same, first, *others = [tuple(row[3] for row in sent(one, n=50)) for one in wanted]
    assert same == first and len({first, *others}) == 3


SEEDS = [(1, 0), (1, 0), (2, 0), (1, 1)]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        *(({key: 0}, key) for key in ("rate", "partitions", "processes", "iterations", "stocks", "users")),
        *(({key: -1}, key) for key in ("rate", "skew", "watermark_s")),
        *(({key: 1.1}, key) for key in ("state_touch", "late")),
        *(({"streams": streams}, "streams") for streams in (["stock"], [])),
        *(({key: value}, key) for key, value in (("unknown", 1), ("source", "poem"), ("rate_curve", [1]))),
        ({"seconds": None}, "seconds: "),
        ({"records": 5}, "seconds: "),
        ({"rate": None}, "records: "),
        ({"rate_curve": {"kind": "jump"}}, "rate_curve.kind: "),
        ({"rate_curve": {"kind": "step", "at_s": 1, "to": 1e8}}, "rate_curve.to: "),
        ({"rate_curve": {"kind": "recorded", "points": [[0, 0]]}}, "rate_curve: "),
        ({"rate": None, "seconds": None, "records": 5, "rate_curve": {"kind": "constant"}}, "rate_curve: "),
        ({"skew_curve": {"kind": "step", "at_s": 1, "to": 9}}, "skew_curve.to: "),
        ({"source": "text", "skew_curve": {"kind": "constant"}}, "skew_curve: "),
        ({"source": "ids", "state_mb": 1}, "state_mb: "),
        ({"source": "stock", "state_mb": 1}, "state_mb: "),
        ({"source": "stock", "rate": None, "seconds": None, "records": 5}, "rate: "),
        ({"source": "stock", "streams": ["STOCK", "STOCK"]}, "streams: "),
        ({"source": "stock", "disorder": 0.6, "late": 0.5}, "disorder: "),
        ({"source": "nexmark"}, "rules: "),
        ({"rules": RULES}, "rules: "),
        ({"source": "nexmark", "rules": RULES, "state_mb": 1}, "state_mb: "),
        ({"closing": True}, "closing_ahead_s: "),
        ({"data": "a.txt"}, "data: "),
        ({"data_pace": "recorded"}, "data_pace: "),
    ],
)
def test_bad_specifications_are_refused_by_key_in_one_line(
    tmp_path: Path, rows: str, values: dict[str, Any], message: str
) -> None:
    path = tmp_path / "spec.json"
    path.write_text(json.dumps({**spec("zipf", rows, state_mb=0).model_dump(mode="json"), **values}))
    with pytest.raises(InputError, match=f"spec.json: {message}") as refusal:
        read_spec(path)
    assert "\n" not in str(refusal.value)


def test_specification_survives_its_file(tmp_path: Path, rows: str) -> None:
    path = tmp_path / "spec.json"
    with pytest.raises(InputError, match="read failed"):
        read_spec(path)
    for name in SOURCES:
        wanted = spec(name, rows, rate_curve={"kind": "recorded", "points": [[0, 5], [3, 6.5]]})
        path.write_text(wanted.model_dump_json())
        assert read_spec(path) == wanted


# --- nexmark events


def nexmark(**values: Any) -> GeneratorSpec:
    base = {"partitions": 2, "rate": 1000, "seconds": 2, "rules": {**RULES, "rate": 1000.0}}
    return spec("nexmark", "", **{**base, **values})


def read(lines: list[bytes]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines]


KINDS = ("person", "auction", "bid")


def time_of(event: dict[str, Any]) -> str:
    return str(next(event[kind]["dateTime"] for kind in KINDS if kind in event))


def times_of(lines: list[bytes]) -> Any:
    return np.array([time_of(event)[:-1] for event in read(lines)], dtype="datetime64[ms]")


def test_schedule_continues_after_the_preload() -> None:
    source = make_source(nexmark())
    primer, sent = read(list(source.preload(100))), read(source.payloads(np.arange(2000, dtype=np.uint64)))
    both = [*primer, *sent]
    assert [event["n"] for event in both] == list(range(2100))
    times = [time_of(event) for event in both]
    assert times == sorted(times) and times[100] > times[99]
    assert [sum(kind in event for event in both) / len(both) for kind in KINDS] == [0.02, 0.06, 0.92]


def test_event_time_follows_a_varying_rate_and_disorder_is_bounded() -> None:
    numbers, curve = np.arange(2000, dtype=np.uint64), {"kind": "step", "at_s": 1, "to": 100}
    steps = np.diff(times_of(make_source(nexmark(rate_curve=curve, seconds=3)).payloads(numbers[:1200]))).astype(
        "int64"
    )
    assert set(steps[:999].tolist()) == {1} and set(steps[1001:].tolist()) == {10}
    moved = times_of(make_source(nexmark(rules={**RULES, "rate": 1000.0, "disorder": 0.5})).payloads(numbers))
    behind = (times_of(make_source(nexmark()).payloads(numbers)) - moved).astype("int64")
    assert behind.min() == 0 and behind.max() < 2000 and 0.45 < (behind > 0).mean() < 0.55


def test_closing_events_are_of_all_kinds_and_far_ahead() -> None:
    source = make_nexmark(nexmark(closing=True))
    lines = source.closing(2000)
    (last,) = times_of(make_source(nexmark()).payloads(np.array([1999], dtype=np.uint64)))
    assert {*(times_of(lines) - last).astype("int64").tolist()} == {source.closing_ms}
    assert source.closing_ms > CLOSING_MS + 4000 and min(event["n"] for event in read(lines)) >= 2100
    assert {kind for event in read(lines) for kind in event} == {"n", *KINDS}


def test_unknown_rules_are_named() -> None:
    with pytest.raises(InputError, match="rules: .*'speed'"):
        make_nexmark(nexmark(rules={**RULES, "speed": 3}))


def test_without_a_schedule_time_follows_the_number() -> None:
    lines = NexmarkEvents(rules_of({**RULES, "rate": 10.0}), None, 0).payloads(np.arange(3, dtype=np.uint64))
    assert [time_of(event)[17:] for event in read(lines)] == ["20.000Z", "20.100Z", "20.200Z"]
