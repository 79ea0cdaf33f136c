"""Stocks and their prices: real daily closes, played back as a market that can be asked for any moment.

Listings are dealt over the real series in turn: listing i follows series i mod 5, and is called `MSFT-017` when it is
the eighteenth on MSFT. The listings of one series begin at places spread evenly over its days. A trading day takes
DAY_MS of market time, and between two closes the price moves in a straight line. At its last day a series turns and
runs backwards, so that every price lies between two real neighbouring closes, for ever.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date
from decimal import Decimal, InvalidOperation
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from generators.errors import InputError

DAILY = Path(__file__).parent / "data" / "stocks" / "daily.csv"
# What a specification calls them; anything else is the path of a file of the same form.
BUILT_IN = "five-companies"
DAY_MS = 5_000
HEADER = "szcode,date,close"
_SYMBOL = re.compile(r"[A-Z][A-Z0-9.]{0,9}")
# The real closes have up to four decimals; whole numbers keep every price exact until it is rounded to cents.
_UNITS = 10_000
_UNITS_PER_CENT = 100
_HIGHEST = 1_000_000  # dollars


def read_closes(path: Path = DAILY) -> dict[str, NDArray[np.int64]]:
    """The closes of each symbol by date, in ten-thousandths of a dollar; shapes (days,).

    Raises InputError that names file and line when the file is missing or not what its header says: three columns,
    sorted by symbol and date, at least two days each.
    """
    closes: dict[str, list[int]] = {}
    last = "", ""
    number = 0
    try:
        with path.open("rb") as file:
            for number, raw in enumerate(file, start=1):
                text = raw.decode("utf-8").rstrip("\r\n")
                if number == 1:
                    _require(text == HEADER, path, 1, f"the header is not {HEADER}")
                    continue
                symbol, day, close = _row(path, number, text)
                _require((symbol, day) > last, path, number, f"{symbol} {day} is not after {' '.join(last)}")
                last = symbol, day
                closes.setdefault(symbol, []).append(close)
    except OSError as error:
        raise InputError(f"prices: {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"prices: {path}, line {number}: not UTF-8 ({error.reason}); restore the file") from None
    _require(bool(closes), path, number + 1, "no price")
    for symbol, days in closes.items():
        _require(len(days) > 1, path, number, f"{symbol} has one day only, and a price needs two to move between")
    return {symbol: np.array(days, dtype=np.int64) for symbol, days in closes.items()}


def _require(holds: bool, path: Path, line: int, problem: str) -> None:
    if not holds:
        raise InputError(f"prices: {path}, line {line}: {problem}; restore the file, or sort and complete it")


def _row(path: Path, number: int, line: str) -> tuple[str, str, int]:
    """Symbol, date and close (in ten-thousandths) of one line."""
    fields = line.split(",")
    _require(len(fields) == 3, path, number, f"{len(fields)} fields instead of 3")
    symbol, day, close = fields
    _require(_SYMBOL.fullmatch(symbol) is not None, path, number, f"{symbol!r} is not a symbol")
    try:
        known_day = date.fromisoformat(day).isoformat() == day
    except ValueError:
        known_day = False
    _require(known_day, path, number, f"{day!r} is not a date such as 2013-03-01")
    try:
        price = Decimal(close)
    except InvalidOperation:
        price = Decimal("NaN")
    _require(price.is_finite() and 0 < price <= _HIGHEST, path, number, f"{close!r} is not a price")
    units = price * _UNITS
    _require(units == int(units), path, number, f"{close!r} has more than four decimals")
    _require(units >= _UNITS_PER_CENT, path, number, f"{close!r} is less than a cent")
    return symbol, day, int(units)


def closes_of(prices: str) -> dict[str, NDArray[np.int64]]:
    """The closes that a specification names: BUILT_IN, or a file. Raises InputError as `read_closes` does."""
    return read_closes(DAILY if prices == BUILT_IN else Path(prices))


class Market:
    """The listed stocks, and the price of each at any moment. Listings are numbered from 0."""

    def __init__(self, stocks: int, closes: Mapping[str, NDArray[np.int64]]) -> None:
        """`stocks` ≥ 1 listings over the series of `closes` (each of at least two days)."""
        symbols = sorted(closes)
        listing = np.arange(stocks, dtype=np.int64)
        series, number = listing % len(symbols), listing // len(symbols)
        names = zip(series.tolist(), number.tolist(), strict=True)
        self.szcodes = [f"{symbols[which]}-{on_it:03d}".encode() for which, on_it in names]
        lengths = np.array([len(closes[symbol]) for symbol in symbols], dtype=np.int64)
        self._closes = np.concatenate([closes[symbol] for symbol in symbols])
        self._first = (np.cumsum(lengths) - lengths)[series]
        self._steps = (lengths - 1)[series]
        on_series = np.bincount(series, minlength=len(symbols))[series]
        self._start_ms = number * self._steps * DAY_MS // on_series

    def cents(self, listings: NDArray[np.int64], at_ms: NDArray[np.int64]) -> NDArray[np.int64]:
        """The prices in cents of listings at moments (milliseconds after the opening, negative before); shapes (n,)."""
        steps = self._steps[listings]
        way_ms = steps * DAY_MS
        place = (self._start_ms[listings] + at_ms) % (2 * way_ms)
        place = np.where(place > way_ms, 2 * way_ms - place, place)  # there, then back
        day = np.minimum(place // DAY_MS, steps - 1)
        into = place - day * DAY_MS
        first = self._first[listings] + day
        units = self._closes[first] * (DAY_MS - into) + self._closes[first + 1] * into
        result: NDArray[np.int64] = (units + DAY_MS * _UNITS_PER_CENT // 2) // (DAY_MS * _UNITS_PER_CENT)
        return result
