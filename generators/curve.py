"""Curves: the course of a rate or an exponent during a run, by kind and parameters.

Kinds, with times in seconds after T0 and values in the unit of the base (records/s, or an exponent):

| kind | parameters | value |
| --- | --- | --- |
| constant | | the base |
| step | at_s, to | the base, then `to` from at_s on |
| ramp | from_s, until_s, to | the base, then linear to `to`, then `to` |
| sine | period_s, amplitude | base + amplitude · sin(2π·t / period_s) |
| burst | at_s, length_s, to[, every_s] | `to` for length_s from at_s on, and again after each every_s; else the base |
| recorded | points [[t_s, value], …] | linear between the points, then constant; independent of the base |

Each compiles to a piecewise linear function with an exact integral and inverse: record k is due when the integral of
the rate passes k, without rounding errors over any number of pieces.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from generators.send_progress import InputError

NANOSECONDS = 1_000_000_000
# Length of an endless piece: 31 years. A constant function is one such piece, repeated.
ENDLESS_NS = 10**18
# Minimum relative distance of a floating-point root from an integer to trust its floor; 2^-44 is about 500 times the
# rounding error of the operations.
_ROUNDING_MARGIN = 2.0**-44
KINDS = {
    "constant": (),
    "step": ("at_s", "to"),
    "ramp": ("from_s", "until_s", "to"),
    "sine": ("period_s", "amplitude"),
    "burst": ("at_s", "length_s", "to"),
    "recorded": ("points",),
}
_OPTIONAL = {"burst": ("every_s",)}
MAX_TIME_S = 10_000_000
MIN_LENGTH_S = 0.001
MAX_POINTS = 100_000
# A sine has a knot each 0.1 s, at least 20 and at most 10,000 per period. With 10,000 the lines deviate by 5·10⁻⁸ of
# the amplitude.
_KNOT_S, _LEAST_KNOTS, _MOST_KNOTS = Fraction(1, 10), 20, 10_000
# Sines are rounded to this, so that all machines compile the same curve.
_SINE_DIGITS = 10**9


@dataclass(frozen=True)
class Piece:
    """A linear piece of `length_ns` > 0 nanoseconds from value `begin` to value `end`, both ≥ 0."""

    length_ns: int
    begin: Fraction
    end: Fraction

    def __post_init__(self) -> None:
        if self.length_ns <= 0 or self.begin < 0 or self.end < 0:
            raise ValueError(f"piece: got {self}; expected a positive length and values of at least 0")


class PiecewiseLinear:
    """Function f(t) ≥ 0 for t ≥ 0 nanoseconds: the pieces `first`, then the pieces `cycle` repeatedly.

    Values use `numpy.interp` over the ends of the pieces. Areas and their inverse are exact: values are integers over
    one denominator D, and areas integers in units of 1 / (2·D·10⁹), in which a piece has (v₁ + v₂)·length. The area is
    the integral over the time in seconds: a number of records, for a rate.
    """

    def __init__(self, first: Sequence[Piece], cycle: Sequence[Piece]) -> None:
        """Compile the pieces; `cycle` needs at least one."""
        if not cycle:
            raise ValueError("cycle: empty; expected at least one piece")
        self.first, self.cycle = tuple(first), tuple(cycle)
        pieces = (*first, *cycle)
        denominator = math.lcm(*(value.denominator for piece in pieces for value in (piece.begin, piece.end)))
        self._unit = 2 * denominator * NANOSECONDS  # area units of 1
        self._lengths = [piece.length_ns for piece in pieces]
        self._begins = [int(piece.begin * denominator) for piece in pieces]
        self._rises = [int((piece.end - piece.begin) * denominator) for piece in pieces]
        areas = ((2 * b + r) * n for b, r, n in zip(self._begins, self._rises, self._lengths, strict=True))
        self._starts = list(accumulate(self._lengths, initial=0))
        self._areas = list(accumulate(areas, initial=0))
        self._cycle_ns, self._cycle_area = self._starts[len(first)], self._areas[len(first)]
        self._period_ns, self._period_area = self._starts[-1] - self._cycle_ns, self._areas[-1] - self._cycle_area
        self._knots = np.repeat(np.array(self._starts, dtype=np.float64), 2)[1:-1]
        self._levels = np.array([float(value) for piece in pieces for value in (piece.begin, piece.end)])

    def values(self, at_ns: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return f at the given instants; same shape. Before 0 it equals f(0)."""
        at = np.maximum(at_ns, 0)
        at = at - np.maximum(at - self._cycle_ns, 0) // self._period_ns * self._period_ns
        # At the joint of two pieces the later value counts: `interp` uses the last of equal knots.
        values: NDArray[np.float64] = np.interp(at, self._knots, self._levels)
        return values

    def area_up(self, at_ns: int) -> int:
        """Return the area from 0 to `at_ns`, rounded up: the number of integers 0, 1, … below it."""
        if at_ns <= 0:
            return 0
        turns = max(0, at_ns - self._cycle_ns) // self._period_ns
        at_ns -= turns * self._period_ns
        i = min(bisect_right(self._starts, at_ns), len(self._lengths)) - 1
        x, length = at_ns - self._starts[i], self._lengths[i]
        before = self._areas[i] + turns * self._period_area + 2 * self._begins[i] * x
        # Integers are faster than a Fraction, which would look for common divisors.
        return -(-(before * length + self._rises[i] * x * x) // (length * self._unit))

    def reach(self, k: int) -> int:
        """Return the last whole nanosecond up to which the area is at most `k` ≥ 0.

        Raises ValueError if the area never exceeds `k`.
        """
        i, origin, rest = self._locate(k)
        return origin + self._reach(i, rest)

    def reach_array(self, first: int, step: int, n: int) -> NDArray[np.int64]:
        """Return `reach` of first, first + step, …; shape (n,). Exact, and fast for many values per piece."""
        result = np.empty(n, dtype=np.int64)
        j = 0
        while j < n:
            i, origin, rest = self._locate(first + j * step)
            beyond = self._areas[i + 1] - self._areas[i] - 1 - rest
            m = min(n - j, beyond // (step * self._unit) + 1)
            result[j : j + m] = self._reach_all(i, rest, step, m) + origin
            j += m
        return result

    def _locate(self, k: int) -> tuple[int, int, int]:
        """Return the piece in which the area reaches `k`, the instant of its begin, and the area from there to `k`."""
        area, turns = k * self._unit, 0
        if area >= self._cycle_area:
            if not self._period_area:
                raise ValueError(f"k: got {k}; expected less than the total area")
            turns = (area - self._cycle_area) // self._period_area
            area -= turns * self._period_area
        i = bisect_right(self._areas, area) - 1
        return i, turns * self._period_ns + self._starts[i], area - self._areas[i]

    def _reach(self, i: int, rest: int) -> int:
        """Return the last whole nanosecond in piece `i` with an area of at most `rest` (< the piece's own)."""
        begin, rise, length = self._begins[i], self._rises[i], self._lengths[i]
        if rise == 0:
            return rest // (2 * begin)
        # Root of rise·x² + 2·begin·length·x = rest·length, in the form without cancellation. The rounded square root is
        # off by at most a step or two, which the exact check corrects.
        middle, target = begin * length, rest * length
        root = math.isqrt(middle * middle + rise * target)
        x = min(target // (middle + root) if middle + root else 0, length - 1)
        while (rise * x + 2 * middle) * x > target:
            x -= 1
        while (rise * (x + 1) + 2 * middle) * (x + 1) <= target:
            x += 1
        return x

    def _reach_all(self, i: int, rest: int, step: int, m: int) -> NDArray[np.int64]:
        """Return `_reach(i, rest + j·step)` for j = 0 … m − 1, all in that piece; shape (m,)."""
        each, begin, rise, length = step * self._unit, self._begins[i], self._rises[i], self._lengths[i]
        if rise == 0:
            return _floor_divide(rest, each, 2 * begin, m)
        # From x0 on, with y = x − x0, slope 2·b and curvature c, in whole areas: c·y² + 2·b·y = area. Python divides
        # integers to the nearest float, so only these operations round.
        x0, scale = self._reach(i, rest), length * self._unit
        b, c = (begin * length + rise * x0) / scale, rise / scale
        behind = (rest * length - (rise * x0 + 2 * begin * length) * x0) / scale
        area = behind + np.arange(m, dtype=np.float64) * step
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            below = b * b + c * area
            y = area / (b + np.sqrt(below))
            floor = np.floor(y)
            margin = (y + 1) * _ROUNDING_MARGIN
            is_certain = (below > b * b / 16) & (y - floor > margin) & (floor + 1 - y > margin) & (y < 2.0**53)
        result = np.zeros(m, dtype=np.int64)
        result[is_certain] = floor[is_certain].astype(np.int64) + x0
        for j in np.flatnonzero(~is_certain).tolist():
            result[j] = self._reach(i, rest + j * each)
        return result


def constant_function(level: Fraction) -> PiecewiseLinear:
    """Return the function with the constant value `level`."""
    return PiecewiseLinear([], [Piece(ENDLESS_NS, level, level)])


def _floor_divide(rest: int, each: int, by: int, n: int) -> NDArray[np.int64]:
    """Return (rest + j·each) // by for j = 0 … n − 1; shape (n,)."""
    common = math.gcd(each, by)
    rest, each, by = rest // common, each // common, by // common
    base, rest = divmod(rest, by)
    if rest + n * each >= 2**63:
        return np.array([base + (rest + j * each) // by for j in range(n)], dtype=np.int64)
    return base + (rest + np.arange(n, dtype=np.int64) * each) // by


@dataclass(frozen=True)
class Curve:
    """A value that varies with time, created by `parse_curve`."""

    settings: Mapping[str, Any]
    base: float
    shape: PiecewiseLinear = field(repr=False, compare=False)

    def as_mapping(self) -> dict[str, Any]:
        """Return the canonical form: kind and parameters in the order of the table, integers where exact.

        A curve that equals its base everywhere is `{"kind": "constant"}`.
        """
        return dict(self.settings)

    @property
    def is_varying(self) -> bool:
        """Whether the value ever differs from the base."""
        return bool(self.settings["kind"] != "constant")

    def value(self, t_s: float) -> float:
        """Return the value `t_s` seconds after T0; before T0 the value at T0."""
        return float(self.shape.values(np.array([to_ns(t_s)], dtype=np.int64))[0])

    def values(self, at_ns: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the values at the given nanoseconds after T0; same shape."""
        return self.shape.values(at_ns)


def to_ns(t_s: float) -> int:
    """Return a time in seconds as whole nanoseconds, from the float's decimal form."""
    return round(Fraction(str(t_s)) * NANOSECONDS)


def parse_curve(mapping: Mapping[str, Any], *, base: float, low: float, high: float) -> Curve:
    """Return the curve of `mapping` around `base`, with all values in [low, high] (low ≥ 0).

    Raises InputError, naming the key.
    """
    if not isinstance(mapping, Mapping):
        raise InputError('kind: missing; expected an object such as {"kind": "step", "at_s": 30, "to": 800}')
    kind = mapping.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise InputError(f"kind: got {kind!r}; expected one of {', '.join(KINDS)}")
    known = (*KINDS[kind], *_OPTIONAL.get(kind, ()))
    for key in mapping:
        if key != "kind" and key not in known:
            raise InputError(f"{key}: unknown key of a {kind} curve; expected {', '.join(known) or 'none'}")
    for key in KINDS[kind]:
        if mapping.get(key) is None:
            raise InputError(f"{key}: missing; a {kind} curve needs {', '.join(KINDS[kind])}")
    given = {key: mapping[key] for key in known if mapping.get(key) is not None}
    settings, first, cycle = _COMPILERS[kind](_CurveReader(given, Fraction(str(base)), low, high))
    if all(piece.begin == piece.end == Fraction(str(base)) for piece in (*first, *cycle)):
        kind, settings = "constant", {}
    return Curve({"kind": kind, **settings}, base, PiecewiseLinear(first, cycle))


_WRITABLE = 1e300
_CompiledCurve = tuple[dict[str, Any], list[Piece], list[Piece]]


@dataclass(frozen=True)
class _CurveReader:
    """Reader of a curve's parameters."""

    values: Mapping[str, Any]
    base: Fraction
    low: float
    high: float

    def number(self, key: str, low: float, high: float) -> int | float:
        """Return a number in [low, high]."""
        return _number(key, self.values[key], low, high)

    def level(self) -> int | float:
        """Return the target value."""
        return self.number("to", self.low, self.high)

    def time(self, key: str) -> int | float:
        """Return an instant in seconds."""
        return self.number(key, 0, MAX_TIME_S)

    def length(self, key: str) -> int | float:
        """Return a positive duration in seconds."""
        return self.number(key, MIN_LENGTH_S, MAX_TIME_S)


def _number(key: str, value: Any, low: float, high: float) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:  # NaN
        raise InputError(f"{key}: got {value!r}; expected a number in [{low:g}, {high:g}]")
    if not low <= value <= high:
        shown = f"{value:g}" if abs(value) < _WRITABLE else "a far larger number"
        raise InputError(f"{key}: got {shown}; expected a number in [{low:g}, {high:g}]")
    return int(value) if value == int(value) else value


def _flat_piece(length_ns: int, value: float | Fraction) -> list[Piece]:
    """Return one constant piece, or none if it is empty."""
    level = value if isinstance(value, Fraction) else Fraction(str(value))
    return [Piece(length_ns, level, level)] if length_ns else []


def _constant(given: _CurveReader) -> _CompiledCurve:
    return {}, [], _flat_piece(ENDLESS_NS, given.base)


def _step(given: _CurveReader) -> _CompiledCurve:
    at, to = given.time("at_s"), given.level()
    return {"at_s": at, "to": to}, _flat_piece(to_ns(at), given.base), _flat_piece(ENDLESS_NS, to)


def _ramp(given: _CurveReader) -> _CompiledCurve:
    begin, end, to = given.time("from_s"), given.time("until_s"), given.level()
    length = to_ns(end) - to_ns(begin)
    if length <= 0:
        raise InputError(f"until_s: got {end:g}; expected more than from_s ({begin:g})")
    first = [*_flat_piece(to_ns(begin), given.base), Piece(length, given.base, Fraction(str(to)))]
    return {"from_s": begin, "until_s": end, "to": to}, first, _flat_piece(ENDLESS_NS, to)


def _sine(given: _CurveReader) -> _CompiledCurve:
    period, amplitude = given.length("period_s"), given.number("amplitude", 0, given.high)
    swing = Fraction(str(amplitude))
    room = min(given.base - Fraction(str(given.low)), Fraction(str(given.high)) - given.base)
    if swing > room:
        raise InputError(
            f"amplitude: got {amplitude:g}; expected at most {float(max(room, Fraction())):g}, which keeps the curve "
            f"around {float(given.base):g} in [{given.low:g}, {given.high:g}]"
        )
    wanted = max(_LEAST_KNOTS, math.ceil(Fraction(str(period)) / _KNOT_S))
    knots = min(_MOST_KNOTS, -(-wanted // 4) * 4)  # a multiple of 4, so that both extremes are knots
    times = [to_ns(period) * j // knots for j in range(knots + 1)]
    angles = [2 * math.pi * (j % knots) / knots for j in range(knots + 1)]
    values = [given.base + swing * Fraction(round(math.sin(angle) * _SINE_DIGITS), _SINE_DIGITS) for angle in angles]
    return {"period_s": period, "amplitude": amplitude}, [], _join_points(times, values)


def _burst(given: _CurveReader) -> _CompiledCurve:
    at, length, to = given.time("at_s"), given.length("length_s"), given.level()
    settings: dict[str, Any] = {"at_s": at, "length_s": length, "to": to}
    before, burst = _flat_piece(to_ns(at), given.base), _flat_piece(to_ns(length), to)
    if "every_s" not in given.values:
        return settings, before + burst, _flat_piece(ENDLESS_NS, given.base)
    every = given.length("every_s")
    if to_ns(every) <= to_ns(length):
        raise InputError(f"every_s: got {every:g}; expected more than length_s ({length:g})")
    return {**settings, "every_s": every}, before, burst + _flat_piece(to_ns(every) - to_ns(length), given.base)


def _recorded(given: _CurveReader) -> _CompiledCurve:
    points = given.values["points"]
    if not isinstance(points, list | tuple) or not 1 <= len(points) <= MAX_POINTS:
        raise InputError(f"points: expected a list of 1 to {MAX_POINTS} pairs [t_s, value], the first at 0 s")
    settings: list[list[int | float]] = []
    for index, point in enumerate(points):
        if not isinstance(point, list | tuple) or len(point) != 2:
            raise InputError(f"points.{index}: got {point!r}; expected [t_s, value]")
        t_s = _number(f"points.{index}", point[0], 0, MAX_TIME_S)
        if index == 0 and t_s != 0:
            raise InputError(f"points.0: got a point at {t_s:g} s; expected the first one at 0 s")
        if index > 0 and to_ns(t_s) <= to_ns(settings[-1][0]):
            raise InputError(f"points.{index}: got {t_s:g} s; expected a time after the previous point")
        settings.append([t_s, _number(f"points.{index}", point[1], given.low, given.high)])
    times = [to_ns(t_s) for t_s, _ in settings]
    values = [Fraction(str(value)) for _, value in settings]
    return {"points": settings}, _join_points(times, values), _flat_piece(ENDLESS_NS, values[-1])


def _join_points(times_ns: list[int], values: list[Fraction]) -> list[Piece]:
    """Return straight lines from point to point."""
    return [
        Piece(after - before, begin, end)
        for before, after, begin, end in zip(times_ns, times_ns[1:], values, values[1:], strict=False)
    ]


_COMPILERS: dict[str, Callable[[_CurveReader], _CompiledCurve]] = {
    "constant": _constant,
    "step": _step,
    "ramp": _ramp,
    "sine": _sine,
    "burst": _burst,
    "recorded": _recorded,
}
