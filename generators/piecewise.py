"""Piecewise linear functions of time with an exact integral, and an exact inverse of that integral.

A function is a row of linear pieces, then another row that repeats for ever. Lengths are whole nanoseconds and
values exact fractions. All values are kept as integers over one denominator D, and areas as integers in units of
1 / (2·D·10⁹): what a piece holds, (v₁ + v₂)·length, is then whole, and no sum over any number of pieces has a
rounding error.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

NANOSECONDS = 1_000_000_000
# The length of a piece that is meant to last: 31 years. A constant function is one such piece, repeated.
FOR_EVER_NS = 10**18
# A root found in floating point is trusted when it is farther than this share of itself from a whole number;
# 2^-44 is some 500 times what the few operations can lose while the discriminant keeps its leading digits.
_TRUST = 2.0**-44


@dataclass(frozen=True)
class Piece:
    """A linear stretch of `length_ns` > 0 nanoseconds from the value `begin` to the value `end`, both ≥ 0."""

    length_ns: int
    begin: Fraction
    end: Fraction

    def __post_init__(self) -> None:
        if self.length_ns <= 0 or self.begin < 0 or self.end < 0:
            raise ValueError(f"{self}: a piece needs a positive length and values that are not negative")


class _Row:
    """Pieces one after another, as integers: values over D, areas in units of 1 / (2·D·10⁹)."""

    def __init__(self, pieces: Sequence[Piece], denominator: int) -> None:
        self.lengths = [piece.length_ns for piece in pieces]
        self.begins = [int(piece.begin * denominator) for piece in pieces]
        self.rises = [int((piece.end - piece.begin) * denominator) for piece in pieces]
        self.starts = [0]
        self.areas = [0]
        for length, begin, rise in zip(self.lengths, self.begins, self.rises, strict=True):
            self.starts.append(self.starts[-1] + length)
            self.areas.append(self.areas[-1] + (2 * begin + rise) * length)
        self.length_ns = self.starts[-1]
        self.area = self.areas[-1]
        starts = np.array(self.starts, dtype=np.float64)
        self._starts = np.array(self.starts[:-1], dtype=np.int64)
        self._begins = np.array([float(piece.begin) for piece in pieces])
        self._slopes = np.array([float(piece.end - piece.begin) for piece in pieces]) / np.diff(starts)

    def values(self, at_ns: NDArray[np.int64]) -> NDArray[np.float64]:
        """The values at the given instants, all within the row; same shape."""
        piece = self._starts.searchsorted(at_ns, side="right") - 1
        result: NDArray[np.float64] = self._begins[piece] + self._slopes[piece] * (at_ns - self._starts[piece])
        return result

    def area_until(self, at_ns: int) -> tuple[int, int]:
        """The area from the row's start to an instant in [0, length], as numerator and denominator."""
        i = min(bisect_right(self.starts, at_ns), len(self.lengths)) - 1
        x, length = at_ns - self.starts[i], self.lengths[i]
        return (self.areas[i] + 2 * self.begins[i] * x) * length + self.rises[i] * x * x, length

    def piece_of(self, area: int) -> int:
        """The last piece that begins with no more than `area` (< the row's own) behind it."""
        return bisect_right(self.areas, area) - 1

    def reach(self, i: int, rest: int) -> int:
        """The last whole nanosecond within piece `i` up to which it holds no more than `rest` (< the piece's own)."""
        begin, rise, length = self.begins[i], self.rises[i], self.lengths[i]
        if rise == 0:
            return rest // (2 * begin)
        # The root of rise·x² + 2·begin·length·x = rest·length, in the form that loses no digits to a subtraction;
        # rounding the square root down leaves it at most a step or two away, which the exact check then takes.
        middle, target = begin * length, rest * length
        root = math.isqrt(middle * middle + rise * target)
        x = min(target // (middle + root) if middle + root else 0, length - 1)
        while (rise * x + 2 * middle) * x > target:
            x -= 1
        while (rise * (x + 1) + 2 * middle) * (x + 1) <= target:
            x += 1
        return x


class PiecewiseLinear:
    """f(t) ≥ 0 for t ≥ 0 nanoseconds: the pieces `first`, then the pieces `cycle` over and over.

    Its area is the integral of f over the time in seconds, so records for a rate in records per second.
    """

    def __init__(self, first: Sequence[Piece], cycle: Sequence[Piece]) -> None:
        """`cycle` needs at least one piece."""
        if not cycle:
            raise ValueError("a function needs something that lasts: give at least one piece as the cycle")
        self.first, self.cycle = tuple(first), tuple(cycle)
        denominator = math.lcm(*(value.denominator for p in (*first, *cycle) for value in (p.begin, p.end)))
        self._unit = 2 * denominator * NANOSECONDS  # of area: so many are 1
        self._first = _Row(first, denominator) if first else None
        self._cycle = _Row(cycle, denominator)
        self._begin_ns = self._first.length_ns if self._first else 0
        self._begin_area = self._first.area if self._first else 0

    def values(self, at_ns: NDArray[np.int64]) -> NDArray[np.float64]:
        """f at the given instants; same shape. Before 0 it is what it is at 0."""
        at = np.maximum(at_ns, 0)
        result = self._cycle.values(np.maximum(at - self._begin_ns, 0) % self._cycle.length_ns)
        if self._first:
            early = at < self._begin_ns
            result[early] = self._first.values(at[early])
        return result

    def area(self, at_ns: int) -> Fraction:
        """The exact area from 0 to `at_ns`; 0 before."""
        numerator, denominator = self._area(at_ns)
        return Fraction(numerator, denominator * self._unit)

    def area_up(self, at_ns: int) -> int:
        """The area from 0 to `at_ns`, rounded up: how many whole numbers 0, 1, … are less than it."""
        numerator, denominator = self._area(at_ns)
        return -(-numerator // (denominator * self._unit))

    def _area(self, at_ns: int) -> tuple[int, int]:
        if at_ns <= 0:
            return 0, 1
        if self._first and at_ns < self._begin_ns:
            return self._first.area_until(at_ns)
        rounds, x = divmod(at_ns - self._begin_ns, self._cycle.length_ns)
        numerator, denominator = self._cycle.area_until(x)
        return numerator + (self._begin_area + rounds * self._cycle.area) * denominator, denominator

    def reach(self, k: int) -> int:
        """The last whole nanosecond up to which the area is at most `k` ≥ 0.

        Raises ValueError when the area never exceeds `k`.
        """
        row, origin, area = self._place(k)
        i = row.piece_of(area)
        return origin + row.starts[i] + row.reach(i, area - row.areas[i])

    def _place(self, k: int) -> tuple[_Row, int, int]:
        """Where the area comes to `k`: the row, the instant at which (this turn of) it begins, the area within it."""
        area = k * self._unit
        if self._first and area < self._begin_area:
            return self._first, 0, area
        if self._cycle.area == 0:
            raise ValueError(f"the area never exceeds {k}")
        rounds, rest = divmod(area - self._begin_area, self._cycle.area)
        return self._cycle, self._begin_ns + rounds * self._cycle.length_ns, rest

    def reach_array(self, first: int, step: int, n: int) -> NDArray[np.int64]:
        """`reach` of first, first + step, …; shape (n,), nanoseconds. As exact, and fast where many share a piece."""
        result = np.empty(n, dtype=np.int64)
        j = 0
        while j < n:
            row, origin, area = self._place(first + j * step)
            i = row.piece_of(area)
            rest = area - row.areas[i]
            m = min(n - j, (row.areas[i + 1] - row.areas[i] - 1 - rest) // (step * self._unit) + 1)
            result[j : j + m] = self._within(row, i, rest, step, m) + (origin + row.starts[i])
            j += m
        return result

    def _within(self, row: _Row, i: int, rest: int, step: int, m: int) -> NDArray[np.int64]:
        """`row.reach(i, rest + j·step)` for j = 0 … m − 1, where all lie in that piece; shape (m,)."""
        each = step * self._unit
        if row.rises[i] == 0:
            return floors(rest, each, 2 * row.begins[i], m)
        x0 = row.reach(i, rest)
        if m == 1:
            return np.array([x0], dtype=np.int64)
        # From x0 on, with y = x − x0, slope 2·b and curvature c, in units of whole areas: c·y² + 2·b·y = area. Python
        # divides integers of any size to the nearest float, so only these few operations round.
        begin, rise, length = row.begins[i], row.rises[i], row.lengths[i]
        scale = length * self._unit
        b = (begin * length + rise * x0) / scale
        c = rise / scale
        behind = (rest * length - (rise * x0 + 2 * begin * length) * x0) / scale
        area = behind + np.arange(m, dtype=np.float64) * step
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            below = b * b + c * area
            y = area / (b + np.sqrt(below))
            floor = np.floor(y)
            doubt = (y + 1) * _TRUST
            sure = (below > b * b / 16) & (y - floor > doubt) & (floor + 1 - y > doubt) & (y < 2.0**53)
        result = np.zeros(m, dtype=np.int64)
        result[sure] = floor[sure].astype(np.int64) + x0
        for j in np.nonzero(~sure)[0].tolist():
            result[j] = row.reach(i, rest + j * each)
        return result


def floors(rest: int, each: int, by: int, n: int) -> NDArray[np.int64]:
    """(rest + j·each) // by for j = 0 … n − 1; shape (n,)."""
    common = math.gcd(each, by)
    rest, each, by = rest // common, each // common, by // common
    base, rest = divmod(rest, by)
    if rest + n * each >= 2**63:  # exact in Python's integers instead
        return np.array([base + (rest + j * each) // by for j in range(n)], dtype=np.int64)
    return base + (rest + np.arange(n, dtype=np.int64) * each) // by
