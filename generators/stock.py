"""Streams of a stock exchange: STOCK (quotes), TRANSACTION (trades) and POSITION (holdings), from one seed.

Each record is a JSON object that names its stream. All prices come from one market: a quote is the price at its event
time, a trade is within SPREAD of it, and a position is valued at its user's last trade. Each user trades each of its
stocks every ROUND_MS at an individual instant; holdings and their price change only then.

Event time is market time: a record due d after T0 happened d after the opening. A hash of the record number makes some
records late or out of order, see `Shifts`. The market also traded before that opening.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal, InvalidOperation
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from generators.counter_rng import blocks, draw_bits, draw_uniform, stream_key
from generators.pacing import SendSchedule
from generators.send_progress import InputError
from generators.zipf import MovingExponent, RankTables, cumulative

STOCK, TRANSACTION, POSITION = STREAMS = ("STOCK", "TRANSACTION", "POSITION")
OPEN = np.datetime64("2013-03-01T14:30:00.000", "ms")
# Share of STOCK if other streams are sent, too.
STOCK_SHARE = 0.2
LATE_MS = 3_600_000
# Preload records happen in the minute before the opening, so they do not make measured records late.
PRELOAD_MS = 60_000
SPREAD = 0.001
ROUND_MS = 30_000
LOT = 100
MAX_LOTS = 50

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Shifts:
    """Event times that precede the scheduled time of their record."""

    late: float  # share that is LATE_MS earlier
    disorder: float  # share that is earlier by at most half the watermark
    watermark_ms: int
    key: int
    amount_key: int

    def shift_ms(self, records: NDArray[np.uint64]) -> Ints:
        """Return the milliseconds by which each record is earlier, mostly 0; shape (n,)."""
        # One draw decides both, so a record is late or out of order, never both, and each share is exact.
        draw = draw_uniform(self.key, records)
        max_ms = self.watermark_ms // 2
        disorder_ms = (draw_uniform(self.amount_key, records) * max_ms).astype(np.int64) + (1 if max_ms else 0)
        shift_ms = np.where(draw < self.late + self.disorder, disorder_ms, 0)
        return np.where(draw < self.late, LATE_MS, shift_ms)


class StockStreams:
    """A source of the streams of one exchange; record k is a function of the parameters."""

    def __init__(
        self,
        market: Market,
        schedule: SendSchedule,
        *,
        streams: Sequence[str],
        users: int,
        skew: float,
        moving: MovingExponent | None,
        watermark_s: float,
        disorder: float,
        late: float,
        seed: int,
        repetition: int,
    ) -> None:
        """Set distinct `streams` of STREAMS; `moving` replaces `skew`; disorder + late ≤ 1."""
        self._market, self._schedule, self._moving = market, schedule, moving
        self._streams, self._bounds = tuple(streams), _stream_bounds(streams)
        self._users = users
        self._tables = RankTables(len(market.szcodes))
        self._table = cumulative(skew, len(market.szcodes) if moving is None else 1)
        self._szcodes = np.array(market.szcodes, dtype=object)

        def key(purpose: str) -> int:
            return stream_key(f"stock {purpose}", seed, repetition)

        self._stream_key, self._listing_key, self._user_key = key("stream"), key("listing"), key("user")
        self._size_key, self._spread_key = key("size"), key("spread")
        self._instant_key, self._holding_key = key("instant"), key("holding")
        self._shifts = Shifts(late, disorder, round(watermark_s * 1000), key("shift"), key("amount of shift"))

    def payloads(self, records: NDArray[np.uint64]) -> list[bytes]:
        """Return the records of the given schedule numbers (shape (n,))."""
        due_ms = self._schedule.due_of(records) // 1_000_000
        hundredths = None if self._moving is None else self._moving.hundredths(records)
        return self._lines(records, due_ms - self._shifts.shift_ms(records), hundredths)

    def preload(self, n: int) -> Iterator[bytes]:
        """Yield n records whose event times begin PRELOAD_MS before the opening and follow at the schedule's base rate.

        The rate is higher if they would otherwise reach past the opening: the measured records would then be late.
        """
        step_ms = min(1000 / float(self._schedule.rate), PRELOAD_MS / max(n, 1))
        for records in blocks(n):
            event_ms = np.floor(records.astype(np.float64) * step_ms).astype(np.int64) - PRELOAD_MS
            hundredths = None if self._moving is None else self._moving.at_start(len(records))
            yield from self._lines(records, event_ms, hundredths)

    def listings(self, records: NDArray[np.uint64], hundredths: Ints | None) -> Ints:
        """Return the stock of each record as its rank from 0; shape (n,)."""
        draws = draw_uniform(self._listing_key, records)
        if hundredths is not None:
            return self._tables.ranks(draws, hundredths)
        ranks: Ints = self._table.searchsorted(draws, side="right")
        return ranks

    def _lines(self, records: NDArray[np.uint64], event_ms: Ints, hundredths: Ints | None) -> list[bytes]:
        streams = self._bounds.searchsorted(draw_uniform(self._stream_key, records), side="right")
        listings = self.listings(records, hundredths)
        users = (draw_uniform(self._user_key, records) * self._users).astype(np.int64) + 1
        lines = [b""] * len(records)
        for stream, name in enumerate(self._streams):
            indices = np.nonzero(streams == stream)[0]
            made = self._make(name, records[indices], listings[indices], users[indices], event_ms[indices])
            for index, line in zip(indices.tolist(), made, strict=True):
                lines[index] = line
        return lines

    def _make(self, name: str, records: NDArray[np.uint64], listings: Ints, users: Ints, event_ms: Ints) -> list[bytes]:
        """Return the records of one stream."""
        codes, times = self._szcodes[listings].tolist(), _times(event_ms)
        if name == STOCK:
            dollars, cents = _split_cents(self._market.cents(listings, event_ms))
            form = b'{"stream":"STOCK","szcode":"%b","eventTime":"%bZ","lastPrice":%d.%02d}'
            return list(map(form.__mod__, zip(codes, times, dollars, cents, strict=True)))
        if name == TRANSACTION:
            dollars, cents = _split_cents(self._trade_prices(records, self._market.cents(listings, event_ms)))
            shares = _lots(draw_uniform(self._size_key, records))
            form = b'{"stream":"TRANSACTION","szcode":"%b","userID":%d,"eventTime":"%bZ","Turnover":%d,"Price":%d.%02d}'
            values = zip(codes, users.tolist(), times, shares, dollars, cents, strict=True)
            return list(map(form.__mod__, values))
        traded_ms, shares = self._holdings(listings, users, event_ms)
        dollars, cents = _split_cents(self._market.cents(listings, traded_ms))
        form = (
            b'{"stream":"POSITION","userID":%d,"szcode":"%b","eventTime":"%bZ","lastPrice":%d.%02d,"openInterest":%d}'
        )
        return list(map(form.__mod__, zip(users.tolist(), codes, times, dollars, cents, shares, strict=True)))

    def _trade_prices(self, records: NDArray[np.uint64], cents: Ints) -> Ints:
        """Return trade prices: within SPREAD of the market's, and at least one cent."""
        deviation = (2 * draw_uniform(self._spread_key, records) - 1) * SPREAD
        return np.maximum(1, cents + np.rint(cents * deviation).astype(np.int64))

    def _holdings(self, listings: Ints, users: Ints, event_ms: Ints) -> tuple[Ints, list[int]]:
        """Return each user's last trade of the stock (never after the event), and the shares held since."""
        pairs = (users * len(self._szcodes) + listings).astype(np.uint64)
        phase = (draw_bits(self._instant_key, pairs) % np.uint64(ROUND_MS)).astype(np.int64)
        rounds = (event_ms - phase) // ROUND_MS
        turn = draw_bits(self._holding_key, pairs) + rounds.astype(np.uint64)
        return rounds * ROUND_MS + phase, _lots(draw_uniform(self._holding_key, turn))


