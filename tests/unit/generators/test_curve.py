"""Curves have exact integrals, schedules along them keep every record, and invalid ones are refused by key."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from generators.curve import NANOSECONDS, Curve, Piece, PiecewiseLinear, parse_curve, to_ns
from generators.pacing import BURST, SendSchedule, Shard, pace
from generators.send_progress import InputError
from tests.unit.generators.test_pacing import FakeClock

HIGH = 10_000
LONG = 10**7


def curve(mapping: dict[str, Any], base: float = 500.0) -> Curve:
    return parse_curve(mapping, base=base, low=0, high=HIGH)


def seconds(low: float = 0, high: float = 200) -> st.SearchStrategy[float]:
    """Times in decimal form and arbitrary floats."""
    return st.one_of(
        st.integers(math.ceil(low), int(high)).map(float), st.floats(max(low, 0.01), high).map(lambda t: round(t, 4))
    )


LEVELS = st.one_of(
    st.integers(0, HIGH).map(float), st.floats(0, HIGH).map(lambda v: round(v, 6)), st.sampled_from([0.1, 333.33])
)


RATES = st.one_of(
    st.integers(1, 500_000).map(float), st.floats(0.01, 500_000, allow_nan=False), st.sampled_from([0.1, 333.33, 1e-3])
)


@st.composite
def mappings(draw: st.DrawFn) -> tuple[dict[str, Any], float]:
    """A curve of any kind, with its base."""
    base = draw(st.one_of(st.integers(1, 5000).map(float), st.sampled_from([0.5, 333.33, 7.7])))
    kind = draw(st.sampled_from(["constant", "step", "ramp", "sine", "burst", "every", "recorded"]))
    to = draw(LEVELS)
    if kind == "constant":
        return {"kind": kind}, draw(RATES)
    if kind == "step":
        return {"kind": kind, "at_s": draw(seconds()), "to": to}, base
    if kind == "ramp":
        begin = draw(seconds())
        return {"kind": kind, "from_s": begin, "until_s": round(begin + draw(seconds(1)), 4), "to": to}, base
    if kind == "sine":
        amplitude = base * draw(st.sampled_from([0.2, 0.5, 1.0]))
        return {"kind": kind, "period_s": draw(seconds(0.5)) or 1, "amplitude": amplitude}, base
    if kind == "recorded":
        steps = draw(st.lists(seconds(0.5, 50).filter(bool), max_size=6))
        times = [round(sum(steps[:n]), 4) for n in range(len(steps) + 1)]
        return {"kind": kind, "points": [[t, draw(LEVELS)] for t in times]}, base
    length = draw(seconds(0.5, 20)) or 1
    burst = {"kind": "burst", "at_s": draw(seconds()), "length_s": length, "to": to}
    return burst if kind == "burst" else {**burst, "every_s": round(length + (draw(seconds(0.5, 30)) or 1), 4)}, base


def area(mapping: dict[str, Any], base: float, t: Fraction) -> Fraction:
    """Return the integral by the formula of each kind, in fractions."""
    m = {key: Fraction(str(value)) for key, value in mapping.items() if key not in ("kind", "points")}
    b = Fraction(str(base))
    zero = Fraction()
    match mapping["kind"]:
        case "constant":
            return b * t
        case "step":
            return b * min(t, m["at_s"]) + m["to"] * max(zero, t - m["at_s"])
        case "ramp":
            length = m["until_s"] - m["from_s"]
            inside = min(max(zero, t - m["from_s"]), length)
            risen = b * inside + (m["to"] - b) * inside**2 / (2 * length)
            return b * min(t, m["from_s"]) + risen + m["to"] * max(zero, t - m["until_s"])
        case "burst":
            since = max(zero, t - m["at_s"])
            if "every_s" in m:
                rounds, rest = divmod(since, m["every_s"])
                high = rounds * m["length_s"] + min(rest, m["length_s"])
            else:
                high = min(since, m["length_s"])
            return b * (t - high) + m["to"] * high
        case "recorded":
            points = [(Fraction(str(at)), Fraction(str(value))) for at, value in mapping["points"]]
            total = zero
            for (t0, v0), (t1, v1) in zip(points, points[1:], strict=False):
                inside = min(max(zero, t - t0), t1 - t0)
                total += v0 * inside + (v1 - v0) * inside**2 / (2 * (t1 - t0))
            return total + points[-1][1] * max(zero, t - points[-1][0])
    raise AssertionError(mapping)


@given(mappings(), seconds(0, 500))
def test_integrals_are_those_of_the_formulas(given_curve: tuple[dict[str, Any], float], t_s: float) -> None:
    mapping, base = given_curve
    if mapping["kind"] == "sine":
        period, amplitude = mapping["period_s"], mapping["amplitude"]
        exact = base * t_s + amplitude * period / (2 * math.pi) * (1 - math.cos(2 * math.pi * t_s / period))
        # Chords of 20 knots lie up to 0.8 % inside the curve, over at most half a period.
        assert abs(curve(mapping, base).shape.area_up(to_ns(t_s)) - exact) <= 1 + 0.01 * amplitude * period
    else:
        exactly = area(mapping, base, Fraction(to_ns(t_s), NANOSECONDS))
        assert curve(mapping, base).shape.area_up(to_ns(t_s)) == math.ceil(exactly)


def test_sine_returns_to_its_base() -> None:
    wave = curve({"kind": "sine", "period_s": 20, "amplitude": 100})
    assert wave.shape.area_up(LONG * NANOSECONDS) == 500 * LONG
    assert [wave.value(t) for t in (0, 5, 10, 15, 20, LONG + 5)] == [500, 600, 500, 400, 500, 600]
    assert abs(wave.value(2.5) - 500 - 100 * math.sin(math.pi / 4)) < 1e-6


@pytest.mark.parametrize(
    ("mapping", "values"),
    [
        ({"kind": "step", "at_s": 30, "to": 800}, {-1: 500, 0: 500, 29.9: 500, 30: 800, 99: 800}),
        ({"kind": "ramp", "from_s": 20, "until_s": 60, "to": 800}, {0: 500, 20: 500, 40: 650, 60: 800, 100: 800}),
        ({"kind": "burst", "at_s": 30, "length_s": 5, "to": 2000, "every_s": 20},
         {0: 500, 29: 500, 30: 2000, 34.9: 2000, 35: 500, 50: 2000, 54: 2000, 55: 500, LONG + 10: 2000}),
        ({"kind": "recorded", "points": [[0, 500], [10, 700], [20, 0]]}, {0: 500, 5: 600, 10: 700, 15: 350, 99: 0}),
    ],
)  # fmt: skip
def test_values(mapping: dict[str, Any], values: dict[float, float]) -> None:
    assert {t: curve(mapping).value(t) for t in values} == values


@given(mappings(), st.sampled_from([1.0, 33.3, 400.0, float(LONG)]), st.integers(0, 10**12))
def test_schedules_along_curves(given_curve: tuple[dict[str, Any], float], length_s: float, k: int) -> None:
    moving = curve(*given_curve)
    schedule = SendSchedule.for_duration(given_curve[1], length_s, moving)
    assert schedule.count == moving.shape.area_up(to_ns(length_s))
    assert schedule.due_count(10**18) == schedule.count and schedule.due_count(-1) == 0
    if schedule.count == 0:
        return
    assert schedule.due_ns(schedule.count - 1) < to_ns(length_s)
    k %= schedule.count
    due = schedule.due_ns(k)
    # Record k is due when the integral passes k: within this nanosecond.
    assert moving.shape.area_up(due) <= k < moving.shape.area_up(due + 1)
    assert schedule.due_count(due) >= k + 1
    assert schedule.due_count(due - 1) <= k
    if k > 0:
        assert schedule.due_ns(k - 1) <= due


@given(mappings(), st.integers(0, 10**9), st.integers(1, 8), st.integers(1, 300))
def test_due_arrays_are_due_times(given_curve: tuple[dict[str, Any], float], first: int, step: int, n: int) -> None:
    schedule = SendSchedule.for_duration(given_curve[1], 1000.0, curve(*given_curve))
    if schedule.count == 0:
        return
    first %= schedule.count
    n = min(n, -(-(schedule.count - first) // step))
    expected = [schedule.due_ns(first + j * step) for j in range(n)]
    assert expected == sorted(expected)
    assert schedule.due_array(first, step, n).tolist() == expected
    records = np.array([first + j * step for j in range(n)], dtype=np.uint64)
    assert schedule.due_of(records).tolist() == expected
    assert schedule.due_of(records[::-1]).tolist() == expected[::-1]


@pytest.mark.parametrize(
    ("to", "until_s", "n"),
    [
        (20_000, 10_000, 100_000),  # record k is due after √k seconds: squares at whole nanoseconds
        (1e-3, LONG, 4000),  # hours between records, where a float64 no longer holds nanoseconds
    ],
)
def test_due_arrays_are_exact_where_floats_are_not(to: float, until_s: float, n: int) -> None:
    points = [[0, 0], [until_s, to]]
    schedule = SendSchedule.for_duration(
        1.0, until_s, parse_curve({"kind": "recorded", "points": points}, base=1, low=0, high=1e6)
    )
    for first in (0, 3, 50):
        expected = [schedule.due_ns(first + j) for j in range(n)]
        assert schedule.due_array(first, 1, n).tolist() == expected


def test_a_rate_of_zero_holds_the_next_record_until_it_rises() -> None:
    schedule = SendSchedule.for_duration(
        10.0, 100.0, curve({"kind": "recorded", "points": [[0, 10], [2, 0], [50, 0], [52, 10]]})
    )
    due = schedule.due_array(0, 1, schedule.count).tolist()
    assert due[10] == 50 * NANOSECONDS and due[9] < 2 * NANOSECONDS
    assert schedule.due_count(50 * NANOSECONDS - 1) == 10 and schedule.due_count(50 * NANOSECONDS) == 11


def test_unreachable_record_raises() -> None:
    fading = SendSchedule.for_duration(10.0, 100.0, curve({"kind": "step", "at_s": 1, "to": 0}, 10.0))
    assert fading.count == 10
    with pytest.raises(ValueError, match="^k: got 10;"):
        fading.due_ns(10)
    with pytest.raises(ValueError, match="^cycle: "):
        PiecewiseLinear([], [])
    with pytest.raises(ValueError, match="^piece: "):
        Piece(0, Fraction(1), Fraction(1))


@given(mappings(), st.integers(1, 3), st.integers(0, 2), st.lists(st.integers(0, 200_000_000), max_size=20))
def test_pace_sends_all_in_order_and_never_early(
    given_curve: tuple[dict[str, Any], float], of: int, index: int, stalls: list[int]
) -> None:
    schedule = SendSchedule.for_duration(given_curve[1], 400.0, curve(*given_curve))
    schedule = SendSchedule(schedule.rate, min(schedule.count, 500), schedule.shape)
    shard, clock, start = Shard(index % of, of), FakeClock(), 500_000_000
    sent: list[int] = []

    def send(first: int, last: int) -> None:
        assert first == len(sent) and 0 < last - first <= BURST
        records = shard.records(first, last - first)
        assert all(start + schedule.due_ns(int(k)) <= clock.now for k in records)
        sent.extend(records.tolist())
        clock.now += stalls.pop() if stalls else 1_000

    assert pace(schedule, shard, start, clock, send) == len(sent)
    assert sent == list(range(shard.index, schedule.count, of))


@given(mappings())
def test_the_canonical_form_is_stable(given_curve: tuple[dict[str, Any], float]) -> None:
    mapping, base = given_curve
    once = curve(mapping, base)
    again = curve(once.as_mapping(), base)
    assert again == once and again.as_mapping() == once.as_mapping()
    assert all(not (isinstance(v, float) and v.is_integer()) for v in once.as_mapping().values())
    mixed = {"to": 800.0, "at_s": 30.0, "kind": "step"}
    assert str(curve(mixed).as_mapping()) == "{'kind': 'step', 'at_s': 30, 'to': 800}"


@pytest.mark.parametrize(
    "mapping",
    [
        {"kind": "step", "at_s": 30, "to": 500},
        {"kind": "ramp", "from_s": 0, "until_s": 60, "to": 500.0},
        {"kind": "sine", "period_s": 20, "amplitude": 0},
        {"kind": "burst", "at_s": 0, "length_s": 5, "to": 500, "every_s": 20},
        {"kind": "recorded", "points": [[0, 500]]},
    ],
)
def test_constant_curves_are_canonical(mapping: dict[str, Any]) -> None:
    assert curve(mapping).as_mapping() == {"kind": "constant"} and not curve(mapping).is_varying


STEP = {"kind": "step", "at_s": 30, "to": 800}
BURSTS = {"kind": "burst", "at_s": 30, "length_s": 5, "to": 2000, "every_s": 20}


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({}, "kind: got None; .*constant, step"),
        ([], "kind: missing"),
        ({"kind": "stepp"}, "kind: got 'stepp'"),
        ({"kind": ["step"]}, "kind: "),
        ({"kind": "step", "to": 5}, "at_s: "),
        ({**STEP, "form_s": 1}, "form_s: "),
        ({**STEP, "every_s": None}, "every_s: "),
        ({"kind": "constant", "to": 1}, "to: "),
        ({**STEP, "to": -1}, "to: "),
        ({**STEP, "to": HIGH + 1}, "to: "),
        ({**STEP, "to": "800"}, "to: "),
        ({**STEP, "to": True}, "to: "),
        ({**STEP, "to": float("nan")}, "to: "),
        ({**STEP, "at_s": -1}, "at_s: "),
        ({**STEP, "at_s": 2 * LONG}, "at_s: "),
        ({"kind": "ramp", "from_s": 60, "until_s": 60, "to": 1}, "until_s: "),
        ({"kind": "sine", "period_s": 0, "amplitude": 1}, "period_s: "),
        ({"kind": "sine", "period_s": 9, "amplitude": 501}, "amplitude: "),
        ({**BURSTS, "length_s": 0}, "length_s: "),
        ({**BURSTS, "every_s": 5}, "every_s: "),
        ({"kind": "recorded", "points": []}, "points: "),
        ({"kind": "recorded", "points": "0,1"}, "points: "),
        ({"kind": "recorded", "points": [[1, 5]]}, "points.0: "),
        ({"kind": "recorded", "points": [[0, 5], [0, 6]]}, "points.1: "),
        ({"kind": "recorded", "points": [[0, 5], [1]]}, "points.1: "),
        ({"kind": "recorded", "points": [[0, 5], [1, -5]]}, "points.1: "),
    ],
)
def test_bad_curves_are_refused_by_key(mapping: Any, message: str) -> None:
    with pytest.raises(InputError, match=f"^{message}") as refusal:
        curve(mapping)
    assert "\n" not in str(refusal.value)


@given(
    st.lists(st.tuples(st.integers(1, 10**10), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=5), st.data()
)
@example([(3, 1, 0), (1, 0, 1)], None)
def test_roots_at_the_edges_of_pieces(rows: list[tuple[int, int, int]], data: st.DataObject | None) -> None:
    """Short pieces, values down to 0 and areas at the edge of a piece, the hardest cases for roots."""
    pieces = [Piece(length, Fraction(a), Fraction(b)) for length, a, b in rows]
    shape = PiecewiseLinear(pieces, [Piece(NANOSECONDS, Fraction(1), Fraction(1))])
    k = data.draw(st.integers(0, shape.area_up(sum(p.length_ns for p in pieces)) + 2)) if data else 0
    at = shape.reach(k)
    assert shape.area_up(at) <= k < shape.area_up(at + 1)
    assert shape.reach_array(k, 1, 3).tolist() == [shape.reach(k + j) for j in range(3)]
