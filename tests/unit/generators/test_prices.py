"""The price file is the real one and refused line by line when it is not; prices lie between neighbouring closes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from generators.journal import InputError
from generators.stock import DAILY, DAY_MS, Market, read_closes

CLOSES = read_closes()
MARKET = Market(103, CLOSES)


def at(market: Market, listing: int, *moments_ms: int) -> list[int]:
    moments = np.array(moments_ms, dtype=np.int64)
    return market.cents(np.full(len(moments), listing, dtype=np.int64), moments).tolist()


def test_the_daily_file_holds_the_five_real_series() -> None:
    days = {symbol: len(closes) for symbol, closes in CLOSES.items()}
    assert days == {"AAPL": 3270, "FB": 196, "GOOG": 2148, "IBM": 3270, "MSFT": 3270}
    last = {symbol: int(closes[-1]) for symbol, closes in CLOSES.items()}
    assert last == {"AAPL": 4304700, "FB": 277800, "GOOG": 8061900, "IBM": 2029100, "MSFT": 279500}
    assert "2013-03-01,27.95" in DAILY.read_text()
    assert "public domain" in (DAILY.parent / "README.md").read_text()


def test_listings_are_dealt_in_turn() -> None:
    assert MARKET.szcodes[:6] == [b"AAPL-000", b"FB-000", b"GOOG-000", b"IBM-000", b"MSFT-000", b"AAPL-001"]
    assert len(set(MARKET.szcodes)) == 103 and MARKET.szcodes[-1] == b"GOOG-020"
    assert Market(10_000, CLOSES).szcodes[-1] == b"MSFT-1999"


@pytest.mark.parametrize("stocks", [1, 4, 103, 900])
def test_each_listing_begins_at_another_day_of_its_series(stocks: int) -> None:
    market = Market(stocks, CLOSES)
    for series in range(5):
        starts = market._start_ms[series::5] // DAY_MS
        assert len(set(starts.tolist())) == len(starts)


def test_the_first_listing_of_a_series_plays_it_day_by_day() -> None:
    closes = ((CLOSES["AAPL"] + 50) // 100).tolist()
    days = len(closes)
    assert at(MARKET, 0, *range(0, days * DAY_MS, DAY_MS)) == closes
    back = [at(MARKET, 0, (2 * (days - 1) - day) * DAY_MS)[0] for day in range(days)]
    assert back == closes  # and turns at the end
    half = (CLOSES["AAPL"][0] + CLOSES["AAPL"][1]) / 200
    assert abs(at(MARKET, 0, DAY_MS // 2)[0] - half) <= 0.5


@given(st.integers(0, 102), st.integers(-4_000_000, 10**10))
def test_prices_lie_between_neighbouring_closes_and_do_not_jump(listing: int, moment_ms: int) -> None:
    series = CLOSES[sorted(CLOSES)[listing % 5]]
    now, soon = at(MARKET, listing, moment_ms, moment_ms + 1)
    low, high = np.minimum(series[:-1], series[1:]) - 50, np.maximum(series[:-1], series[1:]) + 50
    assert ((low <= now * 100) & (now * 100 <= high)).any()
    steepest = np.abs(np.diff(series)).max() / 100 / DAY_MS
    assert abs(soon - now) <= steepest + 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: no price"),
        ("szcode,date\n", "line 1: the header is not szcode,date,close"),
        ("szcode,date,close\n", "line 2: no price"),
        ("szcode,date,close\nA,2013-03-01\n", "line 2: 2 fields instead of 3"),
        ("szcode,date,close\nA,2013-03-01,1\n\n", "line 3: 1 fields instead of 3"),
        ("szcode,date,close\na b,2013-03-01,1\n", "line 2: 'a b' is not a symbol"),
        ("szcode,date,close\nA,01.03.2013,1\n", "line 2: '01.03.2013' is not a date"),
        ("szcode,date,close\nA,2013-02-30,1\n", "line 2: '2013-02-30' is not a date"),
        ("szcode,date,close\nA,2013-03-01,x\n", "line 2: 'x' is not a price"),
        ("szcode,date,close\nA,2013-03-01,nan\n", "line 2: 'nan' is not a price"),
        ("szcode,date,close\nA,2013-03-01,-1\n", "line 2: '-1' is not a price"),
        ("szcode,date,close\nA,2013-03-01,0\n", "line 2: '0' is not a price"),
        ("szcode,date,close\nA,2013-03-01,1e9\n", "line 2: '1e9' is not a price"),
        ("szcode,date,close\nA,2013-03-01,1.00001\n", "line 2: '1.00001' has more than four decimals"),
        ("szcode,date,close\nA,2013-03-01,0.001\n", "line 2: '0.001' is less than a cent"),
        ("szcode,date,close\nA,2013-03-02,1\nA,2013-03-01,1\n", "line 3: A 2013-03-01 is not after A 2013-03-02"),
        ("szcode,date,close\nA,2013-03-01,1\nA,2013-03-01,1\n", "line 3: A 2013-03-01 is not after"),
        ("szcode,date,close\nB,2013-03-01,1\nA,2013-03-02,1\n", "line 3: A 2013-03-02 is not after B"),
        ("szcode,date,close\nA,2013-03-01,1\n", "line 2: A has one day only"),
    ],
)
def test_malformed_files_are_named_with_the_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "p.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=f"p.csv, {message}") as refusal:
        read_closes(path)
    assert "\n" not in str(refusal.value)


def test_missing_and_unreadable_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="none.csv cannot be read: No such file"):
        read_closes(tmp_path / "none.csv")
    with pytest.raises(InputError, match="cannot be read: Is a directory"):
        read_closes(tmp_path)
    (tmp_path / "p.csv").write_bytes(b"szcode,date,close\nA,2013-03-01,1\nA,2013-03-02,\xff\n")
    with pytest.raises(InputError, match="p.csv, line 3: not UTF-8"):
        read_closes(tmp_path / "p.csv")


def test_files_with_windows_line_ends_are_read(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_bytes(b"szcode,date,close\r\nA,2013-03-01,1.5\r\nA,2013-03-04,2.25\r\n")
    assert {symbol: days.tolist() for symbol, days in read_closes(tmp_path / "p.csv").items()} == {"A": [15000, 22500]}