def _stream_bounds(streams: Sequence[str]) -> NDArray[np.float64]:
    """Return the split of the unit interval by each stream's share; shape (streams − 1,)."""
    others = len(streams) - (STOCK in streams)
    if others == 0 or others == len(streams):
        shares = [1 / len(streams)] * len(streams)
    else:
        shares = [STOCK_SHARE if name == STOCK else (1 - STOCK_SHARE) / others for name in streams]
    return np.cumsum(shares)[:-1]


def _lots(draws: NDArray[np.float64]) -> list[int]:
    """Return numbers of shares in whole lots, 1 to MAX_LOTS."""
    lots: list[int] = (((draws * MAX_LOTS).astype(np.int64) + 1) * LOT).tolist()
    return lots


def _times(event_ms: Ints) -> list[bytes]:
    """Return instants after the opening as 2013-03-01T14:30:00.123, without a zone."""
    texts: list[bytes] = (
        np.datetime_as_string(OPEN + event_ms.astype("timedelta64[ms]"), unit="ms").astype("S").tolist()
    )
    return texts


def _split_cents(cents: Ints) -> tuple[list[int], list[int]]:
    """Return whole dollars and remaining cents."""
    return (cents // 100).tolist(), (cents % 100).tolist()


# Stocks and their prices: real daily closes, replayed as a continuous market.
#
# Listing i follows series i mod 5, and is named `MSFT-017` if it is the eighteenth on MSFT. The listings of one series
# start at evenly spaced days. A trading day takes DAY_MS of market time, and the price is linear between two closes. At
# its last day a series turns and runs backwards, so every price is between two real neighbouring closes.


DAILY = Path(__file__).parent / "data" / "stocks" / "daily.csv"
# Name of the built-in prices; anything else is the path of a file in the same format.
BUILT_IN = "five-companies"
DAY_MS = 5_000
HEADER = "szcode,date,close"
_SYMBOL = re.compile(r"[A-Z][A-Z0-9.]{0,9}")
# The closes have up to four decimals; integers keep every price exact until it is rounded to cents.
_UNITS = 10_000
_UNITS_PER_CENT = 100
_MAX_PRICE = 1_000_000  # dollars


def read_closes(path: Path = DAILY) -> dict[str, NDArray[np.int64]]:
    """Return the closes of each symbol by date, in ten-thousandths of a dollar; shapes (days,).

    Raises InputError, naming file and line, if the file is missing or invalid: three columns, sorted by symbol and
    date, at least two days each.
    """
    closes: dict[str, list[int]] = {}
    last = "", ""
    number = 0
    try:
        with path.open("rb") as file:
            for number, raw in enumerate(file, start=1):
                text = raw.decode("utf-8").rstrip("\r\n")
                if number == 1:
                    _require(text == HEADER, path, 1, f"expected the header {HEADER}")
                    continue
                symbol, day, close = _row(path, number, text)
                _require(
                    (symbol, day) > last, path, number, f"got {symbol} {day}; expected a row after {' '.join(last)}"
                )
                last = symbol, day
                closes.setdefault(symbol, []).append(close)
    except OSError as error:
        raise InputError(f"prices: reading {path} failed: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"prices: {path}, line {number}: got {error.reason}; expected UTF-8") from None
    _require(bool(closes), path, number + 1, "expected at least one price")
    for symbol, days in closes.items():
        _require(len(days) > 1, path, number, f"got one day of {symbol}; expected two")
    return {symbol: np.array(days, dtype=np.int64) for symbol, days in closes.items()}


def _require(is_valid: bool, path: Path, line: int, problem: str) -> None:
    if not is_valid:
        raise InputError(f"prices: {path}, line {line}: {problem}")


def _row(path: Path, number: int, line: str) -> tuple[str, str, int]:
    """Return symbol, date and close (in ten-thousandths) of one line."""
    fields = line.split(",")
    _require(len(fields) == 3, path, number, f"got {len(fields)} fields; expected 3")
    symbol, day, close = fields
    _require(_SYMBOL.fullmatch(symbol) is not None, path, number, f"got {symbol!r}; expected a symbol")
    try:
        known_day = date.fromisoformat(day).isoformat() == day
    except ValueError:
        known_day = False
    _require(known_day, path, number, f"got {day!r}; expected a date such as 2013-03-01")
    try:
        price = Decimal(close)
    except InvalidOperation:
        price = Decimal("NaN")
    _require(price.is_finite() and 0 < price <= _MAX_PRICE, path, number, f"got {close!r}; expected a price")
    units = price * _UNITS
    _require(units == int(units), path, number, f"got {close!r}; expected at most four decimals")
    _require(units >= _UNITS_PER_CENT, path, number, f"got {close!r}; expected at least one cent")
    return symbol, day, int(units)


def closes_of(prices: str) -> dict[str, NDArray[np.int64]]:
    """Return the closes of BUILT_IN or a file. Raises InputError as `read_closes`."""
    return read_closes(DAILY if prices == BUILT_IN else Path(prices))


class Market:
    """Listed stocks and their prices at any instant. Listings are numbered from 0."""

    def __init__(self, stocks: int, closes: Mapping[str, NDArray[np.int64]]) -> None:
        """Create `stocks` ≥ 1 listings over the series of `closes` (each of at least two days)."""
        symbols = sorted(closes)
        listing = np.arange(stocks, dtype=np.int64)
        series, number = listing % len(symbols), listing // len(symbols)
        names = zip(series.tolist(), number.tolist(), strict=True)
        self.szcodes = [f"{symbols[index]}-{on_symbol:03d}".encode() for index, on_symbol in names]
        lengths = np.array([len(closes[symbol]) for symbol in symbols], dtype=np.int64)
        self._closes = np.concatenate([closes[symbol] for symbol in symbols])
        self._first = (np.cumsum(lengths) - lengths)[series]
        self._steps = (lengths - 1)[series]
        on_series = np.bincount(series, minlength=len(symbols))[series]
        self._start_ms = number * self._steps * DAY_MS // on_series

    def cents(self, listings: NDArray[np.int64], at_ms: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return prices in cents of listings at instants (ms after the opening, also negative); shapes (n,)."""
        steps = self._steps[listings]
        way_ms = steps * DAY_MS
        series_ms = (self._start_ms[listings] + at_ms) % (2 * way_ms)
        series_ms = np.where(series_ms > way_ms, 2 * way_ms - series_ms, series_ms)  # forwards, then backwards
        day = np.minimum(series_ms // DAY_MS, steps - 1)
        day_ms = series_ms - day * DAY_MS
        first = self._first[listings] + day
        units = self._closes[first] * (DAY_MS - day_ms) + self._closes[first + 1] * day_ms
        result: NDArray[np.int64] = (units + DAY_MS * _UNITS_PER_CENT // 2) // (DAY_MS * _UNITS_PER_CENT)
        return result
