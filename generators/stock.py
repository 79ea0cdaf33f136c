"""The streams of a stock exchange: STOCK (quotes), TRANSACTION (trades) and POSITION (holdings), from one seed.

Each record is one JSON object that names its stream. Prices are those of one market: a quote is the price at its
event time, a trade lies within SPREAD of it, and a position is valued at its user's last trade. Each user trades each
of its stocks every ROUND_MS at an instant of its own; what it holds, and at which price, changes only then.

Event time is the time of the market: a record that is due d after T0 happened d after the opening. By hash of the
record number some records are late and some out of order, see `Shifts`. The market traded before that opening, too.
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
# The records of STOCK where other streams are sent, too.
STOCK_SHARE = 0.2
LATE_MS = 3_600_000
# Primer records happened in the minute before the opening, so that they make no measured record late.
PRIMER_MS = 60_000
SPREAD = 0.001
ROUND_MS = 30_000
LOT = 100
MAX_LOTS = 50

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Shifts:
    """Which records happened earlier than their place in the schedule says, and by how much."""

    late: float  # share that is LATE_MS earlier
    disorder: float  # share that is earlier by at most half the watermark
    watermark_ms: int
    key: int
    amount_key: int

    def shift_ms(self, records: NDArray[np.uint64]) -> Ints:
        """Milliseconds by which each record is earlier, mostly 0; shape (n,)."""
        # One draw decides both, so a record is late or out of order, never both, and each share is what was asked for.
        draw = draw_uniform(self.key, records)
        most = self.watermark_ms // 2
        some = (draw_uniform(self.amount_key, records) * most).astype(np.int64) + (1 if most else 0)
        shifted = np.where(draw < self.late + self.disorder, some, 0)
        return np.where(draw < self.late, LATE_MS, shifted)


class StockStreams:
    """A source of the streams of one exchange; record k is the same whoever asks, for equal parameters."""

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
        """`streams`: one or more of STREAMS, each once; `moving` takes the place of `skew`; disorder + late ≤ 1."""
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
        """The records of the given numbers in the schedule (shape (n,))."""
        due_ms = self._schedule.due_of(records) // 1_000_000
        hundredths = None if self._moving is None else self._moving.hundredths(records)
        return self._lines(records, due_ms - self._shifts.shift_ms(records), hundredths)

    def primer(self, n: int) -> Iterator[bytes]:
        """n records in order from PRIMER_MS before the opening on, at the schedule's first rate or faster.

        Faster where they would not all happen before the opening: a primer that is ahead of the measured records
        would make those late.
        """
        step_ms = min(1000 / float(self._schedule.rate), PRIMER_MS / max(n, 1))
        for records in blocks(n):
            event_ms = np.floor(records.astype(np.float64) * step_ms).astype(np.int64) - PRIMER_MS
            hundredths = None if self._moving is None else self._moving.at_start(len(records))
            yield from self._lines(records, event_ms, hundredths)

    def listings(self, records: NDArray[np.uint64], hundredths: Ints | None) -> Ints:
        """The stock of each record, as its rank from 0; shape (n,)."""
        draws = draw_uniform(self._listing_key, records)
        if hundredths is not None:
            return self._tables.ranks(draws, hundredths)
        ranks: Ints = self._table.searchsorted(draws, side="right")
        return ranks

    def _lines(self, records: NDArray[np.uint64], event_ms: Ints, hundredths: Ints | None) -> list[bytes]:
        which = self._bounds.searchsorted(draw_uniform(self._stream_key, records), side="right")
        listings = self.listings(records, hundredths)
        users = (draw_uniform(self._user_key, records) * self._users).astype(np.int64) + 1
        lines = [b""] * len(records)
        for number, name in enumerate(self._streams):
            places = np.nonzero(which == number)[0]
            made = self._make(name, records[places], listings[places], users[places], event_ms[places])
            for place, line in zip(places.tolist(), made, strict=True):
                lines[place] = line
        return lines

    def _make(self, name: str, records: NDArray[np.uint64], listings: Ints, users: Ints, event_ms: Ints) -> list[bytes]:
        """The records of one stream."""
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
        """Prices of trades: at most SPREAD from the market's, and at least a cent."""
        deviation = (2 * draw_uniform(self._spread_key, records) - 1) * SPREAD
        return np.maximum(1, cents + np.rint(cents * deviation).astype(np.int64))

    def _holdings(self, listings: Ints, users: Ints, event_ms: Ints) -> tuple[Ints, list[int]]:
        """When each user last traded the stock (never after the event), and how many shares it has held since then."""
        pairs = (users * len(self._szcodes) + listings).astype(np.uint64)
        phase = (draw_bits(self._instant_key, pairs) % np.uint64(ROUND_MS)).astype(np.int64)
        rounds = (event_ms - phase) // ROUND_MS
        turn = draw_bits(self._holding_key, pairs) + rounds.astype(np.uint64)
        return rounds * ROUND_MS + phase, _lots(draw_uniform(self._holding_key, turn))


def _stream_bounds(streams: Sequence[str]) -> NDArray[np.float64]:
    """Where the unit interval is cut so that each stream gets its share; shape (streams − 1,)."""
    others = len(streams) - (STOCK in streams)
    if others == 0 or others == len(streams):
        shares = [1 / len(streams)] * len(streams)
    else:
        shares = [STOCK_SHARE if name == STOCK else (1 - STOCK_SHARE) / others for name in streams]
    return np.cumsum(shares)[:-1]


def _lots(draws: NDArray[np.float64]) -> list[int]:
    """Shares in whole lots, 1 to MOST_LOTS of them."""
    lots: list[int] = (((draws * MAX_LOTS).astype(np.int64) + 1) * LOT).tolist()
    return lots


def _times(event_ms: Ints) -> list[bytes]:
    """Moments after the opening as 2013-03-01T14:30:00.123, without the zone."""
    texts: list[bytes] = (
        np.datetime_as_string(OPEN + event_ms.astype("timedelta64[ms]"), unit="ms").astype("S").tolist()
    )
    return texts


def _split_cents(cents: Ints) -> tuple[list[int], list[int]]:
    """Whole dollars, and the cents beyond."""
    return (cents // 100).tolist(), (cents % 100).tolist()


# Stocks and their prices: real daily closes, played back as a market that can be asked for any moment.
#
# Listings are dealt over the real series in turn: listing i follows series i mod 5, and is called `MSFT-017` when it
# is the eighteenth on MSFT. The listings of one series begin at places spread evenly over its days. A trading day
# takes DAY_MS of market time, and between two closes the price moves in a straight line. At its last day a series
# turns and runs backwards, so that every price lies between two real neighbouring closes, for ever.


DAILY = Path(__file__).parent / "data" / "stocks" / "daily.csv"
# What a specification calls them; anything else is the path of a file of the same form.
BUILT_IN = "five-companies"
DAY_MS = 5_000
HEADER = "szcode,date,close"
_SYMBOL = re.compile(r"[A-Z][A-Z0-9.]{0,9}")
# The real closes have up to four decimals; whole numbers keep every price exact until it is rounded to cents.
_UNITS = 10_000
_UNITS_PER_CENT = 100
_MAX_PRICE = 1_000_000  # dollars


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


def _require(is_valid: bool, path: Path, line: int, problem: str) -> None:
    if not is_valid:
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
    _require(price.is_finite() and 0 < price <= _MAX_PRICE, path, number, f"{close!r} is not a price")
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
