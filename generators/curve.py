"""Curves: how a rate or an exponent moves during a run, by kind and parameters.

Kinds, with times in seconds after T0 and values in the unit of the base (records/s, or an exponent):

| kind | parameters | the curve |
| --- | --- | --- |
| constant | | the base |
| step | at_s, to | the base, from at_s on `to` |
| ramp | from_s, until_s, to | the base, then straight to `to`, which stays |
| sine | period_s, amplitude | base + amplitude · sin(2π·t / period_s) |
| burst | at_s, length_s, to, every_s (optional) | the base, but `to` for length_s from at_s on, again each every_s |
| recorded | points [[t_s, value], …] | straight between the points, constant after the last; not around the base |

All are compiled to piecewise linear functions, so their integrals are exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from generators.errors import InputError
from generators.piecewise import FOR_EVER_NS, NANOSECONDS, Piece, PiecewiseLinear

KINDS = {
    "constant": (),
    "step": ("at_s", "to"),
    "ramp": ("from_s", "until_s", "to"),
    "sine": ("period_s", "amplitude"),
    "burst": ("at_s", "length_s", "to"),
    "recorded": ("points",),
}
_OPTIONAL = {"burst": ("every_s",)}
LONGEST_S = 10_000_000
SHORTEST_S = 0.001
MAX_POINTS = 100_000
# A sine has a knot each 0.1 s, and at least 20 a period. Between the most, straight lines are off by 5·10⁻⁸ of it.
_KNOT_S, _LEAST_KNOTS, _MOST_KNOTS = Fraction(1, 10), 20, 10_000
# Sines are rounded to this, so that every machine compiles the same curve.
_SINE_DIGITS = 10**9


@dataclass(frozen=True)
class Curve:
    """A value that moves with time. Make one with `parse_curve`."""

    settings: Mapping[str, Any]
    base: float
    shape: PiecewiseLinear = field(repr=False, compare=False)

    def as_mapping(self) -> dict[str, Any]:
        """The canonical form: kind and parameters in the order of the table above, whole numbers as integers.

        A curve that never leaves its base is `{"kind": "constant"}`, however it was written.
        """
        return dict(self.settings)

    @property
    def moves(self) -> bool:
        """Whether the value ever leaves the base."""
        return bool(self.settings["kind"] != "constant")

    def value(self, t_s: float) -> float:
        """The value `t_s` seconds after T0; before T0 what it is at T0."""
        return float(self.shape.values(np.array([to_ns(t_s)], dtype=np.int64))[0])

    def values(self, at_ns: NDArray[np.int64]) -> NDArray[np.float64]:
        """The values at the given nanoseconds after T0; same shape."""
        return self.shape.values(at_ns)

    def integral(self, t_s: float) -> Fraction:
        """The exact integral over [0, t_s] seconds: for a rate, the records of that time. 0 before T0."""
        return self.shape.area(to_ns(t_s))


def to_ns(t_s: float) -> int:
    """Whole nanoseconds of a time in seconds; the decimal form of a float is what its writer meant."""
    return round(Fraction(str(t_s)) * NANOSECONDS)


def parse_curve(mapping: Mapping[str, Any], *, base: float, low: float, high: float) -> Curve:
    """The curve that `mapping` describes, around `base`, with all its values in [low, high] (low ≥ 0).

    Raises InputError with one line: the key, what is wrong with it, and the remedy.
    """
    if not isinstance(mapping, Mapping):
        raise InputError('kind: missing; give an object such as {"kind": "step", "at_s": 30, "to": 800}')
    kind = mapping.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise InputError(f"kind: {kind!r} is not known; use {', '.join(KINDS)}")
    known = (*KINDS[kind], *_OPTIONAL.get(kind, ()))
    for key in mapping:
        if key != "kind" and key not in known:
            raise InputError(f"{key}: a {kind} curve has no such key; it has {', '.join(known) or 'none'}")
    for key in KINDS[kind]:
        if mapping.get(key) is None:
            raise InputError(f"{key}: missing; a {kind} curve needs {', '.join(KINDS[kind])}")
    given = {key: mapping[key] for key in known if mapping.get(key) is not None}
    settings, first, cycle = _COMPILERS[kind](_Given(given, Fraction(str(base)), low, high))
    if all(piece.begin == piece.end == Fraction(str(base)) for piece in (*first, *cycle)):
        kind, settings = "constant", {}
    return Curve({"kind": kind, **settings}, base, PiecewiseLinear(first, cycle))


_WRITABLE = 1e300
_Compiled = tuple[dict[str, Any], list[Piece], list[Piece]]


@dataclass(frozen=True)
class _Given:
    """What was written down, read key by key."""

    values: Mapping[str, Any]
    base: Fraction
    low: float
    high: float

    def number(self, key: str, low: float, high: float) -> int | float:
        """A number in [low, high]."""
        return _number(key, self.values[key], low, high)

    def level(self, key: str) -> int | float:
        """A value that the curve takes."""
        return self.number(key, self.low, self.high)

    def time(self, key: str) -> int | float:
        """An instant."""
        return self.number(key, 0, LONGEST_S)

    def length(self, key: str) -> int | float:
        """A stretch of time that is not empty."""
        return self.number(key, SHORTEST_S, LONGEST_S)


def _number(key: str, value: Any, low: float, high: float) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:  # NaN is not itself
        raise InputError(f"{key}: {value!r} is not a number; give one in [{low:g}, {high:g}]")
    if not low <= value <= high:
        shown = f"{value:g}" if abs(value) < _WRITABLE else "a far greater number"
        raise InputError(f"{key}: {shown} lies outside [{low:g}, {high:g}]; choose a value inside")
    return int(value) if value == int(value) else value


def _flat(length_ns: int, value: float | Fraction) -> list[Piece]:
    """One constant piece, or none when it would be empty."""
    level = value if isinstance(value, Fraction) else Fraction(str(value))
    return [Piece(length_ns, level, level)] if length_ns else []


def _constant(given: _Given) -> _Compiled:
    return {}, [], _flat(FOR_EVER_NS, given.base)


def _step(given: _Given) -> _Compiled:
    at, to = given.time("at_s"), given.level("to")
    return {"at_s": at, "to": to}, _flat(to_ns(at), given.base), _flat(FOR_EVER_NS, to)


def _ramp(given: _Given) -> _Compiled:
    begin, end, to = given.time("from_s"), given.time("until_s"), given.level("to")
    length = to_ns(end) - to_ns(begin)
    if length <= 0:
        raise InputError(f"until_s: {end:g} is not after from_s ({begin:g}); choose a later time, or the kind step")
    first = [*_flat(to_ns(begin), given.base), Piece(length, given.base, Fraction(str(to)))]
    return {"from_s": begin, "until_s": end, "to": to}, first, _flat(FOR_EVER_NS, to)


def _sine(given: _Given) -> _Compiled:
    period, amplitude = given.length("period_s"), given.number("amplitude", 0, given.high)
    swing = Fraction(str(amplitude))
    room = min(given.base - Fraction(str(given.low)), Fraction(str(given.high)) - given.base)
    if swing > room:
        raise InputError(
            f"amplitude: {amplitude:g} takes the curve out of [{given.low:g}, {given.high:g}] around the base "
            f"{float(given.base):g}; use at most {float(max(room, Fraction())):g}"
        )
    wanted = max(_LEAST_KNOTS, math.ceil(Fraction(str(period)) / _KNOT_S))
    knots = min(_MOST_KNOTS, -(-wanted // 4) * 4)  # by fours, so that both turning points are knots
    times = [to_ns(period) * j // knots for j in range(knots + 1)]
    angles = [2 * math.pi * (j % knots) / knots for j in range(knots + 1)]
    values = [given.base + swing * Fraction(round(math.sin(angle) * _SINE_DIGITS), _SINE_DIGITS) for angle in angles]
    return {"period_s": period, "amplitude": amplitude}, [], _joined(times, values)


def _burst(given: _Given) -> _Compiled:
    at, length, to = given.time("at_s"), given.length("length_s"), given.level("to")
    settings: dict[str, Any] = {"at_s": at, "length_s": length, "to": to}
    before, burst = _flat(to_ns(at), given.base), _flat(to_ns(length), to)
    if "every_s" not in given.values:
        return settings, before + burst, _flat(FOR_EVER_NS, given.base)
    every = given.length("every_s")
    if to_ns(every) <= to_ns(length):
        raise InputError(f"every_s: {every:g} is not more than length_s ({length:g}); let bursts end before the next")
    return {**settings, "every_s": every}, before, burst + _flat(to_ns(every) - to_ns(length), given.base)


def _recorded(given: _Given) -> _Compiled:
    points = given.values["points"]
    if not isinstance(points, list | tuple) or not 1 <= len(points) <= MAX_POINTS:
        raise InputError(f"points: not a list of 1 to {MAX_POINTS} points; give pairs [t_s, value], the first at 0 s")
    settings: list[list[int | float]] = []
    for number, point in enumerate(points):
        if not isinstance(point, list | tuple) or len(point) != 2:
            raise InputError(f"points.{number}: {point!r} is not a pair; give [t_s, value]")
        t_s = _number(f"points.{number}", point[0], 0, LONGEST_S)
        if number == 0 and t_s != 0:
            raise InputError(f"points.0: the first point is at {t_s:g} s; say with a point at 0 s how the run begins")
        if number > 0 and to_ns(t_s) <= to_ns(settings[-1][0]):
            raise InputError(f"points.{number}: {t_s:g} s is not after the point before it; put the points in order")
        settings.append([t_s, _number(f"points.{number}", point[1], given.low, given.high)])
    times = [to_ns(t_s) for t_s, _ in settings]
    values = [Fraction(str(value)) for _, value in settings]
    return {"points": settings}, _joined(times, values), _flat(FOR_EVER_NS, values[-1])


def _joined(times_ns: list[int], values: list[Fraction]) -> list[Piece]:
    """Straight lines from point to point."""
    return [
        Piece(after - before, begin, end)
        for before, after, begin, end in zip(times_ns, times_ns[1:], values, values[1:], strict=False)
    ]


_COMPILERS: dict[str, Callable[[_Given], _Compiled]] = {
    "constant": _constant,
    "step": _step,
    "ramp": _ramp,
    "sine": _sine,
    "burst": _burst,
    "recorded": _recorded,
}
