"""Numbered work, primer records, and the parts of the specification that curves and sources brought."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from generators.journal import InputError
from generators.pacing import Schedule
from generators.process import prime
from generators.source import FIRST_PRIMER_ID, ConstantLines, Ids
from generators.spec import GeneratorSpec, read_spec
from generators.stream import make_fillers, make_source


def spec(**values: Any) -> GeneratorSpec:
    base = {"bootstrap": "b:1", "topic": "t", "partitions": 2, "rate": 500, "seconds": 20, "source": "zipf"}
    return GeneratorSpec.model_validate({**base, **values})


@given(st.integers(0, 10**14), st.integers(1, 50), st.integers(1, 10**7))
def test_ids_are_the_record_numbers(first: int, n: int, iterations: int) -> None:
    payloads = Ids(iterations).payloads(np.arange(first, first + n, dtype=np.uint64))
    assert payloads == [f"{first + j} {iterations}".encode() for j in range(n)]


def test_primer_ids_never_meet_those_of_a_schedule() -> None:
    # The longest schedule of the highest rate.
    assert Schedule.over(10_000_000, 1e7).count <= FIRST_PRIMER_ID
    assert list(Ids(7).primer(2)) == [b"1000000000000000 7", b"1000000000000001 7"]


class Collector:
    """Takes primer records as a sender does."""

    def __init__(self) -> None:
        self.values: list[bytes] = []

    def send_primer(self, value: bytes, number: int, partition: int) -> None:
        assert number == len(self.values) and partition == number % 2
        self.values.append(value)

    def flush(self) -> int:
        return 0


@pytest.mark.parametrize("source", ["text", "zipf", "constant", "ids", "stock"])
def test_the_primer_holds_the_lines_of_its_source(source: str) -> None:
    wanted = spec(source=source, primer_lines=5000, streams=["STOCK", "POSITION"])
    made, sender = make_source(wanted), Collector()
    assert prime(wanted, made, make_fillers(wanted), sender) == 5002 == len(sender.values)  # type: ignore[arg-type]
    lines = sender.values[2:]
    assert lines == list(make_source(wanted).primer(5000))
    if source in ("text", "zipf", "constant"):
        assert lines == made.payloads(np.arange(5000, dtype=np.uint64))
    else:
        assert not set(lines) & set(made.payloads(np.arange(10_000, dtype=np.uint64)))
    assert list(ConstantLines(b"x").primer(0)) == []


def test_the_schedule_follows_the_curve() -> None:
    burst = {"kind": "burst", "at_s": 5, "length_s": 1, "to": 2000, "every_s": 10}
    assert spec().total == 10_000
    assert spec(rate_curve=burst).total == 18 * 500 + 2 * 2000
    assert spec(rate_curve={"kind": "constant"}).schedule == spec().schedule
    assert spec(source="ids", iterations=3).total == 10_000
    moving = spec(skew_curve={"kind": "step", "at_s": 5, "to": 2}).exponents
    assert moving is not None and moving.value(0) == 1.0 and moving.value(5) == 2.0


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rate_curve": {"kind": "jump"}}, "rate_curve.kind: 'jump' is not known; use constant, step"),
        ({"rate_curve": {"kind": "step", "at_s": 1, "to": 1e8}}, r"rate_curve.to: 1e\+08 lies outside"),
        ({"rate_curve": [1]}, "rate_curve"),
        ({"rate_curve": {"kind": "recorded", "points": [[0, 0]]}}, "rate_curve: no record is due in 20 s; raise"),
        ({"rate": None, "seconds": None, "records": 5, "rate_curve": {"kind": "constant"}}, "rate_curve: it moves"),
        ({"skew_curve": {"kind": "step", "at_s": 1, "to": 9}}, r"skew_curve.to: 9 lies outside \[0, 5\]"),
        ({"source": "text", "skew_curve": {"kind": "constant"}}, "skew_curve: only the sources zipf and stock"),
        ({"source": "ids", "state_mb": 1}, "state_mb: the records of ids carry no filler words"),
        ({"source": "ids", "iterations": 0}, "iterations"),
        ({"streams": ["stock"]}, "streams"),
    ],
)
def test_bad_specifications_are_one_line(tmp_path: Path, values: dict[str, Any], message: str) -> None:
    path = tmp_path / "spec.json"
    path.write_text(json.dumps({**spec().model_dump(mode="json"), **values}))
    with pytest.raises(InputError, match=f"spec.json: {message}") as refusal:
        read_spec(path)
    assert "\n" not in str(refusal.value)


def test_specifications_come_back_from_their_file(tmp_path: Path) -> None:
    path = tmp_path / "spec.json"
    wanted = spec(
        source="stock",
        streams=["STOCK", "POSITION"],
        rate_curve={"kind": "recorded", "points": [[0, 5], [3, 6.5]]},
        skew_curve={"kind": "sine", "period_s": 9, "amplitude": 0},
    )
    path.write_text(wanted.model_dump_json())
    assert read_spec(path) == wanted
