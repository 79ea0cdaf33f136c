"""The streams of a stock exchange: STOCK (quotes), TRANSACTION (trades) and POSITION (holdings), from one seed.

Each record is one JSON object that names its stream. Prices are those of one market: a quote is the price at its
event time, a trade lies within SPREAD of it, and a position is valued at its user's last trade. Each user trades each
of its stocks every ROUND_MS at an instant of its own; what it holds, and at which price, changes only then.

Event time is the time of the market: a record that is due d after T0 happened d after the opening. By hash of the
record number some records are late and some out of order, see `Shifts`. The market traded before that opening, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from generators.chance import blocks, draw_bits, draw_uniform, stream_key
from generators.pacing import Schedule
from generators.prices import Market
from generators.ranks import MovingExponent, RankTables, cumulative

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
MOST_LOTS = 50

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Shifts:
    """Which records happened earlier than their place in the schedule says, and by how much."""

    late: float  # share that is LATE_MS earlier
    disorder: float  # share that is earlier by at most half the watermark
    watermark_ms: int
    key: int
    amount_key: int

    def of(self, records: NDArray[np.uint64]) -> Ints:
        """Milliseconds by which each record is earlier, mostly 0; shape (n,)."""
        # One draw decides both, so a record is late or out of order, never both, and each share is what was asked for.
        lot = draw_uniform(self.key, records)
        most = self.watermark_ms // 2
        some = (draw_uniform(self.amount_key, records) * most).astype(np.int64) + (1 if most else 0)
        shifted = np.where(lot < self.late + self.disorder, some, 0)
        return np.where(lot < self.late, LATE_MS, shifted)


class StockStreams:
    """A source of the streams of one exchange; record k is the same whoever asks, for equal parameters."""

    def __init__(
        self,
        market: Market,
        schedule: Schedule,
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
        self._streams, self._bounds = tuple(streams), _bounds(streams)
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
        return self._lines(records, due_ms - self._shifts.of(records), hundredths)

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
            dollars, cents = _parts(self._market.cents(listings, event_ms))
            form = b'{"stream":"STOCK","szcode":"%b","eventTime":"%bZ","lastPrice":%d.%02d}'
            return list(map(form.__mod__, zip(codes, times, dollars, cents, strict=True)))
        if name == TRANSACTION:
            dollars, cents = _parts(self._traded(records, self._market.cents(listings, event_ms)))
            shares = _lots(draw_uniform(self._size_key, records))
            form = b'{"stream":"TRANSACTION","szcode":"%b","userID":%d,"eventTime":"%bZ","Turnover":%d,"Price":%d.%02d}'
            values = zip(codes, users.tolist(), times, shares, dollars, cents, strict=True)
            return list(map(form.__mod__, values))
        traded_ms, shares = self._held(listings, users, event_ms)
        dollars, cents = _parts(self._market.cents(listings, traded_ms))
        form = (
            b'{"stream":"POSITION","userID":%d,"szcode":"%b","eventTime":"%bZ","lastPrice":%d.%02d,"openInterest":%d}'
        )
        return list(map(form.__mod__, zip(users.tolist(), codes, times, dollars, cents, shares, strict=True)))

    def _traded(self, records: NDArray[np.uint64], cents: Ints) -> Ints:
        """Prices of trades: at most SPREAD from the market's, and at least a cent."""
        aside = (2 * draw_uniform(self._spread_key, records) - 1) * SPREAD
        return np.maximum(1, cents + np.rint(cents * aside).astype(np.int64))

    def _held(self, listings: Ints, users: Ints, event_ms: Ints) -> tuple[Ints, list[int]]:
        """When each user last traded the stock (never after the event), and how many shares it has held since then."""
        pairs = (users * len(self._szcodes) + listings).astype(np.uint64)
        phase = (draw_bits(self._instant_key, pairs) % np.uint64(ROUND_MS)).astype(np.int64)
        rounds = (event_ms - phase) // ROUND_MS
        turn = draw_bits(self._holding_key, pairs) + rounds.astype(np.uint64)
        return rounds * ROUND_MS + phase, _lots(draw_uniform(self._holding_key, turn))


def _bounds(streams: Sequence[str]) -> NDArray[np.float64]:
    """Where the unit interval is cut so that each stream gets its share; shape (streams − 1,)."""
    others = len(streams) - (STOCK in streams)
    if others == 0 or others == len(streams):
        shares = [1 / len(streams)] * len(streams)
    else:
        shares = [STOCK_SHARE if name == STOCK else (1 - STOCK_SHARE) / others for name in streams]
    return np.cumsum(shares)[:-1]


def _lots(draws: NDArray[np.float64]) -> list[int]:
    """Shares in whole lots, 1 to MOST_LOTS of them."""
    lots: list[int] = (((draws * MOST_LOTS).astype(np.int64) + 1) * LOT).tolist()
    return lots


def _times(event_ms: Ints) -> list[bytes]:
    """Moments after the opening as 2013-03-01T14:30:00.123, without the zone."""
    texts: list[bytes] = (
        np.datetime_as_string(OPEN + event_ms.astype("timedelta64[ms]"), unit="ms").astype("S").tolist()
    )
    return texts


def _parts(cents: Ints) -> tuple[list[int], list[int]]:
    """Whole dollars, and the cents beyond."""
    return (cents // 100).tolist(), (cents % 100).tolist()
